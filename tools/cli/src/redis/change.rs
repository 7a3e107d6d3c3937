//! `tollgate peek`, `reset` and `block`: what the library does, from the command line.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use tollgate::limit::BlockPolicy;
use tollgate::{Limit, Quota, RateLimiter};

use super::confirm::confirmed;
use super::name::{Kind, Name, client};
use super::show::keys_of;
use super::{scan, servers};
use crate::arguments::{BlockArguments, PeekArguments, RedisArguments, ResetArguments};
use crate::limit::LimitSpec;
use crate::output::{self, printable};

async fn limiter(redis: &RedisArguments) -> anyhow::Result<RateLimiter> {
    Ok(RateLimiter::new(redis.store().connect().await?))
}

pub(crate) async fn peek(arguments: PeekArguments) -> anyhow::Result<ExitCode> {
    let limit = arguments.limit.limit(&arguments.name)?;
    let key = client(&arguments.key);
    let limiter = limiter(&arguments.redis).await?;
    let decision = limiter.peek(&limit, &key, arguments.cost).await?;
    // The budget as it is, and not as it would be afterwards.
    let budget = limiter.peek(&limit, &key, 0).await?;
    let ms = |time: Duration| time.as_millis() as u64;
    if arguments.json {
        let answer = json!({
            "client": key.as_str(),
            "limit": limit.name(),
            "allowed": decision.allowed(),
            "capacity": budget.capacity(),
            "remaining": budget.remaining(),
            "retry_after_ms": decision.retry_after().map(ms),
            "reset_after_ms": ms(budget.reset_after()),
            "blocked": decision.is_blocked(),
        });
        output::print(&answer.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = match (decision.allowed(), decision.is_blocked()) {
        (_, true) => "blocked",
        (true, false) => "allowed",
        (false, false) => "denied",
    };
    let wait = decision.retry_after().map(|wait| {
        format!(", {} {} after {}", arguments.cost, plural(arguments.cost), short(wait))
    });
    output::print(&format!(
        "{verdict}: {} of {} left{}, full in {}",
        budget.remaining(),
        budget.capacity(),
        wait.unwrap_or_default(),
        short(budget.reset_after())
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn plural(units: u32) -> &'static str {
    if units == 1 { "unit" } else { "units" }
}

/// To the millisecond, rounded up.
fn short(time: Duration) -> String {
    let ms = time.as_micros().div_ceil(1_000) as u64;
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

pub(crate) async fn reset(arguments: ResetArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let client = printable(key.as_str());
    let (in_flight, budgets): (BTreeSet<_>, BTreeSet<_>) = budgets_of(&arguments, key.as_str())
        .await?
        .into_iter()
        .partition(|(_, kind)| *kind == Kind::InFlight);
    for (name, _) in in_flight {
        eprintln!(
            "{}: requests in flight are not reset: the processes hold them, and a crashed one's end by themselves",
            printable(&name)
        );
    }
    if budgets.is_empty() {
        let of = arguments.name.as_ref().map(|name| format!(" under {}", printable(name)));
        output::print(&format!("no budget of `{client}`{}: it is full", of.unwrap_or_default()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = budgets.iter().map(|(name, _)| printable(name)).collect();
    let names = names.join(", ");
    if !confirmed(&format!("Reset `{client}` under {names}?"), arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let limiter = limiter(&arguments.redis).await?;
    for (name, kind) in &budgets {
        let Some(algorithm) = kind.algorithm() else { continue };
        // A budget is found by its name and its kind. The quota does not matter.
        let limit = any_quota(algorithm, name)?.block_offenders(BlockPolicy::by_operators())?;
        limiter.reset(&limit, &key).await.with_context(|| format!("reset of {name}"))?;
    }
    // On a cluster, keys of another number of partitions are other keys.
    let is_cluster = arguments.redis.url.contains("-cluster://");
    if is_cluster && budgets.is_subset(&budgets_of(&arguments, key.as_str()).await?) {
        bail!("the budgets are still there: give --partitions as your services set them");
    }
    for (name, _) in &budgets {
        output::print(&format!("reset {}", printable(name)))?;
    }
    Ok(ExitCode::SUCCESS)
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

fn any_quota(algorithm: &str, name: &str) -> anyhow::Result<Limit> {
    let spec: LimitSpec = format!("{algorithm} 1/s").parse()?;
    spec.limit(name)
}

pub(crate) async fn block(arguments: BlockArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let limit = any_quota(arguments.limit.trim(), &arguments.name)?;
    let limit = limit.block_offenders(BlockPolicy::by_operators())?;
    let (name, length, client) = (limit.name(), arguments.length, printable(key.as_str()));
    if length > Quota::per_day(1).period() * 366 {
        bail!("a block lasts 366 days at most");
    }
    let question = match length {
        Duration::ZERO => format!("End the block of `{client}` under {name}?"),
        _ => format!("Block `{client}` under {name} for {}?", short(length)),
    };
    if !confirmed(&question, arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let limiter = limiter(&arguments.redis).await?;
    let done = if length.is_zero() {
        limiter.unblock(&limit, &key).await?;
        format!("`{client}` is not blocked under {name}")
    } else {
        limiter.block(&limit, &key, length).await?;
        format!(
            "`{client}` is blocked under {name} for {}, in services whose limit blocks keys",
            short(length)
        )
    };
    output::print(&done)?;
    Ok(ExitCode::SUCCESS)
}
