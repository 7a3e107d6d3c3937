//! The fields that report budgets, as a client reads them.

use std::time::Duration;

use http::HeaderMap;
use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::layer::IetfDraft;
use tollgate::{MemoryStore, RateLimiter};

use super::requests::number;

/// A whole second.
pub const START: u64 = 1_790_000_000;

pub fn limiter() -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(START));
    (
        RateLimiter::new(MemoryStore::with_clock(clock.clone())),
        clock,
    )
}

/// The values of these headers, in order.
pub fn values(headers: &HeaderMap, names: &[&str]) -> Vec<String> {
    let lines = names.iter().flat_map(|name| headers.get_all(*name).iter());
    lines
        .map(|value| value.to_str().unwrap().to_owned())
        .collect()
}

/// The waits that the headers of a response state, from now.
pub fn waits(headers: &HeaderMap, now: Duration) -> Vec<(String, Duration)> {
    let mut waits = Vec::new();
    for name in ["retry-after", "ratelimit-reset"] {
        if headers.contains_key(name) {
            waits.push((name.to_owned(), Duration::from_secs(number(headers, name))));
        }
    }
    let reset = Duration::from_secs(number(headers, "x-ratelimit-reset"));
    waits.push(("x-ratelimit-reset".to_owned(), reset.saturating_sub(now)));
    if let Some(value) = headers.get("ratelimit") {
        let text = value.to_str().unwrap();
        // A client of several limits waits for all that it has used up: for the last of them.
        let seconds = text.split([';', ',']).filter_map(|it| {
            let it = it.trim();
            it.strip_prefix("t=")
                .or(it.strip_prefix("reset="))?
                .parse()
                .ok()
        });
        // Where a member has no time, `Retry-After` has.
        let is_complete = text.matches(";r=").count() == text.matches(";t=").count();
        let longest = seconds.max().filter(|_| is_complete);
        waits.extend(longest.map(|it| (text.to_owned(), Duration::from_secs(it))));
    }
    waits
}

pub fn any_draft() -> impl Strategy<Value = IetfDraft> {
    prop::sample::select(vec![
        IetfDraft::Draft6,
        IetfDraft::Draft7,
        IetfDraft::Draft11,
    ])
}
