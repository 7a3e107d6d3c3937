//! `tollgate peek`, `reset` and `block`: what the library does, from the command line.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use tollgate::limit::BlockPolicy;
use tollgate::{Limit, Quota, RateLimiter, RedisStore};

use super::confirm::confirmed;
use super::name::{Kind, Name, client};
use super::servers;
use super::show::keys_of;
use crate::arguments::{BlockArguments, PeekArguments, RedisArguments, ResetArguments};
use crate::limit::LimitSpec;

/// An operator waits longer than a request.
const DEADLINE: Duration = Duration::from_secs(5);

async fn limiter(redis: &RedisArguments) -> anyhow::Result<RateLimiter> {
    let prefix = redis.prefix.trim_end_matches(':');
    let store = RedisStore::builder().url(&redis.url).prefix(prefix).client_name("tollgate-cli");
    Ok(RateLimiter::new(store.deadline(DEADLINE).connect().await?))
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
        println!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = match (decision.allowed(), decision.is_blocked()) {
        (_, true) => "blocked",
        (true, false) => "allowed",
        (false, false) => "denied",
    };
    print!("{verdict}: {} of {} left", budget.remaining(), budget.capacity());
    if let Some(wait) = decision.retry_after() {
        print!(", {} {} after {}", arguments.cost, plural(arguments.cost), short(wait));
    }
    println!(", full in {}", short(budget.reset_after()));
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
    let prefix = arguments.redis.prefix.trim_end_matches(':');
    let key = client(&arguments.key);
    let mut budgets = BTreeSet::new();
    for mut server in servers::connect(&arguments.redis.url).await? {
        for found in keys_of(&mut server, prefix, key.as_str()).await? {
            let Some(name) = Name::parse(&found, prefix) else { continue };
            if arguments.name.as_deref().is_none_or(|wanted| wanted == name.limit) {
                match name.kind.algorithm() {
                    Some(algorithm) => drop(budgets.insert((name.limit.to_owned(), algorithm))),
                    None => eprintln!("{}: {}", name.limit, of_processes(name.kind)),
                }
            }
        }
    }
    if budgets.is_empty() {
        println!("`{}` has no budget to reset: all are full", key.as_str());
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = budgets.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    if !confirmed(&format!("Reset `{}` under {names}?", key.as_str()), arguments.yes)? {
        println!("nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    let limiter = limiter(&arguments.redis).await?;
    for (name, algorithm) in &budgets {
        // A budget is found by its name and its kind. The quota does not matter.
        let limit = any_quota(algorithm, name)?.block_offenders(BlockPolicy::by_operators())?;
        limiter.reset(&limit, &key).await.with_context(|| format!("reset of {name}"))?;
        println!("reset {name}");
    }
    Ok(ExitCode::SUCCESS)
}

fn of_processes(kind: Kind) -> String {
    format!(
        "{} are not reset: the processes hold them, and a crashed one's end by themselves",
        kind.name()
    )
}

fn any_quota(algorithm: &str, name: &str) -> anyhow::Result<Limit> {
    let spec: LimitSpec = format!("{algorithm} 1/s").parse()?;
    spec.limit(name)
}

pub(crate) async fn block(arguments: BlockArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let text = arguments.limit.trim();
    let limit = match text.contains('/') {
        true => text.parse::<LimitSpec>()?.limit(&arguments.name)?,
        false => any_quota(text, &arguments.name)?,
    };
    let limit = limit.block_offenders(BlockPolicy::by_operators())?;
    let (name, length) = (&arguments.name, arguments.length);
    if length > Quota::per_day(1).period() * 366 {
        bail!("a block lasts 366 days at most");
    }
    let question = match length {
        Duration::ZERO => format!("End the block of `{}` under {name}?", key.as_str()),
        _ => format!("Block `{}` under {name} for {}?", key.as_str(), short(length)),
    };
    if !confirmed(&question, arguments.yes)? {
        println!("nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    let limiter = limiter(&arguments.redis).await?;
    if length.is_zero() {
        limiter.unblock(&limit, &key).await?;
        println!("`{}` is not blocked under {name}", key.as_str());
    } else {
        limiter.block(&limit, &key, length).await?;
        println!(
            "`{}` is blocked under {name} for {}, in services whose limit blocks keys",
            key.as_str(),
            short(length)
        );
    }
    Ok(ExitCode::SUCCESS)
}
