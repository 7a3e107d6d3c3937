//! The arithmetic of the six algorithms: no async, no I/O, no clock.
//!
//! Each file is the twin of a Lua script in `scripts/`: the same numbers in, the same numbers
//! out, to the microsecond. All of it is integer arithmetic below 2^53, the range in which Lua's
//! numbers are exact; [`Limit`](crate::Limit) refuses a quota that could leave that range.
//!
//! An algorithm answers three questions about a state (`None` is a budget nobody has touched):
//!
//! 1. `decide`: does a cost fit now? With [`Effect::Commit`] the answer is also carried out.
//! 2. `refund`: take back what of a charge still counts.
//! 3. `ends_at`: when may the state be forgotten, because it says the same as no state?
//!
//! # What holds for all six
//!
//! - **Time that steps back.** Behind the state's last time by up to one full period, no time has
//!   passed: nothing is credited, and `retry_after` counts the catch-up. Behind by more, the
//!   clock was set back, and the state goes on from the new time with what it held.
//! - **A changed quota.** What was used stays used, and counts against the new quota from the
//!   first check that brings it: a change mints nothing, and takes effect at once. So a state
//!   carries the rate or the period it was written under.
//! - **Quotas in turn.** What a shorter period lets go of stays known as long as a longer one asks:
//!   each is held to over all that passed, under whichever. See [`rotation`] and [`sliding_log`].
//! - **A refund** names its charge, and leaves no more than if the charge had not been made.
//! - **A denied check consumes nothing.** It writes only where one of the rules above made the
//!   state last longer, or drain faster, so that the `retry_after` it gave stays true. A peek
//!   does not write even then: after a clock was set back or a rate was raised, its `retry_after`
//!   is that of a charge made now.

mod bucket;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod rotation;
mod sliding_log;
mod sliding_window;
mod token_bucket;

pub(crate) use bucket::{Bucket, Rate};
pub(crate) use fixed_window::{Anchor, FixedWindow};
pub(crate) use gcra::Gcra;
pub(crate) use leaky_bucket::{LeakyBucket, Mode};
pub(crate) use sliding_log::SlidingLog;
pub(crate) use sliding_window::SlidingWindow;
pub(crate) use token_bucket::TokenBucket;

use crate::Receipt;
use crate::decision::{Micros, Verdict};

/// Integers below this are exact in Lua, as is the sum of two below half of it.
pub(crate) const MAX_EXACT: u64 = (1 << 53) - 1;

/// What a decision may do to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Only answer.
    Dry,
    /// Remember that the clock or the quota moved, so that what was answered stays true; and that a
    /// quota asked whose counts would otherwise be forgotten.
    Settle,
    /// Charge the cost if it fits; else settle. A cost of 0, and one that can never pass, have no
    /// effect.
    Commit,
}

impl Effect {
    /// Whether a check of this cost that does not charge may still move the state.
    fn settles(self, cost: u64) -> bool {
        match self {
            Self::Dry => false,
            Self::Settle => true,
            Self::Commit => cost > 0,
        }
    }
}

/// An algorithm, over its own kind of state.
trait Rule {
    type State: Kept;

    /// Whether `cost` fits at `now`.
    fn decide(
        &self,
        state: &mut Option<Self::State>,
        now: Micros,
        cost: u64,
        effect: Effect,
    ) -> Verdict;

    /// Takes back `units` of the charge that the receipt is of, as far as they still count: never
    /// more than if the charge had not been made.
    fn refund(&self, state: &mut Option<Self::State>, now: Micros, receipt: Receipt, units: u64);

    /// What a charge of `cost` is told if the last of the `taken` units that were charged since the
    /// `first` charge, all at the same time, are its own. A window is whole again when it is over,
    /// however much is charged.
    fn follow(&self, first: First, _taken: u64, _cost: u64) -> Followed {
        Followed { reset_after: first.reset_after, delay: 0 }
    }
}

/// What the first of several charges was told that were admitted at the same time.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for checks that travel together"))]
pub(crate) struct First {
    pub(crate) reset_after: Micros,
    /// By how much that was rounded up, in parts of the limit's rate.
    pub(crate) slack: u64,
}

/// What a charge is told that came after it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for checks that travel together"))]
pub(crate) struct Followed {
    pub(crate) reset_after: Micros,
    pub(crate) delay: Micros,
}

/// The same, over any state.
trait AnyRule {
    fn decide(&self, state: &mut Option<State>, now: Micros, cost: u64, effect: Effect) -> Verdict;
    fn refund(&self, state: &mut Option<State>, now: Micros, receipt: Receipt, units: u64);
    fn follow(&self, first: First, taken: u64, cost: u64) -> Followed;
}

impl<R: Rule> AnyRule for R {
    fn decide(&self, state: &mut Option<State>, now: Micros, cost: u64, effect: Effect) -> Verdict {
        R::State::unpacked(state, |state| Rule::decide(self, state, now, cost, effect))
    }

    fn refund(&self, state: &mut Option<State>, now: Micros, receipt: Receipt, units: u64) {
        R::State::unpacked(state, |state| Rule::refund(self, state, now, receipt, units));
    }

    fn follow(&self, first: First, taken: u64, cost: u64) -> Followed {
        Rule::follow(self, first, taken, cost)
    }
}

/// A kind of state that a [`State`] can hold.
trait Kept: Sized {
    fn pack(self) -> State;
    fn unpack(state: State) -> Option<Self>;

    /// Lets `act` work on the state in the slot. A state of another kind counts as none: it belongs
    /// to another budget.
    fn unpacked<T>(slot: &mut Option<State>, act: impl FnOnce(&mut Option<Self>) -> T) -> T {
        let mut state = slot.take().and_then(Self::unpack);
        let answer = act(&mut state);
        *slot = state.map(Self::pack);
        answer
    }
}

/// A limit's algorithm, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    Gcra(Gcra),
}

/// What a store remembers of one key under one limit.
///
/// Opaque: a store keeps it and hands it back to [`decide`](crate::decide).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Kind);

/// The token bucket, the leaky bucket and GCRA share a state, so that one can be exchanged for
/// another without a free burst.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Bucket(bucket::Level),
    Window(rotation::Counters<fixed_window::Window>),
    Cells(rotation::Counters<sliding_window::Cells>),
    Log(sliding_log::Log),
}

macro_rules! kept {
    ($($kind:ident: $state:ty),*) => {$(
        impl Kept for $state {
            fn pack(self) -> State {
                State(Kind::$kind(self))
            }

            fn unpack(state: State) -> Option<Self> {
                match state.0 {
                    Kind::$kind(state) => Some(state),
                    _ => None,
                }
            }
        }
    )*};
}

kept!(
    Bucket: bucket::Level,
    Window: rotation::Counters<fixed_window::Window>,
    Cells: rotation::Counters<sliding_window::Cells>,
    Log: sliding_log::Log
);

impl Algorithm {
    pub(crate) fn decide(
        &self,
        state: &mut Option<State>,
        now: Micros,
        cost: u32,
        effect: Effect,
    ) -> Verdict {
        let verdict = self.rule().decide(state, now, u64::from(cost), effect);
        let charges = verdict.allowed && effect == Effect::Commit;
        Verdict { charged: if charges { cost } else { 0 }, ..verdict }
    }

    pub(crate) fn refund(
        &self,
        state: &mut Option<State>,
        now: Micros,
        receipt: Receipt,
        units: u32,
    ) {
        self.rule().refund(state, now, receipt, u64::from(units.min(receipt.cost)));
    }

    /// The kind of state, as it stands in a stored key.
    ///
    /// A format that changes gets another letter. Two versions of this crate in a rolling deployment
    /// would else read each other's values as corrupt, and count each as a full budget.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Gcra(_) => "b",
            Self::FixedWindow(_) => "w",
            Self::SlidingWindow(_) => "s",
            Self::SlidingLog(_) => "l",
        }
    }

    /// What a charge is told that comes at the same time as another, and after it.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "for checks that travel together")
    )]
    pub(crate) fn follow(&self, first: First, taken: u64, cost: u64) -> Followed {
        self.rule().follow(first, taken, cost)
    }

    /// To add an algorithm is to add a line here, and its script to the list of scripts.
    fn rule(&self) -> &dyn AnyRule {
        match self {
            Self::FixedWindow(rule) => rule,
            Self::SlidingWindow(rule) => rule,
            Self::SlidingLog(rule) => rule,
            Self::TokenBucket(rule) => rule,
            Self::LeakyBucket(rule) => rule,
            Self::Gcra(rule) => rule,
        }
    }
}

impl State {
    /// The time, in microseconds since the Unix epoch, from which this state says the same as no
    /// state at all.
    #[must_use]
    pub fn ends_at(&self) -> u64 {
        match &self.0 {
            Kind::Bucket(level) => level.ends_at(),
            Kind::Window(window) => window.ends_at(),
            Kind::Cells(cells) => cells.ends_at(),
            Kind::Log(log) => log.ends_at(),
        }
    }

    /// Whether it has ended at `now`.
    pub(crate) fn is_over(&self, now: Micros) -> bool {
        match &self.0 {
            Kind::Bucket(level) => level.is_over(now),
            _ => self.ends_at() <= now,
        }
    }
}
