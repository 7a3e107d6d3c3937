//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A denial is `debug`: it is the limiter's daily work.
//! Failures are `warn` or `error`. An event that traffic can cause appears at most once a second,
//! with the count of those that were left out: a client must not fill the log.

use std::time::Duration;

mod breaker;
mod call;
#[cfg(feature = "http")]
mod client_ip;
#[cfg(feature = "config")]
mod config;
mod metrics;
mod redis;
mod requests;
mod spans;
mod throttle;

pub(crate) use self::breaker::BreakerEvents;
pub(crate) use self::call::{ObservedCall, Trace};
#[cfg(feature = "http")]
pub(crate) use self::client_ip::{
    client_may_be_proxy, invalid_client_address, missing_client_address, only_trusted_addresses,
    peer_is_proxy,
};
#[cfg(feature = "config")]
pub(crate) use self::config::{
    limits_in_force, limits_not_replaced, limits_rejected, limits_replaced, limits_valid_again,
    unfollowed, unwatched,
};
#[cfg(all(feature = "config", feature = "redis"))]
pub(crate) use self::config::{limits_not_read, unsubscribed};
#[cfg(feature = "metrics")]
pub use self::metrics::HISTOGRAMS;
pub(crate) use self::metrics::waiting;
pub(crate) use self::metrics::{BreakerMetrics, StoreMetrics};
pub(crate) use self::metrics::{Level, Origin, Outcome, hold_permit};
pub(crate) use self::metrics::{Queued, denied_from_cache, prefetched};
pub(crate) use self::redis::{Outage, RedisEvents, changes_not_followed};
pub(crate) use self::requests::{
    always_falls_back, change_not_understood, decides_again, denied, denied_in_flight, forbidden,
    found_key, full, keyed, lookup_failed, misconfigured, missing_key, overloaded, rejected,
    shadow_denied, shadow_denied_in_flight, unsettled,
};
pub(crate) use self::spans::CheckSpan;
pub(crate) use self::throttle::{Throttle, Throttles};
use crate::nouns::{Check, Decision, Error, Key, Limit, Op, Source};

const TARGET: &str = "tollgate";

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A check has a decision.
#[inline]
pub(crate) fn decided(span: &CheckSpan, decision: &Decision) {
    metrics::decided(decision);
    span.decided(decision);
}

/// The store did not decide a check. `in_place` is what stands in for a decision.
pub(crate) fn undecided<'a>(
    span: &CheckSpan,
    limits: impl Iterator<Item = &'a Limit>,
    error: &Error,
    in_place: Origin,
) {
    metrics::undecided(limits, error, in_place);
    span.undecided(error);
}

/// A check of a concurrency limit has a decision.
pub(crate) fn decided_in_flight(span: &CheckSpan, limit: &Limit, outcome: Outcome, source: Source) {
    metrics::decided_in_flight(limit, outcome, source);
    span.decided_in_flight(limit, outcome == Outcome::Allowed, source);
}

/// The store did not decide a check of a concurrency limit. Its failure has been counted.
pub(crate) fn undecided_in_flight(
    span: &CheckSpan,
    limit: &Limit,
    outcome: Outcome,
    error: &Error,
) {
    metrics::decided_in_flight(limit, outcome, Source::FailClosed);
    span.undecided(error);
}

/// A key was denied too often, and a block of it begins.
pub(crate) fn blocked(at_most: &Throttles, check: &Check, length: Duration) {
    metrics::blocked(check.limit().name());
    if let Some(unreported) = at_most.for_subject(check.key()).report() {
        tracing::warn!(
            target: TARGET,
            limit = check.limit().name(),
            key = %check.key(),
            blocked_for_ms = milliseconds(length),
            unreported,
            "key blocked after too many denials"
        );
    }
}

/// The blocks that begin with a denial.
pub(crate) fn blocks_of<'a>(
    at_most: &Throttles,
    op: Op,
    checks: impl Iterator<Item = &'a Check>,
    decision: &Decision,
) {
    for (check, verdict) in checks.zip(decision.verdicts()) {
        if verdict.begins_block() && check.may_begin_block(op) {
            blocked(at_most, check, verdict.blocked_for().unwrap_or_default());
        }
    }
}

/// The keys that were denied most often in a period.
pub(crate) fn most_denied_keys(period: Duration, denials: u64, keys: &str) {
    let period_ms = milliseconds(period);
    tracing::info!(target: TARGET, period_ms, denials, keys, "most denied keys");
}

/// An operator blocked a key.
pub(crate) fn blocked_by_operator(limit: &Limit, key: &Key, length: Duration) {
    let limit = limit.name();
    let blocked_for_ms = milliseconds(length);
    tracing::info!(target: TARGET, limit, %key, blocked_for_ms, "key blocked by an operator");
}

/// An operator ended the block of a key.
pub(crate) fn unblocked_by_operator(limit: &Limit, key: &Key) {
    tracing::info!(target: TARGET, limit = limit.name(), %key, "key unblocked by an operator");
}

/// The last handle of a limiter is dropped while settlements are in flight.
pub(crate) fn dropped_unsettled(settlements: usize) {
    tracing::warn!(
        target: TARGET,
        settlements,
        "limiter dropped with settlements in flight: they are lost if the program ends now; call `RateLimiter::flush` before"
    );
}

/// The store is unavailable, and the policy of a group decides, as `outcome` says.
pub(crate) fn unavailable(at_most: &Throttle, group: &[Check], error: &Error, outcome: &str) {
    metrics::failed(error);
    if let Some(unreported) = at_most.report() {
        let names: Vec<_> = group.iter().map(|check| check.limit().name()).collect();
        let limits = names.join(", ");
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store unavailable"
        );
    }
}

/// The store of permits is unavailable, and the policy of a limit decides, as `outcome` says.
pub(crate) fn permits_unavailable(at_most: &Throttle, limits: &str, error: &Error, outcome: &str) {
    metrics::failed(error);
    if let Some(unreported) = at_most.report() {
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store unavailable"
        );
    }
}

/// The lease of permits has expired in the store: this process was blocked, or the store was unavailable.
pub(crate) fn permits_not_renewed(at_most: &Throttle, limit: &str, held: u64) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET, limit, held, unreported,
            "permits not renewed within their lease: other processes may have got them"
        );
    }
}

/// The store decides again. Reports earlier failures that were left out.
pub(crate) fn available(unavailable: &Throttle) {
    if let Some(unreported) = unavailable.overdue() {
        tracing::error!(
            target: TARGET, unreported, "rate limit store failures not reported before"
        );
    }
}

/// Units that were allowed locally during an outage are charged to the store.
pub(crate) fn settled(budgets: usize, units: u64) {
    tracing::info!(target: TARGET, budgets, units, "local charges settled");
}
