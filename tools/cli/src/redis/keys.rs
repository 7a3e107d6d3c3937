//! `tollgate keys`: the budgets in Redis.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::name::Name;
use super::scan::{Entry, Scan, read};
use super::servers::{self, Server};
use super::value::Value;
use crate::arguments::KeysArguments;
use crate::duration::rounded;
use crate::output::{self, shortened};
use crate::table;

/// A budget, or the offences of a key.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    client: String,
    limit: String,
    what: String,
    #[serde(flatten)]
    value: Value,
    /// Until Redis deletes it. `None`: it has no TTL, so another program wrote it.
    expires_in_ms: Option<u64>,
    key: String,
}

impl Row {
    /// `None`: the key is another program's.
    pub(super) fn of(entry: &Entry, prefix: &str, now: u64) -> Option<Self> {
        let (name, value) = (
            Name::parse(&entry.key, prefix)?,
            Value::read(&entry.value, now),
        );
        Some(Self {
            client: name.client.to_owned(),
            limit: name.limit.to_owned(),
            what: match &value {
                Value::Offences {
                    blocked_for_ms: 0, ..
                } => {
                    format!("denials ({})", name.kind.name())
                }
                Value::Offences { .. } => format!("block ({})", name.kind.name()),
                _ => name.kind.name().to_owned(),
            },
            value,
            expires_in_ms: u64::try_from(entry.ttl_ms).ok(),
            key: entry.key.clone(),
        })
    }
}

pub(crate) async fn run(arguments: KeysArguments) -> anyhow::Result<ExitCode> {
    let prefix = arguments.redis.prefix();
    let is_wanted = |key: &str| {
        Name::parse(key, prefix).is_some_and(|name| {
            arguments
                .name
                .as_deref()
                .is_none_or(|limit| limit == name.limit)
                && arguments
                    .containing
                    .as_deref()
                    .is_none_or(|text| name.client.contains(text))
        })
    };
    let (mut rows, mut count, mut more) = (Vec::new(), 0, false);
    'servers: for mut server in servers::connect(&arguments.redis.url, &arguments.redis.tls).await?
    {
        let (mut scan, mut seen) = (Scan::new(prefix, None), HashSet::new());
        while let Some(mut keys) = scan.next(&mut server).await? {
            keys.retain(|key| is_wanted(key) && seen.insert(key.clone()));
            more = count + keys.len() > arguments.max;
            keys.truncate(arguments.max - count);
            let mut new = rows_of(&mut server, &keys, prefix).await?;
            // A full budget stays until it expires, and says nothing of its client.
            new.retain(|row| !row.value.is_full());
            count += new.len();
            // The columns of a table are as wide as their widest cell. JSON lines are printed at
            // once.
            if !arguments.json {
                rows.extend(new);
            } else if !print_json(&new)? {
                return Ok(ExitCode::SUCCESS);
            }
            if more {
                break 'servers;
            }
        }
    }
    if !arguments.json {
        let is_filtered = arguments.name.is_some() || arguments.containing.is_some();
        print_table(
            &rows,
            match is_filtered {
                true => "no key matches the given --name or --containing",
                false => "no keys: every budget is full, or the prefix is another",
            },
        )?;
    }
    if more {
        output::note(&format!(
            "there are more: --max shows more than {}",
            arguments.max
        ));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rows_of(
    server: &mut Server,
    keys: &[String],
    prefix: &str,
) -> anyhow::Result<Vec<Row>> {
    let now = server.now(prefix).await?;
    let entries = read(server, keys).await?;
    Ok(entries
        .iter()
        .filter_map(|entry| Row::of(entry, prefix, now))
        .collect())
}

/// Prints a JSON object a line. Returns whether there is a reader.
pub(super) fn print_json(rows: &[Row]) -> anyhow::Result<bool> {
    for row in rows {
        if !output::print_to_reader(&output::json(row, false)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Prints a table, or a text if it would be empty.
pub(super) fn print_table(rows: &[Row], if_empty: &str) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(output::print(if_empty)?);
    }
    let heads = ["client", "limit", "what", "used", "details", "expires in"];
    let mut table = table::plain(&heads, &["used"]);
    for row in rows {
        let expires_in = row
            .expires_in_ms
            .map(|ms| rounded(Duration::from_millis(ms)));
        table.add_row([
            shortened(&row.client),
            shortened(&row.limit),
            row.what.clone(),
            row.value.used(),
            row.value.details(),
            expires_in.unwrap_or_else(|| "never".to_owned()),
        ]);
    }
    Ok(output::print(&table.trim_fmt())?)
}
