//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A denial is `debug`: it is the limiter's daily work.
//! Failures are `warn` or `error`. An event that traffic can cause appears at most once a second,
//! with the count of those that were left out: a client must not fill the log.

#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "http", feature = "redis"))]
mod throttle;

#[cfg(feature = "redis")]
pub(crate) use self::redis::{Outage, RedisEvents};
#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) use self::throttle::Throttle;
#[cfg(feature = "http")]
use crate::http::{MissingKey, OnMissingKey, OnStoreFailure, Reason};
#[cfg(feature = "http")]
use crate::nouns::{Decision, Error, Limit};

#[cfg(any(feature = "http", feature = "redis"))]
const TARGET: &str = "tollgate";

/// A request was denied.
#[cfg(feature = "http")]
pub(crate) fn denied(decision: &Decision) {
    tracing::debug!(
        target: TARGET,
        limit = decision.limit().name(),
        capacity = decision.capacity(),
        remaining = decision.remaining(),
        retry_after = ?decision.retry_after(),
        source = ?decision.source(),
        "request denied"
    );
}

/// A request was not decided, and failed open or closed.
#[cfg(feature = "http")]
pub(crate) fn undecided(
    at_most: &Throttle,
    limits: &str,
    reason: Reason,
    error: &Error,
    policy: OnStoreFailure,
) {
    let Some(unreported) = at_most.report() else { return };
    let outcome = match policy {
        OnStoreFailure::FailOpen => "fail_open",
        OnStoreFailure::FailClosed => "fail_closed",
    };
    match reason {
        Reason::StoreFull => tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store full"
        ),
        Reason::Overloaded => tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store overloaded"
        ),
        _ => tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store unavailable"
        ),
    }
}

/// Requests are decided again. Reports failures of before that were left out.
#[cfg(feature = "http")]
pub(crate) fn decided(undecided: &Throttle, limits: &str) {
    if let Some(unreported) = undecided.overdue() {
        tracing::error!(
            target: TARGET, limits, unreported, "rate limit store failures not reported before"
        );
    }
}

/// A request had no key.
#[cfg(feature = "http")]
pub(crate) fn missing_key(
    at_most: &Throttle,
    limit: &Limit,
    missing: &MissingKey,
    outcome: OnMissingKey,
) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET,
            limit = limit.name(),
            reason = missing.logged(),
            rejected = outcome != OnMissingKey::SkipLimit,
            unreported,
            "request without a rate limit key"
        );
    }
}

/// A request had a key. Reports those of before that had none and were left out.
#[cfg(feature = "http")]
pub(crate) fn keyed(missing: &Throttle, limit: &Limit) {
    if let Some(unreported) = missing.overdue() {
        tracing::warn!(
            target: TARGET,
            limit = limit.name(),
            unreported,
            "requests without a rate limit key not reported before"
        );
    }
}
