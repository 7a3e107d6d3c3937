//! `recorder` without the feature `metrics`: nothing.

use super::names::Metric;

#[inline]
pub(super) const fn add(_: &Metric, _: &[(&'static str, &str)], _: u64) {}

#[inline]
pub(super) const fn record(_: &Metric, _: &[(&'static str, &str)], _: f64) {}

pub(crate) use NoLevel as GaugeLevel;

#[derive(Default)]
pub(crate) struct NoLevel;

impl NoLevel {
    pub(in crate::telemetry) const fn none() -> Self {
        Self
    }

    #[inline]
    pub(super) const fn set(&mut self, _: &Metric, _: &[(&'static str, &str)], _: usize) {}
}
