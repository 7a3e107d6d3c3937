//! What one process has and wants of one key: a pure state, without I/O.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot::Sender;
use tokio::time::Instant;

use super::Permit;
use crate::nouns::{Error, HolderId};
use crate::store::permits::Claim;

/// What a caller gets: a permit, none, or an error.
pub(super) type Outcome = Result<Option<Permit>, Error>;

pub(super) type Caller = Sender<Outcome>;

/// A caller, and its number of permits of the key: plans may differ.
struct Asking {
    caller: Caller,
    limit: u32,
}

/// The waiting callers whose numbers count.
const SOME: usize = 64;

/// Callers that are gone are sought as soon as so many claims were made for each that waits: a claim should not look at all.
const PURGE_AFTER: usize = 16;

/// An outcome that is due. It is sent when no slot is locked: a caller that is gone drops its permit.
pub(super) enum Due {
    Permit(Caller),
    None(Caller),
    Error(Caller),
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
    /// The number of the last caller.
    limit: u32,
    /// The claims since callers that are gone were sought.
    since_purge: usize,
    is_in_flight: bool,
    queue: Option<Queue>,
    /// Whether the store does not know of the last change yet.
    is_changed: bool,
    /// Whether the store has to be told again, though nothing changed.
    is_due: bool,
    /// The last claim: when it was answered or failed.
    answered: Instant,
    failed: bool,
    /// The claim in flight, or the last one: when it was sent.
    sent: Instant,
    /// When the last claim that was answered was sent.
    told: Option<Instant>,
}

/// Where a slot waits to be told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Urgent,
    Renewals,
}

/// When a slot has to be claimed again, though nothing changed.
#[derive(Clone, Copy)]
pub(super) struct Paces {
    /// Waiting callers learn of a grant that another process caused.
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
            told: None,
        }
    }

    pub(super) fn wait(&mut self, caller: Caller, limit: u32) {
        self.waiting.push_back(Asking { caller, limit });
        (self.limit, self.is_changed) = (limit, true);
    }

    pub(super) fn ask_at_once(&mut self, caller: Caller, limit: u32) {
        self.at_once.push_back(Asking { caller, limit });
        (self.limit, self.is_changed) = (limit, true);
    }

    pub(super) const fn release(&mut self) {
        self.released += 1;
        self.is_changed = true;
    }

    /// Takes a permit without the store, if fewer than `limit` are held here. The store learns of it.
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

    pub(super) const fn has_to_be_told(&self) -> bool {
        self.is_changed || self.is_due
    }

    /// Whether the store knows all of it.
    pub(super) const fn is_told(&self) -> bool {
        !self.is_changed && !self.is_in_flight
    }

    /// Whether the store has known of a permit, and did not hear of it for a lease.
    pub(super) fn may_be_lost(&self, lease: Duration) -> bool {
        self.held() > 0 && self.told.is_some_and(|told| told.elapsed() >= lease)
    }

    /// When the store was told last, if it has answered.
    pub(super) const fn told(&self) -> Option<Instant> {
        self.told
    }

    /// Whether nothing is held or wanted.
    pub(super) fn is_idle(&self) -> bool {
        self.held() == 0 && !self.has_callers() && !self.is_in_flight && self.queue.is_none()
    }

    /// Whether nothing is held or wanted, and the store knows that.
    pub(super) fn is_over(&self) -> bool {
        self.is_idle() && !self.is_changed
    }

    /// Enters a queue of slots to be claimed, unless it is there, or a claim is in flight. After a failure, only a caller
    /// makes it enter before it is due.
    pub(super) fn enter_queue(&mut self) -> Option<Queue> {
        let is_urgent = self.is_changed || self.has_callers();
        let queue = if is_urgent { Queue::Urgent } else { Queue::Renewals };
        let wants = self.is_due || (self.is_changed && (!self.failed || self.has_callers()));
        if self.is_in_flight || !wants || self.queue == Some(queue) {
            return None;
        }
        self.queue = Some(queue);
        self.queue
    }

    /// Whether it waits there. It may have left one queue for the other.
    pub(super) fn is_in(&self, queue: Queue) -> bool {
        self.queue == Some(queue)
    }

    /// Whether it has to be claimed again now, though nothing changed.
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

    /// Makes it enter a queue, though nothing changed.
    pub(super) const fn touch(&mut self) {
        self.is_due = true;
    }

    /// Fills in the numbers of a claim. A caller that is gone wants nothing.
    pub(super) fn claim(&mut self, claim: &mut Claim) {
        self.purge();
        // Callers of one number at a time. While others wait, there is none at once.
        let at_once = self.at_once.front().map(|asking| asking.limit);
        let same = |asking: &&Asking| Some(asking.limit) == at_once;
        self.asked_at_once = self.at_once.iter().take_while(same).count();
        let of_waiting = self.waiting.iter().take(SOME).map(|asking| asking.limit).min();
        claim.limit = of_waiting.into_iter().chain(at_once).min().unwrap_or(self.limit);
        (self.is_in_flight, self.is_changed, self.is_due) = (true, false, false);
        self.queue = None;
        self.sent = Instant::now();
        (claim.granted, claim.released) = (self.granted, self.released);
        claim.waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        claim.at_once = u32::try_from(self.asked_at_once).unwrap_or(u32::MAX);
    }

    fn purge(&mut self) {
        self.since_purge += 1;
        if self.since_purge * PURGE_AFTER >= self.waiting.len() {
            self.since_purge = 0;
            self.waiting.retain(|asking| !asking.caller.is_closed());
        }
        self.at_once.retain(|asking| !asking.caller.is_closed());
    }

    /// Learns how many permits were granted so far, and hands the new ones out.
    pub(super) fn answered(&mut self, granted: u64) -> Vec<Due> {
        let new = granted.saturating_sub(self.granted);
        // A number that is wrong must not take long.
        let wanted = (self.waiting.len() + self.asked_at_once) as u64;
        let (new, too_many) = (new.min(wanted), new.saturating_sub(wanted));
        self.granted = self.granted.saturating_add(new).saturating_add(too_many);
        self.released = self.released.saturating_add(too_many);
        self.is_changed |= too_many > 0;
        (self.is_in_flight, self.failed, self.answered) = (false, false, Instant::now());
        self.told = Some(self.sent);
        let mut due = Vec::new();
        let mut asked: VecDeque<_> = self.at_once.drain(..self.asked_at_once).collect();
        for _ in 0..new {
            let waiting = std::iter::from_fn(|| self.waiting.pop_front());
            let at_once = std::iter::from_fn(|| asked.pop_front());
            match waiting.chain(at_once).find(|asking| !asking.caller.is_closed()) {
                Some(asking) => due.push(Due::Permit(asking.caller)),
                // Its caller is gone.
                None => self.release(),
            }
        }
        due.extend(asked.into_iter().map(|asking| Due::None(asking.caller)));
        self.is_changed |= !self.at_once.is_empty();
        due
    }

    /// Learns that a claim was lost, with the runtime that awaited it. It is sent again.
    pub(super) fn lost(&mut self) {
        (self.is_in_flight, self.is_changed) = (false, true);
        self.since_purge = self.waiting.len();
        self.purge();
    }

    /// Learns that a claim failed. Its callers do not wait for another.
    pub(super) fn failed(&mut self) -> Vec<Due> {
        (self.is_in_flight, self.failed, self.answered) = (false, true, Instant::now());
        let callers = self.at_once.drain(..).chain(self.waiting.drain(..));
        let due = callers.map(|asking| Due::Error(asking.caller)).collect();
        // The store may have granted permits, or not know of those that were given back.
        self.is_changed = true;
        due
    }
}
