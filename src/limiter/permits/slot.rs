//! The permits and the callers of one process for one key: a state without I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::Sender;
use tokio::time::Instant;

use super::permit::{Permit, SlotKey};
use crate::nouns::{Error, HolderId};
use crate::store::permits::Claim;

/// The outcome for a caller: a permit, none, or an error.
pub(super) type PermitOutcome = Result<Option<Permit>, Error>;

pub(super) type PermitCaller = Sender<PermitOutcome>;

/// A caller, and the limit that it asked under: plans differ.
struct Asking {
    caller: PermitCaller,
    limit: u32,
}

/// The most waiters whose limits are compared for a claim.
const COMPARED: usize = 64;

/// Each claim pays for the check of so many waiters whether they are gone. All are checked at once when enough is paid.
const CHECKED_PER_CLAIM: usize = 16;

/// An outcome that is due. It is sent when no slot is locked: a caller that is gone drops its permit.
pub(super) enum Due {
    Permit(PermitCaller),
    None(PermitCaller),
    Error(PermitCaller),
}

pub(super) struct Slot {
    pub(super) holder: HolderId,
    /// As in [`Claim`].
    granted: u64,
    released: u64,
    waiting: VecDeque<Asking>,
    at_once: VecDeque<Asking>,
    /// How many of `at_once` the claim in flight asks for.
    asked_at_once: usize,
    /// The limit of the last caller.
    limit: u32,
    /// The claims since the last check for waiters that are gone.
    since_purge: usize,
    is_in_flight: bool,
    queue: Option<ClaimQueue>,
    /// Whether a change has not been claimed.
    is_changed: bool,
    /// Whether it has to be claimed although nothing changed.
    is_due: bool,
    /// When the last claim was answered or failed.
    answered: Instant,
    failed: bool,
    /// When the last claim was sent.
    sent: Instant,
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
    pub(super) renew: Duration,
    pub(super) retry: Duration,
    /// A call that is not answered in this time counts as lost.
    pub(super) lost: Duration,
}

impl Slot {
    pub(super) fn new(holder: HolderId, limit: u32) -> Self {
        let now = Instant::now();
        Self {
            holder,
            limit,
            since_purge: 0,
            granted: 0,
            released: 0,
            waiting: VecDeque::new(),
            at_once: VecDeque::new(),
            asked_at_once: 0,
            is_in_flight: false,
            queue: None,
            is_changed: false,
            is_due: false,
            answered: now,
            failed: false,
            sent: now,
            confirmed_at: None,
        }
    }

    pub(super) fn wait(&mut self, caller: PermitCaller, limit: u32) {
        self.waiting.push_back(Asking { caller, limit });
        (self.limit, self.is_changed) = (limit, true);
    }

    pub(super) fn request_at_once(&mut self, caller: PermitCaller, limit: u32) {
        self.at_once.push_back(Asking { caller, limit });
        (self.limit, self.is_changed) = (limit, true);
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

    pub(super) const fn needs_claim(&self) -> bool {
        self.is_changed || self.is_due
    }

    /// Whether the store has confirmed all changes.
    pub(super) const fn is_confirmed(&self) -> bool {
        !self.is_changed && !self.is_in_flight
    }

    /// Whether permits are held whose lease has expired.
    pub(super) fn has_expired(&self, lease: Duration) -> bool {
        self.held() > 0 && self.confirmed_at.is_some_and(|at| at.elapsed() >= lease)
    }

    pub(super) const fn confirmed_at(&self) -> Option<Instant> {
        self.confirmed_at
    }

    /// Whether nothing is held, wanted, queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.held() == 0 && !self.has_callers() && !self.is_in_flight && self.queue.is_none()
    }

    /// Whether it is idle, and the store has confirmed that.
    pub(super) fn is_over(&self) -> bool {
        self.is_idle() && !self.is_changed
    }

    /// Enters a queue if it needs a claim, unless a claim is in flight. After a failure it waits until it is due, or until
    /// there is a caller.
    pub(super) fn enter_queue(&mut self) -> Option<ClaimQueue> {
        let is_urgent = self.is_changed || self.has_callers();
        let queue = if is_urgent {
            ClaimQueue::Urgent
        } else {
            ClaimQueue::Renewals
        };
        let wants = self.is_due || (self.is_changed && (!self.failed || self.has_callers()));
        if self.is_in_flight || !wants || self.queue == Some(queue) {
            return None;
        }
        self.queue = Some(queue);
        self.queue
    }

    /// Whether it is in that queue. A renewal that becomes urgent changes the queue.
    pub(super) fn is_in(&self, queue: ClaimQueue) -> bool {
        self.queue == Some(queue)
    }

    /// Whether it has to be claimed now although nothing changed.
    pub(super) fn is_due(&self, now: Instant, paces: &Paces) -> bool {
        if self.is_in_flight || self.queue.is_some() {
            return false;
        }
        let pace = match (self.failed, self.waiting.is_empty()) {
            (true, _) => paces.retry,
            (false, false) => paces.poll,
            (false, true) => paces.renew,
        };
        now.saturating_duration_since(self.answered) >= pace
    }

    pub(super) fn waiters(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn has_callers(&self) -> bool {
        !self.waiting.is_empty() || !self.at_once.is_empty()
    }

    pub(super) const fn mark_due(&mut self) {
        self.is_due = true;
    }

    /// The claim of this slot.
    pub(super) fn claim(&mut self, key: &SlotKey, lease: Duration) -> Claim {
        let name = Arc::clone(&key.name);
        let mut claim = Claim::new(name, key.key.clone(), self.holder, 0, lease);
        self.purge();
        // Callers of one limit at a time, and under the smallest: no caller gets more than its own limit allows.
        let at_once = self.at_once.front().map(|asking| asking.limit);
        let same = |asking: &&Asking| Some(asking.limit) == at_once;
        self.asked_at_once = self.at_once.iter().take_while(same).count();
        let of_waiting = self
            .waiting
            .iter()
            .take(COMPARED)
            .map(|asking| asking.limit)
            .min();
        claim.limit = of_waiting
            .into_iter()
            .chain(at_once)
            .min()
            .unwrap_or(self.limit);
        (self.is_in_flight, self.is_changed, self.is_due) = (true, false, false);
        self.queue = None;
        self.sent = Instant::now();
        (claim.granted, claim.released) = (self.granted, self.released);
        claim.waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        claim.at_once = u32::try_from(self.asked_at_once).unwrap_or(u32::MAX);
        claim
    }

    fn purge(&mut self) {
        self.since_purge += 1;
        if self.since_purge * CHECKED_PER_CLAIM >= self.waiting.len() {
            self.since_purge = 0;
            self.waiting.retain(|asking| !asking.caller.is_closed());
        }
        self.at_once.retain(|asking| !asking.caller.is_closed());
    }

    /// Applies the answer to a claim: the permits that were granted so far.
    pub(super) fn answered(&mut self, granted: u64) -> Vec<Due> {
        let new = granted.saturating_sub(self.granted);
        // A wrong number must not keep this loop busy.
        let wanted = (self.waiting.len() + self.asked_at_once) as u64;
        let too_many = new.saturating_sub(wanted);
        let new = new.min(wanted);
        self.granted = self.granted.saturating_add(new).saturating_add(too_many);
        self.released = self.released.saturating_add(too_many);
        self.is_changed |= too_many > 0;
        self.is_in_flight = false;
        self.failed = false;
        self.answered = Instant::now();
        self.confirmed_at = Some(self.sent);
        let mut due = Vec::new();
        let mut asked: VecDeque<_> = self.at_once.drain(..self.asked_at_once).collect();
        for _ in 0..new {
            let waiting = std::iter::from_fn(|| self.waiting.pop_front());
            let at_once = std::iter::from_fn(|| asked.pop_front());
            match waiting
                .chain(at_once)
                .find(|asking| !asking.caller.is_closed())
            {
                Some(asking) => due.push(Due::Permit(asking.caller)),
                // Its caller is gone.
                None => self.release(),
            }
        }
        due.extend(asked.into_iter().map(|asking| Due::None(asking.caller)));
        self.is_changed |= !self.at_once.is_empty();
        due
    }

    /// The claim ended without an answer. It is repeated.
    pub(super) fn lost(&mut self) {
        (self.is_in_flight, self.is_changed) = (false, true);
        self.since_purge = self.waiting.len();
        self.purge();
    }

    /// The claim failed. The callers do not wait for its repetition.
    pub(super) fn failed(&mut self) -> Vec<Due> {
        (self.is_in_flight, self.failed, self.answered) = (false, true, Instant::now());
        let callers = self.at_once.drain(..).chain(self.waiting.drain(..));
        let due = callers.map(|asking| Due::Error(asking.caller)).collect();
        // The store may have applied it or not.
        self.is_changed = true;
        due
    }
}
