//! `limits` without the feature `metrics`: nothing.

use super::OutcomeLabel;
use super::recorder::GaugeLevel;
use crate::model::Source;

#[inline]
pub(super) const fn announce(_: &str) {}

#[inline]
pub(super) const fn announce_outcome(_: &str, _: OutcomeLabel, _: Option<Source>) {}

#[inline]
pub(super) const fn count(_: &str, _: OutcomeLabel, _: Option<Source>) {}

#[inline]
pub(crate) const fn found_key(_: &str, _: usize) {}

#[inline]
pub(crate) const fn hold_permit(_: &str) -> GaugeLevel {
    GaugeLevel::none()
}

#[inline]
pub(crate) const fn denied_from_cache() {}

#[inline]
pub(super) const fn label(limit: &str) -> &str {
    limit
}
