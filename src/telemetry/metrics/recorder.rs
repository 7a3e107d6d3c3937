//! The recorder of the application, through the facade of the `metrics` crate.
//!
//! A service may install its recorder after it has built its layers, and a test has one for each
//! thread. So a handle belongs to the recorder that made it, and is replaced if another recorder is
//! in its place.

use std::cell::Cell;
use std::ptr;

use metrics::{Counter, Gauge, Key, KeyName, Label, Level as Importance, Metadata, Recorder, Unit};

use super::names::{COUNTERS, GAUGES, Metric, STORE_CALL_CHECKS, STORE_CALL_DURATION};

impl Metric {
    fn key(&self, labels: &[(&'static str, &str)]) -> Key {
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| Label::new(*name, (*value).to_owned()))
            .collect();
        Key::from_parts(self.name, labels)
    }
}

const METADATA: Metadata<'static> = Metadata::new("tollgate", Importance::INFO, None);

thread_local! {
    /// The recorder that this thread has described the metrics to.
    static DESCRIBED: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// Calls `act` with the recorder in force, and its address, to compare.
#[inline]
pub(super) fn with<T>(act: impl FnOnce(&dyn Recorder, *const ()) -> T) -> T {
    metrics::with_recorder(|recorder| act(recorder, ptr::from_ref(recorder).cast()))
}

/// Describes the metrics, if this thread has not done so.
fn describe(recorder: &dyn Recorder) {
    let address = ptr::from_ref(recorder).cast();
    // A thread that ends has described them before.
    if DESCRIBED.try_with(|described| described.replace(address)) != Ok(address) {
        let name = |metric: &Metric| KeyName::from_const_str(metric.name);
        for metric in COUNTERS {
            recorder.describe_counter(name(metric), None, metric.help.into());
        }
        for metric in GAUGES {
            recorder.describe_gauge(name(metric), None, metric.help.into());
        }
        let duration = &STORE_CALL_DURATION;
        let checks = &STORE_CALL_CHECKS;
        recorder.describe_histogram(name(duration), Some(Unit::Seconds), duration.help.into());
        recorder.describe_histogram(name(checks), None, checks.help.into());
    }
}

pub(super) fn counter(
    recorder: &dyn Recorder,
    metric: &Metric,
    labels: &[(&'static str, &str)],
) -> Counter {
    describe(recorder);
    recorder.register_counter(&metric.key(labels), &METADATA)
}

pub(super) fn gauge(
    recorder: &dyn Recorder,
    metric: &Metric,
    labels: &[(&'static str, &str)],
) -> Gauge {
    describe(recorder);
    recorder.register_gauge(&metric.key(labels), &METADATA)
}

/// Adds to a counter.
pub(super) fn add(metric: &Metric, labels: &[(&'static str, &str)], amount: u64) {
    with(|recorder, _| counter(recorder, metric, labels).increment(amount));
}

/// Adds a value to a histogram.
pub(super) fn record(metric: &Metric, labels: &[(&'static str, &str)], value: f64) {
    with(|recorder, _| {
        describe(recorder);
        recorder
            .register_histogram(&metric.key(labels), &METADATA)
            .record(value);
    });
}

/// A part of a gauge, which is taken off when it is dropped.
pub(crate) struct GaugeLevel {
    /// The gauge of the recorder that was in force when the amount was last zero. So what is added
    /// is taken off again.
    gauge: Gauge,
    amount: usize,
}

impl Default for GaugeLevel {
    fn default() -> Self {
        Self::none()
    }
}

impl GaugeLevel {
    pub(in crate::telemetry) const fn none() -> Self {
        Self {
            gauge: Gauge::noop(),
            amount: 0,
        }
    }

    /// One of a gauge.
    pub(super) fn one(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge, amount: 1 }
    }

    pub(super) fn set(&mut self, metric: &Metric, labels: &[(&'static str, &str)], amount: usize) {
        if self.amount == 0 {
            self.gauge = with(|recorder, _| gauge(recorder, metric, labels));
        }
        self.gauge.increment(amount as f64 - self.amount as f64);
        self.amount = amount;
    }
}

impl Drop for GaugeLevel {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.gauge.decrement(self.amount as f64);
        }
    }
}
