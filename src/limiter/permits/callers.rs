//! The callers of a holder: those that want a permit at once, and those that wait for one.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use tokio::sync::oneshot::Sender;

use super::permit::Permit;
use crate::model::Error;

/// The outcome for a caller: a permit, none, or an error.
pub(super) type PermitOutcome = Result<Option<Permit>, Error>;

/// A caller, and the limit that it asked under, because plans differ.
pub(super) struct PermitCaller {
    pub(super) outcome: Sender<PermitOutcome>,
    pub(super) limit: u32,
}

impl PermitCaller {
    /// Gives it its outcome, unless it is gone.
    pub(super) fn answer(self, outcome: PermitOutcome) {
        drop(self.outcome.send(outcome));
    }

    pub(super) fn is_gone(&self) -> bool {
        self.outcome.is_closed()
    }
}

/// The callers that want a permit at once. A claim has one limit, so it is for the callers of that
/// limit alone.
#[derive(Default)]
pub(super) struct AtOnceCallers {
    /// Those that no claim has asked for yet.
    new: VecDeque<PermitCaller>,
    /// Those that the last claim asked for. All have the same limit.
    claimed: VecDeque<PermitCaller>,
}

impl AtOnceCallers {
    pub(super) fn push(&mut self, caller: PermitCaller) {
        self.new.push_back(caller);
    }

    /// Chooses the callers of the next claim: the last ones again, if their claim is repeated, or
    /// all that have the limit of the first one. Returns their limit.
    pub(super) fn choose_claimed(&mut self) -> Option<u32> {
        self.claimed.retain(|caller| !caller.is_gone());
        if self.claimed.is_empty() {
            self.new.retain(|caller| !caller.is_gone());
            let limit = self.new.front()?.limit;
            if self.new.iter().all(|caller| caller.limit == limit) {
                mem::swap(&mut self.new, &mut self.claimed);
            } else {
                let all = mem::take(&mut self.new).into_iter();
                (self.claimed, self.new) = all.partition(|caller| caller.limit == limit);
            }
        }
        self.claimed.front().map(|caller| caller.limit)
    }

    /// How many the last claim asked for.
    pub(super) fn claimed_count(&self) -> usize {
        self.claimed.len()
    }

    /// The next caller that the last claim asked for and that is still there.
    pub(super) fn pop_claimed(&mut self) -> Option<PermitCaller> {
        loop {
            let caller = self.claimed.pop_front()?;
            if !caller.is_gone() {
                return Some(caller);
            }
        }
    }

    /// All callers. The callers of the last claim come first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PermitCaller> {
        self.claimed.drain(..).chain(self.new.drain(..))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claimed.is_empty() && self.new.is_empty()
    }
}

/// The callers that wait. Their limits are counted, because the smallest one decides for all of a
/// claim.
#[derive(Default)]
pub(super) struct Waiters {
    callers: VecDeque<PermitCaller>,
    /// Those of each limit. Usually all have the same.
    limits: BTreeMap<u32, WaiterCount>,
    /// At least as many as are gone and not removed.
    gone: usize,
}

#[derive(Default)]
struct WaiterCount {
    /// Those in the queue, also those that are gone.
    queued: usize,
    /// At least as many as are gone and not removed.
    gone: usize,
}

impl Waiters {
    pub(super) fn push(&mut self, caller: PermitCaller) {
        self.limits.entry(caller.limit).or_default().queued += 1;
        self.callers.push_back(caller);
    }

    fn pop(&mut self) -> Option<PermitCaller> {
        let first = self.callers.pop_front()?;
        uncount(&mut self.limits, first.limit);
        Some(first)
    }

    /// The first waiter that is still there, if it may have a permit that was granted under this
    /// limit.
    pub(super) fn pop_granted_under(&mut self, limit: u32) -> Option<PermitCaller> {
        while self.callers.front()?.is_gone() {
            self.pop();
        }
        let first = self.callers.front()?;
        if first.limit < limit {
            return None;
        }
        self.pop()
    }

    /// All waiters, in their order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PermitCaller> {
        self.limits.clear();
        self.gone = 0;
        self.callers.drain(..)
    }

    /// Counts a waiter that left. A removal looks at the whole queue. So it waits until half of the
    /// queue is gone, or all that wait under the smallest limit. Returns whether any was removed.
    pub(super) fn leave(&mut self, limit: u32) -> bool {
        self.gone += 1;
        if let Some(count) = self.limits.get_mut(&limit) {
            count.gone += 1;
        }
        let is_smallest_gone = self.limits.len() > 1
            && self
                .limits
                .values()
                .next()
                .is_some_and(|count| count.gone >= count.queued);
        let are_many = self.gone >= self.callers.len().div_ceil(2);
        (is_smallest_gone || are_many) && self.remove_gone()
    }

    /// Removes the waiters that are gone. Returns whether there were any.
    pub(super) fn remove_gone(&mut self) -> bool {
        let before = self.callers.len();
        let Self {
            callers,
            limits,
            gone,
        } = self;
        *gone = 0;
        callers.retain(|caller| {
            let is_gone = caller.is_gone();
            if is_gone {
                uncount(limits, caller.limit);
            }
            !is_gone
        });
        limits.values_mut().for_each(|count| count.gone = 0);
        callers.len() < before
    }

    /// Whether some may be gone.
    pub(super) const fn may_be_gone(&self) -> bool {
        self.gone > 0
    }

    /// The smallest limit of a waiter.
    pub(super) fn smallest_limit(&self) -> Option<u32> {
        self.limits.keys().next().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }
}

fn uncount(limits: &mut BTreeMap<u32, WaiterCount>, limit: u32) {
    if let Some(count) = limits.get_mut(&limit) {
        count.queued -= 1;
        if count.queued == 0 {
            limits.remove(&limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::{self, Receiver};

    use super::*;

    /// Pushes a caller under each of these limits.
    fn push_all(
        limits: &[u32],
        mut push: impl FnMut(PermitCaller),
    ) -> Vec<Receiver<PermitOutcome>> {
        let receivers = limits.iter().map(|&limit| {
            let (outcome, receiver) = oneshot::channel();
            push(PermitCaller { outcome, limit });
            receiver
        });
        receivers.collect()
    }

    fn callers(limits: &[u32]) -> (AtOnceCallers, Vec<Receiver<PermitOutcome>>) {
        let mut callers = AtOnceCallers::default();
        let receivers = push_all(limits, |caller| callers.push(caller));
        (callers, receivers)
    }

    fn claim_all(mut callers: AtOnceCallers) -> Vec<(u32, usize)> {
        let mut claims = Vec::new();
        while let Some(limit) = callers.choose_claimed() {
            claims.push((limit, callers.claimed_count()));
            while callers.pop_claimed().is_some() {}
        }
        assert!(callers.is_empty());
        claims
    }

    #[test]
    fn callers_of_alternating_limits_are_claimed_by_one_claim_for_each_limit() {
        let (callers, _receivers) = callers(&[10, 5, 10, 5, 10, 7]);
        assert_eq!(claim_all(callers), [(10, 3), (5, 2), (7, 1)]);
    }

    #[test]
    fn claim_that_is_repeated_is_for_the_same_callers() {
        let (mut callers, mut receivers) = callers(&[10, 5, 10]);
        assert_eq!(callers.choose_claimed(), Some(10));
        assert_eq!(
            (callers.choose_claimed(), callers.claimed_count()),
            (Some(10), 2)
        );
        drop(receivers.remove(0));
        assert_eq!(
            (callers.choose_claimed(), callers.claimed_count()),
            (Some(10), 1)
        );
        receivers.clear();
        assert_eq!(
            (callers.choose_claimed(), callers.claimed_count()),
            (None, 0)
        );
    }

    #[test]
    fn caller_that_is_gone_gets_no_outcome() {
        let (mut callers, mut receivers) = callers(&[1, 1, 1]);
        callers.choose_claimed();
        drop(receivers.drain(..2));
        assert!(callers.pop_claimed().is_some());
        assert!(callers.pop_claimed().is_none());
    }

    fn waiters(limits: &[u32]) -> (Waiters, Vec<Receiver<PermitOutcome>>) {
        let mut waiters = Waiters::default();
        let receivers = push_all(limits, |waiter| waiters.push(waiter));
        (waiters, receivers)
    }

    #[test]
    fn waiters_of_the_smallest_limit_are_removed_together_when_all_of_them_left() {
        let (mut waiters, mut receivers) = waiters(&[5, 5, 5, 10, 10, 10, 10, 10]);
        let removed: Vec<_> = (0..3)
            .map(|_| {
                drop(receivers.remove(0));
                waiters.leave(5)
            })
            .collect();
        assert_eq!(removed, [false, false, true]);
        assert_eq!((waiters.smallest_limit(), waiters.len()), (Some(10), 5));
    }

    #[test]
    fn waiter_gets_no_permit_that_was_granted_under_a_larger_limit() {
        let (mut waiters, mut receivers) = waiters(&[10, 5, 10]);
        drop(receivers.remove(0));
        assert!(waiters.pop_granted_under(10).is_none());
        let first = waiters.pop_granted_under(5).map(|caller| caller.limit);
        assert_eq!(first, Some(5));
        let next = waiters.pop_granted_under(10).map(|caller| caller.limit);
        assert_eq!(next, Some(10));
    }
}
