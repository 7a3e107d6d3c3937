//! A level that drains evenly: what the token bucket, the leaky bucket and GCRA have in common.
//!
//! The three are one equation seen from three sides. Tokens left, water held, and time until
//! empty are each the capacity, or the rate, away from one number: the units used and not yet
//! given back. This file keeps that number; the three algorithms say what it means.
//!
//! Nothing is rounded. With the rate reduced to `units / micros`, the level is counted in parts
//! of `1 / micros` of a unit: a charge of one unit adds `micros` parts, and each microsecond
//! drains `units` parts. 3 a second is 3 a second after an hour, too.

use super::{Effect, MAX_EXACT};
use crate::decision::{Micros, Verdict};

/// `units` drain in `micros` microseconds; the fraction is in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) units: u64,
    pub(crate) micros: u64,
}

impl Rate {
    pub(crate) const fn new(units: u64, micros: u64) -> Self {
        let (mut a, mut b) = (units, micros);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Self { units: units / a, micros: micros / a }
    }

    /// In floating point because Lua has nothing else: the twins must agree on every bit.
    const fn faster_than(self, other: Self) -> bool {
        self.units as f64 / self.micros as f64 > other.units as f64 / other.micros as f64
    }
}

/// The state: at `at`, `used` parts were held, draining at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    at: Micros,
    used: u64,
    rate: Rate,
}

impl Level {
    pub(crate) const fn ends_at(&self) -> Micros {
        self.at + self.used.div_ceil(self.rate.units)
    }

    /// The same units in the parts of another rate. A part that does not divide is rounded up:
    /// at most one part, which drains within a microsecond, and none is minted.
    fn at_rate(self, rate: Rate) -> Self {
        let whole = self.used / self.rate.micros;
        let rest = self.used % self.rate.micros;
        let parts = if rest == 0 {
            0
        } else {
            // Floating point for the same reason as in `faster_than`.
            (rest as f64 / self.rate.micros as f64 * rate.micros as f64).floor() as u64 + 1
        };
        let used = whole.saturating_mul(rate.micros).saturating_add(parts).min(MAX_EXACT);
        Self { used, rate, ..self }
    }
}

/// A level brought forward to the time and the quota of a check.
struct Resumed {
    level: Level,
    /// How far the clock is behind the level's time.
    behind: Micros,
    /// Whether more than draining happened, so that it has to be remembered.
    moved: bool,
}

/// The quota of a draining level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) rate: Rate,
    /// In units.
    pub(crate) capacity: u64,
}

impl Bucket {
    /// From empty to full: the time in which the whole capacity drains.
    pub(crate) const fn full_period(&self) -> Micros {
        (self.capacity * self.rate.micros).div_ceil(self.rate.units)
    }

    fn resume(&self, state: Option<Level>, now: Micros) -> Resumed {
        let fresh = Level { at: now, used: 0, rate: self.rate };
        let Some(mut level) = state else {
            return Resumed { level: fresh, behind: 0, moved: false };
        };
        let mut behind = level.at.saturating_sub(now);
        let mut moved = false;
        if behind > self.full_period() {
            level.at = now;
            behind = 0;
            moved = true;
        } else if behind == 0 {
            let drained = (now - level.at).saturating_mul(level.rate.units);
            level.used = level.used.saturating_sub(drained);
            level.at = now;
            if level.used == 0 {
                return Resumed { level: fresh, behind: 0, moved: false };
            }
        }
        if level.rate != self.rate {
            // Debt that does not fit under a smaller quota drains as fast as it was allowed to
            // build up, until it fits. At the slower rate it could lock a key out for many
            // periods; cut down to the capacity, it would be minted when the quota goes back up.
            let overdrawn = level.used > self.capacity.saturating_mul(level.rate.micros);
            if !overdrawn || self.rate.faster_than(level.rate) {
                level = level.at_rate(self.rate);
                moved = true;
            }
        }
        Resumed { level, behind, moved }
    }

    /// Whether `cost` units fit on top of the level.
    pub(crate) fn decide(
        &self,
        state: &mut Option<Level>,
        now: Micros,
        cost: u64,
        effect: Effect,
    ) -> Verdict {
        let Resumed { mut level, behind, moved } = self.resume(*state, now);
        let part = level.rate.micros;
        let full = self.capacity.saturating_mul(part);
        let never = cost > self.capacity;
        // How far the level is above the highest one on which the cost still fits.
        let excess = if never {
            0
        } else {
            level.used.saturating_sub((self.capacity - cost).saturating_mul(part))
        };
        let allowed = !never && (cost == 0 || excess == 0);
        let waits = level.used.div_ceil(level.rate.units);
        if allowed {
            level.used += cost * part;
        }
        if effect == Effect::Commit && (moved || (allowed && cost > 0)) {
            *state = Some(level);
        }
        Verdict {
            allowed,
            never,
            limit: self.capacity,
            remaining: full.saturating_sub(level.used) / part,
            retry_after: (!allowed && !never).then(|| excess.div_ceil(level.rate.units) + behind),
            reset_after: if level.used == 0 {
                0
            } else {
                level.used.div_ceil(level.rate.units) + behind
            },
            delay: if allowed && cost > 0 { waits } else { 0 },
        }
    }

    /// Takes `units` out of the level.
    pub(crate) fn refund(&self, state: &mut Option<Level>, now: Micros, units: u64) {
        let Resumed { mut level, .. } = self.resume(*state, now);
        level.used = level.used.saturating_sub(units.saturating_mul(level.rate.micros));
        *state = (level.used > 0).then_some(level);
    }
}
