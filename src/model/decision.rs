//! Decisions: the answers to checks and to groups of checks.

use std::time::Duration;

use super::{Check, Error, Limit, Verdict};
use crate::units::{Micros, Receipt, Timestamp, micros};

/// The answer to a check or to a group of checks, with one verdict for each check.
///
/// A denial is a decision, not an error. An [`Error`](crate::Error) means that the store did not
/// decide.
///
/// A group is allowed if every limit allows its check, but for those in [shadow
/// mode](crate::Limit::with_shadow_mode). The accessors return the values of the *deciding*
/// limit. In a denied group, that is the limit with the longest wait. In an allowed group, it is
/// the limit that allows the fewest further checks of the same cost. If several allow equally few,
/// it is the one whose budget is full last. [`delay`](Self::delay) is the longest of all.
/// [`verdicts`](Self::verdicts) returns each verdict, in the order of the group. In a denied group,
/// a verdict that allows its check reports the budget without a charge, because nothing was
/// consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision that is not looked at limits nothing"]
pub struct Decision {
    deciding: Verdict,
    delay: Micros,
    source: Source,
    /// The time of the decision, by the store's clock.
    decided_at: Timestamp,
    /// Empty for a single limit, because the deciding verdict is the only one.
    group: Box<[Verdict]>,
}

/// The place where a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store, which all replicas share.
    Store,
    /// This process. The store denied the same check until a later time.
    DenyCache,
    /// This process. The limit is [asynchronous](crate::Limit::asynchronous), or has an
    /// [overshoot](crate::Limit::with_overshoot_percent).
    Asynchronous,
    /// This process. The store was unavailable, and the limits [failed over to their
    /// shares](crate::limit::OnStoreFailure::Local). The verdicts are of the shares.
    Local,
    /// Nowhere. The store was unavailable, and the limits [failed
    /// open](crate::limit::OnStoreFailure::FailOpen).
    FailOpen,
    /// Nowhere. The store was unavailable, and a limit [failed
    /// closed](crate::limit::OnStoreFailure::FailClosed).
    FailClosed,
    /// This process. An [override](crate::overrides::Override) exempts the key, or denies all its
    /// checks.
    Override,
}

impl From<Verdict> for Decision {
    #[inline]
    fn from(verdict: Verdict) -> Self {
        Self {
            delay: verdict.delay_us(),
            deciding: verdict,
            source: Source::Store,
            decided_at: Timestamp::EPOCH,
            group: Box::default(),
        }
    }
}

impl Decision {
    /// Creates the decision of a group, for authors of a [`Store`](crate::store::Store). `None` if
    /// there are no verdicts.
    #[must_use]
    pub fn of_group(verdicts: Vec<Verdict>) -> Option<Self> {
        // `max_by_key` keeps the last of equals. Reversed, the first limit of the group wins.
        let deciding = verdicts
            .iter()
            .rev()
            .max_by_key(|verdict| verdict.severity())?
            .clone();
        let delay = verdicts.iter().map(Verdict::delay_us).max().unwrap_or(0);
        let group = if verdicts.len() == 1 {
            Box::default()
        } else {
            verdicts.into()
        };
        Some(Self {
            deciding,
            delay,
            source: Source::Store,
            decided_at: Timestamp::EPOCH,
            group,
        })
    }

    /// Sets the time of the decision by the store's clock, since the Unix epoch. The receipts are
    /// of charges at that time. Default: 0.
    ///
    /// You need it to write a [`Store`](crate::store::Store).
    pub fn made_at(self, decided_at: Duration) -> Self {
        self.with_timestamp(Timestamp::from(decided_at))
    }

    #[inline]
    pub(crate) fn with_timestamp(mut self, decided_at: Timestamp) -> Self {
        self.decided_at = decided_at;
        self.deciding.charged_at = decided_at;
        self.group
            .iter_mut()
            .for_each(|verdict| verdict.charged_at = decided_at);
        self
    }

    /// The decision of a group whose parts were decided by several servers, each at its own time.
    pub(crate) fn of_parts(verdicts: Vec<Verdict>, decided_at: Timestamp) -> Option<Self> {
        Some(Self {
            decided_at,
            ..Self::of_group(verdicts)?
        })
    }

    /// Changes the verdict of a decision on a single check.
    pub(crate) fn map_only(mut self, change: impl FnOnce(Verdict) -> Verdict) -> Self {
        debug_assert!(self.group.is_empty(), "a group has several verdicts");
        self.deciding = change(self.deciding);
        self
    }

    /// Adds the shadow denials of another decision of the same group.
    pub(crate) fn with_shadow_denials_of(self, other: &Self) -> Self {
        if other.shadow_denials().next().is_none() {
            return self;
        }
        let pairs = self.verdicts().iter().zip(other.verdicts());
        let verdicts = pairs.map(|(ours, theirs)| if theirs.would_deny() { theirs } else { ours });
        Self::of_parts(verdicts.cloned().collect(), self.decided_at).unwrap_or(self)
    }

    /// The same decision, as one that charged nothing.
    pub(crate) fn uncharged(mut self) -> Self {
        self.deciding = self.deciding.uncharged();
        self.group = self.group.into_iter().map(Verdict::uncharged).collect();
        self
    }

    /// The deciding limit. For a denial, the limit that denied.
    pub const fn limit(&self) -> &Limit {
        &self.deciding.limit
    }

    /// Returns whether the check is allowed.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.deciding.allowed()
    }

    /// Returns whether the cost is above the deciding limit's [capacity](Self::capacity). The check
    /// is never allowed then, however long its caller waits.
    #[must_use]
    pub const fn exceeds_capacity(&self) -> bool {
        self.deciding.exceeds_capacity()
    }

    /// Returns whether a key is [blocked](crate::Limit::with_block_policy) under a limit of the
    /// group. A check of cost 0 is allowed all the same.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.verdicts()
            .iter()
            .any(|verdict| verdict.is_blocked() && !verdict.is_shadow())
    }

    /// Returns whether the key is near a limit of the group that
    /// [warns](crate::Limit::with_warn_at_percent). The [verdicts](Self::verdicts) say which.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.verdicts().iter().any(Verdict::is_near_limit)
    }

    /// The most units that the deciding limit's budget holds.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.deciding.capacity()
    }

    /// Units that the deciding limit has left after this check, rounded down.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.deciding.remaining()
    }

    /// The time until the same check is allowed, if no other check comes. `None` for an allowed
    /// check, and for one that [exceeds the capacity](Self::exceeds_capacity).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.deciding.retry_after()
    }

    /// The time until the deciding limit's budget is full again, and no block stands.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.deciding.reset_after()
    }

    /// The time that an allowed check has to wait for its turn, the longest of all limits. The
    /// tower layer and [`acquire`](crate::RateLimiter::acquire) wait it out.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.delay)
    }

    /// The verdict of the deciding limit.
    #[must_use]
    pub const fn deciding(&self) -> &Verdict {
        &self.deciding
    }

    /// The verdicts of limits in shadow mode that would have denied their checks. See
    /// [`Limit::with_shadow_mode`].
    pub fn shadow_denials(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts()
            .iter()
            .filter(|verdict| verdict.would_deny())
    }

    /// The verdict of each limit, in the order of the group.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        if self.group.is_empty() {
            std::slice::from_ref(&self.deciding)
        } else {
            &self.group
        }
    }

    /// The checks of a group that its decision denies.
    pub(crate) fn denied_checks(&self, group: &[Check]) -> Vec<Check> {
        let verdicts = group.iter().zip(self.verdicts());
        let denied = verdicts.filter(|(_, verdict)| !verdict.allowed());
        denied.map(|(check, _)| check.clone()).collect()
    }

    /// The place where the decision was made: the store, or this process on its behalf or in its
    /// place.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The time of the decision by the store's clock, since the Unix epoch. It is exact to the
    /// microsecond. If a replica decides an [asynchronous](crate::Limit::asynchronous) limit, it is
    /// early by up to a round trip.
    #[must_use]
    pub const fn decided_at(&self) -> Duration {
        self.decided_at.since_epoch()
    }

    #[inline]
    pub(crate) const fn timestamp(&self) -> Timestamp {
        self.decided_at
    }

    /// The receipt of the charge, for a [refund](crate::RateLimiter::refund). A charge that was
    /// decided [locally](Source::Local) has one too. `None` if nothing was charged.
    ///
    /// The receipt of a group is the receipt of its first check. See [`receipts`](Self::receipts).
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.receipts().next().flatten()
    }

    /// The receipt of each charge, in the order of the group.
    pub fn receipts(&self) -> impl Iterator<Item = Option<Receipt>> {
        self.verdicts().iter().map(Verdict::receipt)
    }

    /// Returns whether a limit may be in shadow mode.
    #[inline]
    pub(crate) const fn has_shadow(&self) -> bool {
        self.deciding.is_shadow() || !self.group.is_empty()
    }

    /// Returns whether the same checks would be denied now, because a budget has fewer units left
    /// than its check consumed.
    #[inline]
    pub(crate) fn is_used_up(&self) -> bool {
        self.verdicts().iter().any(Verdict::is_used_up)
    }

    /// The time until the same checks are allowed again, as far as it is known.
    pub(crate) fn next_after(&self) -> Micros {
        self.verdicts()
            .iter()
            .filter_map(Verdict::next_after)
            .max()
            .unwrap_or(0)
    }

    /// Returns whether its deciding limit is stricter than another decision's.
    pub(crate) fn is_stricter_than(&self, other: &Self) -> bool {
        self.deciding.severity() > other.deciding.severity()
    }

    /// The decision of a group while the store is unavailable.
    pub(crate) fn in_place_of_store(
        mut verdicts: Vec<Verdict>,
        source: Source,
    ) -> Result<Self, Error> {
        let is_local = source == Source::Local;
        verdicts
            .iter_mut()
            .for_each(|verdict| verdict.is_local = is_local);
        // This is always a decision, because a group is not empty.
        Self::of_group(verdicts)
            .map(|decision| decision.with_source(source))
            .ok_or_else(|| Error::misuse("the group is empty"))
    }

    /// The same decision, from another source.
    pub(crate) const fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// The same decision, for units that were charged earlier.
    pub(crate) const fn charged(mut self, units: u32, charged_at: Timestamp) -> Self {
        self.deciding.charged = units;
        self.deciding.charged_at = charged_at;
        self
    }

    /// The same decision, `elapsed` later.
    pub(crate) fn repeated_after(mut self, elapsed: Duration) -> Self {
        let elapsed = micros(elapsed);
        if self.decided_at > Timestamp::EPOCH {
            self.decided_at = self.decided_at.saturating_add(elapsed);
        }
        for verdict in self.group.iter_mut().chain([&mut self.deciding]) {
            let outcome = &mut verdict.outcome;
            outcome.retry_after = outcome
                .retry_after
                .map(|it| it.saturating_sub(elapsed).max(1));
            outcome.reset_after = outcome.reset_after.saturating_sub(elapsed);
            outcome.blocked_for = outcome.blocked_for.saturating_sub(elapsed);
            outcome.begins_block = false;
        }
        self
    }

    /// The same decision as a denial for want of time. It would be allowed after `retry_after`. The
    /// limit at `by` in the group denies it, or the deciding one. Nothing is charged.
    pub(crate) fn denied_until(mut self, retry_after: Duration, by: Option<usize>) -> Self {
        let by = by.or_else(|| {
            self.group
                .iter()
                .position(|verdict| *verdict == self.deciding)
        });
        if let Some(verdict) = by.and_then(|by| self.group.get(by)) {
            self.deciding = verdict.clone();
        }
        self.delay = 0;
        for verdict in self.group.iter_mut().chain([&mut self.deciding]) {
            verdict.outcome.delay = 0;
            verdict.charged = 0;
        }
        self.deciding.outcome.allowed = false;
        self.deciding.outcome.retry_after = u64::try_from(retry_after.as_micros()).ok();
        if let Some(verdict) = by.and_then(|by| self.group.get_mut(by)) {
            *verdict = self.deciding.clone();
        }
        self
    }

    /// The place in the group of the limit with the longest delay.
    pub(crate) fn slowest(&self) -> Option<usize> {
        let delays = self.group.iter().map(Verdict::delay_us).enumerate();
        delays
            .max_by_key(|(_, delay)| *delay)
            .map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use crate::units::Outcome;

    fn verdict(name: &str, allowed: bool, remaining: u64, retry_after: Option<u64>) -> Verdict {
        let limit = Limit::gcra(name, Quota::per_second(10)).unwrap();
        let exceeds_capacity = !allowed && retry_after.is_none();
        let reset_after = 1;
        let delay = 0;
        let outcome = Outcome {
            delay,
            ..Outcome::undelayed(
                allowed,
                exceeds_capacity,
                remaining,
                retry_after,
                reset_after,
            )
        };
        Verdict::new(limit, outcome, 0)
    }

    #[test]
    fn longest_wait_decides_among_denials() {
        let short = verdict("short", false, 0, Some(5));
        let long = verdict("long", false, 3, Some(9));
        let open = verdict("open", true, 0, None);
        let group = vec![open, short, long];
        let decision = Decision::of_group(group.clone()).unwrap();
        assert_eq!(decision.limit().name(), "long");
        assert_eq!(decision.verdicts(), group);
    }

    #[test]
    fn cost_above_the_capacity_is_not_hidden_by_a_long_wait() {
        let too_large = verdict("too large", false, 0, None);
        let group = vec![verdict("slow", false, 0, Some(9)), too_large];
        let decision = Decision::of_group(group).unwrap();
        assert!(decision.exceeds_capacity());
        assert_eq!(decision.retry_after(), None);
        assert_eq!(decision.limit().name(), "too large");
    }

    #[test]
    fn fewest_units_left_decide_among_allowed_limits_and_ties_go_to_the_first() {
        let group = ["wide", "tight", "equal"];
        let remaining = [7, 2, 2];
        let verdicts = group.iter().zip(remaining);
        let verdicts = verdicts
            .map(|(name, left)| verdict(name, true, left, None))
            .collect();
        assert_eq!(
            Decision::of_group(verdicts).unwrap().limit().name(),
            "tight"
        );
    }

    #[test]
    fn fewest_further_checks_decide_and_of_equals_the_latest_reset() {
        let mut second = verdict("second", true, 0, None);
        let mut day = verdict("day", true, 0, None);
        (second.outcome.reset_after, day.outcome.reset_after) = (1_000_000, 86_400_000_000);
        let decision = Decision::of_group(vec![second, day]).unwrap();
        assert_eq!(decision.limit().name(), "day");
        // 59 requests more, and no second one of 800 tokens.
        let requests = verdict("requests", true, 59, None);
        let mut tokens = verdict("tokens", true, 200, None);
        tokens.charged = 800;
        let decision = Decision::of_group(vec![requests, tokens]).unwrap();
        assert_eq!(decision.limit().name(), "tokens");
    }

    #[test]
    fn delay_is_the_longest_of_all_limits() {
        let mut slow = verdict("slow", true, 9, None);
        slow.outcome.delay = 700;
        let decision = Decision::of_group(vec![verdict("fast", true, 1, None), slow]).unwrap();
        assert_eq!(decision.delay(), Duration::from_micros(700));
    }

    #[test]
    fn no_verdicts_make_no_decision() {
        assert_eq!(Decision::of_group(Vec::new()), None);
    }
}
