//! A level that drains evenly: the common part of the token bucket, the leaky bucket and GCRA.
//!
//! All three algorithms derive their numbers from one level: the units that are consumed and not
//! yet drained. The tokens left are the capacity minus the level. The water is the level. The time
//! until empty is the level divided by the rate.
//!
//! Nothing is rounded. With the rate reduced to `units / micros`, the level is counted in parts
//! of `1 / micros` of a unit. A charge of one unit adds `micros` parts, and each microsecond
//! drains `units` parts. 3 a second is exactly 10,800 an hour.
//!
//! # A changed quota
//!
//! The level stays. It drains at the new rate from the first check with the new quota. One case is
//! special: the level is above the new capacity, and the new rate is slower. At the new rate, the
//! surplus could take many periods to drain and lock its key out. If it were cut off, a quota that
//! is raised again would mint units. So the level keeps both rates: the surplus drains at the old
//! rate, and the rest, below the new capacity, at the new rate.

use super::range::{MAX_PERIOD, exact, micros};
use super::{Effect, First, Followed, MAX_EXACT};
use crate::nouns::{ConfigError, Micros, Outcome, Quota, Receipt};

/// The longest time from empty to full: ten years.
const MAX_REFILL: Micros = 10 * MAX_PERIOD.as_micros() as Micros;

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

    /// In floating point, as in Lua: the twins must agree on every bit.
    const fn faster_than(self, other: Self) -> bool {
        self.units as f64 / self.micros as f64 > other.units as f64 / other.micros as f64
    }

    /// The time in which `parts` drain.
    const fn drains(self, parts: u64) -> Micros {
        parts.div_ceil(self.units)
    }
}

/// The next phase of a level: from `floor` units on, it drains at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slower {
    floor: u64,
    rate: Rate,
}

/// The state: `used` parts at the time `at`, which drain at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    at: Micros,
    used: u64,
    rate: Rate,
    /// The time of the first charge that can be refunded. Since then, the level was not empty, and
    /// drained at one rate by one clock.
    since: Micros,
    then: Option<Slower>,
}

impl Level {
    pub(crate) fn expires_at(&self) -> Micros {
        self.at + self.until(0)
    }

    /// Whether the level is empty at `now`. Same as `expires_at() <= now`, mostly without a
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

    /// Whether the level at `at` is at most `units`.
    fn is_down_to(&self, units: u64) -> bool {
        self.used <= units.saturating_mul(self.rate.micros)
            && self.then.is_none_or(|slower| units >= slower.floor)
    }

    /// The time from `at` until the level is at most `units`.
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

    /// Drains until `now`. Requires `now >= at`.
    fn drain_until(&mut self, now: Micros) {
        if let Some(slower) = self.then {
            let reached = self.at + self.until(slower.floor);
            if reached <= now {
                let used = slower.floor * slower.rate.micros;
                *self = Self { at: reached, used, rate: slower.rate, since: reached, then: None };
            }
        }
        let drained = (now - self.at).saturating_mul(self.rate.units);
        self.used = self.used.saturating_sub(drained);
        self.at = now;
    }

    /// The same units in the parts of another rate, or `None` beyond exact arithmetic. Rounds up by
    /// at most one part, which drains within a microsecond.
    fn at_rate(self, rate: Rate) -> Option<Self> {
        let units = self.used / self.rate.micros;
        let rest = self.used % self.rate.micros;
        let parts = if rest == 0 {
            0
        } else {
            // Floating point, as in `faster_than`.
            (rest as f64 / self.rate.micros as f64 * rate.micros as f64).floor() as u64 + 1
        };
        let used = units.checked_mul(rate.micros)?.checked_add(parts)?;
        let since = self.at;
        (used <= MAX_EXACT).then_some(Self { used, rate, since, then: None, ..self })
    }

    /// The level under another quota.
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
    /// Checks that a quota can be decided exactly.
    pub(crate) fn new(quota: &Quota) -> Result<Self, ConfigError> {
        let rate = Rate::new(quota.limit(), micros(quota.period()));
        let capacity = quota.capacity();
        let parts =
            exact(capacity, rate.micros, "burst * period, with limit / period in lowest terms")
                .map_err(|error| {
                    ConfigError::new(format!(
                        "{error}; use a rounder limit, a shorter period or a smaller burst"
                    ))
                })?;
        if parts.div_ceil(rate.units) > MAX_REFILL {
            return Err(ConfigError::new(format!(
                "a burst of {capacity} at {} per {:?} takes more than ten years to refill; use a \
                 smaller burst or a higher rate",
                quota.limit(),
                quota.period()
            )));
        }
        Ok(Self { rate, capacity })
    }

    /// The time from empty to full, in which the capacity drains.
    const fn full_period(&self) -> Micros {
        self.rate.drains(self.capacity * self.rate.micros)
    }

    /// The time until `cost` fits, if the level is empty after `reset_after`: the level need not be empty by
    /// then, but by what the capacity is above the cost.
    #[cfg(feature = "http")]
    pub(super) const fn next_after(&self, reset_after: Micros, cost: u64) -> Micros {
        let spare = self.capacity.saturating_sub(cost);
        // Rounded down, so that the difference is not too short.
        reset_after.saturating_sub(spare * self.rate.micros / self.rate.units)
    }

    /// The level at `now` under this quota. Also whether the clock or the quota moved it, so that a
    /// denied check has to store it.
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
            level.drain_until(now);
        }
        if level.rate == self.rate && level.then.is_none() {
            return (level, set_back);
        }
        let changed = level.under(self);
        (changed, set_back || changed != level)
    }

    /// Decides whether `cost` units fit on top of the level. If it `queues`, an allowed check has a
    /// delay until the level before it has drained.
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
        let waits = !allowed && !exceeds_capacity;
        let retry_after = waits.then(|| level.until(self.capacity - cost) + behind);
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

    /// Implements [`Rule::follow`](super::Rule::follow). The level after the first charge is
    /// `reset_after` in parts, less its rounding (`slack`). The delay is that of the level before
    /// this charge.
    pub(crate) fn follow(&self, first: First, charged: u64, cost: u64, queues: bool) -> Followed {
        let Rate { units, micros } = self.rate;
        let level = first
            .reset_after
            .saturating_mul(units)
            .saturating_sub(first.slack)
            .saturating_add(charged.saturating_mul(micros));
        let before = level.saturating_sub(cost.saturating_mul(micros));
        let delay = if queues { self.rate.drains(before) } else { 0 };
        Followed { reset_after: self.rate.drains(level), delay }
    }

    /// Refunds `units` of a charge, as far as they have not drained.
    ///
    /// Of several charges in a level, none drains faster than if it were alone. So at least the
    /// charge's cost, less the drain since the charge, is still in the level, and at most that much
    /// is given back. A receipt from before `since` gives nothing back: since that charge, the
    /// level was empty, or it drained at another rate or by another clock.
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
        // The level stays at the time of its last charge. If it moved to `now`, a clock that is set
        // back would credit the drain since then.
        level.used = level.used.saturating_sub(left.min(back));
        *state = (level.used > 0 && !level.is_over(now)).then_some(level);
    }
}
