//! `X-RateLimit-Limit`, `-Remaining` and `-Reset`, and `X-RateLimit-Reset-After`.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::super::number::{number, repeated};
use super::{HeaderSettings, UsedUp, decided_at, is_stricter, numbers, seconds, set};
use crate::nouns::{Decision, later};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");

pub(super) const NAMES: [HeaderName; 3] = [LIMIT, REMAINING, RESET];

/// The format of `X-RateLimit-Reset`, the time when the budget is full again. Both are rounded up.
///
/// Seconds since the epoch are by the store's clock. A denial has a `Date` by the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds since the Unix epoch, as GitHub and most others send them.
    EpochSeconds,
    /// Seconds from now.
    DeltaSeconds,
}

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
    /// By the clock of this process.
    At(Instant),
}

impl XRateLimit {
    /// The fields of a decision that was made just now.
    #[inline]
    pub(super) fn new(
        decision: &Decision,
        settings: &HeaderSettings,
        retry_after: Option<u64>,
    ) -> Self {
        let reset_after = reset_after(decision, retry_after);
        let reset = match settings.reset_format {
            ResetFormat::DeltaSeconds => {
                Reset::At(later(Instant::now(), Duration::from_micros(reset_after)))
            }
            ResetFormat::EpochSeconds => {
                Reset::Epoch(decided_at(decision).saturating_add(reset_after).div_ceil(1_000_000))
            }
        };
        Self { capacity: decision.capacity(), remaining: decision.remaining(), reset }
    }

    /// Writes the fields, unless the map has stricter ones, or a limit or a reset alone: they say too
    /// little to compare. Returns whether it did.
    #[inline]
    pub(super) fn write(self, headers: &mut HeaderMap, used_up: UsedUp) -> bool {
        let reset = match self.reset {
            Reset::Epoch(seconds) => seconds,
            Reset::At(instant) => seconds(from_now(instant)),
        };
        let is_reported = headers.contains_key(REMAINING);
        if is_reported && !replaces(headers, (self.remaining, reset), used_up) {
            return false;
        }
        // What an insert replaces shows that it was there, without a look-up of its own.
        let limit = headers.try_insert(LIMIT, repeated(self.capacity)).ok().flatten();
        let reset = headers.try_insert(RESET, repeated(reset)).ok().flatten();
        if !is_reported && (limit.is_some() || reset.is_some()) {
            restore(headers, LIMIT, limit);
            restore(headers, RESET, reset);
            return false;
        }
        set(headers, REMAINING, number(self.remaining));
        true
    }
}

#[cold]
fn restore(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    match value {
        Some(value) => set(headers, name, value),
        None => drop(headers.remove(name)),
    }
}

/// Whether the fields replace those of the map.
#[cold]
fn replaces(headers: &mut HeaderMap, ours: (u64, u64), used_up: UsedUp) -> bool {
    let (remaining, reset) = (numbers(headers, &REMAINING), numbers(headers, &RESET));
    let is_stricter = is_stricter(ours, &remaining, &reset, used_up);
    if is_stricter {
        // It belongs to the fields that are replaced.
        headers.remove(RESET_AFTER);
    }
    is_stricter
}

/// Removes the times when the budget is full again: a request that exceeds the capacity is denied then, too.
pub(super) fn remove_resets(headers: &mut HeaderMap) {
    headers.remove(RESET);
    headers.remove(RESET_AFTER);
}

/// The time until the budget is full again, in microseconds, and at least until `Retry-After`, which
/// may be later by its jitter.
#[inline]
fn reset_after(decision: &Decision, retry_after: Option<u64>) -> u64 {
    let full_after = decision.deciding().outcome().reset_after;
    full_after.max(retry_after.unwrap_or(0).saturating_mul(1_000_000))
}

/// `X-RateLimit-Reset-After`, which follows the fields above.
#[derive(Clone, Copy)]
pub(super) struct ResetAfter(Instant);

impl ResetAfter {
    pub(super) fn new(decision: &Decision, retry_after: Option<u64>) -> Self {
        Self(later(Instant::now(), Duration::from_micros(reset_after(decision, retry_after))))
    }

    pub(super) fn write(self, headers: &mut HeaderMap) {
        set(headers, RESET_AFTER, decimal(from_now(self.0)));
    }
}

fn from_now(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

/// Seconds with three decimals, rounded up.
fn decimal(duration: Duration) -> HeaderValue {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("0"))
}
