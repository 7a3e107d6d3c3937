//! What a process has and wants of all keys.
//!
//! An embedded store is told of each change at once. For any other store, slots with changes are queued, and the task
//! ([`task`](super::task)) tells it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::slot::{Caller, Due, Paces, Queue, Slot};
use super::{Acquired, Permit};
use crate::nouns::{ConcurrencyLimit, Error, HolderId, Key, OnStoreFailure, Source};
use crate::store::permits::{Claim, MAX_LEASE, PermitStore};
use crate::telemetry::{self, Throttle};

/// How often callers that wait ask.
const POLL: Duration = Duration::from_millis(25);

/// The shortest time after which a call counts as lost.
const LOST: Duration = Duration::from_secs(1);

/// The memory for so many slots is kept.
const KEEPS: usize = 1_024;

/// The pause before a claim that failed is repeated.
const RETRY: Duration = Duration::from_millis(250);

/// A key under a limit.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SlotKey {
    name: Arc<str>,
    key: Key,
}

impl SlotKey {
    pub(super) fn new(limit: &ConcurrencyLimit, key: &Key) -> Self {
        Self { name: limit.shared_name(), key: key.clone() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What the store is told of a slot.
    pub(super) fn claim(&self, slot: &mut Slot, lease: Duration) -> Claim {
        let (name, key) = (Arc::clone(&self.name), self.key.clone());
        let mut claim = Claim::new(name, key, slot.holder, 0, lease);
        slot.claim(&mut claim);
        claim
    }
}

pub(super) struct Agent {
    pub(super) store: Arc<dyn PermitStore>,
    pub(super) lease: Duration,
    pub(super) paces: Paces,
    state: Mutex<State>,
    pub(super) wake: Notify,
    /// A call was answered.
    pub(super) told: Notify,
    /// Seeded by the operating system: two processes must not have equal holders.
    hasher: RandomState,
    reports: Arc<Reports>,
}

/// What limits the events of all agents of a limiter.
#[derive(Default)]
pub(super) struct Reports {
    unavailable: Throttle,
    not_renewed: Throttle,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: HashMap<SlotKey, Slot>,
    pub(super) queues: Queues,
    /// Calls in flight, by their numbers.
    pub(super) calls: BTreeMap<u64, SentCall>,
    /// Counts calls.
    pub(super) sent: u64,
    /// The slots that may have callers that wait.
    pub(super) waiting: HashSet<SlotKey>,
    /// When all slots were looked at.
    scanned: Option<Instant>,
    /// The number of the task that runs. `None`: none does.
    pub(super) task: Option<u64>,
    /// Counts tasks.
    pub(super) tasks: u64,
    /// The time of the task's last look. It is old if its runtime is blocked.
    pub(super) looked: Option<Instant>,
    /// Runtimes with callers, the last ones. If that of the task is shut down, the task goes on in another.
    pub(super) runtimes: VecDeque<Runtime>,
    /// Counts holders.
    holders: u64,
}

/// A call in flight.
pub(super) struct SentCall {
    pub(super) keys: Vec<SlotKey>,
    pub(super) at: Instant,
}

/// The slots that the task has to tell.
#[derive(Default)]
pub(super) struct Queues {
    /// Something has changed, or callers wait.
    urgent: VecDeque<SlotKey>,
    /// The store only has to hear of them within a lease.
    renewals: VecDeque<SlotKey>,
}

impl Queues {
    pub(super) fn enter(&mut self, key: &SlotKey, slot: &mut Slot) {
        match slot.enter_queue() {
            Some(Queue::Urgent) => self.urgent.push_back(key.clone()),
            Some(Queue::Renewals) => self.renewals.push_back(key.clone()),
            None => {}
        }
    }

    /// Takes out the slots of the next call, and gives each to `claim`. Callers are not to wait for a crowd of renewals. But
    /// however many callers there are, a fourth of each call is for renewals: they have a deadline.
    pub(super) fn take(
        &mut self,
        slots: &mut HashMap<SlotKey, Slot>,
        most: usize,
        mut claim: impl FnMut(SlotKey, &mut Slot),
    ) {
        let mut taken = 0;
        for (kind, up_to) in
            [(Queue::Renewals, most / 4), (Queue::Urgent, most), (Queue::Renewals, most)]
        {
            let queue = match kind {
                Queue::Urgent => &mut self.urgent,
                Queue::Renewals => &mut self.renewals,
            };
            while taken < up_to
                && let Some(key) = queue.pop_front()
            {
                // It may be gone, or have been told since.
                if let Some(slot) = slots.get_mut(&key).filter(|slot| slot.is_in(kind)) {
                    claim(key, slot);
                    taken += 1;
                }
            }
        }
    }
}

impl State {
    /// Forgets a slot. Memory of a crowd that is gone is given back.
    pub(super) fn remove(&mut self, key: &SlotKey) {
        let Self { slots, queues, .. } = self;
        slots.remove(key);
        if slots.capacity() > KEEPS && slots.len() < slots.capacity() / 8 {
            slots.shrink_to(slots.len() * 2);
            queues.urgent.shrink_to(slots.len());
            queues.renewals.shrink_to(slots.len());
        }
    }
}

impl Agent {
    pub(super) fn new(store: Arc<dyn PermitStore>, lease: Duration, reports: Arc<Reports>) -> Self {
        // An embedded store is gone with its process, and no task renews what it keeps.
        let lease = if store.embedded().is_some() { MAX_LEASE } else { lease };
        let [renew, scan] = [3, 12].map(|part| lease.checked_div(part).unwrap_or(lease));
        Self {
            store,
            lease,
            // Short leases are looked at more often, so that each is renewed three times.
            paces: Paces { poll: POLL, renew, retry: RETRY.min(scan), lost: renew.max(LOST) },
            state: Mutex::default(),
            wake: Notify::new(),
            told: Notify::new(),
            hasher: RandomState::new(),
            reports,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a permit, without a wait.
    pub(super) fn ask(self: &Arc<Self>, key: &SlotKey, limit: u32, caller: Caller) {
        let mut state = self.lock();
        self.slot(&mut state, key, limit).ask_at_once(caller, limit);
        self.tell(state, key);
    }

    /// Queues for a permit. If `most_waiters` callers of the key wait already, this one gets none.
    pub(super) fn wait(
        self: &Arc<Self>,
        key: &SlotKey,
        limit: u32,
        caller: Caller,
        most_waiters: usize,
    ) {
        let mut state = self.lock();
        let slot = self.slot(&mut state, key, limit);
        if slot.waiters() < most_waiters {
            slot.wait(caller, limit);
            state.waiting.insert(key.clone());
            self.tell(state, key);
        } else {
            self.tell(state, key);
            drop(caller.send(Ok(None)));
        }
    }

    pub(super) fn release(self: &Arc<Self>, key: &SlotKey) {
        let mut state = self.lock();
        // A slot is kept while a permit of it is held.
        if let Some(slot) = state.slots.get_mut(key) {
            slot.release();
        }
        self.tell(state, key);
    }

    /// The outcome of a caller whose store is unavailable.
    pub(super) fn decide_locally(
        self: &Arc<Self>,
        key: &SlotKey,
        limit: &ConcurrencyLimit,
        error: Error,
    ) -> Result<Acquired, Error> {
        let policy = limit.failure_policy().unwrap_or(OnStoreFailure::FailOpen);
        telemetry::permits_unavailable(
            &self.reports.unavailable,
            limit.name(),
            &error,
            policy.name(),
        );
        let (most, source, limit_in_force) = match policy {
            OnStoreFailure::FailOpen => (u32::MAX, Source::FailOpen, limit.limit()),
            OnStoreFailure::Local { replicas } => {
                let share = limit.share_of(replicas);
                (share, Source::Local, share)
            }
            OnStoreFailure::FailClosed => return Err(error),
        };
        let mut state = self.lock();
        let is_free = self.slot(&mut state, key, limit.limit()).take_locally(most);
        self.tell(state, key);
        let permit = is_free.then(|| Permit::new(Arc::clone(self), key.clone(), source));
        Ok(Acquired { permit, source, limit: limit_in_force })
    }

    /// Waits until the store knows of all changes.
    pub(super) async fn flush(self: &Arc<Self>) {
        loop {
            // The permits may have been dropped outside of a runtime.
            self.ensure_task();
            let told = self.told.notified();
            let mut told = pin!(told);
            told.as_mut().enable();
            if self.lock().slots.values().all(Slot::is_told) {
                return;
            }
            told.await;
        }
    }

    /// Whether the store heard of a permit within a lease: of one that it granted, or since this process granted it.
    pub(super) fn is_renewed(&self, key: &SlotKey, granted_here: Option<Instant>) -> bool {
        let state = self.lock();
        let told = state.slots.get(key).and_then(Slot::told);
        told.is_some_and(|told| {
            granted_here.is_none_or(|at| told >= at) && told.elapsed() < self.lease
        })
    }

    pub(super) fn keys(&self) -> usize {
        self.lock().slots.len()
    }

    pub(super) fn held(&self, key: &SlotKey) -> u64 {
        self.lock().slots.get(key).map_or(0, Slot::held)
    }

    fn slot<'a>(&self, state: &'a mut State, key: &SlotKey, limit: u32) -> &'a mut Slot {
        let State { slots, holders, .. } = state;
        slots.entry(key.clone()).or_insert_with(|| {
            *holders += 1;
            Slot::new(HolderId(self.hasher.hash_one((*holders, &*key.name)).to_be_bytes()), limit)
        })
    }

    /// Tells the store of a slot that has changed: at once if it is embedded, else by the task.
    fn tell(self: &Arc<Self>, mut state: MutexGuard<'_, State>, key: &SlotKey) {
        let State { slots, queues, waiting, .. } = &mut *state;
        let Some(slot) = slots.get_mut(key) else { return };
        let Some(store) = self.store.embedded() else {
            queues.enter(key, slot);
            if slot.is_over() {
                state.remove(key);
            }
            drop(state);
            self.ensure_task();
            self.wake.notify_one();
            return;
        };
        let mut due = Vec::new();
        // A permit whose caller is gone is given back.
        while slot.has_to_be_told() {
            let claim = key.claim(slot, self.lease);
            due.append(&mut slot.answered(store.claim_now(&claim)));
        }
        let some_wait = !waiting.is_empty();
        if slot.is_over() {
            state.remove(key);
        }
        drop(state);
        self.hand_out(key, due, None);
        if some_wait {
            // Another limiter on this store may give back what a caller waits for.
            self.ensure_task();
        }
    }

    /// Gives callers their outcomes. The state must not be locked: a caller that is gone drops its permit.
    pub(super) fn hand_out(self: &Arc<Self>, key: &SlotKey, due: Vec<Due>, error: Option<&Error>) {
        for due in due {
            drop(match due {
                Due::Permit(caller) => {
                    caller.send(Ok(Some(Permit::new(Arc::clone(self), key.clone(), Source::Store))))
                }
                Due::None(caller) => caller.send(Ok(None)),
                Due::Error(caller) => {
                    let error = error.map(Error::repeated);
                    caller.send(Err(error.unwrap_or_else(|| Error::store("no answer"))))
                }
            });
        }
    }

    /// Tells the store again of slots that are due, though nothing changed: of those with callers that wait, and from time
    /// to time, because there may be many, of all.
    pub(super) fn look(self: &Arc<Self>) {
        let now = Instant::now();
        let mut guard = self.lock();
        let State { slots, queues, waiting, scanned, .. } = &mut *guard;
        waiting.retain(|key| slots.get(key).is_some_and(|slot| slot.waiters() > 0));
        let is_embedded = self.store.embedded().is_some();
        let (mut to_tell, mut lost) = (Vec::new(), Vec::new());
        let mut tell_if_due = |key: &SlotKey, slot: &mut Slot| {
            if !slot.is_due(now, &self.paces) {
                return;
            }
            slot.touch();
            match is_embedded {
                true => to_tell.push(key.clone()),
                false => queues.enter(key, slot),
            }
        };
        let is_recent = |at: Instant| now.saturating_duration_since(at) < self.paces.retry;
        // An embedded store never fails, and forgets nothing.
        if is_embedded || scanned.is_some_and(is_recent) {
            for key in waiting.iter() {
                if let Some(slot) = slots.get_mut(key) {
                    tell_if_due(key, slot);
                }
            }
        } else {
            *scanned = Some(now);
            for (key, slot) in slots {
                tell_if_due(key, slot);
                if slot.may_be_lost(self.lease) {
                    lost.push((Arc::clone(&key.name), slot.held()));
                }
            }
        }
        drop(guard);
        for (name, held) in lost {
            telemetry::permits_not_renewed(&self.reports.not_renewed, &name, held);
        }
        to_tell.iter().for_each(|key| self.tell(self.lock(), key));
    }

    /// Whether no task is needed.
    pub(super) fn has_nothing_to_do(&self, state: &State) -> bool {
        match self.store.embedded() {
            Some(_) => state.waiting.is_empty(),
            None => state.slots.is_empty() && state.calls.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::store::MemoryStore;

    fn key(number: usize) -> SlotKey {
        SlotKey { name: "exports".into(), key: Key::from(number as u64) }
    }

    /// Slots in a queue: those of the first numbers want something, the others are due.
    fn queued(urgent: usize, all: usize) -> State {
        let mut state = State::default();
        for number in 0..all {
            let mut slot = Slot::new(HolderId([0; 8]), 1);
            if number < urgent {
                slot.release();
            }
            slot.touch();
            state.queues.enter(&key(number), &mut slot);
            state.slots.insert(key(number), slot);
        }
        state
    }

    fn taken(state: &mut State) -> Vec<SlotKey> {
        let mut taken = Vec::new();
        state.queues.take(&mut state.slots, 256, |key, slot| {
            drop(key.claim(slot, Duration::from_secs(10)));
            taken.push(key);
        });
        taken
    }

    #[test]
    fn callers_and_renewals_share_a_call() {
        let urgent = (0..1_000).map(key).collect::<Vec<_>>();
        let mut state = queued(1_000, 2_000);
        for _ in 0..3 {
            let taken = taken(&mut state);
            let of_callers = taken.iter().filter(|key| urgent.contains(key)).count();
            assert_eq!((of_callers, taken.len()), (192, 256));
        }
        assert_eq!(taken(&mut queued(0, 1_000)).len(), 256);
        assert_eq!(taken(&mut queued(1_000, 1_000)).len(), 256);
    }

    #[test]
    fn renewal_that_becomes_urgent_is_told_once_and_soon() {
        let mut state = queued(0, 1_000);
        let last = state.slots.get_mut(&key(999)).unwrap();
        last.release();
        state.queues.enter(&key(999), last);
        state.queues.enter(&key(999), last);
        assert!(taken(&mut state).contains(&key(999)));
        let mut later = Vec::new();
        while !state.queues.renewals.is_empty() {
            later.extend(taken(&mut state));
        }
        assert_eq!((later.len(), later.contains(&key(999))), (744, false));
    }

    #[tokio::test]
    async fn memory_of_a_crowd_is_given_back() {
        let store = Arc::new(MemoryStore::new());
        let agent = Arc::new(Agent::new(store, Duration::from_secs(10), Arc::default()));
        let mut held = Vec::new();
        for number in 0..50_000 {
            let (caller, outcome) = oneshot::channel();
            agent.ask(&key(number), 1, caller);
            held.push(outcome.await.unwrap().unwrap());
        }
        assert!(agent.lock().slots.capacity() >= 50_000);
        drop(held);
        assert_eq!(agent.keys(), 0);
        assert!(agent.lock().slots.capacity() <= KEEPS);
    }
}
