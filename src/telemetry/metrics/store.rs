//! The metrics of a store on Redis.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::names::{
    BREAKER_TRANSITIONS, BREAKERS, CONNECTIONS, QUEUED_CHECKS, STORE_CALL_CHECKS,
    STORE_CALL_DURATION,
};
use super::recorder::{self, GaugeLevel};

/// The metrics of one store. All its nodes and lanes share the label.
#[derive(Clone)]
pub(crate) struct StoreMetrics {
    store: Arc<str>,
}

impl StoreMetrics {
    /// `store` is the label.
    pub(crate) const fn new(store: Arc<str>) -> Self {
        Self { store }
    }

    /// A call ended: with a reply, or because the wait for it did.
    pub(crate) fn called(&self, took: Duration, checks: usize) {
        let labels = [("store", &*self.store)];
        recorder::record(&STORE_CALL_DURATION, &labels, took.as_secs_f64());
        recorder::record(&STORE_CALL_CHECKS, &labels, checks as f64);
    }

    /// A connection was opened, failed to open, or was lost.
    pub(crate) fn connection(&self, event: &'static str) {
        recorder::add(
            &CONNECTIONS,
            &[("store", &*self.store), ("event", event)],
            1,
        );
    }

    /// The checks that a lane has queued or in flight.
    pub(crate) fn queued(&self, level: &mut GaugeLevel, checks: usize) {
        level.set(&QUEUED_CHECKS, &[("store", &*self.store)], checks);
    }
}

/// The metrics of one circuit breaker.
pub(crate) struct BreakerMetrics {
    store: Arc<str>,
    /// The parts in the gauge of breakers: open, and half-open.
    levels: Mutex<[GaugeLevel; 2]>,
}

impl BreakerMetrics {
    /// `store` is the label.
    pub(crate) fn new(store: Arc<str>) -> Self {
        Self {
            store,
            levels: Mutex::new([GaugeLevel::none(), GaugeLevel::none()]),
        }
    }

    pub(crate) fn opened(&self) {
        self.is_now("open", 1, 0);
    }

    pub(crate) fn half_opened(&self) {
        self.is_now("half_open", 0, 1);
    }

    pub(crate) fn closed(&self) {
        self.is_now("closed", 0, 0);
    }

    /// Counts a transition, and sets the gauge of each state.
    fn is_now(&self, state: &'static str, open: usize, half_open: usize) {
        let store = ("store", &*self.store);
        recorder::add(&BREAKER_TRANSITIONS, &[store, ("state", state)], 1);
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let [open_level, half_open_level] = &mut *levels;
        open_level.set(&BREAKERS, &[store, ("state", "open")], open);
        half_open_level.set(&BREAKERS, &[store, ("state", "half_open")], half_open);
    }
}
