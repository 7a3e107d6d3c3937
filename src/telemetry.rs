//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A refusal is `debug`: it is the limiter's daily work,
//! and an attacker must not fill the log. What an operator has to know is `warn` or `error`.

#[cfg(feature = "http")]
use crate::{Decision, Error};

#[cfg(any(feature = "http", feature = "redis"))]
const TARGET: &str = "tollgate";

/// A stored value could not be read, and counted as none.
#[cfg(feature = "redis")]
pub(crate) fn unreadable(key: &str) {
    tracing::warn!(
        target: TARGET,
        key,
        "a stored budget could not be read and counts as fresh: something else writes to this key"
    );
}

/// A connection to Redis was made, or made again.
#[cfg(feature = "redis")]
pub(crate) fn connected() {
    tracing::debug!(target: TARGET, "connected to Redis");
}

/// A connection to Redis was given up, and the next check makes another.
#[cfg(feature = "redis")]
pub(crate) fn disconnected(error: &dyn std::fmt::Display) {
    tracing::warn!(target: TARGET, %error, "gave up a connection to Redis");
}

/// A request was refused.
#[cfg(feature = "http")]
pub(crate) fn refused(limits: &str, decision: &Decision) {
    tracing::debug!(
        target: TARGET,
        limits,
        limit = decision.limit(),
        remaining = decision.remaining(),
        retry_after = ?decision.retry_after(),
        "request refused"
    );
}

/// A request could not be decided, and was forwarded or refused as configured.
#[cfg(feature = "http")]
pub(crate) fn undecided(limits: &str, error: &Error, forwarded: bool) {
    tracing::error!(target: TARGET, limits, %error, forwarded, "request could not be decided");
}

/// A request had no key, and was forwarded or refused as configured.
#[cfg(feature = "http")]
pub(crate) fn keyless(limit: &str, reason: &dyn std::fmt::Display, forwarded: bool) {
    tracing::warn!(target: TARGET, limit, %reason, forwarded, "request without a rate limit key");
}
