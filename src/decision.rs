//! The answer to a check.

use std::time::Duration;

use crate::Receipt;

/// Microseconds: a point in time since the Unix epoch, or a span.
pub(crate) type Micros = u64;

/// What one limit says to one check.
///
/// | field | meaning |
/// |---|---|
/// | [`allowed`](Self::allowed) | whether this limit lets the check pass |
/// | [`limit`](Self::limit) | the most units the budget can hold: the burst where the algorithm has one, else the quota's limit |
/// | [`remaining`](Self::remaining) | whole units left after this check, rounded down; never above `limit` |
/// | [`retry_after`](Self::retry_after) | until the same check would pass, if nobody else comes; `None` when it passed, or never can |
/// | [`reset_after`](Self::reset_after) | until the whole budget is back |
/// | [`delay`](Self::delay) | how long an admitted check waits for its turn (leaky bucket as a queue) |
/// | [`never`](Self::never) | whether the cost is above `limit`, so that no wait helps |
///
/// Durations are exact to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    pub(crate) allowed: bool,
    pub(crate) never: bool,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<Micros>,
    pub(crate) reset_after: Micros,
    pub(crate) delay: Micros,
    /// Units that were taken.
    pub(crate) charged: u32,
}

impl Verdict {
    /// Whether this limit lets the check pass.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.allowed
    }

    /// Whether the cost is above [`limit`](Self::limit), so that the check can never pass.
    #[must_use]
    pub const fn never(&self) -> bool {
        self.never
    }

    /// The most units the budget can hold.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Whole units left after this check.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Until the same check would pass, if nobody else comes. Never early: one microsecond
    /// sooner it would be refused again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_micros)
    }

    /// Until the whole budget is back.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// How long an admitted check has to wait for its turn. Zero for every algorithm but the
    /// leaky bucket as a queue.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.delay)
    }

    /// How strongly this verdict speaks against the check: `never`, then the longest wait, then
    /// (among those that allow it) the fewest units left.
    fn severity(&self) -> (bool, bool, Micros, std::cmp::Reverse<u64>) {
        (
            self.never,
            !self.allowed,
            self.retry_after.unwrap_or(0),
            std::cmp::Reverse(self.remaining),
        )
    }
}

/// The answer to a check: one verdict, or one for each of several limits decided together.
///
/// A refusal is a decision, not an error; an [`Error`](crate::Error) means "could not decide".
///
/// For several limits the check is allowed if every limit allows it, and the accessors speak for
/// the *deciding* limit: of a refusal the one with the longest wait, of an admission the one with
/// the fewest units left. [`delay`](Self::delay) is the longest of all, and
/// [`verdicts`](Self::verdicts) has each, in the order of the check. When the check is refused,
/// the verdict of a limit that would have allowed it tells what that limit has left: nothing was
/// taken from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    deciding: Verdict,
    delay: Micros,
    source: Source,
    /// By the store's clock.
    decided_at: Micros,
    /// Empty when there is one limit: the deciding verdict is the only one.
    group: Vec<Verdict>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store itself, that all replicas share.
    Store,
    /// This process, which remembers that the store refused the same check until a later time.
    DenyCache,
    /// This process, out of units that it had charged in advance.
    Lease,
}

impl From<Verdict> for Decision {
    fn from(verdict: Verdict) -> Self {
        Self {
            deciding: verdict,
            delay: verdict.delay,
            source: Source::Store,
            decided_at: 0,
            group: Vec::new(),
        }
    }
}

impl Decision {
    /// The decision of several limits; `None` if there are no verdicts.
    ///
    /// This is for authors of a [`Store`](crate::Store).
    #[must_use]
    pub fn of_group(verdicts: Vec<Verdict>) -> Option<Self> {
        // `max_by_key` keeps the last of equals; reversed, the first limit named wins.
        let deciding = *verdicts.iter().rev().max_by_key(|verdict| verdict.severity())?;
        let delay = verdicts.iter().map(|verdict| verdict.delay).max().unwrap_or(0);
        let group = if verdicts.len() == 1 { Vec::new() } else { verdicts };
        Some(Self { deciding, delay, source: Source::Store, decided_at: 0, group })
    }

    /// The same decision, made at a time of the store.
    pub(crate) const fn made_at(mut self, decided_at: Micros) -> Self {
        self.decided_at = decided_at;
        self
    }

    /// Whether the check passed.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.deciding.allowed
    }

    /// Whether the check can never pass, because its cost is above the capacity.
    #[must_use]
    pub const fn never(&self) -> bool {
        self.deciding.never
    }

    /// The most units the deciding limit's budget can hold.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.deciding.limit
    }

    /// Whole units the deciding limit has left after this check.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.deciding.remaining
    }

    /// Until the same check would pass, if nobody else comes. `None` when it passed, and when it
    /// [never](Self::never) can.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.deciding.retry_after()
    }

    /// Until the deciding limit's whole budget is back.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.deciding.reset_after()
    }

    /// How long the caller of an admitted check has to wait for its turn: the longest of all
    /// limits. The tower layer and [`acquire`](crate::RateLimiter::acquire) wait it out.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.delay)
    }

    /// The verdict that the accessors above speak of.
    #[must_use]
    pub const fn deciding(&self) -> &Verdict {
        &self.deciding
    }

    /// The verdict of each limit, in the order of the check.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        if self.group.is_empty() { std::slice::from_ref(&self.deciding) } else { &self.group }
    }

    /// Who decided: the store, or this process on its behalf.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// When the store decided, by its own clock, in microseconds since the Unix epoch.
    #[must_use]
    pub const fn decided_at(&self) -> u64 {
        self.decided_at
    }

    /// What a [refund](crate::RateLimiter::refund) of this check needs: the receipt of its charge.
    ///
    /// None if nothing was charged. Of several limits it is the receipt of the first: see
    /// [`receipts`](Self::receipts).
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.receipts().next().flatten()
    }

    /// The receipt of each limit's charge, in the order of the check.
    pub fn receipts(&self) -> impl Iterator<Item = Option<Receipt>> {
        let at = self.decided_at;
        self.verdicts().iter().map(move |verdict| {
            (verdict.charged > 0).then_some(Receipt { at, cost: verdict.charged })
        })
    }

    /// The same decision, given by somebody else.
    #[cfg(feature = "redis")]
    pub(crate) const fn given_by(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// The same admission, of units that were charged before.
    #[cfg(feature = "redis")]
    pub(crate) const fn charged(mut self, units: u32, charged_at: Micros) -> Self {
        self.deciding.charged = units;
        self.made_at(charged_at)
    }

    /// The same refusal, told again after some time.
    #[cfg(feature = "redis")]
    pub(crate) fn told_after(mut self, elapsed: Duration) -> Self {
        let elapsed = Micros::try_from(elapsed.as_micros()).unwrap_or(Micros::MAX);
        for verdict in self.group.iter_mut().chain([&mut self.deciding]) {
            verdict.retry_after = verdict.retry_after.map(|it| it.saturating_sub(elapsed).max(1));
            verdict.reset_after = verdict.reset_after.saturating_sub(elapsed);
        }
        self
    }

    /// The same decision as a refusal for want of time: it would pass after `retry_after`.
    pub(crate) fn refused_until(mut self, retry_after: Duration) -> Self {
        let place = self.group.iter().position(|verdict| *verdict == self.deciding);
        self.deciding.allowed = false;
        self.deciding.retry_after = u64::try_from(retry_after.as_micros()).ok();
        self.deciding.delay = 0;
        self.delay = 0;
        self.deciding.charged = 0;
        if let Some(verdict) = place.and_then(|place| self.group.get_mut(place)) {
            *verdict = self.deciding;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(allowed: bool, remaining: u64, retry_after: Option<u64>) -> Verdict {
        let never = !allowed && retry_after.is_none();
        let (limit, reset_after, delay, charged) = (10, 1, 0, 0);
        Verdict { allowed, never, limit, remaining, retry_after, reset_after, delay, charged }
    }

    #[test]
    fn of_several_refusals_the_longest_wait_decides() {
        let short = verdict(false, 0, Some(5));
        let long = verdict(false, 3, Some(9));
        let open = verdict(true, 0, None);
        let decision = Decision::of_group(vec![open, short, long]).unwrap();
        assert_eq!(decision.deciding(), &long);
        assert_eq!(decision.verdicts(), [open, short, long]);
    }

    #[test]
    fn a_check_that_can_never_pass_is_not_hidden_by_a_long_wait() {
        let never = verdict(false, 0, None);
        let decision = Decision::of_group(vec![verdict(false, 0, Some(9)), never]).unwrap();
        assert!(decision.never());
        assert_eq!(decision.retry_after(), None);
    }

    #[test]
    fn of_several_admissions_the_fewest_left_decide_and_the_first_of_equals() {
        let tight = Verdict { limit: 1, ..verdict(true, 2, None) };
        let equal = Verdict { limit: 2, ..verdict(true, 2, None) };
        let decision = Decision::of_group(vec![verdict(true, 7, None), tight, equal]).unwrap();
        assert_eq!(decision.deciding(), &tight);
    }

    #[test]
    fn the_delay_is_the_longest_of_all_limits() {
        let slow = Verdict { delay: 700, ..verdict(true, 9, None) };
        let decision = Decision::of_group(vec![verdict(true, 1, None), slow]).unwrap();
        assert_eq!(decision.delay(), Duration::from_micros(700));
    }

    #[test]
    fn no_verdicts_make_no_decision() {
        assert_eq!(Decision::of_group(Vec::new()), None);
    }
}
