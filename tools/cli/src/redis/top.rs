//! `tollgate top`: the keys that all replicas denied most often.

use std::collections::BTreeMap;
use std::process::ExitCode;

use redis::RedisError;
use serde::Serialize;

use super::servers::{self, Server};
use crate::arguments::TopArguments;
use crate::output::{self, shortened};
use crate::table;

/// A minute of `scripts/denied.lua`: the denials by limit and key.
type Minute = BTreeMap<String, BTreeMap<String, u64>>;

#[derive(Debug, Serialize)]
struct Denied {
    limit: String,
    key: String,
    denials: u64,
}

pub(crate) async fn run(arguments: TopArguments) -> anyhow::Result<ExitCode> {
    let prefix = arguments.redis.prefix();
    let mut all = Minute::new();
    for mut server in servers::connect(&arguments.redis.url, &arguments.redis.tls).await? {
        let now = server.now(prefix).await? / 60_000_000;
        // A service whose clock is a minute ahead writes into the next one.
        for minute in now.saturating_sub(arguments.minutes)..=now + 1 {
            let key = format!("{prefix}:denied:{minute}");
            for (limit, keys) in read(&mut server, &key).await? {
                let sums = all.entry(limit).or_default();
                for (key, denials) in keys {
                    *sums.entry(key).or_default() += denials;
                }
            }
        }
    }
    let is_wanted = |limit: &str| arguments.name.as_deref().is_none_or(|name| name == limit);
    let mut denied: Vec<_> = all
        .into_iter()
        .filter(|(limit, _)| is_wanted(limit))
        .flat_map(|(limit, keys)| {
            keys.into_iter().map(move |(key, denials)| Denied {
                limit: limit.clone(),
                key,
                denials,
            })
        })
        .collect();
    denied.sort_by_key(|it| std::cmp::Reverse(it.denials));
    denied.truncate(arguments.max);
    if arguments.json {
        for it in &denied {
            if !output::print_to_reader(&output::json(it, false)?)? {
                break;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if denied.is_empty() {
        output::print(&format!(
            "no denied key in the last {} min; services note theirs at the end of a minute, if \
             they count them (RateLimiter::count_denied_keys)",
            arguments.minutes
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table::plain(&["client", "limit", "denials"], &["denials"]);
    for it in &denied {
        table.add_row([
            shortened(&it.key),
            shortened(&it.limit),
            it.denials.to_string(),
        ]);
    }
    output::print(&table.trim_fmt())?;
    Ok(ExitCode::SUCCESS)
}

/// The keys of a minute. Another node of a cluster may have it, and a value of another program
/// counts as none.
async fn read(server: &mut Server, key: &str) -> anyhow::Result<Minute> {
    let value: String = match server.ask(&["GETRANGE", key, "0", "-1"]).await {
        Ok(value) => value,
        Err(error) => {
            let of_redis = error.chain().find_map(|it| it.downcast_ref::<RedisError>());
            let code = of_redis.and_then(RedisError::code);
            return match code {
                Some("MOVED" | "ASK" | "WRONGTYPE") => Ok(Minute::new()),
                _ => Err(error),
            };
        }
    };
    Ok(serde_json::from_str(&value).unwrap_or_default())
}
