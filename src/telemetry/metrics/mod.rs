//! Every metric of the crate, and its labels; nowhere else.
//!
//! Names and units follow the conventions of Prometheus. Labels are bounded: the names of limits
//! and of stores, and words of this room. No label is a key, a path or an address.
//!
//! `recorder` and `limits` talk to the facade of the `metrics` crate. Without the feature
//! `metrics`, files that do nothing stand in their places, and the compiler removes the rest.

mod label;
#[cfg_attr(not(feature = "metrics"), path = "no_limits.rs")]
mod limits;
mod names;
#[cfg_attr(not(feature = "metrics"), path = "no_recorder.rs")]
mod recorder;
pub(super) mod store;

use std::time::Duration;

pub(crate) use self::label::OutcomeLabel;
pub(super) use self::label::source_name;
pub(crate) use self::limits::{denied_from_cache, found_key, hold_permit};
#[cfg(feature = "metrics")]
pub use self::names::HISTOGRAMS;
pub(crate) use self::recorder::GaugeLevel;
use crate::model::{Decision, Error, Limit, Source, Verdict};

/// The causes of failures of which alerts wait for the first one.
const AWAITED_CAUSES: [&str; 7] = [
    "timeout",
    "circuit_open",
    "unreachable",
    "invalid_answer",
    "declined",
    "overloaded",
    "full",
];

/// Creates the counters of limits at 0, when they are registered. A counter that does not exist
/// until it counts hides the first denial, the first outage and the first failure of a process.
pub(crate) fn announce<'a>(limits: impl Iterator<Item = &'a Limit>) {
    for limit in limits {
        limits::announce(limit.name());
        if limit.sheds_load() {
            limits::announce_outcome(limit.name(), OutcomeLabel::Shed, Some(Source::Store));
        }
        if limit.warn_at_percent().is_some() {
            let is_asynchronous = limit.is_asynchronous();
            let sources = [
                Some(Source::Store),
                is_asynchronous.then_some(Source::Asynchronous),
            ];
            for source in sources.into_iter().flatten() {
                limits::announce_outcome(limit.name(), OutcomeLabel::NearLimit, Some(source));
            }
        }
    }
    for cause in AWAITED_CAUSES {
        recorder::add(&names::STORE_FAILURES, &[("cause", cause)], 0);
    }
    for outcome in ["rejected", "forwarded"] {
        let labels = [("reason", "missing_key"), ("outcome", outcome)];
        recorder::add(&names::UNCHECKED_REQUESTS, &labels, 0);
    }
    recorder::add(&names::LOOKUP_FAILURES, &[], 0);
    recorder::add(&names::UNSETTLED, &[], 0);
}

/// Counts the decision of each limit of a group.
#[inline]
pub(super) fn decided(decision: &Decision) {
    let source = Some(decision.source());
    for verdict in decision.verdicts() {
        limits::count(
            verdict.limit().name(),
            OutcomeLabel::from_verdict(verdict, decision.allowed()),
            source,
        );
    }
}

/// Counts a verdict that an override gives.
pub(super) fn decided_by_override(verdict: &Verdict, is_charged: bool) {
    let outcome = OutcomeLabel::from_verdict(verdict, is_charged);
    decided_one(verdict.limit(), outcome, Source::Override);
}

/// Counts a group that has no decision, under each of its limits. `source` stands in for the store.
/// `None` if the caller got an error.
pub(super) fn undecided<'a>(
    limits: impl Iterator<Item = &'a Limit>,
    error: &Error,
    source: Option<Source>,
) {
    for limit in limits {
        limits::count(limit.name(), OutcomeLabel::Error, source);
    }
    failed(error);
}

/// Counts the decision of one limit.
#[inline]
pub(super) fn decided_one(limit: &Limit, outcome: OutcomeLabel, source: Source) {
    limits::count(limit.name(), outcome, Some(source));
}

/// Counts a check that the store did not decide.
pub(super) fn failed(error: &Error) {
    recorder::add(&names::STORE_FAILURES, &[("cause", error.cause())], 1);
}

/// Counts a request that no limit is asked about.
pub(super) fn unchecked(reason: &'static str, is_rejected: bool) {
    let outcome = if is_rejected { "rejected" } else { "forwarded" };
    let labels = [("reason", reason), ("outcome", outcome)];
    recorder::add(&names::UNCHECKED_REQUESTS, &labels, 1);
}

/// Counts a block of a key that begins with a denial.
pub(super) fn blocked(limit: &str) {
    recorder::add(&names::BLOCKS, &[("limit", limits::label(limit))], 1);
}

/// Counts units that are charged ahead, or returned.
pub(crate) fn prepaid(limit: &str, event: &'static str, units: u64) {
    let labels = [("limit", limits::label(limit)), ("event", event)];
    recorder::add(&names::PREPAID_UNITS, &labels, units);
}

/// Counts units that were allowed here and charged later, and how many of them did not fit.
pub(crate) fn paid(limit: &str, units: u64, above_limit: u64) {
    let labels = [("limit", limits::label(limit))];
    recorder::add(&names::PAID_UNITS, &labels, units);
    recorder::add(&names::UNITS_ABOVE_LIMIT, &labels, above_limit);
}

/// Notes how many keys have units that are to be paid.
pub(crate) fn unpaid_keys(store: &str, level: &mut GaugeLevel, keys: usize) {
    level.set(&names::UNPAID_KEYS, &[("store", store)], keys);
}

/// Notes for how long the oldest of the repeated payments was sent.
pub(crate) fn unpaid_for(store: &str, level: &mut GaugeLevel, time: Duration) {
    let seconds = usize::try_from(time.as_secs()).unwrap_or(usize::MAX);
    level.set(&names::UNPAID_SECONDS, &[("store", store)], seconds);
}

/// Notes how many processes share the overshoot of limits.
pub(crate) fn shared_with(store: &str, level: &mut GaugeLevel, replicas: u32) {
    let replicas = usize::try_from(replicas).unwrap_or(usize::MAX);
    level.set(&names::REPLICAS, &[("store", store)], replicas);
}

/// Counts a request as waiting, until the level is dropped.
pub(crate) fn waiting() -> GaugeLevel {
    let mut level = GaugeLevel::none();
    level.set(&names::WAITING_REQUESTS, &[], 1);
    level
}

/// Notes how many overrides this process has.
pub(crate) fn overrides_counted(level: &mut GaugeLevel, overrides: usize) {
    level.set(&names::OVERRIDES, &[], overrides);
}

/// Counts an attempt to read overrides that failed.
pub(super) fn overrides_unread() {
    recorder::add(&names::OVERRIDES_UNREAD, &[], 1);
}

/// Counts a look-up that failed.
pub(super) fn lookup_failed() {
    recorder::add(&names::LOOKUP_FAILURES, &[], 1);
}

/// Counts a settlement that failed.
pub(super) fn unsettled() {
    recorder::add(&names::UNSETTLED, &[], 1);
}

/// Counts a set of limits as one whose newest version is rejected, until the level is dropped.
pub(super) fn configuration_rejected() -> GaugeLevel {
    let mut level = GaugeLevel::none();
    level.set(&names::CONFIGURATIONS_REJECTED, &[], 1);
    level
}

/// Counts a new version of a configuration.
pub(super) fn configuration(outcome: &'static str) {
    recorder::add(&names::CONFIGURATION_UPDATES, &[("outcome", outcome)], 1);
}
