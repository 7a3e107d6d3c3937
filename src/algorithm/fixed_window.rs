//! Fixed window: at most `limit` units in a window.
//!
//! A window is `period` long. It starts with the first request of a key, or is aligned to the
//! clock (the Unix epoch) or to a calendar, the same for every key. Across the border of two
//! windows, up to twice the limit is allowed within one period. The sliding algorithms do not allow
//! that.
//!
//! A quota with another period or anchor counts in a window of its own. See
//! [`rotation`](super::rotation). A longer window starts with the window in force and lasts its own
//! period. A shorter window starts with the last charge, and has the full count. A window aligned
//! to the clock ends at a multiple of its period. A window of a calendar counts the units that
//! another quota charged, if the last one was charged in that window.
//!
//! A refund subtracts units from the window of the charge, if that window is in force.
//!
//! Twin: `scripts/fixed_window.lua`.

use std::borrow::Cow;

use super::range::counted_in_windows;
use super::rotation::{Counter, Counters, Entering, entry_of};
use super::{Cost, Effect, Kind, KindOfState, MAX_EXACT};
use crate::units::{Calendar, ConfigError, Micros, Outcome, Period, Quota, Receipt, Timestamp};

/// The start of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) enum Anchor {
    /// The key's first request.
    First,
    /// The multiples of the period since the Unix epoch.
    Clock,
    /// The days, weeks, months or years of a calendar.
    #[cfg_attr(feature = "serde", serde(skip))]
    #[cfg_attr(feature = "schema", schemars(skip))]
    Calendar(Calendar),
}

const SECOND: Micros = 1_000_000;

/// The largest count. Charges under a quota with a higher limit stop here, far above any limit, and
/// low enough that one more charge is exact.
const MAX_COUNT: u64 = MAX_EXACT - (1 << 32);

/// The length, or the greatest length, and the start of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    period: Micros,
    anchor: Anchor,
}

impl Shape {
    /// The end of a window that contains `time`.
    fn end_from(self, time: Timestamp) -> Timestamp {
        match self.anchor {
            Anchor::First => time + self.period,
            Anchor::Clock => Timestamp::from_micros((time / self.period + 1) * self.period),
            Anchor::Calendar(calendar) => calendar.window_at(time).end,
        }
    }
}

/// The window that ends at `end`, with `count` units, the last charged at `at`. Charges since
/// `since` can be refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    shape: Shape,
    count: u64,
    at: Timestamp,
    end: Timestamp,
    since: Timestamp,
}

impl Counter for Window {
    type Shape = Shape;

    fn fresh(shape: Shape, now: Timestamp) -> Self {
        Self {
            shape,
            count: 0,
            at: now,
            end: shape.end_from(now),
            since: now,
        }
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn period(&self) -> Micros {
        self.shape.period
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn expires_at(&self) -> Timestamp {
        match self.count {
            0 => Timestamp::EPOCH,
            _ => self.end,
        }
    }

    fn set_back(&mut self, now: Timestamp) {
        let since = self.at + 1;
        *self = Self {
            count: self.count,
            since,
            ..Self::fresh(self.shape, now)
        };
    }

    fn started_elsewhere(self, now: Timestamp) -> Self {
        match self.shape.anchor {
            Anchor::First | Anchor::Clock => self,
            Anchor::Calendar(_) => {
                // No window of a calendar ends between two seconds.
                let second = now.as_micros() / SECOND * SECOND;
                let end = Timestamp::from_micros(second + self.shape.period + 1);
                Self { end, ..self }
            }
        }
    }

    fn with_known_end(&self, now: Timestamp) -> Option<Self> {
        let is_known = self.end.as_micros().is_multiple_of(SECOND);
        if is_known || !matches!(self.shape.anchor, Anchor::Calendar(_)) {
            return None;
        }
        let at = self.at.min(now);
        let end = self.shape.end_from(at);
        Some(Self { at, end, ..*self })
    }

    fn derived(&self, shape: Shape, now: Timestamp) -> Self {
        let is_shorter = shape.period < self.shape.period;
        // A window of a calendar is not longer because the clock stepped back.
        let at = match shape.anchor {
            Anchor::Calendar(_) => self.at.min(now),
            Anchor::First | Anchor::Clock => self.at,
        };
        let end = match shape.anchor {
            Anchor::First if is_shorter => shape.end_from(self.at).min(self.end),
            Anchor::First => shape
                .end_from(self.end.saturating_sub(self.shape.period))
                .max(self.end),
            // It lasts to the end of an aligned window. Otherwise two old windows could share it.
            Anchor::Clock if is_shorter => shape.end_from(self.at),
            Anchor::Clock => shape.end_from(self.end.saturating_sub(1)),
            Anchor::Calendar(_) => shape.end_from(at),
        };
        Self {
            shape,
            end,
            at,
            since: at + 1,
            ..*self
        }
    }

    fn charge(&mut self, now: Timestamp, units: u64) {
        self.count += units;
        self.at = self.at.max(now);
    }

    fn add(&mut self, now: Timestamp, units: u64) {
        self.count = (self.count + units).min(MAX_COUNT);
        self.at = self.at.max(now);
    }

    fn take_back(&mut self, at: Timestamp, units: u64) {
        if (self.since..=self.at).contains(&at) {
            self.count = self.count.saturating_sub(units);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: Micros,
    pub(crate) anchor: Anchor,
}

impl FixedWindow {
    /// Checks that a quota can be decided exactly.
    pub(crate) fn new(quota: &Quota, anchor: Anchor) -> Result<Self, ConfigError> {
        let (limit, period) = counted_in_windows(quota, "a fixed window")?;
        let anchor = match quota.period() {
            Period::Calendar(calendar) => Anchor::Calendar(calendar),
            Period::Fixed(_) | Period::AtOnce => anchor,
        };
        Ok(Self {
            limit,
            period,
            anchor,
        })
    }

    const fn shape(&self) -> Shape {
        Shape {
            period: self.period,
            anchor: self.anchor,
        }
    }
}

impl KindOfState for Counters<Window> {
    fn place_in(kind: &mut Kind) -> Option<&mut Option<Self>> {
        match kind {
            Kind::Window(state) => Some(state),
            _ => None,
        }
    }

    fn into_kind(self) -> Kind {
        Kind::Window(Some(self))
    }
}

impl FixedWindow {
    pub(super) fn decide(
        &self,
        state: &mut Option<Counters<Window>>,
        now: Timestamp,
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        let cost = cost.units;
        let (window, moved) = Counters::own(state.as_ref(), self.shape(), now);
        let exceeds_capacity = cost > self.limit;
        let allowed = cost == 0 || window.count + cost <= self.limit;
        let retry_after = (!allowed && !exceeds_capacity).then(|| window.end - now);
        let count = if allowed {
            window.count + cost
        } else {
            window.count
        };
        let reset_after = if count == 0 { 0 } else { window.end - now };
        if let Some(entry) = entry_of(effect, cost, allowed, exceeds_capacity, moved) {
            let own = if let Cow::Owned(own) = window {
                Some(own)
            } else {
                None
            };
            Counters::commit(state, own, now, entry);
        }
        let remaining = self.limit.saturating_sub(count);
        Outcome::undelayed(
            allowed,
            exceeds_capacity,
            remaining,
            retry_after,
            reset_after,
        )
    }

    /// Charges `units` even if they do not fit, up to a debt of `max_debt` units. The window
    /// forgets a debt at its end.
    pub(super) fn overdraw(
        &self,
        state: &mut Option<Counters<Window>>,
        now: Timestamp,
        units: u64,
        max_debt: u64,
    ) {
        let (window, _) = Counters::own(state.as_ref(), self.shape(), now);
        let room = self
            .limit
            .saturating_add(max_debt)
            .saturating_sub(window.count);
        let units = units.min(room);
        if units > 0 {
            let own = if let Cow::Owned(own) = window {
                Some(own)
            } else {
                None
            };
            Counters::commit(state, own, now, Entering::Overdraft(units));
        }
    }

    pub(super) fn refund(
        &self,
        state: &mut Option<Counters<Window>>,
        now: Timestamp,
        receipt: Receipt,
        units: u64,
    ) {
        Counters::refund(state, self.shape(), now, receipt, units);
    }
}
