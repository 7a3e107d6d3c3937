//! Fixed window: at most `limit` units in a window.
//!
//! A window is `period` long. It starts with the first request of a key, or is aligned to the
//! clock (the Unix epoch), the same for every key. Across the border of two windows up to twice
//! the limit can pass within one period; the sliding algorithms do not allow that.
//!
//! A smaller period shortens the window in force; a longer one begins with the next window. So a
//! change neither forgets what was used nor extends a refusal.
//!
//! Twin: `scripts/fixed_window.lua`.

use serde::{Deserialize, Serialize};

use super::{Effect, Rule};
use crate::decision::{Micros, Verdict};

/// Where windows start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anchor {
    /// With the key's first request.
    First,
    /// At the multiples of the period since the Unix epoch.
    Clock,
}

/// The state: `count` units used in the window that is `period` long and ends at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    count: u64,
    end: Micros,
    period: Micros,
}

impl Window {
    pub(crate) const fn ends_at(&self) -> Micros {
        self.end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: Micros,
    pub(crate) anchor: Anchor,
}

impl FixedWindow {
    /// The end of a window that holds `now`.
    const fn end_from(&self, now: Micros) -> Micros {
        match self.anchor {
            Anchor::First => now + self.period,
            Anchor::Clock => (now / self.period + 1) * self.period,
        }
    }

    /// The window in force, and whether it had to be moved.
    fn resume(&self, state: Option<Window>, now: Micros) -> (Window, bool) {
        let fresh = Window { count: 0, end: self.end_from(now), period: self.period };
        let Some(mut window) = state.filter(|window| now < window.end) else {
            return (fresh, false);
        };
        let start = window.end.saturating_sub(window.period);
        if start.saturating_sub(now) > self.period {
            return (Window { count: window.count, ..fresh }, true);
        }
        if window.period > self.period {
            window.end = window.end.min(self.end_from(now.max(start)));
            window.period = self.period;
            return (window, true);
        }
        (window, false)
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
        if allowed {
            window.count += cost;
        }
        if effect == Effect::Commit && (moved || (allowed && cost > 0)) {
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
