//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A denial is `debug`: it is the limiter's daily work.
//! What an operator has to know is `warn` or `error`, and what traffic can cause is reported once
//! a second at most, with the count of what was left out: a client must not fill the log.

#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "http", feature = "redis"))]
mod throttle;

#[cfg(feature = "redis")]
pub(crate) use self::redis::{Outage, RedisEvents};
#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) use self::throttle::Throttle;
#[cfg(feature = "http")]
use crate::nouns::{Decision, Error};

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
        "request denied"
    );
}

/// A request could not be decided, and was forwarded or rejected as configured.
#[cfg(feature = "http")]
pub(crate) fn undecided(at_most: &Throttle, limits: &str, error: &Error, forwarded: bool) {
    if let Some(unreported) = at_most.report() {
        tracing::error!(
            target: TARGET, limits, %error, forwarded, unreported, "request could not be decided"
        );
    }
}

/// Requests are decided again. Reports those of before that were left out.
#[cfg(feature = "http")]
pub(crate) fn decided(undecided: &Throttle, limits: &str) {
    if let Some(unreported) = undecided.overdue() {
        tracing::error!(
            target: TARGET, limits, unreported, "suppressed: request could not be decided"
        );
    }
}

/// A request had no key, and was forwarded or rejected as configured.
#[cfg(feature = "http")]
pub(crate) fn keyless(at_most: &Throttle, limit: &str, reason: &str, forwarded: bool) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET, limit, reason, forwarded, unreported, "request without a rate limit key"
        );
    }
}

/// A request had a key. Reports those of before that had none and were left out.
#[cfg(feature = "http")]
pub(crate) fn keyed(keyless: &Throttle, limit: &str) {
    if let Some(unreported) = keyless.overdue() {
        tracing::warn!(
            target: TARGET, limit, unreported, "suppressed: request without a rate limit key"
        );
    }
}
