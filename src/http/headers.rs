//! What a response says about the limit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::Decision;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// How `X-RateLimit-Reset` tells when the whole budget is back. It is rounded up either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetFormat {
    /// In seconds since the Unix epoch, as GitHub's and most others' clients expect.
    EpochSeconds,
    /// In seconds from now.
    DeltaSeconds,
}

/// Whole seconds, rounded up: never early.
pub(super) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// When to come back, in whole seconds, rounded up, at least 1: 0 would say "now".
pub(super) fn retry_after(headers: &mut HeaderMap, decision: &Decision) {
    if let Some(retry_after) = decision.retry_after() {
        headers.insert(RETRY_AFTER, seconds(retry_after).max(1).into());
    }
}

/// What is left. Headers of a layer closer to the handler stay if they speak of a refusal, or of
/// a budget that is as short: a client has to heed the tightest.
pub(super) fn budget(headers: &mut HeaderMap, decision: &Decision, format: ResetFormat) {
    let inner = headers.get(REMAINING).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let refused_inside = inner.is_some() && headers.contains_key(RETRY_AFTER);
    if decision.allowed()
        && (refused_inside || inner.is_some_and(|inner| inner <= decision.remaining()))
    {
        return;
    }
    let reset_after = decision.reset_after();
    let reset = match format {
        ResetFormat::DeltaSeconds => seconds(reset_after),
        ResetFormat::EpochSeconds => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            seconds(now + reset_after)
        }
    };
    headers.insert(LIMIT, HeaderValue::from(decision.limit()));
    headers.insert(REMAINING, HeaderValue::from(decision.remaining()));
    headers.insert(RESET, HeaderValue::from(reset));
}
