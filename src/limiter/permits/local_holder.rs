//! The permits and the callers of one process for one key: a state without I/O.
//!
//! A holder is idle if this process holds no permit of the key, has no caller of it, and no claim
//! is queued or in flight. An idle holder is removed
//!
//! - when the store has confirmed its last claim, and nothing has changed since;
//! - when the last claim failed, and the store has nothing of the holder: it has applied no claim,
//!   and no permit was granted here;
//! - when the last claim failed, and many other holders are like this one. Its permits are free
//!   when its lease expires.

use std::time::Duration;

use tokio::sync::oneshot::Sender;
use tokio::time::Instant;

use super::callers::{AtOnceCallers, PermitCaller, PermitOutcome, Waiters};
use super::pace::{ClaimHistory, Paces};
use super::permit;
use crate::model::{Budget, Change, Error, Operation};
use crate::units::Claim;

/// An outcome that a caller is to be given. It is given when no holder is locked, because a caller
/// that is gone drops its permit.
pub(super) enum Delivery {
    Permit(Sender<PermitOutcome>),
    None(Sender<PermitOutcome>),
    Error(Sender<PermitOutcome>),
}

pub(super) struct LocalHolder {
    id: [u8; 8],
    /// As in [`Claim`].
    granted: u64,
    released: u64,
    /// The permits granted so far, as the last claim said.
    granted_in_claim: u64,
    /// How many permits the last claim asked for.
    asked_in_claim: u64,
    /// The largest limit of the claims since the last answer, which may have granted permits that
    /// are not known yet.
    granted_under: u32,
    waiters: Waiters,
    at_once: AtOnceCallers,
    /// The limit of the last caller.
    limit: u32,
    stage: ClaimStage,
    /// `true` if a change has not been claimed.
    is_changed: bool,
    /// `true` if its time for a claim has come, for a poll, a renewal, or another attempt after a
    /// failure.
    is_due: bool,
    history: ClaimHistory,
}

/// The stage of a holder's next claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimStage {
    None,
    Queued(ClaimKind),
    InFlight,
}

/// The reason for a claim, in the order of priority. Each kind has its own queue and its own places
/// in flight, so that no kind holds up another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClaimKind {
    /// Something changed, and there are callers.
    Caller,
    /// Something changed, such as a permit that was released, and no caller waits for the answer.
    Release,
    /// Callers wait, and another process may have released a permit.
    Poll,
    /// A lease has to be renewed, or a claim without callers is repeated after a failure.
    Renewal,
}

impl ClaimKind {
    pub(super) const ALL: [Self; 4] = [Self::Caller, Self::Release, Self::Poll, Self::Renewal];
}

impl LocalHolder {
    pub(super) fn new(id: [u8; 8], limit: u32) -> Self {
        Self {
            id,
            granted: 0,
            released: 0,
            granted_in_claim: 0,
            asked_in_claim: 0,
            granted_under: 0,
            waiters: Waiters::default(),
            at_once: AtOnceCallers::default(),
            limit,
            stage: ClaimStage::None,
            is_changed: false,
            is_due: false,
            history: ClaimHistory::default(),
        }
    }

    /// Adds a caller that waits, at a place that no other caller of the agent had.
    pub(super) fn add_waiter(&mut self, place: u64, caller: PermitCaller) {
        self.limit = caller.limit;
        self.is_changed = true;
        self.waiters.push(place, caller);
    }

    pub(super) fn add_at_once(&mut self, caller: PermitCaller) {
        self.limit = caller.limit;
        self.at_once.push(caller);
        self.is_changed = true;
    }

    pub(super) const fn release(&mut self) {
        self.released += 1;
        self.is_changed = true;
    }

    /// Takes a permit without the store, if fewer than `limit` are held here. The next claim
    /// includes it.
    pub(super) fn take_locally(&mut self, limit: u32) -> bool {
        let is_free = self.held() < u64::from(limit);
        if is_free {
            self.granted += 1;
            self.is_changed = true;
        }
        is_free
    }

    /// Gives up the place of a waiter.
    pub(super) fn remove_waiter(&mut self, place: u64) {
        self.is_changed |= self.waiters.remove(place).is_some();
    }

    pub(super) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    pub(super) const fn held(&self) -> u64 {
        self.granted - self.released
    }

    pub(super) fn has_callers(&self) -> bool {
        !self.waiters.is_empty() || !self.at_once.is_empty()
    }

    /// Returns whether the store has confirmed all changes.
    pub(super) fn is_confirmed(&self) -> bool {
        !self.is_changed && self.stage != ClaimStage::InFlight
    }

    /// Returns whether permits are held whose lease has expired.
    pub(super) fn has_expired(&self, now: Instant, lease: Duration) -> bool {
        let age = |at| now.saturating_duration_since(at);
        self.held() > 0 && self.confirmed_at().is_some_and(|at| age(at) >= lease)
    }

    /// When the last claim that was answered was sent.
    pub(super) const fn confirmed_at(&self) -> Option<Instant> {
        self.history.confirmed_at()
    }

    /// Returns whether nothing is held, wanted, queued or in flight.
    fn is_idle(&self) -> bool {
        self.held() == 0 && !self.has_callers() && self.stage == ClaimStage::None
    }

    /// Returns whether it is idle, and its last claim failed.
    pub(super) fn is_idle_after_failure(&self) -> bool {
        self.is_idle() && self.history.has_failed()
    }

    /// Returns whether it is idle, and nothing of it is left in the store.
    pub(super) fn is_over(&self) -> bool {
        let was_never_stored = !self.history.may_be_stored() && self.granted == 0;
        self.is_idle() && (!self.is_changed || (self.history.has_failed() && was_never_stored))
    }

    /// Returns whether it is to be looked at often, because callers wait, or a change is not
    /// claimed yet.
    pub(super) fn is_watched(&self) -> bool {
        !self.waiters.is_empty() || self.is_changed
    }

    /// Marks it if its time for a claim has come. Returns whether it has.
    pub(super) fn mark_if_due(&mut self, now: Instant, paces: &Paces) -> bool {
        let has_waiters = !self.waiters.is_empty();
        let is_due = self.stage == ClaimStage::None && self.history.is_due(now, paces, has_waiters);
        self.is_due |= is_due;
        is_due
    }

    /// Returns the kind of its next claim, if it has to be claimed now. A paced holder waits until
    /// it is due, or until there is a caller.
    pub(super) fn next_claim(&self) -> Option<ClaimKind> {
        if self.stage == ClaimStage::InFlight {
            return None;
        }
        if self.is_changed && !self.history.has_to_pause() {
            if self.has_callers() {
                return Some(ClaimKind::Caller);
            }
            if !self.history.is_paced() {
                return Some(ClaimKind::Release);
            }
        }
        let kind = if self.waiters.is_empty() {
            ClaimKind::Renewal
        } else {
            ClaimKind::Poll
        };
        self.is_due.then_some(kind)
    }

    /// Enters a queue if it needs a claim. Returns the queue. A holder that is queued leaves its
    /// queue only for one of a higher priority.
    pub(super) fn enter_queue(&mut self) -> Option<ClaimKind> {
        let kind = self.next_claim()?;
        if let ClaimStage::Queued(before) = self.stage
            && before <= kind
        {
            return None;
        }
        self.stage = ClaimStage::Queued(kind);
        Some(kind)
    }

    /// Returns whether its claim waits to be sent, or was sent at most so long ago.
    pub(super) fn is_unsent_or_recent(&self, now: Instant, at_most: Duration) -> bool {
        match self.stage {
            ClaimStage::None => false,
            ClaimStage::Queued(_) => true,
            ClaimStage::InFlight => self.history.was_sent_within(now, at_most),
        }
    }

    /// Returns whether it is in that queue. It may have entered another one since.
    pub(super) fn is_queued_for(&self, kind: ClaimKind) -> bool {
        self.stage == ClaimStage::Queued(kind)
    }

    /// Claims this holder.
    pub(super) fn claim(&mut self, budget: &Budget, lease: Duration, now: Instant) -> Operation {
        // No caller may get more than its own limit allows, so the smallest limit counts.
        let at_once = self.at_once.choose_claimed();
        let waiting = self.waiters.smallest_limit();
        let smallest = at_once.into_iter().chain(waiting).min();
        let limit = smallest.unwrap_or(self.limit);
        self.granted_under = self.granted_under.max(limit);
        let mut claim = Claim::new(self.id, lease);
        claim.granted = self.granted;
        claim.released = self.released;
        claim.waiting = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        claim.at_once = u32::try_from(self.at_once.claimed_count()).unwrap_or(u32::MAX);
        self.granted_in_claim = self.granted;
        self.asked_in_claim = u64::from(claim.waiting) + u64::from(claim.at_once);
        self.stage = ClaimStage::None;
        self.is_changed = false;
        self.is_due = false;
        self.history.note_sent(now);
        Operation::Change(permit::under(budget, limit), Change::Claim(claim))
    }

    /// The claim was sent, and its answer is awaited.
    pub(super) const fn depart(&mut self) {
        self.stage = ClaimStage::InFlight;
    }

    /// Applies the answer to the claim, with `more` granted permits than the claim counted.
    pub(super) fn apply_answer(&mut self, more: u64, now: Instant, deliveries: &mut Vec<Delivery>) {
        // They may include permits that this process has granted meanwhile.
        let granted = self.granted_in_claim.saturating_add(more);
        let new = granted.saturating_sub(self.granted);
        self.stage = ClaimStage::None;
        self.granted = self.granted.saturating_add(new);
        let unwanted = self.distribute(new, deliveries);
        self.granted_under = 0;
        self.released = self.released.saturating_add(unwanted);
        self.is_changed |= unwanted > 0 || !self.at_once.is_empty();
        self.history.note_answer(now, new > self.asked_in_claim);
    }

    /// Gives permits to waiters first, and then to callers that wanted one at once. The rest of
    /// these callers are answered that no permit is free. A waiter with a smaller limit than the
    /// claim's gets no permit, because the claim was made before it came. Returns how many permits
    /// are left.
    fn distribute(&mut self, permits: u64, deliveries: &mut Vec<Delivery>) -> u64 {
        let mut left = permits;
        while left > 0
            && let Some(caller) = self.waiters.pop_granted_under(self.granted_under)
        {
            left -= 1;
            deliveries.push(Delivery::Permit(caller.outcome));
        }
        while let Some(caller) = self.at_once.pop_claimed() {
            // After a lost claim, they may have been granted under its larger limit.
            if left > 0 && caller.limit >= self.granted_under {
                left -= 1;
                deliveries.push(Delivery::Permit(caller.outcome));
            } else {
                deliveries.push(Delivery::None(caller.outcome));
            }
        }
        left
    }

    /// The claim ended without an answer. It is repeated.
    pub(super) fn apply_loss(&mut self, now: Instant) {
        self.stage = ClaimStage::None;
        self.is_changed = true;
        self.history.note_loss(now);
    }

    /// The claim failed. The callers do not wait for its repetition.
    pub(super) fn apply_failure(
        &mut self,
        error: &Error,
        now: Instant,
        deliveries: &mut Vec<Delivery>,
    ) {
        self.stage = ClaimStage::None;
        // The store may have applied it or not.
        self.is_changed = true;
        self.history.note_failure(now, error.may_have_charged());
        let callers = self.at_once.drain().chain(self.waiters.drain());
        deliveries.extend(callers.map(|caller| Delivery::Error(caller.outcome)));
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::{self, Receiver};

    use super::*;
    use crate::model::Limit;

    const LEASE: Duration = Duration::from_secs(10);

    fn key() -> Budget {
        let exports = Limit::concurrency("exports", 10).unwrap();
        Budget::new(&exports, "acme")
    }

    fn caller(limit: u32) -> (PermitCaller, Receiver<PermitOutcome>) {
        let (outcome, receiver) = oneshot::channel();
        (PermitCaller { outcome, limit }, receiver)
    }

    /// Returns whether a waiter under 5 gets the permit of a claim for a caller under 10, which was
    /// sent before it came. The claim is answered, or lost and repeated.
    fn granted_to_the_waiter(is_lost: bool) -> bool {
        let now = Instant::now();
        let mut holder = LocalHolder::new([0; 8], 10);
        let (at_once, _at_once) = caller(10);
        holder.add_at_once(at_once);
        holder.claim(&key(), LEASE, now);
        holder.depart();
        let (waiter, _waiter) = caller(5);
        holder.add_waiter(1, waiter);
        if is_lost {
            holder.apply_loss(now);
            let claim = holder.claim(&key(), LEASE, now);
            let claimed = claim.budgets().next().unwrap();
            assert_eq!(claimed.limit().permits(), 5);
            holder.depart();
        }
        let mut deliveries = Vec::new();
        holder.apply_answer(1, now, &mut deliveries);
        assert!(matches!(&deliveries[..], [Delivery::Permit(_)]));
        holder.waiters.is_empty()
    }

    #[test]
    fn caller_gets_no_permit_that_a_lost_claim_was_granted_under_a_larger_limit() {
        let now = Instant::now();
        let mut holder = LocalHolder::new([0; 8], 10);
        let (lost, gone) = caller(10);
        holder.add_at_once(lost);
        holder.claim(&key(), LEASE, now);
        holder.depart();
        holder.apply_loss(now);
        drop(gone);
        let (small, _small) = caller(1);
        holder.add_at_once(small);
        let claim = holder.claim(&key(), LEASE, now);
        assert_eq!(claim.budgets().next().unwrap().limit().permits(), 1);
        holder.depart();
        let mut deliveries = Vec::new();
        // The permit of the lost claim.
        holder.apply_answer(1, now, &mut deliveries);
        assert!(matches!(&deliveries[..], [Delivery::None(_)]));
        assert_eq!(holder.held(), 0, "it is given back");
    }

    #[test]
    fn waiter_that_came_after_a_claim_gets_no_permit_of_its_larger_limit() {
        assert!(!granted_to_the_waiter(false));
        assert!(!granted_to_the_waiter(true), "the lost claim granted it");
    }
}
