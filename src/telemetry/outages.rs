//! Events of a store that is unavailable, and of what is made good after that.

use super::{TARGET, Throttle, metrics};
use crate::model::{Check, Error};

/// The last handle of a limiter is dropped while settlements are in flight.
pub(crate) fn dropped_unsettled(settlements: usize) {
    tracing::warn!(
        target: TARGET,
        settlements,
        "limiter dropped with settlements in flight: they may be lost if the program ends now; \
         call `RateLimiter::flush` before"
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

/// The lease of permits has expired in the store, because this process was blocked, or the store
/// was unavailable.
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
pub(crate) fn repaid(budgets: usize, units: u64) {
    tracing::info!(target: TARGET, budgets, units, "local charges settled");
}
