//! A level that drains evenly: what the token bucket, the leaky bucket and GCRA have in common.
//!
//! The three are one equation seen from three sides. Tokens left, water held, and time until
//! empty are each the capacity, or the rate, away from one number: the units used and not yet
//! given back. This file keeps that number; the three algorithms say what it means.
//!
//! Nothing is rounded. With the rate reduced to `units / micros`, the level is counted in parts
//! of `1 / micros` of a unit: a charge of one unit adds `micros` parts, and each microsecond
//! drains `units` parts. 3 a second is 3 a second after an hour, too.
//!
//! # A changed quota
//!
//! The level stays, and drains at the new rate from the check that brings it. One case needs
//! care: the level is above the new capacity, and the new rate is slower. At the new rate the
//! surplus could take many periods to drain, and lock its key out; cut off, it would be minted
//! when the quota goes back up. So the surplus drains as fast as it was allowed to build up, and
//! what is below the new capacity at the new rate: the level remembers both.

use super::{Effect, First, Followed, MAX_EXACT};
use crate::nouns::{Micros, Outcome, Receipt};

/// `units` drain in `micros` microseconds; the fraction is in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// How long `parts` take to drain.
    const fn drains(self, parts: u64) -> Micros {
        parts.div_ceil(self.units)
    }
}

/// What becomes of a level once it is down to `floor` units: it goes on at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slower {
    floor: u64,
    rate: Rate,
}

/// The state: at `at`, `used` parts were held, draining at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    at: Micros,
    used: u64,
    rate: Rate,
    /// The time of the first charge that can be taken back: the first into an empty bucket, since
    /// when the level has drained at one rate, by one clock.
    since: Micros,
    then: Option<Slower>,
}

impl Level {
    pub(crate) fn expires_at(&self) -> Micros {
        self.at + self.until(0)
    }

    /// Whether nothing is left at `now`: the same as `expires_at() <= now`, most often without a
    /// division.
    pub(crate) fn is_over(&self, now: Micros) -> bool {
        match self.then {
            Some(_) => self.expires_at() <= now,
            None => {
                let elapsed = now.checked_sub(self.at);
                elapsed.is_some_and(|it| it.saturating_mul(self.rate.units) >= self.used)
            }
        }
    }

    /// Whether `units` or less are left at `at`.
    fn is_down_to(&self, units: u64) -> bool {
        self.used <= units.saturating_mul(self.rate.micros)
            && self.then.is_none_or(|slower| units >= slower.floor)
    }

    /// How long it takes from `at` until `units` or less are left.
    fn until(&self, units: u64) -> Micros {
        let above = |floor: u64| self.used.saturating_sub(floor.saturating_mul(self.rate.micros));
        match self.then {
            Some(slower) if units < slower.floor => {
                let below = (slower.floor - units) * slower.rate.micros;
                self.rate.drains(above(slower.floor)) + slower.rate.drains(below)
            }
            _ => self.rate.drains(above(units)),
        }
    }

    /// The level at `now`, which is not before `at`.
    fn drained(mut self, now: Micros) -> Self {
        if let Some(slower) = self.then {
            let reached = self.at + self.until(slower.floor);
            if reached <= now {
                let used = slower.floor * slower.rate.micros;
                self = Self { at: reached, used, rate: slower.rate, since: reached, then: None };
            }
        }
        let drained = (now - self.at).saturating_mul(self.rate.units);
        Self { at: now, used: self.used.saturating_sub(drained), ..self }
    }

    /// The same units in the parts of another rate, if they can be counted exactly. A part that
    /// does not divide is rounded up: at most one, which drains within a microsecond.
    fn at_rate(self, rate: Rate) -> Option<Self> {
        let whole = self.used / self.rate.micros;
        let rest = self.used % self.rate.micros;
        let parts = if rest == 0 {
            0
        } else {
            // Floating point for the same reason as in `faster_than`.
            (rest as f64 / self.rate.micros as f64 * rate.micros as f64).floor() as u64 + 1
        };
        let used = whole.checked_mul(rate.micros)?.checked_add(parts)?;
        let since = self.at;
        (used <= MAX_EXACT).then_some(Self { used, rate, since, then: None, ..self })
    }

    /// The level under a quota that was not yet in force.
    fn under(self, quota: &Bucket) -> Self {
        let slower = Slower { floor: quota.capacity, rate: quota.rate };
        if self.rate == quota.rate {
            return Self { then: None, ..self };
        }
        let overdrawn = self.used > quota.capacity.saturating_mul(self.rate.micros);
        let changed = if overdrawn && !quota.rate.faster_than(self.rate) {
            None
        } else {
            self.at_rate(quota.rate)
        };
        changed.unwrap_or(Self {
            then: Some(slower),
            since: if self.then == Some(slower) { self.since } else { self.at },
            ..self
        })
    }
}

/// The quota of a draining level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    pub(crate) rate: Rate,
    /// In units.
    pub(crate) capacity: u64,
}

impl Bucket {
    /// From empty to full: the time in which the whole capacity drains.
    const fn full_period(&self) -> Micros {
        self.rate.drains(self.capacity * self.rate.micros)
    }

    /// The level brought forward to `now` and this quota, and whether more than draining happened
    /// to it, so that it has to be remembered.
    fn resume(&self, state: Option<Level>, now: Micros) -> (Level, bool) {
        let fresh = Level { at: now, used: 0, rate: self.rate, since: now, then: None };
        let Some(mut level) = state.filter(|level| !level.is_over(now)) else {
            return (fresh, false);
        };
        let set_back = level.at.saturating_sub(now) > self.full_period();
        if set_back {
            level.since = level.at + 1;
            level.at = now;
        } else if level.at < now {
            level = level.drained(now);
        }
        let changed = level.under(self);
        (changed, set_back || changed != level)
    }

    /// Whether `cost` units fit on top of the level. What fits `queues` until the level before it
    /// has drained, or is not delayed.
    pub(crate) fn decide(
        &self,
        state: &mut Option<Level>,
        now: Micros,
        cost: u64,
        effect: Effect,
        queues: bool,
    ) -> Outcome {
        let (mut level, moved) = self.resume(*state, now);
        let behind = level.at - now;
        let exceeds_capacity = cost > self.capacity;
        let allowed = !exceeds_capacity && (cost == 0 || level.is_down_to(self.capacity - cost));
        let refused = !allowed && !exceeds_capacity;
        let retry_after = refused.then(|| level.until(self.capacity - cost) + behind);
        let charges = allowed && cost > 0;
        let delay = if charges && queues { level.until(0) } else { 0 };
        if charges {
            level.used += cost * level.rate.micros;
        }
        if (charges && effect == Effect::Commit)
            || (moved && !charges && !exceeds_capacity && effect.settles(cost))
        {
            *state = Some(level);
        }
        let part = level.rate.micros;
        Outcome {
            allowed,
            exceeds_capacity,
            remaining: self.capacity.saturating_mul(part).saturating_sub(level.used) / part,
            retry_after,
            reset_after: if level.used == 0 { 0 } else { level.until(0) + behind },
            delay,
        }
    }

    /// What [`Rule::follow`](super::Rule::follow) asks: the level is what drains in `reset_after`,
    /// less what that was rounded up by, and the delay of what `queues` is for the level before.
    pub(crate) fn follow(&self, first: First, taken: u64, cost: u64, queues: bool) -> Followed {
        let Rate { units, micros } = self.rate;
        let level = first
            .reset_after
            .saturating_mul(units)
            .saturating_sub(first.slack)
            .saturating_add(taken.saturating_mul(micros));
        let before = level.saturating_sub(cost.saturating_mul(micros));
        let delay = if queues { self.rate.drains(before) } else { 0 };
        Followed { reset_after: self.rate.drains(level), delay }
    }

    /// Takes back what is left in the level of `units` of a charge.
    ///
    /// Without the charge, whatever came later, the level would be lower by what of the charge has
    /// not drained. At least the charge's cost, less what the rate drains since, is left of it: of
    /// several charges in the level, none drains faster than if it were alone. So no more than that
    /// is given back. A receipt from before `since` gives nothing: the level was empty since then,
    /// or drained at another rate or by another clock.
    pub(crate) fn refund(
        &self,
        state: &mut Option<Level>,
        now: Micros,
        receipt: Receipt,
        units: u64,
    ) {
        let Some(mut level) = *state else { return };
        let is_as_charged = level.rate == self.rate
            && level.then.is_none()
            && level.at.saturating_sub(now) <= self.full_period()
            && (level.since..=level.at).contains(&receipt.at);
        if !is_as_charged || level.is_over(now) {
            return;
        }
        let Rate { units: drains, micros } = level.rate;
        let charged = u64::from(receipt.cost).min(self.capacity) * micros;
        let elapsed = level.at.max(now) - receipt.at;
        let left = charged.saturating_sub(elapsed.saturating_mul(drains));
        let back = units.min(self.capacity) * micros;
        // As of its last charge: what has drained since is no reason to credit it if the clock is
        // set back.
        level.used = level.used.saturating_sub(left.min(back));
        *state = (level.used > 0 && !level.is_over(now)).then_some(level);
    }
}
