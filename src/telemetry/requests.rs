//! Events of requests: what a layer did with them, and what it noticed.

use super::{TARGET, Throttle, metrics, milliseconds};
use crate::model::{Decision, Error, Limit, Verdict};

/// A request was denied.
pub(crate) fn denied(decision: &Decision) {
    tracing::debug!(
        target: TARGET,
        limit = decision.limit().name(),
        capacity = decision.capacity(),
        remaining = decision.remaining(),
        retry_after_ms = decision.retry_after().map(milliseconds),
        source = ?decision.source(),
        "request denied"
    );
}

/// A request was denied, because too many are in flight.
pub(crate) fn denied_in_flight(limit: &Limit) {
    tracing::debug!(
        target: TARGET,
        limit = limit.name(),
        at_once = limit.permits(),
        "request denied"
    );
}

/// A request was shed, because the server has as many in flight as it takes.
pub(crate) fn load_shed(at_most: &Throttle, limit: &Limit) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET,
            limit = limit.name(),
            at_once = limit.permits(),
            unreported,
            "load shed: the server is busy"
        );
    }
}

/// A concurrency limit in shadow mode would have denied a request.
pub(crate) fn shadow_denied_in_flight(at_most: &Throttle, limit: &Limit) {
    if let Some(unreported) = at_most.report() {
        tracing::info!(
            target: TARGET,
            limit = limit.name(),
            at_once = limit.permits(),
            unreported,
            "limit in shadow mode would have denied the request"
        );
    }
}

/// A limit in shadow mode would have denied a request.
pub(crate) fn shadow_denied(at_most: &Throttle, verdict: &Verdict) {
    if let Some(unreported) = at_most.report() {
        tracing::info!(
            target: TARGET,
            limit = verdict.limit().name(),
            capacity = verdict.capacity(),
            remaining = verdict.remaining(),
            retry_after_ms = verdict.would_retry_after().map(milliseconds),
            unreported,
            "limit in shadow mode would have denied the request"
        );
    }
}

/// The application rejects a request.
pub(crate) fn rejected(limits: &str, reason: &str) {
    metrics::unchecked("rejected", true);
    tracing::debug!(target: TARGET, limits, reason, "request rejected");
}

/// A look-up of the application failed.
pub(crate) fn lookup_failed(at_most: &Throttle, error: &str) {
    metrics::lookup_failed();
    if let Some(unreported) = at_most.report() {
        tracing::warn!(target: TARGET, error, unreported, "look-up for rate limits failed");
    }
}

/// An announcement is not an id of the look-up that follows it.
pub(crate) fn change_not_understood(at_most: &Throttle, id: &str) {
    if let Some(unreported) = at_most.report() {
        let start: String = id.chars().take(64).collect();
        tracing::warn!(
            target: TARGET,
            id = ?start,
            unreported,
            "announced change has no id of the look-up: it is ignored"
        );
    }
}

/// A look-up follows no announcements from now on.
pub(crate) fn announcements_ended() {
    tracing::warn!(
        target: TARGET,
        "announcements have ended: look-ups keep their values for as long as they are fresh"
    );
}

/// The application has settled costs of so many requests under a limit, and none of them was
/// charged under it, because its name is mistyped.
pub(crate) fn settled_uncharged(limit: &str, charged: &[&str], requests: u32) {
    let charged = charged.join(", ");
    tracing::warn!(
        target: TARGET,
        limit,
        charged,
        requests,
        "no request was charged under the limit that is settled: its name may be mistyped, and \
         estimates stand; use one of the `charged` limits"
    );
}

/// So many requests of a limit were settled, and all had an estimate of 0.
pub(crate) fn settled_without_estimate(limit: &str, requests: u32) {
    tracing::warn!(
        target: TARGET,
        limit,
        requests,
        "limit allows every request, because each costs 0 until it is settled: charge an estimate, \
         and settle the real cost"
    );
}

/// A setting of a layer has no effect without another one.
pub(crate) fn setting_without_effect(limits: &str, setting: &str, needs: &str) {
    tracing::warn!(
        target: TARGET,
        limits,
        setting,
        needs,
        "setting of the rate limit layer has no effect: remove it, or add what it needs"
    );
}

/// Reports that the real cost of a request was not charged or given back, or that it is not known
/// because the answer was lost.
pub(crate) fn unsettled(at_most: &Throttle, limit: &str, error: &Error) {
    metrics::unsettled();
    let Some(unreported) = at_most.report() else {
        return;
    };
    if error.may_have_charged() {
        tracing::warn!(target: TARGET, limit, %error, unreported, "cost may not be settled");
    } else {
        tracing::warn!(target: TARGET, limit, %error, unreported, "cost not settled");
    }
}

/// The store is overloaded, and a request failed open or closed.
pub(crate) fn overloaded(at_most: &Throttle, limits: &str, error: &Error, outcome: &str) {
    if let Some(unreported) = at_most.report() {
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store overloaded"
        );
    }
}

/// The store is full, and a request failed closed.
pub(crate) fn full(at_most: &Throttle, limits: &str, error: &Error) {
    if let Some(unreported) = at_most.report() {
        let outcome = "fail_closed";
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store full"
        );
    }
}

/// The store can never decide a layer's limits. The request is rejected.
pub(crate) fn misconfigured(at_most: &Throttle, limits: &str, error: &Error) {
    if let Some(unreported) = at_most.report() {
        tracing::error!(target: TARGET, limits, %error, unreported, "rate limit misconfigured");
    }
}

/// Requests are decided again. Reports earlier failures that were left out.
#[inline]
pub(crate) fn decides_again(undecided: &Throttle, limits: &str) {
    if let Some(unreported) = undecided.overdue() {
        tracing::error!(
            target: TARGET, limits, unreported, "rate limit store failures not reported before"
        );
    }
}

/// A request had no key.
pub(crate) fn missing_key(at_most: &Throttle, limit: Option<&str>, reason: &str, rejected: bool) {
    metrics::unchecked("missing_key", rejected);
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET,
            limit,
            reason,
            rejected,
            unreported,
            "request without a rate limit key"
        );
    }
}

/// A client is in a forbidden network.
pub(crate) fn forbidden(limits: &str) {
    metrics::unchecked("forbidden", true);
    tracing::debug!(target: TARGET, limits, "request forbidden");
}

/// Two layers charge one budget for a request.
pub(crate) fn charged_twice(limit: &Limit) {
    let limit_name = limit.name();
    if limit.is_concurrency() {
        tracing::warn!(
            target: TARGET,
            limit = limit_name,
            "two layers need a permit of one key for a request: it counts as two, and under a \
             limit of 1 every request is denied; keep the limit in one of them"
        );
    } else {
        tracing::warn!(
            target: TARGET,
            limit = limit_name,
            "two layers charge one budget for a request: it costs twice as much; keep the limit \
             in one of them, or give them limits of different names"
        );
    }
}

/// The first extractor of a chain found no key in so many requests.
pub(crate) fn always_falls_back(limit: &str, requests: u32, reason: &str) {
    tracing::warn!(
        target: TARGET,
        limit,
        requests,
        reason,
        "first key extractor found no key in any request: all of them count under a fallback"
    );
}

/// A request had a key. Reports earlier requests without a key that were left out.
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
