//! `tollgate top`: the keys that all replicas denied most often.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;

use super::servers;
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
        for minute in (now + 1).saturating_sub(arguments.minutes)..=now {
            let key = format!("{prefix}:denied:{minute}");
            let text = server.text_at(&key).await?.unwrap_or_default();
            // A value of another program counts as none.
            let minute: Minute = serde_json::from_str(&text).unwrap_or_default();
            for (limit, keys) in minute {
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
            "no denied key in the last {} min, or the prefix is another; services note theirs at \
             the end of a minute, if they count them (RateLimiterBuilder::count_denied_keys)",
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
