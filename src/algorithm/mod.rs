//! The arithmetic of the six algorithms, and of permits: no async, no I/O, no clock.
//!
//! Each file is the twin of a Lua script in `scripts/`. Equal inputs give equal outputs, to the
//! microsecond. All of it is integer arithmetic below 2^53, the range in which Lua's numbers are
//! exact. [`Limit`](crate::Limit) rejects a quota that could leave that range.
//!
//! An algorithm has four operations on a state. `None` is a full budget.
//!
//! 1. `decide`: whether a cost fits now. With [`Effect::Commit`], it is also charged.
//! 2. `overdraw`: charges units that may not fit. What is above the limit is a debt.
//! 3. `refund`: gives back the units of a charge that still count.
//! 4. `expires_at`: the time from which the state equals no state, and can be deleted.
//!
//! # Rules of all six algorithms
//!
//! - **Time that steps back.** If `now` is behind the state's last time by up to one full period,
//!   no time has passed. Nothing refills, and `retry_after` includes the catch-up. If it is further
//!   behind, the clock was set back. Then the state goes on from the new time with the same units.
//! - **A changed quota.** Consumed units stay consumed. They count against the new quota from its
//!   first check. The change takes effect at once and mints nothing. So a state contains the rate
//!   or the period under which it was written.
//! - **Quotas in turn.** A longer period keeps units that a shorter one no longer counts, for as
//!   long as checks use the longer period. A check counts the units within its own period,
//!   whichever quota charged them. It is allowed if they leave room for it. See [`rotation`] and
//!   [`sliding_log`].
//! - **A refund** names its charge. The budget is never fuller than without that charge, except
//!   that a fixed window which starts with a charge keeps its start.
//! - **A debt** drains or leaves its window like other units, and checks are denied until enough of
//!   it has. It is bounded, so that all sums stay exact.
//! - **A denied check consumes nothing.** It writes only if a clock or quota change makes the state
//!   last longer or drain faster, so that its `retry_after` stays correct. A peek never writes.
//!   After a clock was set back or a rate was raised, a peek returns the `retry_after` that a
//!   charge at the same time would get.

mod bucket;
mod fixed_window;
pub(crate) mod offences;
pub(crate) mod permits;
pub(crate) mod range;
mod rotation;
mod sliding_log;
mod sliding_window;

pub(crate) use bucket::{Bucket, BucketRule, Flavour, Mode, Rate};
pub(crate) use fixed_window::{Anchor, FixedWindow};
pub(crate) use permits::Concurrency;
pub(crate) use range::{MAX_PERIOD, at_most_a_year};
pub(crate) use sliding_log::SlidingLog;
pub(crate) use sliding_window::SlidingWindow;

use std::time::Duration;

use self::bucket::Level;
use self::fixed_window::Window;
use self::permits::Holders;
use self::rotation::Counters;
use self::sliding_log::Log;
use self::sliding_window::SubWindows;
use crate::units::{Claim, Micros, Outcome, Receipt, Timestamp};

/// The largest integer of the exact range of Lua's numbers.
pub(crate) const MAX_EXACT: u64 = (1 << 53) - 1;

/// The effect of a decision on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No effect.
    Dry,
    /// No effect on the budget. A denial counts as an offence. Its caller is denied.
    Count,
    /// Stores that the clock or the quota moved, so that `retry_after` stays correct. Also stores
    /// that a quota is in use, so that its counts are kept.
    Adopt,
    /// Charges the cost if it fits, else adopts. A cost of 0 and a cost above the capacity have no
    /// effect.
    Commit,
}

/// The units that a check asks for, and its patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cost {
    pub(crate) units: u64,
    /// The longest time that the check waits for its units. A bucket reserves them. In a queue, it
    /// is the longest delay, or 0 if there is none. Other algorithms do not wait.
    pub(crate) max_wait: Micros,
    /// The longest time that its caller waits, whether units are reserved or not.
    pub(crate) patience: Micros,
}

impl Cost {
    /// The cost of a check that consumes nothing.
    pub(crate) const NONE: Self = Self::units(0);

    /// The cost of a check that does not wait.
    pub(crate) const fn units(units: u64) -> Self {
        Self {
            units,
            max_wait: 0,
            patience: 0,
        }
    }
}

impl Effect {
    /// Returns whether a check of this cost may change the state without a charge.
    fn adopts(self, cost: u64) -> bool {
        match self {
            Self::Dry | Self::Count => false,
            Self::Adopt => true,
            Self::Commit => cost > 0,
        }
    }
}

/// The algorithm of a limit, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    /// The token bucket, the leaky bucket, or GCRA.
    Bucket(BucketRule),
    /// Its one operation is a claim.
    Concurrency(Concurrency),
}

/// The state of one key under one limit.
///
/// It is opaque. A store keeps it and passes it to [`decide`](crate::store::decide) again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Kind);

/// The token bucket, the leaky bucket and GCRA share a kind of state, so that a limit can change
/// between them without a free burst.
///
/// A state is decided in its place, because moving it out and back would cost each check more than
/// the arithmetic. So it is an `Option`, which is `None` only [meanwhile](with_state).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Bucket(Option<Level>),
    Window(Option<Counters<Window>>),
    SubWindows(Option<Counters<SubWindows>>),
    Log(Option<Log>),
    Permits(Option<Holders>),
    /// A key with offences, and its budget of one of the kinds above, if it has one.
    Offender(Box<offences::Offender>),
}

/// A state of one kind.
trait KindOfState: Sized {
    /// The place of a state, if it is of this kind.
    fn place_in(kind: &mut Kind) -> Option<&mut Option<Self>>;

    fn into_kind(self) -> Kind;
}

/// Calls `act` with the state in the slot. A state of another kind belongs to another budget and
/// counts as none.
#[inline]
fn with_state<S: KindOfState, T>(
    slot: &mut Option<State>,
    act: impl FnOnce(&mut Option<S>) -> T,
) -> T {
    let slot = offences::budget(slot);
    let known = slot.as_mut().and_then(|State(kind)| S::place_in(kind));
    if let Some(state) = known {
        let answer = act(state);
        if state.is_none() {
            *slot = None;
        }
        return answer;
    }
    let mut state = None;
    let answer = act(&mut state);
    *slot = state.map(|state| State(state.into_kind()));
    answer
}

impl Rule {
    /// Decides whether `cost` fits at `now`, and changes the state as `effect` says.
    pub(crate) fn decide(
        &self,
        slot: &mut Option<State>,
        now: Timestamp,
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        match self {
            Self::FixedWindow(rule) => {
                with_state(slot, |state| rule.decide(state, now, cost, effect))
            }
            Self::SlidingWindow(rule) => {
                with_state(slot, |state| rule.decide(state, now, cost, effect))
            }
            Self::SlidingLog(rule) => {
                with_state(slot, |state| rule.decide(state, now, cost, effect))
            }
            Self::Bucket(rule) => with_state(slot, |state| {
                rule.bucket.decide(state, now, cost, effect, rule.queues())
            }),
            // A permit is claimed, and not charged.
            Self::Concurrency(_) => Outcome::undelayed(false, true, 0, None, 0),
        }
    }

    /// Charges a budget that has a state, if its algorithm has a fast path for the charge.
    /// Otherwise returns `None` and changes nothing. [`decide`](Self::decide) would return the same
    /// outcome.
    #[inline]
    pub(crate) fn charge(
        &self,
        slot: &mut Option<State>,
        now: Timestamp,
        units: u64,
    ) -> Option<Outcome> {
        match (self, slot) {
            (Self::Bucket(rule), Some(State(Kind::Bucket(Some(level))))) if !rule.queues() => {
                rule.bucket.charge(level, now, units)
            }
            _ => None,
        }
    }

    /// Applies a claim of permits. Nothing is granted under another limit.
    pub(crate) fn claim(&self, slot: &mut Option<State>, now: Timestamp, claim: &Claim) -> Outcome {
        match self {
            Self::Concurrency(rule) => with_state(slot, |state| rule.claim(state, now, claim)),
            _ => self.decide(slot, now, Cost::NONE, Effect::Dry),
        }
    }

    /// Charges `units` even if they do not fit, up to a debt of `max_debt` units.
    pub(crate) fn overdraw(
        &self,
        slot: &mut Option<State>,
        now: Timestamp,
        units: u64,
        max_debt: u64,
    ) {
        match self {
            Self::FixedWindow(rule) => {
                with_state(slot, |state| rule.overdraw(state, now, units, max_debt));
            }
            Self::SlidingWindow(rule) => {
                with_state(slot, |state| rule.overdraw(state, now, units, max_debt));
            }
            Self::SlidingLog(rule) => {
                with_state(slot, |state| rule.overdraw(state, now, units, max_debt));
            }
            Self::Bucket(rule) => {
                with_state(slot, |state| {
                    rule.bucket.overdraw(state, now, units, max_debt)
                });
            }
            Self::Concurrency(_) => {}
        }
    }

    /// Gives back `units` of the charge that the receipt names, as far as they still count. The
    /// budget is never fuller than without that charge.
    pub(crate) fn refund(
        &self,
        slot: &mut Option<State>,
        now: Timestamp,
        receipt: Receipt,
        units: u32,
    ) {
        let units = units.min(receipt.cost).into();
        match self {
            Self::FixedWindow(rule) => {
                with_state(slot, |state| rule.refund(state, now, receipt, units));
            }
            Self::SlidingWindow(rule) => {
                with_state(slot, |state| rule.refund(state, now, receipt, units));
            }
            Self::SlidingLog(rule) => {
                with_state(slot, |state| rule.refund(state, now, receipt, units));
            }
            Self::Bucket(rule) => with_state(slot, |state| {
                rule.bucket
                    .refund(state, now, receipt, units, rule.queues());
            }),
            Self::Concurrency(_) => {}
        }
    }

    const fn bucket(&self) -> Option<&BucketRule> {
        match self {
            Self::Bucket(rule) => Some(rule),
            _ => None,
        }
    }

    /// Returns whether a waiting check reserves its units. See [`Cost::max_wait`].
    pub(crate) fn reserves(&self) -> bool {
        self.bucket().is_some_and(|rule| !rule.queues())
    }

    /// Returns whether an allowed check can have a delay, because it waits in a queue.
    pub(crate) fn queues(&self) -> bool {
        self.bucket().is_some_and(BucketRule::queues)
    }

    /// The time in which a bucket refills so many units. 0 for other algorithms.
    pub(crate) fn refill_time(&self, units: u64) -> Micros {
        self.bucket()
            .map_or(0, |rule| rule.bucket.refill_time(units))
    }

    /// Returns whether the state is a level that drains.
    pub(crate) const fn drains(&self) -> bool {
        self.bucket().is_some()
    }

    /// The verdict of a charge that follows the first of several identical charges at the same
    /// instant. `charged` is the sum of all costs after the first, including this one.
    pub(crate) fn follow(&self, first: First, charged: u64, cost: u64) -> Followed {
        match self.bucket() {
            Some(rule) => rule.bucket.follow(first, charged, cost, rule.queues()),
            // The end of a window does not depend on its count.
            None => Followed {
                reset_after: first.reset_after,
                delay: 0,
                drains_after: 0,
            },
        }
    }

    /// The time until `cost` fits again, after a charge whose budget is full after `reset_after`.
    /// `None` for a sliding window and a log, because a few units are replenished long before all
    /// are, and the outcome of a charge does not say when.
    pub(crate) fn next_after(&self, reset_after: Micros, cost: u64) -> Option<Micros> {
        match self {
            Self::Bucket(rule) => Some(rule.bucket.next_after(reset_after, cost)),
            Self::FixedWindow(_) => Some(reset_after),
            Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::Concurrency(_) => None,
        }
    }

    /// The kind of state, which is part of the stored key.
    ///
    /// A format that changes gets another letter. Otherwise, two versions of this crate in a
    /// rolling deployment would read each other's values as corrupt, and count each as a full
    /// budget. The steps of the expiry (`scripts/stored.lua`) are part of the format, because
    /// each charge relies on the expiry that the last one set.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Bucket(_) => "b",
            Self::FixedWindow(_) => "w",
            Self::SlidingWindow(_) => "s",
            Self::SlidingLog(_) => "l",
            Self::Concurrency(_) => "c",
        }
    }
}

/// The verdict of the first of several identical charges at the same instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    pub(crate) remaining: u64,
    pub(crate) reset_after: Micros,
    /// The rounding of `reset_after`, in parts of the limit's rate.
    pub(crate) slack: u64,
    /// The parts that were given back to the level.
    pub(crate) returned: u64,
}

/// The verdict of a charge that follows the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    pub(crate) reset_after: Micros,
    pub(crate) delay: Micros,
    pub(crate) drains_after: Micros,
}

impl State {
    /// The store's time from which this state equals no state, since the Unix epoch.
    #[must_use]
    pub fn expires_at(&self) -> Duration {
        self.expiry().since_epoch()
    }

    pub(crate) fn expiry(&self) -> Timestamp {
        let of_budget = match &self.0 {
            Kind::Bucket(level) => level.as_ref().map(Level::expires_at),
            Kind::Window(window) => window.as_ref().map(Counters::expires_at),
            Kind::SubWindows(counters) => counters.as_ref().map(Counters::expires_at),
            Kind::Log(log) => log.as_ref().map(Log::expires_at),
            Kind::Permits(holders) => holders.as_ref().map(Holders::expires_at),
            Kind::Offender(offender) => {
                let of_budget = offender.budget.as_ref().map(Self::expiry);
                of_budget.max(Some(offender.expires_at()))
            }
        };
        of_budget.unwrap_or_default()
    }

    /// Until when the key is blocked. The epoch if it never was.
    pub(crate) fn blocked_until(&self) -> Timestamp {
        match &self.0 {
            Kind::Offender(offender) => offender.block_ends_at(),
            _ => Timestamp::EPOCH,
        }
    }

    /// Returns whether the state can be deleted at `now`. After a refund under a sliding window,
    /// this is `false` for up to a window after [`expires_at`](Self::expires_at).
    pub(crate) fn is_deletable(&self, now: Timestamp) -> bool {
        match &self.0 {
            Kind::Bucket(level) => level.as_ref().is_none_or(|it| it.is_over(now)),
            Kind::Window(window) => window.as_ref().is_none_or(|it| it.is_deletable(now)),
            Kind::SubWindows(counters) => counters.as_ref().is_none_or(|it| it.is_deletable(now)),
            Kind::Log(log) => log.as_ref().is_none_or(|it| it.expires_at() <= now),
            Kind::Permits(holders) => holders.as_ref().is_none_or(|it| it.expires_at() <= now),
            Kind::Offender(offender) => {
                let budget = offender.budget.as_ref();
                budget.is_none_or(|it| it.is_deletable(now)) && offender.expires_at() <= now
            }
        }
    }
}
