//! The task that tells a store what a process has and wants.
//!
//! It claims up to 256 slots in one call, with up to four calls in flight, and never two for one slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::agent::{Agent, SentCall, State};
use crate::nouns::{Error, later};
use crate::store::permits::Claim;

/// The most claims in one call.
const MAX_CLAIMS: usize = 256;

/// The most calls in flight.
const IN_FLIGHT: usize = 4;

/// While the store is unavailable, so many keys are kept to be told. What is left out ends with its lease.
const MAX_UNTOLD: usize = 10_000;

/// A task that has not looked for so long is on a thread that stands still. More than it pauses, and less than the half a
/// second after which a caller looks: that one still gets its answer.
const STANDS_STILL: Duration = Duration::from_millis(400);

/// The most runtimes that are remembered.
const MAX_RUNTIMES: usize = 8;

impl Agent {
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

    /// Sends what is queued. The calls are tasks of their own.
    fn send(self: &Arc<Self>) {
        // A runtime that shuts down drops each call at once, and its claims are queued again.
        for _ in 0..IN_FLIGHT {
            let Some((number, claims)) = self.next_call() else { return };
            let call = Call { agent: Arc::clone(self), number };
            let claimed = self.store.claim(claims);
            tokio::spawn(async move {
                call.agent.answered(call.number, claimed.await);
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
        Some(if state.waiting.is_empty() { self.paces.retry } else { self.paces.poll })
    }

    /// The claims of the next call.
    fn next_call(&self) -> Option<(u64, Vec<Claim>)> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.calls.len() >= IN_FLIGHT {
            return None;
        }
        let (mut keys, mut claims) = (Vec::new(), Vec::new());
        state.queues.take(&mut state.slots, MAX_CLAIMS, |key, slot| {
            claims.push(key.claim(slot, self.lease));
            keys.push(key);
        });
        if keys.is_empty() {
            return None;
        }
        state.sent += 1;
        state.calls.insert(state.sent, SentCall { keys, at: Instant::now() });
        Some((state.sent, claims))
    }

    /// Hands out what a call was granted, unless it counts as lost.
    fn answered(self: &Arc<Self>, number: u64, answers: Vec<Result<u64, Error>>) {
        let missing = || Err(Error::store("the store of permits gave no answer to a claim"));
        let answers = answers.into_iter().chain(std::iter::repeat_with(missing));
        let mut outcomes = Vec::new();
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(SentCall { keys, .. }) = state.calls.remove(&number) else { return };
        let is_full = state.slots.len() > MAX_UNTOLD;
        for (key, answer) in keys.into_iter().zip(answers) {
            let Some(slot) = state.slots.get_mut(&key) else { continue };
            let due = match &answer {
                Ok(granted) => slot.answered(*granted),
                Err(_) => slot.failed(),
            };
            state.queues.enter(&key, slot);
            if slot.is_over() || (is_full && slot.is_idle()) {
                state.remove(&key);
            }
            outcomes.push((key, due, answer.err()));
        }
        drop(guard);
        for (key, due, error) in outcomes {
            self.hand_out(&key, due, error.as_ref());
        }
        self.told.notify_waiters();
        self.wake.notify_one();
    }

    /// A call ends without an answer. Its claims are sent again: they say what is true, so it does not matter if they arrive
    /// twice.
    fn lost(&self, number: u64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(SentCall { keys, .. }) = state.calls.remove(&number) else { return };
        let is_full = state.slots.len() > MAX_UNTOLD;
        for key in keys {
            let Some(slot) = state.slots.get_mut(&key) else { continue };
            slot.lost();
            match is_full && slot.is_idle() {
                true => state.remove(&key),
                false => state.queues.enter(&key, slot),
            }
        }
    }

    /// Gives up calls that have been in flight for too long: the runtime that awaits them stands still, or the store does
    /// not answer.
    fn give_up_late_calls(&self) {
        let state = self.lock();
        let is_late = |call: &SentCall| call.at.elapsed() >= self.paces.lost;
        let late = state.calls.iter().filter(|(_, call)| is_late(call));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        drop(state);
        late.into_iter().for_each(|number| self.lost(number));
    }
}

/// A call in flight. Dropped without an answer, it is lost: its runtime was shut down.
struct Call {
    agent: Arc<Agent>,
    number: u64,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.agent.lost(self.number);
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
                agent.give_up_late_calls();
                agent.look();
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
