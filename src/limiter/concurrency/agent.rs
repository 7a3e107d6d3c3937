//! What a process holds of all keys, and the task that tells the store.
//!
//! Slots with changes are queued. The task claims up to 256 of them in one call, with up to four calls in flight, and
//! never two for one slot. An embedded store is asked by the caller itself, and needs no task.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::Permit;
use super::slot::{Caller, Due, Outcome, Paces, Slot};
use crate::nouns::{ConcurrencyLimit, Error, HolderId, Key, OnStoreFailure, later};
use crate::store::permits::{Claim, MAX_LEASE, PermitStore};
use crate::telemetry::{self, Throttle};

/// The most claims in one call.
const MAX_CLAIMS: usize = 256;

/// The most calls in flight.
const IN_FLIGHT: usize = 4;

/// How often callers that wait ask.
const POLL: Duration = Duration::from_millis(25);

/// While the store is unavailable, so many keys are kept to be told. What is left out ends with its lease.
const MAX_UNTOLD: usize = 10_000;

/// A task that has not looked for so long is on a runtime that stands still.
const STANDS_STILL: Duration = Duration::from_secs(1);

/// The most runtimes that are remembered.
const MAX_RUNTIMES: usize = 8;

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
}

pub(super) struct Agent {
    store: Arc<dyn PermitStore>,
    is_embedded: bool,
    lease: Duration,
    paces: Paces,
    state: Mutex<State>,
    wake: Notify,
    /// Seeded by the operating system: two processes must not have equal holders.
    hasher: RandomState,
    unavailable: Throttle,
}

#[derive(Default)]
struct State {
    slots: HashMap<SlotKey, Slot>,
    queue: VecDeque<SlotKey>,
    in_flight: usize,
    /// Whether a slot may have callers that wait.
    has_waiters: bool,
    /// The number of the task that runs. `None`: none does.
    task: Option<u64>,
    /// Counts tasks.
    tasks: u64,
    /// When the task last looked: one on a runtime that stands still does not.
    looked: Option<Instant>,
    /// Runtimes with callers, the last ones. If that of the task is shut down, the task goes on in another.
    runtimes: VecDeque<Runtime>,
    /// Counts holders.
    holders: u64,
}

impl Agent {
    pub(super) fn new(store: Arc<dyn PermitStore>, lease: Duration) -> Self {
        let is_embedded = store.is_embedded();
        // An embedded store is gone with its process, and no task renews what it keeps.
        let lease = if is_embedded { MAX_LEASE } else { lease };
        let renew = lease.checked_div(3).unwrap_or(lease);
        Self {
            is_embedded,
            store,
            lease,
            paces: Paces { poll: POLL, renew, retry: RETRY },
            state: Mutex::default(),
            wake: Notify::new(),
            hasher: RandomState::new(),
            unavailable: Throttle::default(),
        }
    }

    pub(super) fn store(&self) -> Arc<dyn PermitStore> {
        Arc::clone(&self.store)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a permit, for a caller that waits or not.
    pub(super) fn ask(self: &Arc<Self>, key: &SlotKey, limit: u32, caller: Caller, waits: bool) {
        self.change(key, limit, |slot| match waits {
            true => slot.wait(caller),
            false => slot.ask_at_once(caller),
        });
    }

    pub(super) fn release(self: &Arc<Self>, key: &SlotKey) {
        let mut state = self.lock();
        // A slot is kept while a permit of it is held.
        if let Some(slot) = state.slots.get_mut(key) {
            slot.release();
            let enters = slot.enter_queue();
            if enters {
                state.queue.push_back(key.clone());
            }
        }
        drop(state);
        self.flush();
    }

    fn change<T>(
        self: &Arc<Self>,
        key: &SlotKey,
        limit: u32,
        change: impl FnOnce(&mut Slot) -> T,
    ) -> T {
        let mut guard = self.lock();
        let state = &mut *guard;
        let holders = &mut state.holders;
        let slot = state.slots.entry(key.clone()).or_insert_with(|| {
            *holders += 1;
            Slot::new(HolderId(self.hasher.hash_one((*holders, &*key.name)).to_be_bytes()), limit)
        });
        slot.limit = limit;
        let changed = change(slot);
        state.has_waiters |= slot.has_waiters();
        if slot.enter_queue() {
            state.queue.push_back(key.clone());
        }
        drop(guard);
        self.flush();
        changed
    }

    /// The outcome of a caller whose store is unavailable.
    pub(super) fn decide_locally(
        self: &Arc<Self>,
        key: &SlotKey,
        limit: &ConcurrencyLimit,
        error: Error,
    ) -> Outcome {
        let policy = limit.failure_policy().unwrap_or(OnStoreFailure::FailOpen).name();
        telemetry::permits_unavailable(&self.unavailable, limit.name(), &error, policy);
        let Some(local) = limit.local_limit() else { return Err(error) };
        let is_free = self.change(key, limit.limit(), |slot| slot.take_locally(local));
        Ok(is_free.then(|| Permit::new(Arc::clone(self), key.clone())))
    }

    pub(super) fn keys(&self) -> usize {
        self.lock().slots.len()
    }

    pub(super) fn held(&self, key: &SlotKey) -> u64 {
        self.lock().slots.get(key).map_or(0, Slot::held)
    }

    /// Tells the store of all changes: at once if it is embedded, else by the task.
    fn flush(self: &Arc<Self>) {
        if !self.is_embedded {
            self.ensure_task();
            self.wake.notify_one();
            return;
        }
        while let Some((keys, claims)) = self.next_call() {
            let mut claimed = pin!(self.store.claim(claims));
            match claimed.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answers) => self.answered(keys, answers),
                Poll::Pending => {
                    let why = || Err(Error::misuse("an embedded store has to answer at once"));
                    let answers = keys.iter().map(|_| why()).collect();
                    self.answered(keys, answers);
                }
            }
        }
        // Another limiter on this store may give back what a caller waits for.
        self.ensure_task();
    }

    /// Starts the task, unless it runs. One that has not looked for a while is replaced: its runtime stands still.
    pub(super) fn ensure_task(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else {
            // A permit that is dropped outside of a runtime is told by the next one inside, or ends with its lease.
            return;
        };
        let mut state = self.lock();
        if state.runtimes.iter().all(|known| known.id() != runtime.id()) {
            state.runtimes.truncate(MAX_RUNTIMES - 1);
            state.runtimes.push_front(runtime.clone());
        }
        let stands_still = |looked: Instant| looked.elapsed() > STANDS_STILL;
        if state.task.is_some() && !state.looked.is_some_and(stands_still) {
            return;
        }
        let running = self.new_task(&mut state, runtime);
        drop(state);
        running.into_iter().for_each(Running::start);
    }

    /// A task, if there is something to do. It is started when the state is not locked: a runtime that shuts down drops
    /// it at once.
    fn new_task(self: &Arc<Self>, state: &mut State, runtime: Runtime) -> Option<Running> {
        if self.has_nothing_to_do(state) {
            return None;
        }
        state.tasks += 1;
        (state.task, state.looked) = (Some(state.tasks), Some(Instant::now()));
        Some(Running { agent: Arc::clone(self), task: state.tasks, runtime })
    }

    fn has_nothing_to_do(&self, state: &State) -> bool {
        match self.is_embedded {
            true => !state.has_waiters,
            false => state.slots.is_empty() && state.in_flight == 0,
        }
    }

    /// Sends what is queued. The calls are tasks of their own.
    fn send(self: &Arc<Self>) {
        // A runtime that shuts down drops each call at once, and its claims are queued again.
        for _ in 0..IN_FLIGHT {
            let Some((keys, claims)) = self.next_call() else { return };
            let mut call = Call { agent: Arc::clone(self), keys: Some(keys) };
            let claimed = self.store.claim(claims);
            tokio::spawn(async move {
                let answers = claimed.await;
                call.answered(answers);
            });
        }
    }

    /// How often all slots are looked at. `None` if the task has nothing to do any more, or another one runs.
    fn pace(&self, task: u64) -> Option<Duration> {
        let mut state = self.lock();
        if state.task != Some(task) {
            return None;
        }
        if self.has_nothing_to_do(&state) {
            state.task = None;
            return None;
        }
        state.looked = Some(Instant::now());
        Some(if state.has_waiters { self.paces.poll } else { self.paces.retry })
    }

    /// Queues the slots that have to be claimed again, though nothing changed.
    fn queue_due(&self) {
        let now = Instant::now();
        let mut guard = self.lock();
        let State { slots, queue, has_waiters, .. } = &mut *guard;
        *has_waiters = false;
        for (key, slot) in slots {
            *has_waiters |= slot.has_waiters();
            if slot.is_due(now, &self.paces) {
                slot.touch();
                if slot.enter_queue() {
                    queue.push_back(key.clone());
                }
            }
        }
    }

    /// The claims of the next call.
    fn next_call(&self) -> Option<(Vec<SlotKey>, Vec<Claim>)> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.in_flight >= IN_FLIGHT && !self.is_embedded {
            return None;
        }
        let (mut keys, mut claims) = (Vec::new(), Vec::new());
        while keys.len() < MAX_CLAIMS
            && let Some(key) = state.queue.pop_front()
        {
            let Some(slot) = state.slots.get_mut(&key) else { continue };
            let (name, holder) = (Arc::clone(&key.name), slot.holder);
            let mut claim = Claim::new(name, key.key.clone(), holder, slot.limit, self.lease);
            slot.claim(&mut claim);
            keys.push(key);
            claims.push(claim);
        }
        if keys.is_empty() {
            return None;
        }
        state.in_flight += 1;
        Some((keys, claims))
    }

    /// Hands out what a call was granted.
    fn answered(self: &Arc<Self>, keys: Vec<SlotKey>, answers: Vec<Result<u64, Error>>) {
        let missing = || Err(Error::store("the store of permits gave no answer to a claim"));
        let answers = answers.into_iter().chain(std::iter::repeat_with(missing));
        let mut outcomes = Vec::new();
        let mut guard = self.lock();
        let state = &mut *guard;
        state.in_flight -= 1;
        let is_full = state.slots.len() > MAX_UNTOLD;
        for (key, answer) in keys.into_iter().zip(answers) {
            let Some(slot) = state.slots.get_mut(&key) else { continue };
            let due = match &answer {
                Ok(granted) => slot.answered(*granted),
                Err(_) => slot.failed(),
            };
            if slot.enter_queue() {
                state.queue.push_back(key.clone());
            }
            if slot.is_over() || (is_full && slot.is_idle()) {
                state.slots.remove(&key);
            }
            outcomes.push((key, due, answer.err()));
        }
        drop(guard);
        for (key, due, error) in outcomes {
            for due in due {
                // A caller that is gone drops its permit.
                drop(match due {
                    Due::Permit(caller) => {
                        caller.send(Ok(Some(Permit::new(Arc::clone(self), key.clone()))))
                    }
                    Due::None(caller) => caller.send(Ok(None)),
                    Due::Error(caller) => {
                        let error = error.as_ref().map(Error::repeated);
                        caller.send(Err(error.unwrap_or_else(|| Error::store("no answer"))))
                    }
                });
            }
        }
        self.wake.notify_one();
    }

    /// The runtime of a call was shut down. Its claims are sent again by the task of another one.
    fn lost(&self, keys: Vec<SlotKey>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.in_flight -= 1;
        for key in keys {
            if let Some(slot) = state.slots.get_mut(&key) {
                slot.lost();
                if slot.enter_queue() {
                    state.queue.push_back(key);
                }
            }
        }
    }
}

/// A call in flight.
struct Call {
    agent: Arc<Agent>,
    keys: Option<Vec<SlotKey>>,
}

impl Call {
    fn answered(&mut self, answers: Vec<Result<u64, Error>>) {
        if let Some(keys) = self.keys.take() {
            self.agent.answered(keys, answers);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(keys) = self.keys.take() {
            self.agent.lost(keys);
        }
    }
}

/// The task: runs while there is something to tell.
struct Running {
    agent: Arc<Agent>,
    task: u64,
    runtime: Runtime,
}

impl Running {
    fn start(self) {
        let runtime = self.runtime.clone();
        runtime.spawn(self.run());
    }

    async fn run(self) {
        let (agent, mut last_look) = (&self.agent, Instant::now());
        loop {
            agent.send();
            let Some(pace) = agent.pace(self.task) else { return };
            let next_look = later(last_look, pace);
            drop(timeout_at(next_look, agent.wake.notified()).await);
            // Others add to the next call. And a runtime that shuts down drops the task here.
            yield_now().await;
            if Instant::now() >= next_look {
                last_look = Instant::now();
                agent.queue_due();
            }
        }
    }
}

impl Drop for Running {
    /// If its runtime shuts down, another one goes on.
    fn drop(&mut self) {
        let mut state = self.agent.lock();
        if state.task != Some(self.task) {
            return;
        }
        state.task = None;
        let own = self.runtime.id();
        state.runtimes.retain(|runtime| runtime.id() != own);
        let next = state.runtimes.front().cloned();
        let next = next.and_then(|runtime| self.agent.new_task(&mut state, runtime));
        drop(state);
        next.into_iter().for_each(Self::start);
    }
}
