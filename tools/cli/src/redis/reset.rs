//! `tollgate reset`: gives a client its budgets back.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tollgate::Limit;

use super::confirm::confirmed;
use super::limiter::{any_quota, limiter};
use super::name::{Kind, Name, client, hint};
use super::show::keys_of;
use super::{scan, servers};
use crate::arguments::ResetArguments;
use crate::output::{self, printable, shortened};

pub(crate) async fn run(arguments: ResetArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let client = printable(key.as_str());
    let found = budgets_of(&arguments, key.as_str()).await?;
    let mut budgets = BTreeMap::new();
    for (name, kind) in &found {
        match limit_of(name, *kind) {
            Ok(limit) => drop(budgets.insert((name.clone(), *kind), limit)),
            Err(why) => output::note(&format!("{}: {why}", shortened(name))),
        }
    }
    if budgets.is_empty() {
        let of = arguments.name.as_ref().map(|name| format!(" under {}", printable(name)));
        output::print(&format!("no budget of `{client}`{}: it is full", of.unwrap_or_default()))?;
        hint(&arguments.key).iter().for_each(|hint| output::note(hint));
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = budgets.values().map(Limit::name).collect();
    let names = names.join(", ");
    if !confirmed(&format!("Reset `{client}` under {names}?"), arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let limiter = limiter(&arguments.redis).await?;
    for limit in budgets.values() {
        let reset = limiter.reset(limit, &key).await;
        reset.with_context(|| format!("reset of {}", limit.name()))?;
    }
    // On a cluster, keys of another number of partitions are other keys.
    if arguments.redis.url.contains("-cluster://") {
        let left = budgets_of(&arguments, key.as_str()).await?;
        if budgets.keys().all(|budget| left.contains(budget)) {
            bail!("the budgets are still there: give --partitions as your services set them");
        }
    }
    for limit in budgets.values() {
        output::print(&format!("reset {}", limit.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The limit of a budget, or why it is not reset.
fn limit_of(name: &str, kind: Kind) -> Result<Limit, &'static str> {
    let algorithm = kind.algorithm().ok_or(
        "requests in flight are not reset: the processes hold them, and a crashed one's end by themselves",
    )?;
    let algorithm = algorithm.parse().map_err(|_| "its kind is unknown")?;
    any_quota(algorithm, name).map_err(|_| "no limit can have this name, so it is not reset")
}

/// The budgets of a client in Redis: the names of their limits, and their kinds.
async fn budgets_of(
    arguments: &ResetArguments,
    client: &str,
) -> anyhow::Result<BTreeSet<(String, Kind)>> {
    let prefix = arguments.redis.prefix();
    let is_wanted = |name: &Name<'_>| arguments.name.as_deref().is_none_or(|it| it == name.limit);
    let mut budgets = BTreeSet::new();
    for mut server in servers::connect(&arguments.redis.url).await? {
        let keys = Vec::from_iter(keys_of(&mut server, prefix, client).await?);
        // Keys of other types are keys of other programs.
        for entry in scan::read(&mut server, &keys).await? {
            let name = Name::parse(&entry.key, prefix).filter(is_wanted);
            budgets.extend(name.map(|name| (name.limit.to_owned(), name.kind)));
        }
    }
    Ok(budgets)
}
