//! `tollgate keys`: the budgets in Redis.

use std::collections::HashSet;
use std::process::ExitCode;

use serde::Serialize;

use super::name::Name;
use super::scan::{Entry, Scan, read};
use super::servers::{self, Server};
use super::value::Value;
use crate::arguments::KeysArguments;
use crate::output::{self, printable};
use crate::table;

/// A budget, or the offences of a key.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    client: String,
    limit: String,
    what: String,
    #[serde(flatten)]
    value: Value,
    /// Until Redis deletes it.
    expires_in_ms: i64,
    key: String,
}

impl Row {
    /// `None`: the key is another program's.
    pub(super) fn of(entry: &Entry, prefix: &str, now: u64) -> Option<Self> {
        let name = Name::parse(&entry.key, prefix)?;
        Some(Self {
            client: name.client.to_owned(),
            limit: name.limit.to_owned(),
            what: name.what(),
            value: Value::read(&entry.value, now),
            expires_in_ms: entry.ttl_ms,
            key: entry.key.clone(),
        })
    }
}

pub(crate) async fn run(arguments: KeysArguments) -> anyhow::Result<ExitCode> {
    let prefix = arguments.redis.prefix();
    let is_wanted = |key: &str| {
        Name::parse(key, prefix).is_some_and(|name| {
            arguments.limit.as_deref().is_none_or(|limit| limit == name.limit)
                && arguments.containing.as_deref().is_none_or(|text| name.client.contains(text))
        })
    };
    let (mut rows, mut more) = (Vec::new(), false);
    'servers: for mut server in servers::connect(&arguments.redis.url).await? {
        let (mut scan, mut seen) = (Scan::new(prefix, None), HashSet::new());
        while let Some(mut keys) = scan.next(&mut server).await? {
            keys.retain(|key| is_wanted(key) && seen.insert(key.clone()));
            more = rows.len() + keys.len() > arguments.max;
            keys.truncate(arguments.max - rows.len());
            rows.extend(rows_of(&mut server, &keys, prefix).await?);
            if more {
                break 'servers;
            }
        }
    }
    print(&rows, arguments.json)?;
    if more {
        eprintln!("there are more: --max shows more than {}", arguments.max);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rows_of(
    server: &mut Server,
    keys: &[String],
    prefix: &str,
) -> anyhow::Result<Vec<Row>> {
    let now = server.now().await?;
    let entries = read(server, keys).await?;
    Ok(entries.iter().filter_map(|entry| Row::of(entry, prefix, now)).collect())
}

/// Prints a table, or a JSON object a line.
pub(super) fn print(rows: &[Row], json: bool) -> anyhow::Result<()> {
    let text = if json {
        let lines: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
        lines?.join("\n")
    } else if rows.is_empty() {
        "no keys: every budget is full, or the prefix is another".to_owned()
    } else {
        let heads = ["client", "limit", "what", "used", "details", "expires in"];
        let mut table = table::new(&heads, &["used"]);
        for row in rows {
            let ttl = std::time::Duration::from_secs(
                row.expires_in_ms.max(0).unsigned_abs().div_ceil(1_000),
            );
            table.add_row([
                printable(&row.client),
                printable(&row.limit),
                row.what.clone(),
                row.value.used(),
                row.value.details(),
                humantime::format_duration(ttl).to_string(),
            ]);
        }
        table.to_string()
    };
    Ok(output::print(&text)?)
}
