//! Verdicts: the answer of one limit.

use std::cmp::Reverse;
use std::time::Duration;

use super::Limit;
use crate::units::{Micros, Outcome, Receipt, Timestamp};

/// The answer of one limit to one check.
///
/// | field | meaning |
/// |---|---|
/// | [`limit`](Self::limit) | the limit that answers: its name, quota and algorithm |
/// | [`allowed`](Self::allowed) | whether this limit allows the check |
/// | [`capacity`](Self::capacity) | the most units that the budget holds: the burst where the algorithm has one, else the quota's limit |
/// | [`remaining`](Self::remaining) | units left after this check, rounded down, at most the capacity |
/// | [`retry_after`](Self::retry_after) | the time until the same check is allowed, if no other check comes; `None` for an allowed check and for one that exceeds the capacity |
/// | [`reset_after`](Self::reset_after) | the time until the budget is full again, and no block stands |
/// | [`delay`](Self::delay) | the time that an allowed check waits for its turn (leaky bucket as a queue) or for [reserved units](crate::Check::with_max_wait) |
/// | [`exceeds_capacity`](Self::exceeds_capacity) | whether the cost is above the capacity, so that no wait helps |
/// | [`is_blocked`](Self::is_blocked) | whether the key is blocked, for [`blocked_for`](Self::blocked_for): then `remaining` is 0, and `retry_after` is at least that. A check of cost 0 is allowed all the same |
/// | [`is_near_limit`](Self::is_near_limit) | whether most of the units are used, as the limit defines it |
/// | [`would_deny`](Self::would_deny) | whether a limit in shadow mode would have denied the check |
///
/// Durations are exact to the microsecond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(super) limit: Limit,
    pub(super) outcome: Outcome,
    /// Units that were charged.
    pub(super) charged: u32,
    /// The time of the charge by the store's clock. It is earlier than the decision for units that
    /// were charged ahead.
    pub(super) charged_at: Timestamp,
    /// `true` if the budget is unknown.
    is_unknown: bool,
    /// `true` if the limit does not deny this key. The outcome is the one that it would have.
    is_shadow: bool,
    /// `true` if it was decided locally, so no store knows of the charge.
    pub(super) is_local: bool,
}

impl Verdict {
    #[inline]
    pub(crate) const fn new(limit: Limit, outcome: Outcome, charged: u32) -> Self {
        Self {
            limit,
            outcome,
            charged,
            charged_at: Timestamp::EPOCH,
            is_unknown: false,
            is_shadow: false,
            is_local: false,
        }
    }

    /// The same answer, of a limit that is in shadow mode or not.
    #[inline]
    pub(crate) const fn in_shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// The answer of a limit of whose budget nothing is known, because it fails open, or was not
    /// asked.
    pub(crate) fn unlimited(limit: Limit) -> Self {
        let remaining = limit.quota().capacity();
        let outcome = Outcome::undelayed(true, false, remaining, None, 0);
        Self {
            is_unknown: true,
            ..Self::new(limit, outcome, 0)
        }
    }

    /// The answer of a limit that fails closed, until the store is asked again.
    pub(crate) fn unavailable(limit: Limit, retry_after: Micros) -> Self {
        let outcome = Outcome::undelayed(false, false, 0, Some(retry_after), retry_after);
        Self {
            is_unknown: true,
            ..Self::new(limit, outcome, 0)
        }
    }

    /// The answer of a limit that an override denies to a key, until the override ends.
    pub(crate) fn denied_by_override(limit: Limit, cost: u32, ends_after: Micros) -> Self {
        let retry_after = (cost > 0).then_some(ends_after);
        let outcome = Outcome::undelayed(cost == 0, false, 0, retry_after, ends_after);
        let blocked_for = ends_after;
        Self::new(
            limit,
            Outcome {
                blocked_for,
                ..outcome
            },
            0,
        )
    }

    /// The receipt of the charge, for a [refund](crate::RateLimiter::refund). `None` if nothing was
    /// charged in the store, or locally in its place.
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        let drains_at = match self.outcome.drains_after {
            0 => Timestamp::EPOCH,
            after => self.charged_at.saturating_add(after),
        };
        let receipt = Receipt {
            at: self.charged_at,
            cost: self.charged,
            drains_at,
        };
        let receipt = match self.is_local {
            true => receipt.of_local_charge(),
            false => receipt,
        };
        (self.charged > 0).then_some(receipt)
    }

    /// The same verdict on a check that was charged so many units.
    pub(crate) const fn charged(mut self, units: u32, charged_at: Timestamp) -> Self {
        self.charged = units;
        self.charged_at = charged_at;
        self
    }

    /// The time of the charge, by the clock of the store.
    pub(crate) const fn charged_at(&self) -> Timestamp {
        self.charged_at
    }

    /// The same verdict, where this process has more units of the budget.
    pub(crate) fn with_more_remaining(self, units: u64) -> Self {
        let remaining = self.outcome.remaining.saturating_add(units);
        self.with_remaining(remaining)
    }

    /// The same verdict, after so many more units.
    pub(crate) fn with_less_remaining(self, units: u64) -> Self {
        let remaining = self.outcome.remaining.saturating_sub(units);
        self.with_remaining(remaining)
    }

    /// The same verdict, where so many units are left in the store and in this process.
    pub(crate) fn with_remaining(mut self, units: u64) -> Self {
        self.outcome.remaining = units.min(self.limit.quota().capacity());
        self
    }

    /// The same verdict, after units that are not charged yet. They are free again after this
    /// time.
    pub(crate) fn with_unpaid(mut self, units: u64, free_after: Micros) -> Self {
        let outcome = &mut self.outcome;
        outcome.remaining = outcome.remaining.saturating_sub(units);
        outcome.reset_after = outcome.reset_after.saturating_add(free_after);
        outcome.retry_after = outcome
            .retry_after
            .map(|wait| wait.saturating_add(free_after));
        self
    }

    /// The same answer, as one that charged nothing.
    pub(super) const fn uncharged(mut self) -> Self {
        self.outcome.delay = 0;
        self.charged = 0;
        self
    }

    /// The denial of a blocked key, for a check of any cost. Of the budget, only the block is
    /// known.
    pub(crate) const fn of_blocked_key(mut self) -> Self {
        self.outcome.allowed = false;
        self.outcome.retry_after = Some(self.outcome.blocked_for);
        self
    }

    /// The same denial, which a wait ends.
    pub(crate) const fn denied_for(mut self, retry_after: Micros) -> Self {
        self.outcome.exceeds_capacity = false;
        self.outcome.retry_after = Some(retry_after);
        self
    }

    /// Returns whether the budget is unknown. Then [`remaining`](Self::remaining) is the capacity.
    /// Either the limit failed open, because the store was unavailable, or an
    /// [override](crate::overrides::Override) exempts the key, or another check of the group was
    /// denied without asking the store, because its key is [blocked](Self::is_blocked).
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.is_unknown && self.outcome.allowed
    }

    /// Returns whether an [override](crate::overrides::Override) of the key decided.
    #[must_use]
    pub fn is_overridden(&self) -> bool {
        self.limit.is_overridden()
    }

    /// Returns whether the limit is [in shadow mode](crate::Limit::with_shadow_mode) for this
    /// key. It never denies then.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns whether the limit is in shadow mode and would have denied the check. Nothing was
    /// charged under it.
    #[must_use]
    pub const fn would_deny(&self) -> bool {
        self.is_shadow && !self.outcome.allowed
    }

    /// The [`retry_after`](Self::retry_after) that a limit in shadow mode would have answered.
    #[must_use]
    pub fn would_retry_after(&self) -> Option<Duration> {
        self.outcome
            .retry_after
            .filter(|_| self.is_shadow)
            .map(Duration::from_micros)
    }

    /// Returns whether the key is [blocked](crate::Limit::with_block_policy) under this limit.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.outcome.blocked_for != 0
    }

    /// The time until the block of the key ends. `None` if it is not blocked.
    /// [`retry_after`](Self::retry_after) is longer if the budget has no units then.
    #[must_use]
    pub fn blocked_for(&self) -> Option<Duration> {
        self.is_blocked()
            .then(|| Duration::from_micros(self.outcome.blocked_for))
    }

    /// Returns whether the block of the key begins with this denial.
    pub(crate) const fn begins_block(&self) -> bool {
        self.outcome.begins_block
    }

    /// The limit that answers.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns whether this limit allows the check. A limit in shadow mode allows every check.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.outcome.allowed || self.is_shadow
    }

    /// Returns whether the cost is above the [capacity](Self::capacity). The check is never allowed
    /// then, however long its caller waits.
    #[must_use]
    pub const fn exceeds_capacity(&self) -> bool {
        self.outcome.exceeds_capacity && !self.is_shadow
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

    /// The time until the same check is allowed, if no other check comes. It is exact. One
    /// microsecond sooner the check is denied again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome
            .retry_after
            .filter(|_| !self.is_shadow)
            .map(Duration::from_micros)
    }

    /// The time until the budget is full again, and no block stands.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome.reset_after)
    }

    /// The time that an allowed check has to wait, for its turn in a leaky bucket as a queue, or
    /// for [reserved units](crate::Check::with_max_wait). Else zero. For a limit in shadow mode, it
    /// is the time that the check would have waited, and the [decision](crate::Decision::delay) has
    /// no delay.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.outcome.delay)
    }

    /// The part of a decision's delay.
    pub(super) const fn delay_us(&self) -> Micros {
        if self.is_shadow {
            0
        } else {
            self.outcome.delay
        }
    }

    /// Returns whether the key has used the percentage of its units at which the limit
    /// [warns](crate::Limit::with_warn_at_percent), after this check. `false` for a limit that does
    /// not warn, or is in shadow mode for the key, and if the key is blocked, or the store did not
    /// decide.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.tells_budget() && self.limit.is_near(self.outcome.remaining) == Some(true)
    }

    /// Returns whether the store decided, and the limit is enforced for the key. Then the remaining
    /// units are a fact.
    pub(crate) const fn tells_budget(&self) -> bool {
        let is_in_store = !self.is_unknown && !self.is_local;
        is_in_store && !self.is_shadow && !self.is_blocked()
    }

    /// The units that were charged.
    pub(crate) fn units_charged(&self) -> u64 {
        self.charged.into()
    }

    /// Returns whether fewer units are left than this charge consumed.
    #[inline]
    pub(crate) const fn is_used_up(&self) -> bool {
        !self.is_shadow && self.outcome.remaining < self.charged as u64
    }

    /// The time until the same check is allowed again, if the budget is used up and the time is
    /// known.
    pub(crate) fn next_after(&self) -> Option<Micros> {
        let rule = self.limit.rule();
        self.is_used_up()
            .then(|| rule.next_after(self.outcome.reset_after, self.charged.into()))
            .flatten()
    }

    pub(crate) const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The order in which verdicts decide a group, first a cost above the capacity, then the
    /// longest wait, then (of limits that allow the check) the fewest further checks of its cost,
    /// then the latest time when the budget is full again. A limit in shadow mode decides last.
    pub(super) fn severity(&self) -> (bool, bool, bool, Micros, Reverse<u64>, Micros) {
        let outcome = &self.outcome;
        let cost = u64::from(self.charged.max(1));
        let further = match self.is_unlimited() {
            true => u64::MAX,
            false => outcome.remaining.checked_div(cost).unwrap_or(0),
        };
        (
            !self.is_shadow,
            outcome.exceeds_capacity,
            !outcome.allowed,
            outcome.retry_after.unwrap_or(0),
            Reverse(further),
            outcome.reset_after,
        )
    }
}
