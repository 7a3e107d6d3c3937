//! `tollgate reset`: gives a client its budgets back.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use tollgate::{Limit, RateLimiter};

use super::confirm::confirmed;
use super::limiter::{OTHER_PARTITIONS, any_quota, has_tag, store};
use super::name::{Kind, Name, client, hint};
use super::show::keys_of;
use super::{scan, servers};
use crate::arguments::ResetArguments;
use crate::output::{self, printable, shortened};

/// The budgets of a client in Redis, by the name of the limit and by kind, each with the tags of
/// its partitions.
type Budgets = BTreeMap<(String, Kind), Vec<Option<String>>>;

pub(crate) async fn run(arguments: ResetArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let client = printable(key.as_str());
    let found = budgets_of(&arguments, key.as_str()).await?;
    if found.is_empty() {
        let of = arguments
            .name
            .as_ref()
            .map(|name| format!(" under {}", printable(name)));
        output::print(&format!(
            "no budget of `{client}`{}: it is full",
            of.unwrap_or_default()
        ))?;
        hint(&arguments.key)
            .iter()
            .for_each(|hint| output::note(hint));
        return Ok(ExitCode::SUCCESS);
    }
    let mut limits = Vec::new();
    for ((name, kind), tags) in &found {
        match limit_of(name, *kind) {
            Ok(limit) => limits.push((limit, tags)),
            Err(why) => output::note(&format!("{}: {why}", shortened(name))),
        }
    }
    let names = limits
        .iter()
        .map(|(limit, _)| limit.name())
        .collect::<Vec<_>>()
        .join(", ");
    let is_wanted =
        |names: &str| confirmed(&format!("Reset `{client}` under {names}?"), arguments.yes);
    if limits.is_empty() || !is_wanted(&names)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = store(&arguments.redis).await?;
    let prefix = arguments.redis.prefix();
    for (limit, tags) in &limits {
        if !tags
            .iter()
            .any(|tag| has_tag(&store, prefix, (limit, &key), tag.as_deref()))
        {
            bail!(OTHER_PARTITIONS);
        }
    }
    let limiter = RateLimiter::new(store);
    for (limit, _) in &limits {
        let reset = limiter.reset(limit, &key).await;
        reset.with_context(|| format!("reset of {}", limit.name()))?;
        output::print(&format!("reset {}", limit.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The limit of a budget, or why it is not reset.
fn limit_of(name: &str, kind: Kind) -> Result<Limit, &'static str> {
    let algorithm = kind.algorithm().ok_or(
        "requests in flight are not reset: they end with their responses, or with the lease of a \
         crashed process",
    )?;
    any_quota(algorithm, name).map_err(|_| "no limit can have this name, so it is not reset")
}

async fn budgets_of(arguments: &ResetArguments, client: &str) -> anyhow::Result<Budgets> {
    let prefix = arguments.redis.prefix();
    let is_wanted = |name: &Name<'_>| arguments.name.as_deref().is_none_or(|it| it == name.limit);
    let mut budgets = Budgets::new();
    for mut server in servers::connect(&arguments.redis.url, &arguments.redis.tls).await? {
        let keys = Vec::from_iter(keys_of(&mut server, prefix, client).await?);
        // Keys of other types are keys of other programs.
        for entry in scan::read(&mut server, &keys).await? {
            if let Some(name) = Name::parse(&entry.key, prefix).filter(is_wanted) {
                let tags = budgets
                    .entry((name.limit.to_owned(), name.kind))
                    .or_default();
                tags.push(name.tag.map(str::to_owned));
            }
        }
    }
    Ok(budgets)
}
