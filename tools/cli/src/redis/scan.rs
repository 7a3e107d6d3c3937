//! All keys of a prefix, by SCAN: other clients of Redis are served in between.

use anyhow::Context;
use redis::{RedisError, cmd, pipe};

use super::servers::Server;

/// How many keys Redis looks at in a step.
const STEP: usize = 1_000;

/// The value of a key, and its TTL.
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    pub(super) ttl_ms: i64,
}

/// The keys of a pattern, a step at a time.
pub(super) struct Scan {
    pattern: String,
    /// `None`: the scan has ended.
    cursor: Option<String>,
}

impl Scan {
    /// All keys of a prefix, or those of a client.
    pub(super) fn new(prefix: &str, client: Option<&str>) -> Self {
        let client = client.map_or("*".to_owned(), |client| {
            format!("{{{}}}:*", escaped(client))
        });
        let pattern = format!("{}:*{client}", escaped(prefix));
        Self {
            pattern,
            cursor: Some("0".to_owned()),
        }
    }

    /// Some more keys. `None`: there are no more. A key may come twice.
    pub(super) async fn next(
        &mut self,
        server: &mut Server,
    ) -> anyhow::Result<Option<Vec<String>>> {
        let Some(cursor) = self.cursor.take() else {
            return Ok(None);
        };
        let mut scan = cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(&self.pattern)
            .arg("COUNT")
            .arg(STEP);
        let answer = scan.query_async(&mut server.connection).await;
        let (cursor, keys): (String, Vec<Vec<u8>>) =
            answer.with_context(|| format!("{}: SCAN", server.address))?;
        self.cursor = (cursor != "0").then_some(cursor);
        // The library's keys are text.
        Ok(Some(
            keys.into_iter()
                .filter_map(|key| String::from_utf8(key).ok())
                .collect(),
        ))
    }
}

/// Reads the values of keys. Those that have expired in between, and those of other types, are left
/// out.
pub(super) async fn read(server: &mut Server, keys: &[String]) -> anyhow::Result<Vec<Entry>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut types = pipe();
    for key in keys {
        types.cmd("TYPE").arg(key);
    }
    let types: Vec<String> = types
        .query_async(&mut server.connection)
        .await
        .with_context(|| format!("{}: TYPE", server.address))?;
    let keys: Vec<_> = keys
        .iter()
        .zip(&types)
        .filter(|(_, kind)| *kind == "string")
        .map(|(key, _)| key)
        .collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut values = pipe();
    for key in &keys {
        values.cmd("GET").arg(key).cmd("PTTL").arg(key);
    }
    // A key of another program may become one of another type in between.
    let values: Vec<redis::Value> = values
        .ignore_errors()
        .query_async(&mut server.connection)
        .await
        .with_context(|| format!("{}: GET", server.address))?;
    let mut entries = Vec::new();
    for (key, pair) in keys.iter().zip(values.chunks_exact(2)) {
        let value = match &pair[0] {
            redis::Value::BulkString(value) => Some(value),
            redis::Value::ServerError(error) if error.code() != "WRONGTYPE" => {
                return Err(RedisError::from(error.clone()))
                    .with_context(|| format!("{}: GET", server.address));
            }
            _ => None,
        };
        if let Some(value) = value {
            let ttl_ms = redis::from_redis_value(pair[1].clone())?;
            entries.push(Entry {
                key: (*key).clone(),
                value: value.clone(),
                ttl_ms,
            });
        }
    }
    Ok(entries)
}

/// A text without the meaning that SCAN's patterns give to some characters.
fn escaped(text: &str) -> String {
    let special = |it: char| matches!(it, '*' | '?' | '[' | ']' | '\\' | '^');
    text.chars()
        .flat_map(|it| special(it).then_some('\\').into_iter().chain([it]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_takes_prefix_and_client_literally() {
        assert_eq!(Scan::new("a*b", Some("[*]")).pattern, r"a\*b:*{\[\*\]}:*");
        assert_eq!(Scan::new("tollgate", None).pattern, "tollgate:**");
    }
}
