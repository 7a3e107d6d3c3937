//! Verdicts: the answer of one limit.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Limit, Micros, Receipt};

/// The result of an algorithm for one check: the computed part of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) allowed: bool,
    pub(crate) exceeds_capacity: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<Micros>,
    pub(crate) reset_after: Micros,
    pub(crate) delay: Micros,
}

/// The answer of one limit to one check.
///
/// | field | meaning |
/// |---|---|
/// | [`limit`](Self::limit) | the limit that answers: its name, quota and algorithm |
/// | [`allowed`](Self::allowed) | whether this limit allows the check |
/// | [`capacity`](Self::capacity) | the most units that the budget holds: the burst where the algorithm has one, else the quota's limit |
/// | [`remaining`](Self::remaining) | units left after this check, rounded down, at most the capacity |
/// | [`retry_after`](Self::retry_after) | the time until the same check is allowed, if no other check comes; `None` for an allowed check and for one that exceeds the capacity |
/// | [`reset_after`](Self::reset_after) | the time until the budget is full again |
/// | [`delay`](Self::delay) | the time that an allowed check waits for its turn (leaky bucket as a queue) |
/// | [`exceeds_capacity`](Self::exceeds_capacity) | whether the cost is above the capacity: no wait helps then |
///
/// Durations are exact to the microsecond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(super) limit: Limit,
    pub(super) outcome: Outcome,
    /// Units that were charged.
    pub(super) charged: u32,
    /// The time of the charge by the store's clock. It is earlier than the decision for prefetched units.
    pub(super) charged_at: Micros,
    /// Whether the limit failed open.
    is_unlimited: bool,
}

impl Verdict {
    #[inline]
    pub(crate) const fn new(limit: Limit, outcome: Outcome, charged: u32) -> Self {
        Self { limit, outcome, charged, charged_at: 0, is_unlimited: false }
    }

    /// The answer of a limit that fails open: of its budget, nothing is known.
    pub(crate) fn unlimited(limit: Limit) -> Self {
        let remaining = limit.quota().capacity();
        let outcome = Outcome {
            allowed: true,
            exceeds_capacity: false,
            remaining,
            retry_after: None,
            reset_after: 0,
            delay: 0,
        };
        Self { limit, outcome, charged: 0, charged_at: 0, is_unlimited: true }
    }

    /// The answer of a limit that fails closed, until the store is asked again.
    pub(crate) const fn unavailable(limit: Limit, retry_after: Micros) -> Self {
        let outcome = Outcome {
            allowed: false,
            exceeds_capacity: false,
            remaining: 0,
            retry_after: Some(retry_after),
            reset_after: retry_after,
            delay: 0,
        };
        Self::new(limit, outcome, 0)
    }

    /// The receipt of the charge, if units were charged.
    pub(super) fn receipt(&self) -> Option<Receipt> {
        let receipt = Receipt { at: self.charged_at, cost: self.charged };
        (self.charged > 0).then_some(receipt)
    }

    /// The same answer, as one that charged nothing.
    #[cfg(feature = "cluster")]
    pub(super) const fn uncharged(mut self) -> Self {
        self.outcome.delay = 0;
        self.charged = 0;
        self
    }

    /// The same denial, which a wait ends.
    pub(crate) const fn denied_for(mut self, retry_after: Micros) -> Self {
        self.outcome.exceeds_capacity = false;
        self.outcome.retry_after = Some(retry_after);
        self
    }

    /// Whether the limit failed open, because the store was unavailable. The budget is unknown then, and
    /// [`remaining`](Self::remaining) is the capacity.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    /// The limit that answers.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether this limit allows the check.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.outcome.allowed
    }

    /// Whether the cost is above the [capacity](Self::capacity). The check is never allowed then,
    /// however long its caller waits.
    #[must_use]
    pub const fn exceeds_capacity(&self) -> bool {
        self.outcome.exceeds_capacity
    }

    /// The most units that the budget holds.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.limit.quota().capacity()
    }

    /// Units left after this check, rounded down. At most the [capacity](Self::capacity).
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.outcome.remaining
    }

    /// The time until the same check is allowed, if no other check comes. It is exact: one
    /// microsecond sooner the check is denied again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome.retry_after.map(Duration::from_micros)
    }

    /// The time until the budget is full again.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome.reset_after)
    }

    /// The time that an allowed check has to wait for its turn. Zero for every algorithm but the
    /// leaky bucket as a queue.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.outcome.delay)
    }

    /// Whether fewer units are left than this charge consumed.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) const fn is_used_up(&self) -> bool {
        self.outcome.remaining < self.charged as u64
    }

    /// The time until the same check is allowed again, if the budget is used up and the time is known.
    #[cfg(feature = "http")]
    pub(crate) fn next_after(&self) -> Option<Micros> {
        let rule = self.limit.rule();
        self.is_used_up()
            .then(|| rule.next_after(self.outcome.reset_after, self.charged.into()))
            .flatten()
    }

    pub(crate) const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The order in which verdicts decide a group: first a cost above the capacity, then the
    /// longest wait, then (of limits that allow the check) the fewest further checks of its cost, then
    /// the latest time when the budget is full again.
    pub(super) fn severity(&self) -> (bool, bool, Micros, Reverse<u64>, Micros) {
        let outcome = &self.outcome;
        let cost = u64::from(self.charged.max(1));
        let further = match self.is_unlimited {
            true => u64::MAX,
            false => outcome.remaining.checked_div(cost).unwrap_or(0),
        };
        (
            outcome.exceeds_capacity,
            !outcome.allowed,
            outcome.retry_after.unwrap_or(0),
            Reverse(further),
            outcome.reset_after,
        )
    }
}
