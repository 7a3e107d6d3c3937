//! Events of a circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use super::metrics::store;
use super::{GaugeLevel, TARGET, milliseconds};
use crate::units::Mutex;

/// The events of one breaker, one for each change. Its pauses bound how many there are, and no
/// client can shorten them.
pub(crate) struct BreakerEvents {
    /// The store that it guards.
    store: Arc<str>,
    /// The store's label in metrics.
    label: Arc<str>,
    /// Its parts in the gauges of breakers: open, and half-open.
    levels: Mutex<[GaugeLevel; 2]>,
}

impl BreakerEvents {
    /// `label` is its name in metrics.
    pub(crate) fn new(store: Arc<str>, label: Arc<str>) -> Self {
        Self {
            store,
            label,
            levels: Mutex::new([GaugeLevel::none(), GaugeLevel::none()]),
        }
    }

    /// So many of the last calls failed, and no check is sent any more.
    pub(crate) fn opened(&self, failed: u32, calls: u32) {
        self.measure("open");
        let store = &*self.store;
        tracing::warn!(target: TARGET, store, failed, calls, "circuit breaker opened");
    }

    /// The store answered a probe, or a check in its place, and a growing share of the checks is
    /// sent.
    pub(crate) fn half_opened(&self) {
        self.measure("half_open");
        tracing::info!(target: TARGET, store = &*self.store, "circuit breaker half-open");
    }

    /// All checks are sent again. `rejected` were not, since it opened.
    pub(crate) fn closed(&self, lasted: Duration, rejected: u64) {
        self.measure("closed");
        let store = &*self.store;
        let open_ms = milliseconds(lasted);
        tracing::warn!(target: TARGET, store, open_ms, rejected, "circuit breaker closed");
    }

    fn measure(&self, state: &'static str) {
        let mut levels = self.levels.lock();
        store::breaker(&self.label, state, &mut levels);
    }
}
