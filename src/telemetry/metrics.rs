//! Counters, by the facade of the `metrics` crate.

use metrics::counter;

use crate::nouns::{ConcurrencyLimit, Decision, Source, Verdict};

/// Decisions by limit, outcome and source. Its labels are bounded: no key is one.
const DECISIONS: &str = "tollgate_decisions_total";

/// Counts the decision of each limit of a group.
pub(crate) fn count(decision: &Decision) {
    for verdict in decision.verdicts() {
        let labels = [
            ("limit", verdict.limit().name().to_owned()),
            ("outcome", outcome(decision, verdict).to_owned()),
            ("source", source(decision.source()).to_owned()),
        ];
        counter!(DECISIONS, &labels).increment(1);
    }
}

/// Counts the decision of a concurrency limit.
pub(crate) fn count_in_flight(limit: &ConcurrencyLimit, outcome: &'static str, source: Source) {
    let labels = [
        ("limit", limit.name().to_owned()),
        ("outcome", outcome.to_owned()),
        ("source", self::source(source).to_owned()),
    ];
    counter!(DECISIONS, &labels).increment(1);
}

const fn outcome(decision: &Decision, verdict: &Verdict) -> &'static str {
    match (verdict.would_deny(), verdict.allowed(), decision.allowed()) {
        (true, ..) => "shadow_denied",
        (false, false, _) if verdict.is_blocked() => "blocked",
        (false, false, _) => "denied",
        // Another limit of the group denied.
        (false, true, false) => "not_charged",
        (false, true, true) => "allowed",
    }
}

const fn source(source: Source) -> &'static str {
    match source {
        Source::Store => "store",
        Source::DenyCache => "deny_cache",
        Source::Prefetched => "prefetched",
        Source::Local => "local",
        Source::FailOpen => "fail_open",
        Source::FailClosed => "fail_closed",
    }
}
