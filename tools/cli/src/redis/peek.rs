//! `tollgate peek`: what a client has left.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use tollgate::overrides::Overrides;
use tollgate::{Decision, Limit, RateLimiter};

use super::limiter::{blockable, store};
use super::name::{client, hint};
use super::noted::{NotedLimit, NotedQuota};
use super::services::Services;
use crate::arguments::PeekArguments;
use crate::duration::rounded;
use crate::output::{self, shown};

pub(crate) async fn run(arguments: PeekArguments) -> anyhow::Result<ExitCode> {
    let store = store(&arguments.redis).await?;
    let limit = limit(&arguments).await?;
    let key = client(&arguments.key);
    let overrides = Overrides::in_redis(&store)?;
    if let Err(error) = overrides.list().await {
        output::note(&format!("without the overrides in Redis: {error}"));
    }
    let limiter = RateLimiter::builder(store).overrides(&overrides).build()?;
    let decision = limiter.peek(&limit, &key, arguments.cost).await?;
    // The budget as it is, and not as it would be afterwards.
    let budget = limiter.peek(&limit, &key, 0).await?;
    let is_limited = !budget.deciding().is_unlimited();
    if arguments.json {
        let ms = |time: Duration| time.as_millis() as u64;
        let answer = json!({
            "client": key.as_str(),
            "limit": limit.name(),
            "allowed": decision.allowed(),
            "capacity": is_limited.then(|| budget.capacity()),
            "remaining": is_limited.then(|| budget.remaining()),
            "retry_after_ms": decision.retry_after().map(ms),
            "reset_after_ms": ms(budget.reset_after()),
            "blocked": decision.is_blocked(),
            "exceeds_capacity": decision.exceeds_capacity(),
            "overridden": budget.deciding().is_overridden(),
        });
        output::print(&output::json(&answer, false)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let set = overrides.get(limit.name(), &key);
    let suffix = match &set {
        Some(set) if budget.deciding().is_overridden() => format!(" (override: {set})"),
        _ => String::new(),
    };
    let words = in_words(&decision, &budget, arguments.cost);
    output::print(&format!("{words}{suffix}"))?;
    if is_limited && budget.remaining() == budget.capacity() && !decision.is_blocked() {
        output::note(&format!(
            "Redis has no charge of this key under {}. If you expect one, check the name, the \
             algorithm and the key",
            shown(limit.name())
        ));
        hint(&arguments.key)
            .iter()
            .for_each(|hint| output::note(hint));
    }
    Ok(ExitCode::SUCCESS)
}

/// The limit that is given, or the one that services have noted.
async fn limit(arguments: &PeekArguments) -> anyhow::Result<Limit> {
    const ADVICE: &str = "give --limit, such as `gcra 100/min burst 20`";
    let name = &arguments.name;
    let services = Services::behind(&arguments.redis).await;
    let given = arguments.limit.as_ref();
    let given = given.map(|it| blockable(it, name)).transpose()?;
    let rates = services.of_name(name).filter(|it| !it.is_concurrency());
    let quotas: Vec<NotedQuota> = rates.flat_map(NotedLimit::quotas).flatten().collect();
    let words: Vec<_> = quotas.iter().map(|it| shown(&it.words)).collect();
    let words = words.join(" and ");
    match (given, &*quotas) {
        (Some(given), noted) => {
            if !noted.is_empty() && noted.iter().all(|it| it.limit != given) {
                output::note(&format!(
                    "running services have {words} under {}",
                    shown(name)
                ));
            }
            Ok(given)
        }
        (None, [only]) => Ok(only.limit.clone()),
        (None, []) => match services.limits {
            Err(error) => {
                Err(error.context(format!("the limits of services are not known; {ADVICE}")))
            }
            Ok(_) => bail!(
                "no running service has noted one quota of a limit named {}; check the name, or \
                 {ADVICE}",
                shown(name)
            ),
        },
        (None, _) => bail!("services have {words} under {}; {ADVICE}", shown(name)),
    }
}

fn in_words(decision: &Decision, budget: &Decision, cost: u32) -> String {
    if budget.deciding().is_unlimited() {
        return "allowed: not limited".to_owned();
    }
    if decision.exceeds_capacity() {
        let capacity = budget.capacity();
        return format!("denied: {cost} units exceed the capacity of {capacity}");
    }
    let verdict = match (decision.allowed(), decision.is_blocked()) {
        (_, true) => "blocked",
        (true, false) => "allowed",
        (false, false) => "denied",
    };
    let wait = decision.retry_after();
    let wait = wait.map(|wait| format!(", {cost} {} after {}", plural(cost), rounded(wait)));
    format!(
        "{verdict}: {} of {} left{}, full in {}",
        budget.remaining(),
        budget.capacity(),
        wait.unwrap_or_default(),
        rounded(budget.reset_after())
    )
}

fn plural(units: u32) -> &'static str {
    if units == 1 { "unit" } else { "units" }
}
