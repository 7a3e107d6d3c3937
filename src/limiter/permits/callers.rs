//! The callers of a holder: those that want a permit at once, and those that wait for one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use tokio::sync::oneshot::Sender;

use super::permit::Permit;
use crate::model::Error;

/// The outcome for a caller, which is a permit, none, or an error.
pub(super) type PermitOutcome = Result<Option<Permit>, Error>;

/// A caller, and the limit that it asked under, because plans differ.
pub(super) struct PermitCaller {
    pub(super) outcome: Sender<PermitOutcome>,
    pub(super) limit: u32,
}

impl PermitCaller {
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

/// The callers that wait, each at a place of its own.
#[derive(Default)]
pub(super) struct Waiters {
    /// The caller at each place. The first has waited longest.
    callers: BTreeMap<u64, PermitCaller>,
    /// Their limits, with their places. The smallest one decides for all of a claim.
    limits: BTreeSet<(u32, u64)>,
}

impl Waiters {
    /// Adds a waiter, behind those at smaller places.
    pub(super) fn push(&mut self, place: u64, caller: PermitCaller) {
        self.limits.insert((caller.limit, place));
        self.callers.insert(place, caller);
    }

    /// Removes the waiter at a place, if it is still there.
    pub(super) fn remove(&mut self, place: u64) -> Option<PermitCaller> {
        let caller = self.callers.remove(&place)?;
        self.limits.remove(&(caller.limit, place));
        Some(caller)
    }

    /// The first waiter, if it may have a permit that was granted under this limit.
    pub(super) fn pop_granted_under(&mut self, limit: u32) -> Option<PermitCaller> {
        let (&place, first) = self.callers.first_key_value()?;
        match first.limit < limit {
            true => None,
            false => self.remove(place),
        }
    }

    /// All waiters, in their order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PermitCaller> {
        self.limits.clear();
        mem::take(&mut self.callers).into_values()
    }

    /// The smallest limit of a waiter.
    pub(super) fn smallest_limit(&self) -> Option<u32> {
        self.limits.first().map(|(limit, _)| *limit)
    }

    pub(super) fn len(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty()
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

    /// Waiters under each of these limits. Their places are 1, 2 and so on.
    fn waiters(limits: &[u32]) -> (Waiters, Vec<Receiver<PermitOutcome>>) {
        let mut waiters = Waiters::default();
        let mut places = 1..;
        let receivers = push_all(limits, |waiter| {
            waiters.push(places.next().unwrap(), waiter);
        });
        (waiters, receivers)
    }

    #[test]
    fn waiter_that_left_counts_no_more() {
        let (mut waiters, _receivers) = waiters(&[10, 5, 5]);
        assert_eq!((waiters.smallest_limit(), waiters.len()), (Some(5), 3));
        assert!(waiters.remove(2).is_some());
        assert!(waiters.remove(2).is_none(), "a place is given up once");
        assert_eq!((waiters.smallest_limit(), waiters.len()), (Some(5), 2));
        waiters.remove(3);
        assert_eq!((waiters.smallest_limit(), waiters.len()), (Some(10), 1));
        waiters.remove(1);
        assert_eq!((waiters.smallest_limit(), waiters.len()), (None, 0));
    }

    #[test]
    fn waiter_gets_no_permit_that_was_granted_under_a_larger_limit() {
        let (mut waiters, _receivers) = waiters(&[5, 10]);
        assert!(waiters.pop_granted_under(10).is_none());
        let first = waiters.pop_granted_under(5).map(|caller| caller.limit);
        assert_eq!(first, Some(5));
        let next = waiters.pop_granted_under(10).map(|caller| caller.limit);
        assert_eq!(next, Some(10));
    }
}
