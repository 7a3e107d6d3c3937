//! The headers that report a budget: `X-RateLimit-*` and `Retry-After`.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tokio::time::Instant;

use super::number::{number, repeated};
use crate::nouns::{Decision, later};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The format of `X-RateLimit-Reset`, the time when the budget is full again. Both are rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds since the Unix epoch, as GitHub and most others send them.
    EpochSeconds,
    /// Seconds from now.
    DeltaSeconds,
}

/// The budget that a response reports.
#[derive(Clone)]
pub(super) struct BudgetHeaders {
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

impl BudgetHeaders {
    /// The headers of a decision that was made just now.
    #[inline]
    pub(super) fn new(decision: &Decision, format: ResetFormat) -> Self {
        let reset = match format {
            ResetFormat::DeltaSeconds => Reset::At(later(Instant::now(), decision.reset_after())),
            ResetFormat::EpochSeconds => Reset::Epoch(decision.resets_at().div_ceil(1_000_000)),
        };
        Self { capacity: decision.capacity(), remaining: decision.remaining(), reset }
    }

    /// Writes the headers. A header that does not fit into a full map is left out.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        let reset = match self.reset {
            Reset::Epoch(seconds) => seconds,
            Reset::At(instant) => seconds(instant.saturating_duration_since(Instant::now())),
        };
        set(headers, LIMIT, repeated(self.capacity));
        set(headers, REMAINING, number(self.remaining));
        set(headers, RESET, repeated(reset));
    }

    /// Writes the headers, unless they report a tighter budget already: that of a layer closer to
    /// the handler, or of the handler itself.
    pub(super) fn write_if_tighter(self, headers: &mut HeaderMap) {
        let reported = headers.get(REMAINING).and_then(|it| it.to_str().ok()?.parse().ok());
        if reported.is_none_or(|reported: u64| self.remaining < reported) {
            self.write(headers);
        }
    }
}

/// Writes the header of a denial: when to try again.
pub(super) fn write_retry_after(decision: &Decision, headers: &mut HeaderMap) {
    if let Some(seconds) = retry_after_seconds(decision) {
        set(headers, RETRY_AFTER, number(seconds));
    }
}

/// Sets a header, unless the map holds as many as it can: `HeaderMap::insert` would panic then.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    // A response without the header is worth more to the client than none.
    drop(headers.try_insert(name, value));
}

/// When to try again, in whole seconds, rounded up, at least 1: 0 would say "now".
pub(super) fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|retry_after| seconds(retry_after).max(1))
}

/// Whole seconds, rounded up: never early.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
