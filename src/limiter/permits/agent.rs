//! An agent claims what the callers of its keys want, hold and give back.
//!
//! On an embedded store, each change is claimed at once. For any other store, slots with changes
//! are queued, and the [`task`](super::task) claims them.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::callers::PermitCaller;
use super::pace::Paces;
use super::permit::{Acquired, Grantor, Permit};
use super::runtimes::Runtimes;
use super::slot::{Delivery, Slot};
use super::slots::{MOST_QUEUED, Slots};
use super::{AGENTS, LOOK_AFTER};
use crate::model::{Budget, Check, Error, OnStoreFailure, Source};
use crate::store::Store;
use crate::telemetry::{self, Throttle};
use crate::units::{MAX_LEASE, Mutex};

/// The interval between the claims of a slot with waiters.
const POLL: Duration = Duration::from_millis(25);

/// A slot that was claimed so recently waits for the next poll. About the resolution of timers.
const RECENT: Duration = Duration::from_millis(2);

/// The shortest and the longest time after which a claim counts as lost.
const LOST_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(200)];

/// The most claims of a slot in a row while its agent is locked. A few are enough, unless a wrapper
/// of the store goes on granting too much.
const MOST_IN_A_ROW: usize = 16;

/// A store that has answered so recently is not away.
const RECENT_ANSWER: Duration = Duration::from_millis(500);

/// The pause before a claim that failed is repeated.
const RETRY: Duration = Duration::from_millis(250);

pub(super) struct Agent {
    pub(super) store: Arc<dyn Store>,
    pub(super) is_embedded: bool,
    pub(super) lease: Duration,
    pub(super) paces: Paces,
    state: Mutex<Slots>,
    pub(super) wake: Notify,
    /// Notified when claims have ended.
    pub(super) claims_ended: Notify,
    /// Seeded by the operating system, because two processes must not have equal holders.
    hasher: RandomState,
    pub(super) runtimes: Arc<Runtimes>,
    reports: Arc<PermitEvents>,
}

/// The throttles of events, shared by the agents of a limiter.
#[derive(Default)]
pub(super) struct PermitEvents {
    unavailable: Throttle,
    not_renewed: Throttle,
}

/// The error of a caller for whom there is no room.
fn overloaded() -> Error {
    Error::overloaded(MOST_QUEUED * AGENTS)
}

impl Grantor for Agent {
    fn take_back(self: Arc<Self>, budget: &Arc<Budget>) {
        let mut state = self.lock();
        // A slot is kept while a permit of it is held.
        if let Some(slot) = state.slots.get_mut(budget) {
            slot.release();
        }
        self.submit(state, budget);
    }

    fn is_renewed(&self, budget: &Arc<Budget>, granted_here: Option<Instant>) -> bool {
        let state = self.lock();
        let confirmed = state.slots.get(budget).and_then(Slot::confirmed_at);
        confirmed.is_some_and(|at| {
            granted_here.is_none_or(|granted| at >= granted) && at.elapsed() < self.lease
        })
    }
}

impl Agent {
    pub(super) fn new(
        store: Arc<dyn Store>,
        lease: Duration,
        runtimes: Arc<Runtimes>,
        reports: Arc<PermitEvents>,
    ) -> Self {
        // An embedded store is gone with its process, and no task renews what it keeps.
        let is_embedded = store.is_embedded();
        let lease = if is_embedded { MAX_LEASE } else { lease };
        let [shortest, longest] = LOST_AFTER;
        // Three renewals in each lease, also in a short one.
        let [renew, shortest_retry] = [3, 12].map(|part| lease.checked_div(part).unwrap_or(lease));
        Self {
            store,
            is_embedded,
            lease,
            paces: Paces {
                poll: POLL,
                recent: RECENT,
                renew,
                retry: RETRY.min(shortest_retry),
                lost: renew.clamp(shortest, longest),
            },
            state: Mutex::default(),
            wake: Notify::new(),
            claims_ended: Notify::new(),
            hasher: RandomState::new(),
            runtimes,
            reports,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.state.lock()
    }

    /// Requests a permit, without a wait.
    pub(super) fn request(self: &Arc<Self>, key: &Arc<Budget>, caller: PermitCaller) {
        let mut state = self.lock();
        if state.is_overloaded_for(key) {
            drop(state);
            caller.answer(Err(overloaded()));
            return;
        }
        self.slot(&mut state, key, caller.limit).add_at_once(caller);
        self.submit(state, key);
    }

    /// Queues for a permit. If `most_waiters` callers of the key wait already, this one gets none.
    pub(super) fn enqueue_waiter(
        self: &Arc<Self>,
        key: &Arc<Budget>,
        caller: PermitCaller,
        most_waiters: usize,
    ) {
        let mut state = self.lock();
        if state.is_overloaded_for(key) {
            drop(state);
            caller.answer(Err(overloaded()));
            return;
        }
        let slot = self.slot(&mut state, key, caller.limit);
        let denied = if slot.has_room(most_waiters) {
            slot.add_waiter(caller);
            state.watched.insert(key.clone());
            None
        } else {
            Some(caller)
        };
        self.submit(state, key);
        if let Some(caller) = denied {
            caller.answer(Ok(None));
        }
    }

    /// The error for a caller whose outcome takes too long. If the store answers others, and the
    /// claim for this caller had to wait for them, there are too many callers. That is not an
    /// outage.
    pub(super) fn late_error(&self, key: &Budget) -> Error {
        let now = Instant::now();
        let state = self.lock();
        let age = |at| now.saturating_duration_since(at);
        let answers_others = state.answered_at.is_some_and(|at| age(at) <= RECENT_ANSWER);
        let slot = state.slots.get(key);
        if answers_others && slot.is_some_and(|slot| slot.is_sent_late(now, RECENT_ANSWER)) {
            overloaded()
        } else {
            Error::timeout()
        }
    }

    /// Gives up the place of a waiter that is gone.
    pub(super) fn waiter_is_gone(self: &Arc<Self>, key: &Arc<Budget>, limit: u32) {
        let mut state = self.lock();
        if let Some(slot) = state.slots.get_mut(key) {
            slot.waiter_is_gone(limit);
            self.submit(state, key);
        }
    }

    /// Decides by the failure policy, while the store is unavailable.
    pub(super) fn decide_locally(
        self: &Arc<Self>,
        key: &Arc<Budget>,
        check: &Check,
        error: Error,
    ) -> Result<Acquired, Error> {
        let limit = check.limit();
        let policy = check.failure_policy().unwrap_or(OnStoreFailure::FailOpen);
        telemetry::permits_unavailable(
            &self.reports.unavailable,
            limit.name(),
            &error,
            policy.name(),
        );
        let (most, source, limit_in_force) = match policy {
            OnStoreFailure::FailOpen => (u32::MAX, Source::FailOpen, limit.clone()),
            OnStoreFailure::Local { .. } => {
                // A share is at least one permit, so there always is one.
                let share = check.of_share().ok().flatten();
                let share = share.map_or_else(|| limit.clone(), |share| share.limit().clone());
                (share.permits(), Source::Local, share)
            }
            OnStoreFailure::FailClosed => return Err(error),
        };
        // Taken before the claim is sent, whose answer confirms the permit.
        let granted_here = Instant::now();
        let mut state = self.lock();
        let is_free = self
            .slot(&mut state, key, limit.permits())
            .take_locally(most);
        self.submit(state, key);
        let permit =
            is_free.then(|| Permit::new(self.grantor(), key.clone(), source, Some(granted_here)));
        Ok(Acquired {
            permit,
            source,
            limit: limit_in_force,
        })
    }

    /// Waits until the store has confirmed all changes.
    pub(super) async fn flush(self: &Arc<Self>) {
        loop {
            // A permit that was dropped outside of a runtime may have started no task.
            self.ensure_task();
            let mut claims_ended = pin!(self.claims_ended.notified());
            claims_ended.as_mut().enable();
            if self.lock().are_confirmed() {
                return;
            }
            // The task may be blocked.
            drop(timeout(LOOK_AFTER, claims_ended).await);
        }
    }

    fn grantor(self: &Arc<Self>) -> Arc<dyn Grantor> {
        Arc::<Self>::clone(self)
    }

    pub(super) fn keys(&self) -> usize {
        self.lock().slots.len()
    }

    pub(super) fn held(&self, key: &Budget) -> u64 {
        self.lock().slots.get(key).map_or(0, Slot::held)
    }

    fn slot<'a>(&self, state: &'a mut Slots, key: &Arc<Budget>, limit: u32) -> &'a mut Slot {
        let Slots { slots, holders, .. } = state;
        slots.entry(key.clone()).or_insert_with(|| {
            *holders += 1;
            let holder = self.hasher.hash_one(*holders);
            Slot::new(holder.to_be_bytes(), limit)
        })
    }

    /// Claims a slot that has changed, at once on an embedded store, else by the task. A wrapper of
    /// an embedded store may answer later, and then the task awaits its answer.
    fn submit(self: &Arc<Self>, mut state: MutexGuard<'_, Slots>, key: &Arc<Budget>) {
        let Slots { slots, queues, .. } = &mut *state;
        let Some(slot) = slots.get_mut(key) else {
            return;
        };
        if self.is_embedded {
            self.claim_now(state, key);
            return;
        }
        queues.enqueue(key, slot);
        if slot.is_over() {
            state.remove(key);
        }
        drop(state);
        self.ensure_task();
        self.wake.notify_one();
    }

    /// Claims a slot on an embedded store. The state stays locked meanwhile.
    fn claim_now(self: &Arc<Self>, mut state: MutexGuard<'_, Slots>, key: &Arc<Budget>) {
        let Slots {
            slots,
            queues,
            watched,
            ..
        } = &mut *state;
        let Some(slot) = slots.get_mut(key) else {
            return;
        };
        let mut deliveries = Vec::new();
        let mut failure = None;
        let now = Instant::now();
        // A permit that was granted to a caller that is gone needs another claim, which gives it
        // back.
        for _ in 0..MOST_IN_A_ROW {
            if slot.next_claim().is_none() {
                break;
            }
            let claim = slot.claim(key, self.lease, now);
            let mut answer = self.store.apply(claim);
            match answer.take_ready() {
                Some(Ok(decision)) => {
                    slot.apply_answer(decision.remaining(), now, &mut deliveries);
                }
                Some(Err(error)) => {
                    slot.apply_failure(&error, now, &mut deliveries);
                    failure = Some(error);
                }
                // A wrapper of the store does not answer at once. The task awaits it.
                None => queues.keep_answer(key, slot, answer),
            }
        }
        if slot.is_over() {
            state.remove(key);
        } else if !slot.is_confirmed() {
            queues.enqueue(key, slot);
            watched.insert(key.clone());
        }
        let needs_task = !self.has_nothing_to_do(&state);
        drop(state);
        self.deliver(key, deliveries, failure.as_ref());
        if needs_task {
            // Another limiter on this store may give back what a caller waits for.
            self.ensure_task();
            self.wake.notify_one();
        }
    }

    /// Gives callers their outcomes. The state must not be locked, because a caller that is gone
    /// drops its permit.
    pub(super) fn deliver(
        self: &Arc<Self>,
        key: &Arc<Budget>,
        deliveries: Vec<Delivery>,
        error: Option<&Error>,
    ) {
        for delivery in deliveries {
            drop(match delivery {
                Delivery::Permit(caller) => caller.send(Ok(Some(Permit::new(
                    self.grantor(),
                    key.clone(),
                    Source::Store,
                    None,
                )))),
                Delivery::None(caller) => caller.send(Ok(None)),
                Delivery::Error(caller) => {
                    let error = error.map(Error::repeated);
                    caller.send(Err(error.unwrap_or_else(|| Error::store("no answer"))))
                }
            });
        }
    }

    /// Claims the slots whose time has come. Watched slots are looked at each time, and all slots
    /// at longer intervals, because there may be many.
    pub(super) fn claim_due(self: &Arc<Self>) {
        let now = Instant::now();
        let mut guard = self.lock();
        let Slots {
            slots,
            queues,
            watched,
            scanned,
            ..
        } = &mut *guard;
        watched.retain(|key| slots.get(key).is_some_and(Slot::is_watched));
        let mut due = Vec::new();
        let mut unrenewed = Vec::new();
        let mut claim_if_due = |key: &Arc<Budget>, slot: &mut Slot| {
            if !slot.mark_if_due(now, &self.paces) {
                return;
            }
            match self.is_embedded {
                true => due.push(key.clone()),
                false => queues.enqueue(key, slot),
            }
        };
        let is_recent = |at: Instant| now.saturating_duration_since(at) < self.paces.retry;
        // Nothing expires in an embedded store.
        if self.is_embedded || scanned.is_some_and(is_recent) {
            for key in watched.iter() {
                if let Some(slot) = slots.get_mut(key) {
                    claim_if_due(key, slot);
                }
            }
        } else {
            *scanned = Some(now);
            for (key, slot) in slots {
                claim_if_due(key, slot);
                if slot.has_expired(now, self.lease) {
                    unrenewed.push((key.clone(), slot.held()));
                }
            }
        }
        drop(guard);
        for (key, held) in unrenewed {
            telemetry::permits_not_renewed(&self.reports.not_renewed, key.limit().name(), held);
        }
        due.iter().for_each(|key| self.submit(self.lock(), key));
    }

    /// Returns whether no task is needed.
    pub(super) fn has_nothing_to_do(&self, state: &Slots) -> bool {
        match self.is_embedded {
            true => state.watched.is_empty() && state.queues.is_empty(),
            false => state.slots.is_empty() && state.queues.is_empty(),
        }
    }
}
