//! The permits and the callers of one process for one key: a state without I/O.

use std::collections::VecDeque;
use std::iter;
use std::time::Duration;

use tokio::time::Instant;

use super::callers::{Asking, PermitCaller, Waiters};
use super::permit::SlotKey;
use crate::nouns::{Check, Claim, Error};

/// An outcome that is due. It is sent when no slot is locked: a caller that is gone drops its permit.
pub(super) enum Due {
    Permit(PermitCaller),
    None(PermitCaller),
    Error(PermitCaller),
}

pub(super) struct Slot {
    holder: [u8; 8],
    /// As in [`Claim`].
    granted: u64,
    released: u64,
    waiting: Waiters,
    at_once: VecDeque<Asking>,
    /// How many of `at_once` the claim in flight asks for.
    asked_at_once: usize,
    /// The limit of the last caller.
    limit: u32,
    is_in_flight: bool,
    /// The permits granted so far, as the last claim said.
    claimed: u64,
    queue: Option<ClaimQueue>,
    /// Whether a change has not been claimed.
    is_changed: bool,
    /// Whether it has to be claimed although nothing changed.
    is_due: bool,
    /// When the last claim was answered or failed.
    answered: Option<Instant>,
    /// Whether the last claim failed.
    failed: bool,
    /// Whether the last answer granted more than this process still wants, as when a waiter left meanwhile.
    has_surplus: bool,
    /// Whether the two last answers did: the store may go on so.
    repeats_surplus: bool,
    /// Whether the store may have applied a claim.
    is_known: bool,
    /// When the last claim was sent.
    sent: Option<Instant>,
    /// When the last claim that was answered was sent: its lease starts then.
    confirmed_at: Option<Instant>,
}

/// The queue of a slot that has to be claimed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimQueue {
    Urgent,
    Renewals,
}

/// The intervals at which a slot is claimed although nothing changed.
#[derive(Clone, Copy)]
pub(super) struct Paces {
    /// With waiters: another process may have released a permit.
    pub(super) poll: Duration,
    /// A slot that was claimed so recently waits for the next poll.
    pub(super) recent: Duration,
    pub(super) renew: Duration,
    pub(super) retry: Duration,
    /// A claim without an answer after this time counts as lost.
    pub(super) lost: Duration,
}

impl Slot {
    pub(super) fn new(holder: [u8; 8], limit: u32) -> Self {
        Self {
            holder,
            limit,
            granted: 0,
            released: 0,
            waiting: Waiters::default(),
            at_once: VecDeque::new(),
            asked_at_once: 0,
            is_in_flight: false,
            claimed: 0,
            queue: None,
            is_changed: false,
            is_due: false,
            answered: None,
            failed: false,
            has_surplus: false,
            repeats_surplus: false,
            is_known: false,
            sent: None,
            confirmed_at: None,
        }
    }

    pub(super) fn wait(&mut self, caller: PermitCaller, limit: u32) {
        self.waiting.push(Asking { caller, limit });
        self.limit = limit;
        self.is_changed = true;
    }

    pub(super) fn request_at_once(&mut self, caller: PermitCaller, limit: u32) {
        self.at_once.push_back(Asking { caller, limit });
        self.limit = limit;
        self.is_changed = true;
    }

    pub(super) const fn release(&mut self) {
        self.released += 1;
        self.is_changed = true;
    }

    /// Takes a permit without the store, if fewer than `limit` are held here. The next claim includes it.
    pub(super) fn take_locally(&mut self, limit: u32) -> bool {
        let is_free = self.held() < u64::from(limit);
        if is_free {
            self.granted += 1;
            self.is_changed = true;
        }
        is_free
    }

    pub(super) const fn held(&self) -> u64 {
        self.granted - self.released
    }

    /// Returns whether it has to be claimed now. A paced slot waits until it is due, or until there is a caller.
    pub(super) fn needs_claim(&self) -> bool {
        let is_paced = self.is_paced() && !self.has_callers();
        !self.is_in_flight && (self.is_due || (self.is_changed && !is_paced))
    }

    /// Returns whether its next claim is to come after a pause: the store fails, or goes on granting too much.
    const fn is_paced(&self) -> bool {
        self.failed || self.repeats_surplus
    }

    /// The claim was sent, and its answer is awaited.
    pub(super) const fn depart(&mut self) {
        self.is_in_flight = true;
    }

    /// Returns whether the store has confirmed all changes.
    pub(super) const fn is_confirmed(&self) -> bool {
        !self.is_changed && !self.is_in_flight
    }

    /// Returns whether permits are held whose lease has expired.
    pub(super) fn has_expired(&self, lease: Duration) -> bool {
        self.held() > 0 && self.confirmed_at.is_some_and(|at| at.elapsed() >= lease)
    }

    pub(super) const fn confirmed_at(&self) -> Option<Instant> {
        self.confirmed_at
    }

    /// Returns whether nothing is held, wanted, queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.held() == 0 && !self.has_callers() && !self.is_in_flight && self.queue.is_none()
    }

    /// Returns whether it may be forgotten although the store has not confirmed that nothing is held: its lease expires.
    pub(super) fn may_be_forgotten(&self) -> bool {
        self.failed && self.is_idle()
    }

    /// Returns whether it is idle, and the store has nothing of it: no claim was applied, and no permit was granted here.
    fn is_unknown(&self) -> bool {
        !self.is_known && self.granted == 0 && self.is_idle()
    }

    /// Returns whether it is idle, and nothing of it is left in the store.
    pub(super) fn is_over(&self) -> bool {
        (self.is_idle() && !self.is_changed) || (self.failed && self.is_unknown())
    }

    /// Enters a queue if it needs a claim.
    pub(super) fn enter_queue(&mut self) -> Option<ClaimQueue> {
        // The claims of a server that hangs must not take the places of callers.
        let is_urgent = self.has_callers() || (self.is_changed && !self.is_paced());
        let queue = if is_urgent {
            ClaimQueue::Urgent
        } else {
            ClaimQueue::Renewals
        };
        if !self.needs_claim() || self.queue == Some(queue) {
            return None;
        }
        self.queue = Some(queue);
        self.queue
    }

    /// Returns whether it is in that queue. A renewal that becomes urgent changes the queue.
    pub(super) fn is_in(&self, queue: ClaimQueue) -> bool {
        self.queue == Some(queue)
    }

    /// Returns whether it has to be claimed now although nothing changed.
    pub(super) fn is_due(&self, now: Instant, paces: &Paces) -> bool {
        if self.is_in_flight || self.queue.is_some() {
            return false;
        }
        let (Some(sent), Some(answered)) = (self.sent, self.answered) else {
            return false;
        };
        let idle = now.saturating_duration_since(answered);
        if self.is_paced() {
            idle >= paces.retry
        } else if self.waiting.is_empty() {
            idle >= paces.renew
        } else {
            // Releases of this process wait behind a claim in flight, so a slow store is claimed less often.
            let latency = answered.saturating_duration_since(sent);
            idle >= latency.min(paces.poll) && now.saturating_duration_since(sent) >= paces.recent
        }
    }

    /// Returns whether fewer than `most` callers wait.
    pub(super) fn has_room(&mut self, most: usize) -> bool {
        self.waiting.has_room(most)
    }

    /// Returns whether it is to be looked at often: a caller waits, or an embedded store has not answered its claim.
    pub(super) fn is_watched(&self) -> bool {
        !self.waiting.is_empty() || self.is_changed
    }

    pub(super) fn has_callers(&self) -> bool {
        !self.waiting.is_empty() || !self.at_once.is_empty()
    }

    pub(super) const fn mark_due(&mut self) {
        self.is_due = true;
    }

    /// The check that claims this slot.
    pub(super) fn claim(&mut self, key: &SlotKey, lease: Duration, now: Instant) -> Check {
        self.at_once.retain(|asking| !asking.caller.is_closed());
        // Callers of one limit at a time, and under the smallest limit of these and of all that wait: no caller gets more than
        // its own limit allows.
        let at_once = self.at_once.front().map(|asking| asking.limit);
        let same = |asking: &&Asking| Some(asking.limit) == at_once;
        self.asked_at_once = self.at_once.iter().take_while(same).count();
        let waiting = self.waiting.smallest_limit();
        let smallest = at_once.into_iter().chain(waiting).min();
        let check = key.check(smallest.unwrap_or(self.limit));
        let mut claim = Claim::new(self.holder, lease);
        claim.granted = self.granted;
        claim.released = self.released;
        claim.waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        claim.at_once = u32::try_from(self.asked_at_once).unwrap_or(u32::MAX);
        self.claimed = self.granted;
        self.is_changed = false;
        self.is_due = false;
        self.queue = None;
        self.sent = Some(now);
        check.with_claim(claim)
    }

    /// A waiter of this limit is gone. Its place is given up, at once or with others.
    pub(super) fn waiter_is_gone(&mut self, limit: u32) {
        self.is_changed |= self.waiting.leave(limit);
    }

    /// Applies the answer to a claim: the permits of which it did not know. Adds the outcomes of callers.
    pub(super) fn answered(&mut self, unknown: u64, now: Instant, due: &mut Vec<Due>) {
        // Permits that this process has granted meanwhile are some of them.
        let granted = self.claimed.saturating_add(unknown);
        let new = granted.saturating_sub(self.granted);
        // A wrong number must not keep this loop busy.
        let wanted = (self.waiting.len() + self.asked_at_once) as u64;
        let too_many = new.saturating_sub(wanted);
        let new = new.min(wanted);
        self.granted = self.granted.saturating_add(new).saturating_add(too_many);
        self.released = self.released.saturating_add(too_many);
        self.is_changed |= too_many > 0;
        self.is_in_flight = false;
        self.is_known = true;
        self.failed = false;
        self.repeats_surplus = self.has_surplus && too_many > 0;
        self.has_surplus = too_many > 0;
        self.answered = Some(now);
        self.confirmed_at = self.sent;
        let mut asked = self.asked_at_once;
        for _ in 0..new {
            match self.next_caller(&mut asked) {
                Some(caller) => due.push(Due::Permit(caller)),
                // Its caller is gone.
                None => self.release(),
            }
        }
        let others = self.at_once.drain(..asked);
        due.extend(others.map(|asking| Due::None(asking.caller)));
        self.is_changed |= !self.at_once.is_empty();
    }

    /// The next caller that is still there: of those that wait, and then of the `asked` that the claim was for.
    fn next_caller(&mut self, asked: &mut usize) -> Option<PermitCaller> {
        while let Some(asking) = self.waiting.pop() {
            if !asking.caller.is_closed() {
                return Some(asking.caller);
            }
        }
        while *asked > 0
            && let Some(asking) = self.at_once.pop_front()
        {
            *asked -= 1;
            if !asking.caller.is_closed() {
                return Some(asking.caller);
            }
        }
        None
    }

    /// The claim ended without an answer. It is repeated.
    pub(super) fn lost(&mut self) {
        self.is_in_flight = false;
        self.is_known = true;
        self.waiting.remove_gone();
        self.is_changed = true;
    }

    /// The claim failed. The callers do not wait for its repetition.
    pub(super) fn failed(&mut self, error: &Error, due: &mut Vec<Due>) {
        self.is_known |= error.may_have_charged();
        self.is_in_flight = false;
        self.failed = true;
        self.has_surplus = false;
        self.repeats_surplus = false;
        self.answered = Some(Instant::now());
        let waiting = iter::from_fn(|| self.waiting.pop());
        let callers = self.at_once.drain(..).chain(waiting);
        due.extend(callers.map(|asking| Due::Error(asking.caller)));
        // The store may have applied it or not.
        self.is_changed = true;
    }
}
