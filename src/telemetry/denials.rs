//! Events of keys that are near a limit or denied often, and of blocks.

use std::time::Duration;

use super::{TARGET, Throttles, metrics, milliseconds};
use crate::model::{Budget, Check, Decision, Key, Limit, Verdict};

/// A key was denied too often, and a block of it begins.
pub(crate) fn blocked(at_most: &Throttles, budget: &Budget, length: Duration) {
    metrics::blocked(budget.limit().name());
    if let Some(unreported) = at_most.for_subject(budget.key()).report() {
        tracing::warn!(
            target: TARGET,
            limit = budget.limit().name(),
            key = %budget.key(),
            blocked_for_ms = milliseconds(length),
            unreported,
            "key blocked after too many denials"
        );
    }
}

/// The blocks that begin with a denial. A peek says what a charge would do, unless its caller is
/// denied.
pub(crate) fn blocks_of(
    at_most: &Throttles,
    group: &[Check],
    is_charge: bool,
    decision: &Decision,
) {
    for (check, verdict) in group.iter().zip(decision.verdicts()) {
        if verdict.begins_block() && (is_charge || check.is_denied_caller()) {
            let length = verdict.blocked_for().unwrap_or_default();
            blocked(at_most, check.budget(), length);
        }
    }
}

/// A key has used most of its units.
pub(crate) fn near_limit(at_most: &Throttles, key: &Key, verdict: &Verdict) {
    let limit = verdict.limit().name();
    if let Some(unreported) = at_most.for_subject(key).report() {
        tracing::info!(
            target: TARGET,
            limit,
            %key,
            remaining = verdict.remaining(),
            capacity = verdict.capacity(),
            unreported,
            "key near a limit"
        );
    }
}

/// The application's function for keys near a limit panicked.
pub(crate) fn near_limit_panicked(at_most: &Throttles, key: &Key, limit: &Limit) {
    let limit = limit.name();
    if let Some(unreported) = at_most.for_subject(limit).report() {
        tracing::error!(
            target: TARGET,
            limit,
            %key,
            unreported,
            "function for keys near a limit panicked"
        );
    }
}

/// A check costs more than its limit ever allows. The cost or the quota may be a mistake.
pub(crate) fn exceeds_capacity(at_most: &Throttles, denied: &Decision) {
    let limit = denied.limit().name();
    if let Some(unreported) = at_most.for_subject(limit).report() {
        let capacity = denied.capacity();
        tracing::warn!(
            target: TARGET,
            limit,
            capacity,
            unreported,
            "cost exceeds the capacity of the limit"
        );
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
