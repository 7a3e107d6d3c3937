//! `tollgate peek`, `reset` and `block`: what the library does, from the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use tollgate::limit::BlockPolicy;
use tollgate::{Limit, Quota, RateLimiter};

use super::confirm::confirmed;
use super::name::{Kind, Name, client, hint};
use super::scan::Scan;
use super::show::keys_of;
use super::{scan, servers};
use crate::arguments::{BlockArguments, PeekArguments, RedisArguments, ResetArguments};
use crate::limit::{Algorithm, LimitSpec};
use crate::output::{self, printable, shortened};

async fn limiter(redis: &RedisArguments) -> anyhow::Result<RateLimiter> {
    Ok(RateLimiter::new(redis.store().connect().await?))
}

pub(crate) async fn peek(arguments: PeekArguments) -> anyhow::Result<ExitCode> {
    let limit = arguments.limit.limit(&arguments.name)?;
    let limit = limit.block_offenders(BlockPolicy::by_operators())?;
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
    if budget.remaining() == budget.capacity() && !decision.is_blocked() {
        output::note(&format!(
            "nothing is charged to this key under {}: if it should be, check the name, the algorithm and the key",
            limit.name()
        ));
        hint(&arguments.key).iter().for_each(|hint| output::note(hint));
    }
    Ok(ExitCode::SUCCESS)
}

fn plural(units: u32) -> &'static str {
    if units == 1 { "unit" } else { "units" }
}

/// To the millisecond, rounded up.
fn short(time: Duration) -> String {
    const DAY: u64 = 86_400_000;
    let ms = time.as_micros().div_ceil(1_000) as u64;
    match ms {
        // A year of humantime has 365.25 days.
        ms if ms > DAY && ms % DAY == 0 => format!("{} days", ms / DAY),
        ms => humantime::format_duration(Duration::from_millis(ms)).to_string(),
    }
}

pub(crate) async fn reset(arguments: ResetArguments) -> anyhow::Result<ExitCode> {
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

/// The limit of a budget, or why it is not reset. A budget is found by its name and its kind: the quota does not matter.
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

fn any_quota(algorithm: Algorithm, name: &str) -> anyhow::Result<Limit> {
    let limit = LimitSpec::of(algorithm, Quota::per_second(1)).limit(name)?;
    Ok(limit.block_offenders(BlockPolicy::by_operators())?)
}

pub(crate) async fn block(arguments: BlockArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let limit = any_quota(arguments.algorithm, &arguments.name)?;
    let (name, length, client) = (limit.name(), arguments.length, printable(key.as_str()));
    if length > Quota::per_day(1).period() * 366 {
        bail!("a block lasts 366 days at most");
    }
    if !is_in_use(&arguments, limit.name()).await? {
        output::note(&format!(
            "Redis has no budget of a {} named {}: check the name and the algorithm",
            arguments.algorithm.name,
            limit.name()
        ));
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
        format!("`{client}` is not blocked under {name}. Replicas may deny it for another 10 s")
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

/// Whether any client has a budget of the limit, or a block.
async fn is_in_use(arguments: &BlockArguments, name: &str) -> anyhow::Result<bool> {
    let prefix = arguments.redis.prefix();
    let kind = Kind::of_algorithm(arguments.algorithm.name);
    let is_of_limit = |key: &String| {
        Name::parse(key, prefix).is_some_and(|it| it.kind == kind && it.limit == name)
    };
    for mut server in servers::connect(&arguments.redis.url).await? {
        let mut scan = Scan::new(prefix, None);
        while let Some(keys) = scan.next(&mut server).await? {
            if keys.iter().any(is_of_limit) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
