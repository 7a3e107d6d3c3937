//! What a response says about the limit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tokio::time::Instant;

use super::number::number;
use crate::nouns::Decision;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// How `X-RateLimit-Reset` tells when the whole budget is back. It is rounded up either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// In seconds since the Unix epoch, as GitHub's and most others' clients expect.
    EpochSeconds,
    /// In seconds from now.
    DeltaSeconds,
}

/// A decision on its way into a response.
pub(super) struct Told {
    pub(super) decision: Decision,
    reset: Reset,
}

/// When the budget is whole again. It is fixed when it is decided, however long the handler takes.
enum Reset {
    /// In seconds since the Unix epoch.
    At(u64),
    /// So long after that moment.
    After(Duration, Instant),
}

impl Told {
    /// What is to be told of a decision made just now.
    pub(super) fn new(decision: Decision, format: ResetFormat) -> Self {
        let reset_after = decision.reset_after();
        let reset = match format {
            ResetFormat::DeltaSeconds => Reset::After(reset_after, Instant::now()),
            ResetFormat::EpochSeconds => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Reset::At(seconds(now.saturating_add(reset_after)))
            }
        };
        Self { decision, reset }
    }

    /// Whether this is what a client has to heed, beside what another layer decided: a refusal
    /// first, then the fewest units left.
    pub(super) fn is_tightest(&self, other: Option<&Decision>) -> bool {
        other.is_none_or(|other| {
            other.allowed() && (!self.decision.allowed() || self.is_shorter_than(other.remaining()))
        })
    }

    fn is_shorter_than(&self, remaining: u64) -> bool {
        self.decision.remaining() < remaining
    }

    /// Tells an admitted request's response, unless a layer closer to the handler, or the handler
    /// itself, told of a tighter budget.
    pub(super) fn tell<B>(self, response: &mut Response<B>) {
        let inner = response.extensions().get::<Decision>();
        let tightest = match (inner, response.headers().get(REMAINING)) {
            (None, Some(remaining)) => remaining
                .to_str()
                .ok()
                .and_then(|it| it.parse().ok())
                .is_none_or(|remaining| self.is_shorter_than(remaining)),
            (inner, _) => self.is_tightest(inner),
        };
        if tightest {
            self.write(response.headers_mut());
            response.extensions_mut().insert(self.decision);
        }
    }

    /// The headers of any response. A header that does not fit into a full map is left out.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let reset = match self.reset {
            Reset::At(seconds) => seconds,
            Reset::After(duration, since) => seconds(duration.saturating_sub(since.elapsed())),
        };
        set(headers, LIMIT, number(self.decision.capacity()));
        set(headers, REMAINING, number(self.decision.remaining()));
        set(headers, RESET, number(reset));
    }

    /// The header of a refusal: when to come back.
    pub(super) fn write_retry_after(&self, headers: &mut HeaderMap) {
        if let Some(retry_after) = retry_after(&self.decision) {
            set(headers, RETRY_AFTER, number(retry_after));
        }
    }
}

/// Sets a header, unless the map holds as many as it can: `HeaderMap::insert` would panic then.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    // A response without the header is worth more to the client than none.
    drop(headers.try_insert(name, value));
}

/// When to come back, in whole seconds, rounded up, at least 1: 0 would say "now".
pub(super) fn retry_after(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|retry_after| seconds(retry_after).max(1))
}

/// Whole seconds, rounded up: never early.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
