//! Fixed window: at most `limit` units in a window.
//!
//! A window is `period` long. It starts with the first request of a key, or is aligned to the
//! clock (the Unix epoch), the same for every key. Across the border of two windows up to twice
//! the limit can pass within one period; the sliding algorithms do not allow that.
//!
//! Under a longer period the window in force goes on until that period is over, too. Under a
//! shorter one it is as if all of it had been used at once, with the last charge. Aligned to the
//! clock, either ends where a window of the clock does.
//!
//! Twin: `scripts/fixed_window.lua`.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{Effect, Rule};
use crate::decision::{Micros, Verdict};

/// Where windows start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anchor {
    /// With the key's first request.
    First,
    /// At the multiples of the period since the Unix epoch.
    Clock,
}

/// The state: `count` units used, the last at `at`, in the window that is `period` long and ends
/// at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    count: u64,
    at: Micros,
    end: Micros,
    period: Micros,
}

impl Window {
    pub(crate) const fn ends_at(&self) -> Micros {
        self.end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: Micros,
    pub(crate) anchor: Anchor,
}

impl FixedWindow {
    /// The end of a window that holds `time`.
    const fn end_from(&self, time: Micros) -> Micros {
        match self.anchor {
            Anchor::First => time + self.period,
            Anchor::Clock => (time / self.period + 1) * self.period,
        }
    }

    /// The window in force, and whether it was made to last longer.
    fn resume(&self, state: Option<Window>, now: Micros) -> (Window, bool) {
        let period = self.period;
        let fresh = Window { count: 0, at: now, end: self.end_from(now), period };
        let Some(window) = state.filter(|window| now < window.end) else {
            return (fresh, false);
        };
        if window.at.saturating_sub(now) > period {
            return (Window { count: window.count, ..fresh }, true);
        }
        let start = window.end.saturating_sub(window.period);
        let end = match (self.anchor, window.period.cmp(&period)) {
            (Anchor::First, Ordering::Equal) => window.end,
            (Anchor::First, Ordering::Less) => self.end_from(start).max(window.end),
            (Anchor::First, Ordering::Greater) => self.end_from(window.at).min(window.end),
            // To the end of an aligned window, or two of the old kind could share it.
            (Anchor::Clock, Ordering::Greater) => self.end_from(window.at),
            (Anchor::Clock, _) => self.end_from(window.end - 1),
        };
        if now < end {
            (Window { end, period, ..window }, end > window.end)
        } else {
            (fresh, false)
        }
    }
}

impl Rule for FixedWindow {
    type State = Window;

    fn decide(
        &self,
        state: &mut Option<Window>,
        now: Micros,
        cost: u64,
        effect: Effect,
    ) -> Verdict {
        let (mut window, moved) = self.resume(*state, now);
        let never = cost > self.limit;
        let allowed = cost == 0 || window.count + cost <= self.limit;
        let charges = allowed && cost > 0;
        if charges {
            window.count += cost;
            window.at = window.at.max(now);
        }
        if (charges && effect == Effect::Commit)
            || (moved && !charges && !never && effect.settles(cost))
        {
            *state = Some(window);
        }
        Verdict {
            allowed,
            never,
            limit: self.limit,
            remaining: self.limit.saturating_sub(window.count),
            retry_after: (!allowed && !never).then(|| window.end - now),
            reset_after: if window.count == 0 { 0 } else { window.end - now },
            delay: 0,
        }
    }

    fn refund(&self, state: &mut Option<Window>, now: Micros, units: u64) {
        let (mut window, _) = self.resume(*state, now);
        window.count = window.count.saturating_sub(units);
        *state = (window.count > 0).then_some(window);
    }
}
