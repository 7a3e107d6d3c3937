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
//! 3. `expires_at`: when may the state be forgotten, because it says the same as no state?
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

use crate::nouns::{Micros, Outcome, Receipt};

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

/// The numbers of a limit, for its algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    Gcra(Gcra),
}

/// What a store keeps of one key under one limit.
///
/// It is opaque: a store keeps it and passes it to [`decide`](crate::store::decide) again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Kind);

/// The token bucket, the leaky bucket and GCRA share a kind of state. A limit can change between
/// them without a free burst.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Bucket(bucket::Level),
    Window(rotation::Counters<fixed_window::Window>),
    SubWindows(rotation::Counters<sliding_window::SubWindows>),
    Log(sliding_log::Log),
}

/// Lets `act` work on the state in the slot. A state of another kind counts as none: it belongs to
/// another budget.
macro_rules! with_state {
    ($kind:ident in $slot:expr, $act:expr) => {{
        let mut state = match $slot.take() {
            Some(State(Kind::$kind(state))) => Some(state),
            _ => None,
        };
        let answer = $act(&mut state);
        *$slot = state.map(|state| State(Kind::$kind(state)));
        answer
    }};
}

impl Rule {
    /// Decides whether `cost` fits at `now`, and carries that out as far as `effect` says.
    pub(crate) fn decide(
        &self,
        slot: &mut Option<State>,
        now: Micros,
        cost: u32,
        effect: Effect,
    ) -> Outcome {
        macro_rules! decide {
            ($rule:ident, $kind:ident) => {
                with_state!($kind in slot, |state| $rule.decide(state, now, cost.into(), effect))
            };
        }
        match self {
            Self::FixedWindow(rule) => decide!(rule, Window),
            Self::SlidingWindow(rule) => decide!(rule, SubWindows),
            Self::SlidingLog(rule) => decide!(rule, Log),
            Self::TokenBucket(rule) => decide!(rule, Bucket),
            Self::LeakyBucket(rule) => decide!(rule, Bucket),
            Self::Gcra(rule) => decide!(rule, Bucket),
        }
    }

    /// Takes back `units` of the charge that the receipt names, as far as they still count: never
    /// more than if the charge had not been made.
    pub(crate) fn refund(
        &self,
        slot: &mut Option<State>,
        now: Micros,
        receipt: Receipt,
        units: u32,
    ) {
        let units = u64::from(units.min(receipt.cost));
        macro_rules! refund {
            ($rule:ident, $kind:ident) => {
                with_state!($kind in slot, |state| $rule.refund(state, now, receipt, units))
            };
        }
        match self {
            Self::FixedWindow(rule) => refund!(rule, Window),
            Self::SlidingWindow(rule) => refund!(rule, SubWindows),
            Self::SlidingLog(rule) => refund!(rule, Log),
            Self::TokenBucket(TokenBucket(rule))
            | Self::LeakyBucket(LeakyBucket { bucket: rule, .. })
            | Self::Gcra(Gcra(rule)) => refund!(rule, Bucket),
        }
    }

    /// The verdict of a charge that follows the first of several identical ones, made at the same
    /// instant: the last of the `taken` units after the first charge are its own.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for a batch of checks"))]
    pub(crate) fn follow(&self, first: First, taken: u64, cost: u64) -> Followed {
        match self {
            Self::TokenBucket(TokenBucket(bucket)) | Self::Gcra(Gcra(bucket)) => {
                bucket.follow(first, taken, cost, false)
            }
            Self::LeakyBucket(LeakyBucket { bucket, mode }) => {
                bucket.follow(first, taken, cost, *mode == Mode::Queue)
            }
            // A window is over at its end, however much is charged.
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => {
                Followed { reset_after: first.reset_after, delay: 0 }
            }
        }
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
}

/// The answer to the first of several identical charges that were allowed at the same time.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for a batch of checks"))]
pub(crate) struct First {
    pub(crate) reset_after: Micros,
    /// By how much that was rounded up, in parts of the limit's rate.
    pub(crate) slack: u64,
}

/// The answer to a charge that follows it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for a batch of checks"))]
pub(crate) struct Followed {
    pub(crate) reset_after: Micros,
    pub(crate) delay: Micros,
}

impl State {
    /// The time, in microseconds since the Unix epoch, from which this state says the same as no
    /// state at all.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        match &self.0 {
            Kind::Bucket(level) => level.expires_at(),
            Kind::Window(window) => window.expires_at(),
            Kind::SubWindows(counters) => counters.expires_at(),
            Kind::Log(log) => log.expires_at(),
        }
    }

    /// Whether it has expired at `now`.
    pub(crate) fn is_over(&self, now: Micros) -> bool {
        match &self.0 {
            Kind::Bucket(level) => level.is_over(now),
            _ => self.expires_at() <= now,
        }
    }
}
