//! `tollgate peek`: what a client has left.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::limiter::{blockable, limiter};
use super::name::{client, hint};
use crate::arguments::PeekArguments;
use crate::duration::rounded;
use crate::output;

pub(crate) async fn run(arguments: PeekArguments) -> anyhow::Result<ExitCode> {
    let limit = blockable(&arguments.limit, &arguments.name)?;
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
            "exceeds_capacity": decision.exceeds_capacity(),
        });
        output::print(&answer.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    if decision.exceeds_capacity() {
        let (cost, capacity) = (arguments.cost, budget.capacity());
        output::print(&format!(
            "denied: {cost} units exceed the capacity of {capacity}"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = match (decision.allowed(), decision.is_blocked()) {
        (_, true) => "blocked",
        (true, false) => "allowed",
        (false, false) => "denied",
    };
    let wait = decision.retry_after().map(|wait| {
        format!(
            ", {} {} after {}",
            arguments.cost,
            plural(arguments.cost),
            rounded(wait)
        )
    });
    output::print(&format!(
        "{verdict}: {} of {} left{}, full in {}",
        budget.remaining(),
        budget.capacity(),
        wait.unwrap_or_default(),
        rounded(budget.reset_after())
    ))?;
    if budget.remaining() == budget.capacity() && !decision.is_blocked() {
        output::note(&format!(
            "Redis has no charge of this key under {}. If you expect one, check the name, the \
             algorithm and the key",
            limit.name()
        ));
        hint(&arguments.key)
            .iter()
            .for_each(|hint| output::note(hint));
    }
    Ok(ExitCode::SUCCESS)
}

fn plural(units: u32) -> &'static str {
    if units == 1 { "unit" } else { "units" }
}
