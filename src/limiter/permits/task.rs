//! The task that claims slots: up to 256 in one call, with up to four calls in flight, and one claim for each slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use super::agent::Agent;
use super::state::{SentCall, Slots};
use crate::nouns::{Error, later};
use crate::store::permits::Claim;

/// The most claims in one call.
const MAX_CLAIMS: usize = 256;

/// The most calls in flight.
const IN_FLIGHT: usize = 4;

/// The most slots that are kept for releases while the store is unavailable. The leases of others expire.
const MAX_UNCONFIRMED: usize = 10_000;

/// The age of the last round at which the task counts as blocked. It is above the longest pause of the task, and below the
/// half second after which callers check.
const BLOCKED_AFTER: Duration = Duration::from_millis(400);

const MAX_RUNTIMES: usize = 8;

impl Agent {
    /// Starts the task, unless it runs. A blocked task is replaced.
    pub(super) fn ensure_task(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else {
            // A later call in a runtime starts it, or the leases expire.
            return;
        };
        let mut state = self.lock();
        if state
            .runtimes
            .iter()
            .all(|known| known.id() != runtime.id())
        {
            state.runtimes.truncate(MAX_RUNTIMES - 1);
            state.runtimes.push_front(runtime.clone());
        }
        if state.rounds.is_alive(Instant::now(), BLOCKED_AFTER) {
            return;
        }
        let running = self.new_task(&mut state, runtime);
        drop(state);
        running.into_iter().for_each(Running::start);
    }

    /// A new task, if one is needed. Start it after the state is unlocked: a runtime that shuts down drops it at once.
    fn new_task(self: &Arc<Self>, state: &mut Slots, runtime: Runtime) -> Option<Running> {
        if self.has_nothing_to_do(state) {
            return None;
        }
        state.tasks += 1;
        state.task = Some(state.tasks);
        state.rounds.beat(Instant::now());
        Some(Running {
            agent: Arc::clone(self),
            task: state.tasks,
            runtime,
        })
    }

    /// Sends the queued slots. The calls are tasks of their own.
    fn send(self: &Arc<Self>) {
        // Bounded, because a runtime that shuts down drops each call at once, and its slots are queued again.
        for _ in 0..IN_FLIGHT {
            let Some((number, claims)) = self.next_call() else {
                return;
            };
            let call = ClaimCall {
                agent: Arc::clone(self),
                number,
            };
            let claimed = timeout(self.paces.lost, self.store.claim(claims));
            tokio::spawn(async move {
                if let Ok(answers) = claimed.await {
                    call.agent.answered(call.number, answers);
                }
            });
        }
    }

    /// Begins a round of the task, and returns the time until the next. `None` if the task ends.
    fn begin_round(&self, task: u64) -> Option<Duration> {
        let mut state = self.lock();
        if state.task != Some(task) {
            return None;
        }
        if self.has_nothing_to_do(&state) {
            state.task = None;
            state.rounds.end();
            return None;
        }
        state.rounds.beat(Instant::now());
        Some(if state.waiting.is_empty() {
            self.paces.retry
        } else {
            self.paces.poll
        })
    }

    /// The claims of the next call.
    fn next_call(&self) -> Option<(u64, Vec<Claim>)> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.calls.len() >= IN_FLIGHT {
            return None;
        }
        let mut keys = Vec::new();
        let mut claims = Vec::new();
        state
            .queues
            .take(&mut state.slots, MAX_CLAIMS, |key, slot| {
                claims.push(slot.claim(&key, self.lease));
                keys.push(key);
            });
        if keys.is_empty() {
            return None;
        }
        state.sent += 1;
        state.calls.insert(
            state.sent,
            SentCall {
                keys,
                at: Instant::now(),
            },
        );
        Some((state.sent, claims))
    }

    /// Applies the answers to a call, unless it counts as lost.
    fn answered(self: &Arc<Self>, number: u64, answers: Vec<Result<u64, Error>>) {
        let missing = || {
            Err(Error::store(
                "the store of permits gave no answer to a claim",
            ))
        };
        let answers = answers.into_iter().chain(std::iter::repeat_with(missing));
        let mut outcomes = Vec::new();
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(SentCall { keys, .. }) = state.calls.remove(&number) else {
            return;
        };
        let is_full = state.slots.len() > MAX_UNCONFIRMED;
        for (key, answer) in keys.into_iter().zip(answers) {
            let Some(slot) = state.slots.get_mut(&key) else {
                continue;
            };
            let due = match &answer {
                Ok(granted) => slot.answered(*granted),
                Err(_) => slot.failed(),
            };
            state.queues.queue(&key, slot);
            if slot.is_over() || (is_full && slot.is_idle()) {
                state.remove(&key);
            }
            outcomes.push((key, due, answer.err()));
        }
        drop(guard);
        for (key, due, error) in outcomes {
            self.hand_out(&key, due, error.as_ref());
        }
        self.answered.notify_waiters();
        self.wake.notify_one();
    }

    /// A call ended without an answer. Its slots are claimed again: a claim that arrives twice changes nothing.
    fn lost(&self, number: u64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(SentCall { keys, .. }) = state.calls.remove(&number) else {
            return;
        };
        let is_full = state.slots.len() > MAX_UNCONFIRMED;
        for key in keys {
            let Some(slot) = state.slots.get_mut(&key) else {
                continue;
            };
            slot.lost();
            match is_full && slot.is_idle() {
                true => state.remove(&key),
                false => state.queues.queue(&key, slot),
            }
        }
    }

    /// Gives up calls whose runtime is blocked, so that their deadlines do not fire.
    fn give_up_late_calls(&self) {
        let state = self.lock();
        let is_late = |call: &SentCall| call.at.elapsed() >= self.paces.lost;
        let late = state.calls.iter().filter(|(_, call)| is_late(call));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        drop(state);
        late.into_iter().for_each(|number| self.lost(number));
    }
}

/// A call in flight. It is lost if it is dropped without an answer: by its deadline, or with its runtime.
struct ClaimCall {
    agent: Arc<Agent>,
    number: u64,
}

impl Drop for ClaimCall {
    fn drop(&mut self) {
        self.agent.lost(self.number);
    }
}

/// The task. It runs while permits are held or wanted.
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
        let agent = &self.agent;
        let mut last_scan = Instant::now();
        loop {
            agent.send();
            let Some(pause) = agent.begin_round(self.task) else {
                return;
            };
            let next_scan = later(last_scan, pause);
            drop(timeout_at(next_scan, agent.wake.notified()).await);
            // More slots join the next call. And a runtime that shuts down drops the task here.
            yield_now().await;
            if Instant::now() >= next_scan {
                last_scan = Instant::now();
                agent.give_up_late_calls();
                agent.claim_due();
            }
        }
    }
}

impl Drop for Running {
    /// The task moves to another runtime when its own shuts down.
    fn drop(&mut self) {
        let mut state = self.agent.lock();
        if state.task != Some(self.task) {
            return;
        }
        state.task = None;
        state.rounds.end();
        let own = self.runtime.id();
        state.runtimes.retain(|runtime| runtime.id() != own);
        let next = state.runtimes.front().cloned();
        let next = next.and_then(|runtime| self.agent.new_task(&mut state, runtime));
        drop(state);
        next.into_iter().for_each(Self::start);
    }
}
