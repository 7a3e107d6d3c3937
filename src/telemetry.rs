//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A refusal is `debug`: it is the limiter's daily work.
//! What an operator has to know is `warn` or `error`, and what any request can cause is told once
//! a second at most: a client must not fill the log.

#[cfg(feature = "http")]
use std::sync::{Mutex, PoisonError};
#[cfg(feature = "http")]
use std::time::{Duration, Instant};

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
pub(crate) fn undecided(at_most: &Throttle, limits: &str, error: &Error, forwarded: bool) {
    if let Some(unreported) = at_most.report() {
        tracing::error!(
            target: TARGET, limits, %error, forwarded, unreported, "request could not be decided"
        );
    }
}

/// A request had no key, and was forwarded or refused as configured.
#[cfg(feature = "http")]
pub(crate) fn keyless(at_most: &Throttle, limit: &str, reason: &str, forwarded: bool) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET, limit, reason, forwarded, unreported, "request without a rate limit key"
        );
    }
}

/// Lets one event a second through: what every request can cause must not fill the log.
#[cfg(feature = "http")]
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    state: Mutex<ThrottleState>,
}

#[cfg(feature = "http")]
#[derive(Debug, Default)]
struct ThrottleState {
    reported: Option<Instant>,
    unreported: u64,
}

#[cfg(feature = "http")]
impl Throttle {
    const INTERVAL: Duration = Duration::from_secs(1);

    /// How many were not reported before this one, if this one is to be.
    fn report(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.reported.is_some_and(|at| at.elapsed() < Self::INTERVAL) {
            state.unreported += 1;
            return None;
        }
        state.reported = Some(Instant::now());
        Some(std::mem::take(&mut state.unreported))
    }
}
