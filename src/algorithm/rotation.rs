//! The counters of one budget of windows: one for each shape of window that asks.
//!
//! Two quotas of one name can be in use at the same time, as in a rolling deployment. Windows of
//! different shapes (periods, sub-windows, anchors) cannot be counted with one counter: the longer
//! period needs what the shorter one forgets. So each shape has a counter of its own.
//!
//! - A check is decided by the counter of the quota that asks.
//! - An allowed charge is entered in all counters.
//! - A shape without a counter starts from what the others know: from the shortest window in force
//!   that is at least as long, else from the longest. A denied check stores that start, so that its
//!   `retry_after` stays true.
//! - A counter goes once its quota has not asked for as long as the longest period. Until then an
//!   empty one is kept, too: without it a short quota would start from the long one's whole count
//!   again and again. A denied check counts as asking, and is written down once half a period has
//!   passed since the last time; so a counter is kept for half a period more.
//! - When the budget is full, all counters go.
//!
//! Most budgets have one counter, and are as small and as fast as if there were no others.
//!
//! Twin: `scripts/rotation.lua`.

use super::Effect;
use crate::nouns::{Micros, Receipt};

/// The most counters of a budget. A fifth evicts the one that its quota needs for the shortest time.
const MAX_COUNTERS: usize = 4;

/// A window's count.
pub(super) trait Counter: Clone {
    /// What tells windows apart that cannot share a counter.
    type Shape: Copy + PartialEq;

    /// A counter of nothing.
    fn fresh(shape: Self::Shape, now: Micros) -> Self;
    fn shape(&self) -> Self::Shape;
    fn period(&self) -> Micros;
    /// The time of the last charge.
    fn at(&self) -> Micros;
    /// From when on it says the same as a fresh one: 0 if it holds nothing.
    fn expires_at(&self) -> Micros;
    /// Goes on from `now` with what it holds, after the clock was set back. No earlier receipt
    /// counts any more.
    fn set_back(&mut self, now: Micros);
    /// The units that count at `now`, in a window of another shape.
    fn derived(&self, shape: Self::Shape, now: Micros) -> Self;
    /// Enters a charge that another quota allowed, which may be far above this counter's limit.
    fn enter(&mut self, now: Micros, units: u64);
    /// Takes units back out of the charge at `at`.
    fn take_back(&mut self, at: Micros, units: u64);
}

/// The state: the counters, the one of the last charge first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counters<C> {
    first: C,
    others: Vec<Other<C>>,
}

/// A counter that the last charge was not decided by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Other<C> {
    counter: C,
    /// When its own quota last asked.
    asked: Micros,
}

/// The counter of the quota that asks.
pub(super) struct Own<C> {
    pub(super) counter: C,
    /// Whether a denied check has to store it.
    pub(super) moved: bool,
}

/// A counter brought to `now`, and whether the clock was set back.
fn resumed<C: Counter>(counter: &C, now: Micros) -> (C, bool) {
    if counter.expires_at() <= now {
        return (C::fresh(counter.shape(), now), false);
    }
    let mut counter = counter.clone();
    let set_back = counter.at().saturating_sub(now) > counter.period();
    if set_back {
        counter.set_back(now);
    }
    (counter, set_back)
}

impl<C: Counter> Counters<C> {
    pub(crate) fn expires_at(&self) -> Micros {
        self.all().map(Counter::expires_at).max().unwrap_or(0)
    }

    fn all(&self) -> impl Iterator<Item = &C> {
        std::iter::once(&self.first).chain(self.others.iter().map(|other| &other.counter))
    }

    /// The counter of a shape, as a check finds it.
    pub(super) fn own(state: Option<&Self>, shape: C::Shape, now: Micros) -> Own<C> {
        let Some(state) = state.filter(|state| now < state.expires_at()) else {
            return Own { counter: C::fresh(shape, now), moved: false };
        };
        if state.first.shape() == shape {
            let (counter, moved) = resumed(&state.first, now);
            return Own { counter, moved };
        }
        if let Some(own) = state.others.iter().find(|other| other.counter.shape() == shape) {
            let (counter, set_back) = resumed(&own.counter, now);
            let is_due = now.saturating_sub(own.asked) > counter.period() / 2;
            let moved = set_back || (is_due && counter.expires_at() > now);
            return Own { counter, moved };
        }
        state.derived(shape, now)
    }

    fn derived(&self, shape: C::Shape, now: Micros) -> Own<C> {
        let fresh = C::fresh(shape, now);
        let period = fresh.period();
        let mut best: Option<&C> = None;
        for counter in self.all().filter(|counter| now < counter.expires_at()) {
            let length = counter.period();
            let is_better = |known: &C| {
                let known = known.period();
                if length >= period {
                    known < period || length < known
                } else {
                    known < period && length > known
                }
            };
            if best.is_none_or(is_better) {
                best = Some(counter);
            }
        }
        let Some(mut counter) = best.map(|counter| counter.derived(shape, now)) else {
            return Own { counter: fresh, moved: false };
        };
        if counter.at().saturating_sub(now) > period {
            counter.set_back(now);
        }
        if now < counter.expires_at() {
            Own { counter, moved: true }
        } else {
            Own { counter: fresh, moved: false }
        }
    }

    /// Carries out what was decided by a counter that was `moved`, and `charges` units.
    pub(super) fn commit(state: &mut Option<Self>, own: C, now: Micros, charges: Option<u64>) {
        let known = state.take().filter(|state| now < state.expires_at());
        let Some(mut known) = known else {
            *state = Some(Self { first: own, others: Vec::new() });
            return;
        };
        match charges {
            Some(units) => known.charge(own, now, units),
            None => known.settle(own, now),
        }
        *state = Some(known);
    }

    fn charge(&mut self, own: C, now: Micros, units: u64) {
        let shape = own.shape();
        let last = std::mem::replace(&mut self.first, own);
        let others = &mut self.others;
        others.retain(|other| other.counter.shape() != shape);
        if last.shape() != shape {
            // Its quota may have been denied until now, which was not written down.
            others.insert(0, Other { counter: last, asked: now });
        }
        for Other { counter, asked } in others.iter_mut() {
            // After the clock was set back, it was not later than now.
            *asked = now.min(*asked);
            (*counter, _) = resumed(counter, now);
            counter.enter(now, units);
        }
        // Until nothing more goes: several charges at once leave what they leave one by one.
        loop {
            let before = others.len();
            let periods = others.iter().map(|other| other.counter.period());
            let longest = periods.fold(self.first.period(), Micros::max);
            // Half a period more: a denied check may not have been written down for that long.
            others.retain(|other| now < other.asked + longest + longest / 2);
            make_room(others, MAX_COUNTERS - 1);
            if others.len() == before {
                return;
            }
        }
    }

    fn settle(&mut self, own: C, now: Micros) {
        let shape = own.shape();
        if self.first.shape() == shape {
            self.first = own;
            return;
        }
        let settled = Other { counter: own, asked: now };
        match self.others.iter_mut().find(|other| other.counter.shape() == shape) {
            Some(other) => *other = settled,
            None => {
                make_room(&mut self.others, MAX_COUNTERS - 2);
                self.others.insert(0, settled);
            }
        }
    }

    /// Takes units of a charge back out of the counter of the quota that gives them back. The other
    /// counters keep them.
    pub(super) fn refund(
        state: &mut Option<Self>,
        shape: C::Shape,
        now: Micros,
        receipt: Receipt,
        units: u64,
    ) {
        let Some(known) = state else { return };
        let others = known.others.iter_mut().map(|other| &mut other.counter);
        let mut all = std::iter::once(&mut known.first).chain(others);
        let Some(own) = all.find(|counter| counter.shape() == shape) else { return };
        let in_force = now < own.expires_at() && !resumed(own, now).1;
        if !in_force {
            return;
        }
        own.take_back(receipt.at, units);
        if known.expires_at() <= now {
            *state = None;
        }
    }
}

fn make_room<C: Counter>(others: &mut Vec<Other<C>>, most: usize) {
    while others.len() > most {
        let needed_until = |other: &Other<C>| other.asked + other.counter.period();
        let least = others.iter().enumerate().min_by_key(|(_, other)| needed_until(other));
        let Some((place, _)) = least else { return };
        others.remove(place);
    }
}

/// Whether a decision is carried out, and with how many units.
pub(super) fn carried_out(
    effect: Effect,
    cost: u64,
    allowed: bool,
    exceeds_capacity: bool,
    moved: bool,
) -> Option<Option<u64>> {
    if allowed && cost > 0 {
        (effect == Effect::Commit).then_some(Some(cost))
    } else {
        (moved && !exceeds_capacity && effect.settles(cost)).then_some(None)
    }
}
