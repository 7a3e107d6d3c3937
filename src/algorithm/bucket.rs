//! A level that drains evenly, the common part of the token bucket, the leaky bucket and GCRA.
//!
//! All three algorithms derive their numbers from one level, the units that are consumed and not
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
//! special. The level is above the new capacity, and the new rate is slower. At the new rate, the
//! surplus could take many periods to drain and lock its key out. If it were cut off, a quota that
//! is raised again would mint units. So the level keeps both rates. The surplus drains at the old
//! rate, and the rest, below the new capacity, at the new rate.
//!
//! # A level above the capacity
//!
//! Two charges may raise the level above the capacity. A charge that waits for its units reserves
//! them. They are charged at once, and the check is allowed after the time in which the level
//! drains far enough. So waiting checks are served in the order in which the store decided them, on
//! all replicas. An overdraft is charged in any case, up to a bound. The next check is denied until
//! it has drained.

mod flavour;
mod settle;

pub(crate) use self::flavour::{BucketRule, Flavour, Mode};
use super::range::{MAX_PERIOD, MAX_PRODUCT, check_fixed_period, exact};
use super::{Cost, Effect, First, Followed, Kind, KindOfState, MAX_EXACT};
use crate::units::{ConfigError, Micros, Outcome, Quota, Timestamp, micros};

/// The longest time from empty to full, ten years.
const MAX_REFILL: Micros = 10 * MAX_PERIOD.as_micros() as Micros;

/// The highest level, in parts. The capacity is at most half of the exact range.
const MAX_LEVEL: u64 = MAX_EXACT / 4 * 3;

/// The most parts by which waiting charges raise a level above the capacity.
const MAX_RESERVED: u64 = MAX_LEVEL - MAX_PRODUCT;

/// `units` drain in `micros` microseconds; the fraction is in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) units: u64,
    pub(crate) micros: u64,
}

impl Rate {
    pub(crate) const fn new(units: u64, micros: u64) -> Self {
        let mut a = units;
        let mut b = micros;
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Self {
            units: units / a,
            micros: micros / a,
        }
    }

    /// In floating point, as in Lua, because the twins must agree on every bit.
    const fn faster_than(self, other: Self) -> bool {
        self.units as f64 / self.micros as f64 > other.units as f64 / other.micros as f64
    }

    /// The time in which `parts` drain.
    const fn drains(self, parts: u64) -> Micros {
        parts.div_ceil(self.units)
    }
}

/// The state: `used` parts at the time `at`, which drain at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    at: Timestamp,
    used: u64,
    rate: Rate,
    /// The time of the first charge that can be refunded. Since then, the level was not empty, and
    /// drained at one rate by one clock.
    since: Timestamp,
    more: RareLevel,
}

/// The fields that few levels have. A level with a next phase cannot be refunded, so it never has
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RareLevel {
    Nothing,
    GivenBack(GivenBack),
    /// A smaller quota with a slower rate waits for the level. From its capacity on, the level
    /// drains at its rate.
    Then(Bucket),
}

/// The parts that were given back, and that may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GivenBack {
    /// The parts that were given back since `since`.
    returned: u64,
    /// The time of the last turn of a check that waits for reserved units.
    reserved_until: Timestamp,
    /// The parts that can be given back until then.
    spare: u64,
}

impl Level {
    const fn empty(at: Timestamp, rate: Rate) -> Self {
        Self {
            at,
            used: 0,
            rate,
            since: at,
            more: RareLevel::Nothing,
        }
    }

    #[inline]
    const fn then(&self) -> Option<Bucket> {
        match self.more {
            RareLevel::Then(slower) => Some(slower),
            RareLevel::Nothing | RareLevel::GivenBack(_) => None,
        }
    }

    fn given_back(&self) -> GivenBack {
        match self.more {
            RareLevel::GivenBack(given_back) => given_back,
            RareLevel::Nothing | RareLevel::Then(_) => GivenBack::default(),
        }
    }

    /// Changes what was given back. Without a next phase.
    fn set_given_back(&mut self, given_back: GivenBack) {
        let is_none = given_back == GivenBack::default();
        self.more = if is_none {
            RareLevel::Nothing
        } else {
            RareLevel::GivenBack(given_back)
        };
    }

    pub(crate) fn expires_at(&self) -> Timestamp {
        self.at + self.until(0)
    }

    /// Returns whether the level is empty at `now`. Same as `expires_at() <= now`, mostly without a
    /// division.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        match self.then() {
            Some(_) => self.expires_at() <= now,
            None => self.at <= now && (now - self.at).saturating_mul(self.rate.units) >= self.used,
        }
    }

    /// Returns whether the level at `at` is at most `units`.
    #[inline]
    fn is_down_to(&self, units: u64) -> bool {
        self.used <= units.saturating_mul(self.rate.micros)
            && self.then().is_none_or(|slower| units >= slower.capacity)
    }

    /// The time from `at` until the level is at most `units`.
    #[inline]
    fn until(&self, units: u64) -> Micros {
        let above = |floor: u64| {
            self.used
                .saturating_sub(floor.saturating_mul(self.rate.micros))
        };
        match self.then() {
            Some(slower) if units < slower.capacity => {
                let below = (slower.capacity - units) * slower.rate.micros;
                self.rate.drains(above(slower.capacity)) + slower.rate.drains(below)
            }
            _ => self.rate.drains(above(units)),
        }
    }

    /// Drains until `now`. Requires `now >= at`.
    fn drain_until(&mut self, now: Timestamp) {
        if let Some(slower) = self.then() {
            let reached = self.at + self.until(slower.capacity);
            if reached <= now {
                let used = slower.capacity * slower.rate.micros;
                let rate = slower.rate;
                *self = Self {
                    used,
                    ..Self::empty(reached, rate)
                };
            }
        }
        let drained = (now - self.at).saturating_mul(self.rate.units);
        self.used = self.used.saturating_sub(drained);
        self.at = now;
    }

    /// The same units in the parts of another rate, or `None` beyond exact arithmetic. Rounds up by
    /// at most one part, which drains within a microsecond.
    fn at_rate(self, rate: Rate, since: Timestamp) -> Option<Self> {
        let units = self.used / self.rate.micros;
        let rest = self.used % self.rate.micros;
        let parts = if rest == 0 {
            0
        } else {
            // Floating point, as in `faster_than`.
            (rest as f64 / self.rate.micros as f64 * rate.micros as f64).floor() as u64 + 1
        };
        let used = units.checked_mul(rate.micros)?.checked_add(parts)?;
        (used <= MAX_LEVEL).then_some(Self {
            used,
            since,
            ..Self::empty(self.at, rate)
        })
    }

    /// The level under another quota, of which charges from `since` on can be refunded.
    fn under(self, quota: &Bucket, since: Timestamp) -> Self {
        if self.rate == quota.rate {
            let more = if self.then().is_some() {
                RareLevel::Nothing
            } else {
                self.more
            };
            return Self { more, ..self };
        }
        let overdrawn = self.used > quota.capacity.saturating_mul(self.rate.micros);
        let changed = if overdrawn && !quota.rate.faster_than(self.rate) {
            None
        } else {
            self.at_rate(quota.rate, since)
        };
        changed.unwrap_or(Self {
            since: if self.then() == Some(*quota) {
                self.since
            } else {
                self.at
            },
            more: RareLevel::Then(*quota),
            ..self
        })
    }

    /// The time from `at` until the level would be empty if nothing had been given back. It
    /// `drains` so long as it is.
    #[inline]
    const fn until_empty_without_refunds(&self, drains: Micros) -> Micros {
        match self.more {
            RareLevel::GivenBack(GivenBack { returned, .. }) => {
                self.rate.drains(self.used + returned)
            }
            RareLevel::Nothing | RareLevel::Then(_) => drains,
        }
    }

    /// Voids the receipts of all charges so far.
    fn void_receipts(&mut self) {
        self.since = self.at + 1;
        if let RareLevel::GivenBack(given_back) = self.more {
            self.set_given_back(GivenBack {
                returned: 0,
                ..given_back
            });
        }
    }

    /// A turn in the past does not count, even if the clock is set back.
    #[inline]
    fn forget_past_turns(&mut self, now: Timestamp) {
        if let RareLevel::GivenBack(given_back) = self.more
            && given_back.reserved_until <= now
        {
            let returned = given_back.returned;
            self.set_given_back(GivenBack {
                returned,
                ..GivenBack::default()
            });
        }
    }

    /// Notes a turn after which `room` parts of the capacity are not charged.
    fn reserve_until(&mut self, turn: Timestamp, now: Timestamp, room: u64) {
        let GivenBack {
            returned,
            reserved_until,
            spare,
        } = self.given_back();
        let spare = if now < reserved_until {
            spare.min(room)
        } else {
            room
        };
        let reserved_until = reserved_until.max(turn);
        self.set_given_back(GivenBack {
            returned,
            reserved_until,
            spare,
        });
    }
}

impl KindOfState for Level {
    fn place_in(kind: &mut Kind) -> Option<&mut Option<Self>> {
        match kind {
            Kind::Bucket(level) => Some(level),
            _ => None,
        }
    }

    fn into_kind(self) -> Kind {
        Kind::Bucket(Some(self))
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
        check_fixed_period(quota)?;
        let rate = Rate::new(quota.limit(), micros(quota.length()));
        let capacity = quota.capacity();
        let parts = exact(
            capacity,
            rate.micros,
            "burst * period, with limit / period in lowest terms",
        )
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
                quota.length()
            )));
        }
        Ok(Self { rate, capacity })
    }

    /// The time from empty to full, in which the capacity drains.
    const fn full_period(&self) -> Micros {
        self.rate.drains(self.capacity * self.rate.micros)
    }

    /// The time until `cost` fits, if the level is empty after `reset_after`. The level need not be
    /// empty by then, but by what the capacity is above the cost.
    pub(super) const fn next_after(&self, reset_after: Micros, cost: u64) -> Micros {
        let spare = self.capacity.saturating_sub(cost);
        // Rounded down, so that the difference is not too short.
        reset_after.saturating_sub(spare * self.rate.micros / self.rate.units)
    }

    /// The level at `now` under this quota. Also whether the clock or the quota moved it, so that a
    /// denied check has to store it.
    #[inline]
    fn resume(&self, state: Option<Level>, now: Timestamp) -> (Level, bool) {
        let Some(level) = state else {
            return (Level::empty(now, self.rate), false);
        };
        if level.at > now || level.rate != self.rate || level.then().is_some() {
            return self.resume_moved(level, now);
        }
        let drained = (now - level.at).saturating_mul(level.rate.units);
        let resumed = match level.used.checked_sub(drained) {
            None | Some(0) => Level::empty(now, self.rate),
            Some(used) => Level {
                at: now,
                used,
                ..level
            },
        };
        (resumed, false)
    }

    /// The same after the clock stepped back, or under another quota.
    #[cold]
    fn resume_moved(&self, mut level: Level, now: Timestamp) -> (Level, bool) {
        if level.is_over(now) {
            return (Level::empty(now, self.rate), false);
        }
        // Charges of this microsecond were made at the earlier rate, if there are any.
        let is_recent = level.at >= now;
        let set_back = level.at.saturating_since(now) > self.full_period();
        if set_back {
            level.since = level.at + 1;
            level.at = now;
            if level.then().is_none() {
                level.more = RareLevel::Nothing;
            }
        } else if level.at < now {
            level.drain_until(now);
        }
        if level.rate == self.rate && level.then().is_none() {
            return (level, set_back);
        }
        let changed = level.under(self, level.at + u64::from(is_recent));
        (changed, set_back || changed != level)
    }

    /// The time in which so many units refill, rounded down.
    pub(super) const fn refill_time(&self, units: u64) -> Micros {
        units.saturating_mul(self.rate.micros) / self.rate.units
    }

    /// The longest wait for units, if that is at most `max_wait`.
    fn longest_wait(&self, max_wait: Micros) -> Micros {
        max_wait.min(MAX_REFILL).min(MAX_RESERVED / self.rate.units)
    }

    /// The fast path: charges units that fit on top of a level that only charges and time have
    /// changed, at this rate. Otherwise returns `None` and changes nothing, and
    /// [`decide`](Self::decide) has to decide. The twin is `charge` in `scripts/bucket.lua`.
    #[inline]
    pub(super) fn charge(&self, level: &mut Level, now: Timestamp, units: u64) -> Option<Outcome> {
        let is_plain = matches!(level.more, RareLevel::Nothing) && level.rate == self.rate;
        if !is_plain || level.at > now || units == 0 || units > self.capacity {
            return None;
        }
        let drained = (now - level.at).saturating_mul(self.rate.units);
        let left = level.used.saturating_sub(drained);
        let free = (self.capacity * self.rate.micros)
            .checked_sub(left)?
            .checked_sub(units * self.rate.micros)?;
        if left == 0 {
            level.since = now;
        }
        (level.at, level.used) = (now, left + units * self.rate.micros);
        let drains = self.rate.drains(level.used);
        Some(Outcome {
            drains_after: drains,
            ..Outcome::undelayed(true, false, free / self.rate.micros, None, drains)
        })
    }

    /// Decides whether the units of `cost` fit on top of the level, now or within `max_wait`. If it
    /// `queues`, an allowed check has a delay until the level before it has drained, and does not
    /// wait for units. With a `max_wait`, a check whose delay would be longer is denied.
    pub(crate) fn decide(
        &self,
        state: &mut Option<Level>,
        now: Timestamp,
        cost: Cost,
        effect: Effect,
        queues: bool,
    ) -> Outcome {
        let (mut level, moved) = self.resume(*state, now);
        let Cost {
            units, max_wait, ..
        } = cost;
        let behind = level.at - now;
        let exceeds_capacity = units > self.capacity;
        let late_by = if queues && max_wait > 0 && units > 0 {
            level.until(0).saturating_sub(max_wait)
        } else {
            0
        };
        let has_room = units == 0 || level.is_down_to(self.capacity.saturating_sub(units));
        let fits = has_room && late_by == 0 && !exceeds_capacity;
        let wait = if fits || exceeds_capacity {
            0
        } else {
            level.until(self.capacity - units).max(late_by) + behind
        };
        // A division, which most checks need not pay for.
        let waits = wait > 0 && max_wait > 0 && !queues;
        let longest_wait = if waits {
            self.longest_wait(max_wait)
        } else {
            0
        };
        // At an earlier, faster rate, units would be reserved too soon.
        let reserves = wait > 0 && wait <= longest_wait && level.then().is_none();
        let allowed = fits || reserves;
        let retry_after = (!allowed && !exceeds_capacity).then(|| {
            let is_slower_after = match level.then() {
                Some(slower) if longest_wait > 0 => level.until(slower.capacity) + behind,
                _ => 0,
            };
            wait.saturating_sub(longest_wait).max(is_slower_after)
        });
        let charges = allowed && units > 0;
        let delay = if charges && queues {
            level.until(0)
        } else {
            wait * u64::from(reserves)
        };
        if charges {
            level.used += units * level.rate.micros;
        }
        if reserves {
            level.reserve_until(now + wait, now, (self.capacity - units) * level.rate.micros);
        }
        let commits = charges && effect == Effect::Commit;
        if commits || (moved && !charges && !exceeds_capacity && effect.adopts(units)) {
            level.forget_past_turns(now);
            *state = Some(level);
        }
        let part = level.rate.micros;
        let drains = level.until(0);
        Outcome {
            allowed,
            exceeds_capacity,
            remaining: self
                .capacity
                .saturating_mul(part)
                .saturating_sub(level.used)
                / part,
            retry_after,
            reset_after: if level.used == 0 { 0 } else { drains + behind },
            delay,
            drains_after: if commits {
                level.until_empty_without_refunds(drains) + behind
            } else {
                0
            },
            blocked_for: 0,
            begins_block: false,
            is_undecided: false,
        }
    }

    /// Implements [`Rule::follow`](super::Rule::follow). The level after the first charge is
    /// `reset_after` in parts, less its rounding (`slack`). The delay follows from the level before
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
        let drains_after = self.rate.drains(level.saturating_add(first.returned));
        Followed {
            reset_after: self.rate.drains(level),
            delay,
            drains_after,
        }
    }
}

#[cfg(test)]
mod tests;
