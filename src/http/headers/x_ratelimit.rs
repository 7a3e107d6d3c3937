//! `X-RateLimit-Limit`, `-Remaining` and `-Reset`, and `X-RateLimit-Reset-After`.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::super::number::{number, repeated, seconds};
use super::{HeaderSettings, UsedUp, is_later, is_stricter, numbers, set};
use crate::model::Limit;
use crate::units::{Outcome, Period, Timestamp, later};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");

pub(super) const NAMES: [HeaderName; 3] = [LIMIT, REMAINING, RESET];

/// The budget of the deciding limit.
pub(super) struct XRateLimit {
    capacity: u64,
    remaining: u64,
    reset: Reset,
}

/// When the budget is full again. It is fixed at the decision, however long the handler takes.
#[derive(Clone, Copy)]
enum Reset {
    /// In seconds since the Unix epoch, by the store's clock.
    Epoch(u64),
    /// At a time on the clock of this process.
    At(Instant),
}

impl XRateLimit {
    /// The fields of a decision that was made just now.
    #[inline]
    pub(super) fn new(
        limit: &Limit,
        (outcome, decided_at): (&Outcome, Timestamp),
        settings: &HeaderSettings,
        retry_after: Option<Duration>,
    ) -> Self {
        let reset = if settings.resets_in_delta_seconds {
            Reset::At(reset_at(outcome, retry_after))
        } else {
            let retry_after = retry_after.filter(|wait| !is_end_of_calendar(limit, outcome, *wait));
            let reset_after = reset_after(outcome, retry_after);
            let reset_at = decided_at.or_now().saturating_add(reset_after);
            Reset::Epoch(reset_at.as_micros().div_ceil(1_000_000))
        };
        Self {
            capacity: limit.quota().capacity(),
            remaining: outcome.remaining,
            reset,
        }
    }

    /// Writes the fields, unless the map has stricter ones, or a limit or a reset alone, because
    /// they say too little to compare. With `reset_at`, `X-RateLimit-Reset-After` follows them.
    #[inline]
    pub(super) fn write(self, headers: &mut HeaderMap, reset_at: Option<Instant>, used_up: UsedUp) {
        let reset = match self.reset {
            Reset::Epoch(seconds) => seconds,
            Reset::At(instant) => seconds(from_now(instant)),
        };
        // Most responses have no fields yet.
        let is_reported = !headers.is_empty() && headers.contains_key(REMAINING);
        if is_reported && !replaces(headers, self.remaining, (reset, reset_at), used_up) {
            return;
        }
        // The value that an insert replaces shows that it was there, without a look-up of its own.
        let limit = headers
            .try_insert(LIMIT, repeated(self.capacity))
            .ok()
            .flatten();
        let reset = headers.try_insert(RESET, repeated(reset)).ok().flatten();
        if !is_reported && (limit.is_some() || reset.is_some()) {
            restore(headers, LIMIT, limit);
            restore(headers, RESET, reset);
            return;
        }
        set(headers, REMAINING, number(self.remaining));
        if let Some(reset_at) = reset_at {
            set(headers, RESET_AFTER, decimal(millis_until(reset_at)));
        }
    }
}

#[cold]
fn restore(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    match value {
        Some(value) => set(headers, name, value),
        None => drop(headers.remove(name)),
    }
}

/// Returns whether the fields replace the fields of the map.
#[cold]
fn replaces(
    headers: &mut HeaderMap,
    remaining: u64,
    (reset, reset_at): (u64, Option<Instant>),
    used_up: UsedUp,
) -> bool {
    // `X-RateLimit-Reset-After` tells two resets within a second apart.
    let theirs = headers
        .get(RESET_AFTER)
        .and_then(|it| it.to_str().ok()?.parse::<f64>().ok());
    let is_later = match (reset_at, theirs) {
        (Some(ours), Some(theirs)) => millis_until(ours) as f64 > theirs * 1_000.0,
        _ => is_later(reset, &numbers(headers, &RESET)),
    };
    let is_stricter = is_stricter(remaining, &numbers(headers, &REMAINING), is_later, used_up);
    if is_stricter {
        // It belongs to the fields that are replaced.
        headers.remove(RESET_AFTER);
    }
    is_stricter
}

/// Removes the times when the budget is full again, because a request that exceeds the capacity is
/// also denied then.
pub(super) fn remove_resets(headers: &mut HeaderMap) {
    headers.remove(RESET);
    headers.remove(RESET_AFTER);
}

/// Returns whether a wait is the end of a window of the calendar, rounded up to seconds. That end
/// is a full second, such as midnight, and the field names it.
fn is_end_of_calendar(limit: &Limit, outcome: &Outcome, wait: Duration) -> bool {
    let seconds = outcome.reset_after.div_ceil(1_000_000);
    matches!(limit.quota().period(), Period::Calendar(_)) && wait.as_secs() == seconds
}

/// The time until the budget is full again, in microseconds, and at least until `Retry-After`,
/// which may be later by its jitter.
#[inline]
fn reset_after(outcome: &Outcome, retry_after: Option<Duration>) -> u64 {
    let full_after = outcome.reset_after;
    full_after.max(retry_after.map_or(0, |it| it.as_secs().saturating_mul(1_000_000)))
}

/// When the budget is full again, on the clock of this process.
pub(super) fn reset_at(outcome: &Outcome, retry_after: Option<Duration>) -> Instant {
    later(
        Instant::now(),
        Duration::from_micros(reset_after(outcome, retry_after)),
    )
}

/// From now, rounded up.
fn millis_until(instant: Instant) -> u128 {
    from_now(instant).as_nanos().div_ceil(1_000_000)
}

fn from_now(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

/// Seconds with three decimals.
fn decimal(millis: u128) -> HeaderValue {
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("0"))
}
