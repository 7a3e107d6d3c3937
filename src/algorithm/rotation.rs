//! The counters of a window budget, one for each shape of window in use.
//!
//! Two quotas of one name can be in use at the same time, as in a rolling deployment. Windows of
//! different shapes (periods, sub-windows, anchors) cannot share a counter, because the longer
//! period needs units that the shorter one no longer counts. So each shape has a counter.
//!
//! - The counter of a check's own quota decides the check.
//! - An allowed charge is entered in all counters.
//! - A new shape derives its counter from another, the shortest window in force that is at least as
//!   long, else the longest. A denied check stores the new counter, so that its `retry_after` stays
//!   correct.
//! - A counter is removed when its quota had no check for the longest period. Until then, it is
//!   kept even if it is empty, because otherwise a short quota would start from the long quota's
//!   full count again and again. Denied checks also count as use. Their time is stored only every
//!   half period, so a counter may be kept for half a period more.
//! - When the budget is full, all counters are removed.
//! - If a charge of another quota starts a counter of a calendar anew, the counter has no end at
//!   first, because Redis gets the windows of a calendar from checks of its own quota. The next
//!   such check sets the end of the window in which units were charged last.
//!
//! Most budgets have one counter, which is as small and as fast as without this rule.
//!
//! Twin: `scripts/rotation.lua`.

use std::borrow::Cow;

use super::Effect;
use crate::units::{Micros, Receipt, Timestamp};

/// The most counters of a budget. A fifth evicts the counter whose quota needs it for the shortest
/// time.
const MAX_COUNTERS: usize = 4;

/// The count of a window.
pub(super) trait Counter: Clone + PartialEq {
    /// The shape of a window. Windows of different shapes cannot share a counter.
    type Shape: Copy + PartialEq;

    /// An empty counter.
    fn fresh(shape: Self::Shape, now: Timestamp) -> Self;
    fn shape(&self) -> Self::Shape;
    fn period(&self) -> Micros;
    /// The time of the last charge.
    fn at(&self) -> Timestamp;
    /// The time from which it equals a fresh counter. 0 if it is empty.
    fn expires_at(&self) -> Timestamp;
    /// An upper bound of [`expires_at`](Self::expires_at) that does not read the counts, for a
    /// sweep, because they are rarely in the processor's cache.
    fn expires_by(&self) -> Timestamp {
        self.expires_at()
    }
    /// The same counter, which a check of another quota started anew. Redis knows the windows of a
    /// calendar in checks of its own quota only, so its end is not known yet.
    fn started_elsewhere(self, _now: Timestamp) -> Self {
        self
    }
    /// The same counter with its end, if it was not known.
    fn with_known_end(&self, _now: Timestamp) -> Option<Self> {
        None
    }
    /// Goes on from `now` with the same count, after the clock was set back. Earlier receipts are
    /// void.
    fn set_back(&mut self, now: Timestamp);
    /// The units that count at `now`, in a window of another shape.
    fn derived(&self, shape: Self::Shape, now: Timestamp) -> Self;
    /// Enters a charge under this counter's own quota, which has room for it.
    fn charge(&mut self, now: Timestamp, units: u64);
    /// Enters a charge under another quota or an overdraft, which may be far above this counter's
    /// limit.
    fn add(&mut self, now: Timestamp, units: u64);
    /// Subtracts units of the charge at `at`.
    fn take_back(&mut self, at: Timestamp, units: u64);
}

/// The state: the counters. The counter of the last charge is first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counters<C> {
    first: C,
    others: Vec<Other<C>>,
}

/// The counter of a quota other than the last one charged.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Other<C> {
    counter: C,
    /// The time of the last stored check of its quota.
    asked: Timestamp,
}

/// The counter at `now`, and whether the clock was set back.
fn resumed<C: Counter>(counter: &C, now: Timestamp) -> (Cow<'_, C>, bool) {
    if counter.expires_at() <= now {
        return (Cow::Owned(C::fresh(counter.shape(), now)), false);
    }
    if counter.at().saturating_since(now) <= counter.period() {
        return (Cow::Borrowed(counter), false);
    }
    let mut counter = counter.clone();
    counter.set_back(now);
    (Cow::Owned(counter), true)
}

/// The counter of a check's own quota at `now`, and whether a denied check has to store it.
fn resumed_own<C: Counter>(counter: &C, now: Timestamp) -> (Cow<'_, C>, bool) {
    let Some(known) = counter.with_known_end(now) else {
        return resumed(counter, now);
    };
    let (own, set_back) = resumed(&known, now);
    let own = own.into_owned();
    let moved = set_back || own.expires_at() > now;
    (Cow::Owned(own), moved)
}

impl<C: Counter> Counters<C> {
    pub(crate) fn expires_at(&self) -> Timestamp {
        self.all()
            .map(Counter::expires_at)
            .max()
            .unwrap_or_default()
    }

    /// Returns whether all counters have expired. One that a refund emptied counts until its latest
    /// possible end.
    pub(super) fn is_deletable(&self, now: Timestamp) -> bool {
        self.all().all(|counter| counter.expires_by() <= now)
    }

    fn all(&self) -> impl Iterator<Item = &C> {
        std::iter::once(&self.first).chain(self.others.iter().map(|other| &other.counter))
    }

    /// The counter of a check's own quota at `now`, borrowed if it is the state's first and did not
    /// move. And whether a denied check has to store it.
    pub(super) fn own(state: Option<&Self>, shape: C::Shape, now: Timestamp) -> (Cow<'_, C>, bool) {
        let Some(state) = state.filter(|state| now < state.expires_at()) else {
            return (Cow::Owned(C::fresh(shape, now)), false);
        };
        if state.first.shape() == shape {
            return resumed_own(&state.first, now);
        }
        if let Some(own) = state
            .others
            .iter()
            .find(|other| other.counter.shape() == shape)
        {
            let (counter, has_moved) = resumed_own(&own.counter, now);
            let is_due = now.saturating_since(own.asked) > counter.period() / 2;
            let moved = has_moved || (is_due && counter.expires_at() > now);
            return (Cow::Owned(counter.into_owned()), moved);
        }
        let (counter, moved) = state.derived(shape, now);
        (Cow::Owned(counter), moved)
    }

    /// The counter of a shape that has none, from another. And whether a denied check has to store
    /// it.
    fn derived(&self, shape: C::Shape, now: Timestamp) -> (C, bool) {
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
            return (fresh, false);
        };
        if counter.at().saturating_since(now) > period {
            counter.set_back(now);
        }
        if now < counter.expires_at() {
            (counter, true)
        } else {
            (fresh, false)
        }
    }

    /// Stores the result of a decision. `own` is the new counter of its quota, or `None` if that is
    /// the state's first, which is charged in place.
    pub(super) fn commit(
        state: &mut Option<Self>,
        own: Option<C>,
        now: Timestamp,
        entry: Entering,
    ) {
        let own = own.map(|mut own| {
            entry.enter_in(&mut own, now);
            own
        });
        match (state, own, entry) {
            // A borrowed counter has a state, and did not move.
            (_, None, Entering::Adopted) | (None, None, _) => {}
            (Some(known), None, Entering::Charge(units) | Entering::Overdraft(units)) => {
                entry.enter_in(&mut known.first, now);
                known.add(now, units);
            }
            (Some(known), Some(own), entry) if now < known.expires_at() => match entry {
                Entering::Charge(units) | Entering::Overdraft(units) => {
                    known.put_first(own, now);
                    known.add(now, units);
                }
                Entering::Adopted => known.adopt(own, now),
            },
            (state, Some(own), _) => {
                *state = Some(Self {
                    first: own,
                    others: Vec::new(),
                })
            }
        }
    }

    fn put_first(&mut self, own: C, now: Timestamp) {
        let shape = own.shape();
        let last = std::mem::replace(&mut self.first, own);
        self.others.retain(|other| other.counter.shape() != shape);
        if last.shape() != shape {
            // Its quota may have been in use until now, because denied checks are not always
            // stored.
            self.others.insert(
                0,
                Other {
                    counter: last,
                    asked: now,
                },
            );
        }
    }

    /// Enters a charge in the other counters.
    fn add(&mut self, now: Timestamp, units: u64) {
        let others = &mut self.others;
        for Other { counter, asked } in others.iter_mut() {
            // `asked` can be later than now only if the clock was set back.
            *asked = now.min(*asked);
            if let (Cow::Owned(resumed), _) = resumed(counter, now) {
                *counter = resumed.started_elsewhere(now);
            }
            counter.add(now, units);
        }
        // Until a fixed point, so that several charges in one call leave the same state as one by
        // one.
        loop {
            let before = others.len();
            let periods = others.iter().map(|other| other.counter.period());
            let longest = periods.fold(self.first.period(), Micros::max);
            // Half a period more, because a denied check may not have been stored for that long.
            others.retain(|other| now < other.asked + longest + longest / 2);
            make_room(others, MAX_COUNTERS - 1);
            if others.len() == before {
                return;
            }
        }
    }

    fn adopt(&mut self, own: C, now: Timestamp) {
        let shape = own.shape();
        if self.first.shape() == shape {
            self.first = own;
            return;
        }
        let adopted = Other {
            counter: own,
            asked: now,
        };
        match self
            .others
            .iter_mut()
            .find(|other| other.counter.shape() == shape)
        {
            Some(other) => *other = adopted,
            None => {
                make_room(&mut self.others, MAX_COUNTERS - 2);
                self.others.insert(0, adopted);
            }
        }
    }

    /// Subtracts units of a charge from the counter of the refund's own quota. The other counters
    /// keep them.
    pub(super) fn refund(
        state: &mut Option<Self>,
        shape: C::Shape,
        now: Timestamp,
        receipt: Receipt,
        units: u64,
    ) {
        let Some(known) = state else { return };
        let others = known.others.iter_mut().map(|other| &mut other.counter);
        let mut all = std::iter::once(&mut known.first).chain(others);
        let Some(own) = all.find(|counter| counter.shape() == shape) else {
            return;
        };
        let mut after = own.with_known_end(now).unwrap_or_else(|| own.clone());
        let in_force = now < after.expires_at() && !resumed(&after, now).1;
        if !in_force {
            return;
        }
        let before = after.clone();
        after.take_back(receipt.at, units);
        if after != before {
            *own = after;
        }
        if known.expires_at() <= now {
            *state = None;
        }
    }
}

fn make_room<C: Counter>(others: &mut Vec<Other<C>>, most: usize) {
    while others.len() > most {
        let needed_until = |other: &Other<C>| other.asked + other.counter.period();
        let least = others
            .iter()
            .enumerate()
            .min_by_key(|(_, other)| needed_until(other));
        let Some((place, _)) = least else { return };
        others.remove(place);
    }
}

/// How a check changes the state.
#[derive(Clone, Copy)]
pub(super) enum Entering {
    /// It charges units for which its counter has room.
    Charge(u64),
    /// It charges units for which its counter may have no room.
    Overdraft(u64),
    /// It is denied, and its counter is stored because it moved.
    Adopted,
}

impl Entering {
    fn enter_in<C: Counter>(self, own: &mut C, now: Timestamp) {
        match self {
            Self::Charge(units) => own.charge(now, units),
            Self::Overdraft(units) => own.add(now, units),
            Self::Adopted => {}
        }
    }
}

/// How a decision changes the state. `None` if it does not.
pub(super) fn entry_of(
    effect: Effect,
    cost: u64,
    allowed: bool,
    exceeds_capacity: bool,
    moved: bool,
) -> Option<Entering> {
    if allowed && cost > 0 {
        (effect == Effect::Commit).then_some(Entering::Charge(cost))
    } else {
        (moved && !exceeds_capacity && effect.adopts(cost)).then_some(Entering::Adopted)
    }
}
