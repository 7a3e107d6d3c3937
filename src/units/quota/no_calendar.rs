//! Without the feature `calendar`, there is no calendar.

use std::fmt;
use std::time::Duration;

use crate::units::{ConfigError, Timestamp};

/// A period of the calendar. There is none without the feature `calendar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Calendar {}

pub(crate) struct CalendarWindow {
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
}

pub(crate) struct TwoWindows {
    pub(crate) start: Timestamp,
    pub(crate) between: Timestamp,
    pub(crate) end: Timestamp,
}

impl Calendar {
    pub(crate) const fn of_unit(_: &str) -> Option<Self> {
        None
    }

    pub(crate) fn with_start(self, _: &str) -> Result<Self, ConfigError> {
        match self {}
    }

    pub(crate) fn in_time_zone(self, _: &str) -> Result<Self, ConfigError> {
        match self {}
    }

    pub(crate) fn written_start(&self) -> Option<String> {
        match *self {}
    }

    pub(crate) fn written_zone(&self) -> Option<&'static str> {
        match *self {}
    }

    /// `day`, `week`, `month` or `year`.
    #[must_use]
    pub const fn unit(&self) -> &'static str {
        match *self {}
    }

    pub(crate) const fn length(&self) -> Duration {
        match *self {}
    }

    pub(crate) fn id(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn window_at(&self, _: Timestamp) -> CalendarWindow {
        match *self {}
    }

    pub(crate) fn windows_around(&self, _: Timestamp) -> TwoWindows {
        match *self {}
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}
