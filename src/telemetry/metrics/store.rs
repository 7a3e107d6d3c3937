//! The metrics of a store on Redis. All its nodes and lanes share the label `store`.

use std::time::Duration;

use super::names::{
    BREAKER_TRANSITIONS, BREAKERS, CONNECTIONS, QUEUED_CHECKS, STORE_CALL_CHECKS,
    STORE_CALL_DURATION,
};
use super::recorder::{self, GaugeLevel};

/// A call ended, with a reply, or because the wait for it did.
pub(in crate::telemetry) fn called(store: &str, took: Duration, checks: usize) {
    let labels = [("store", store)];
    recorder::record(&STORE_CALL_DURATION, &labels, took.as_secs_f64());
    recorder::record(&STORE_CALL_CHECKS, &labels, checks as f64);
}

/// A connection was opened, failed to open, or was lost.
pub(in crate::telemetry) fn connection(store: &str, event: &'static str) {
    recorder::add(&CONNECTIONS, &[("store", store), ("event", event)], 1);
}

/// The checks that a lane has queued or in flight.
pub(in crate::telemetry) fn queued(store: &str, level: &mut GaugeLevel, checks: usize) {
    level.set(&QUEUED_CHECKS, &[("store", store)], checks);
}

/// A circuit breaker changed. Counts the transition, and sets the gauge of each state. `levels` are
/// its parts in them, open and half-open.
pub(in crate::telemetry) fn breaker(
    store: &str,
    state: &'static str,
    levels: &mut [GaugeLevel; 2],
) {
    let label = ("store", store);
    recorder::add(&BREAKER_TRANSITIONS, &[label, ("state", state)], 1);
    for (level, gauge) in levels.iter_mut().zip(["open", "half_open"]) {
        let here = usize::from(gauge == state);
        level.set(&BREAKERS, &[label, ("state", gauge)], here);
    }
}
