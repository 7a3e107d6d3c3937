//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A denial is `debug`, because it is the limiter's daily
//! work. Failures are `warn` or `error`. An event that traffic can cause appears at most once a
//! second, with the count of those that were left out, because a client must not fill the log.

use std::time::Duration;

mod breaker;
mod call;
#[cfg(feature = "http")]
mod client_ip;
#[cfg(feature = "config")]
mod config;
mod denials;
mod metrics;
mod outages;
mod overrides;
mod redis;
mod requests;
mod spans;
mod throttle;

pub(crate) use self::breaker::BreakerEvents;
pub(crate) use self::call::{ObservedCall, Trace};
#[cfg(feature = "http")]
pub(crate) use self::client_ip::*;
#[cfg(feature = "config")]
pub(crate) use self::config::*;
pub(crate) use self::denials::*;
#[cfg(feature = "metrics")]
pub use self::metrics::HISTOGRAMS;
pub(crate) use self::metrics::{
    GaugeLevel, OutcomeLabel, announce, denied_from_cache, found_key, hold_permit, paid, prepaid,
    shared_with, unpaid_for, unpaid_keys, waiting,
};
pub(crate) use self::outages::*;
pub(crate) use self::overrides::*;
pub(crate) use self::redis::{RedisEvents, changes_not_followed, two_quotas};
pub(crate) use self::requests::*;
pub(crate) use self::spans::CheckSpan;
pub(crate) use self::throttle::{Throttle, Throttles};
use crate::model::{Decision, Error, Limit, Source};

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

/// A check of one limit is allowed in this process: by an embedded store, or ahead of the store.
#[inline]
pub(crate) fn allowed(span: &CheckSpan, limit: &Limit, remaining: u64, source: Source) {
    metrics::decided_one(limit, OutcomeLabel::Allowed, source);
    span.allowed(limit, remaining, source);
}

/// The store did not decide a check. `source` stands in for it. `None` if the caller got an error.
pub(crate) fn undecided<'a>(
    span: &CheckSpan,
    limits: impl Iterator<Item = &'a Limit>,
    error: &Error,
    source: Option<Source>,
) {
    metrics::undecided(limits, error, source);
    span.undecided(error);
}

/// A check of a concurrency limit has a decision.
pub(crate) fn decided_in_flight(
    span: &CheckSpan,
    limit: &Limit,
    outcome: OutcomeLabel,
    source: Source,
) {
    metrics::decided_one(limit, outcome, source);
    span.decided_in_flight(limit, outcome == OutcomeLabel::Allowed, source);
}

/// The store did not decide a check of a concurrency limit. Its failure has been counted.
pub(crate) fn undecided_in_flight(
    span: &CheckSpan,
    limit: &Limit,
    outcome: OutcomeLabel,
    error: &Error,
) {
    metrics::decided_one(limit, outcome, Source::FailClosed);
    span.undecided(error);
}
