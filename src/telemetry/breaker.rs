//! Events of a circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use super::{TARGET, Throttle, milliseconds};

/// The events of one breaker, each once a second at most.
pub(crate) struct BreakerEvents {
    /// The store that it guards.
    store: Arc<str>,
    opened: Throttle,
    half_opened: Throttle,
    closed: Throttle,
}

impl BreakerEvents {
    pub(crate) fn new(store: Arc<str>) -> Self {
        let (opened, half_opened, closed) = Default::default();
        Self { store, opened, half_opened, closed }
    }

    /// So many of the last calls failed, and no check is sent any more.
    pub(crate) fn opened(&self, failed: u32, calls: u32) {
        if let Some(unreported) = self.opened.report() {
            let store = &*self.store;
            tracing::warn!(
                target: TARGET, store, failed, calls, unreported, "circuit breaker opened"
            );
        }
    }

    /// A probe was answered, and a growing share of the checks is sent.
    pub(crate) fn half_opened(&self) {
        if let Some(unreported) = self.half_opened.report() {
            let store = &*self.store;
            tracing::info!(target: TARGET, store, unreported, "circuit breaker half-open");
        }
    }

    /// All checks are sent again. `rejected` were not, since it opened.
    pub(crate) fn closed(&self, lasted: Duration, rejected: u64) {
        if let Some(unreported) = self.closed.report() {
            let (store, open_ms) = (&*self.store, milliseconds(lasted));
            tracing::warn!(
                target: TARGET, store, open_ms, rejected, unreported, "circuit breaker closed"
            );
        }
    }
}
