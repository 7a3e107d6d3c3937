//! The task that claims holders, with one claim at a time for each holder, and all at once that are
//! queued.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::{unconstrained, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use super::AGENTS;
use super::agent::Agent;
use super::hashed_budget::HashedBudget;
use super::local_holders::LocalHolders;
use crate::model::{Decision, Error};
use crate::store::Answer;
use crate::units::later;

/// The most holders of an agent that hold nothing and whose claim failed. Any further one is
/// forgotten, because its lease expires.
const MOST_UNCONFIRMED: usize = 10_000 / AGENTS;

/// The age of the last round at which the task counts as blocked. It is above the longest pause of
/// the task, and below the half second after which callers check.
const BLOCKED_AFTER: Duration = Duration::from_millis(400);

impl Agent {
    /// Starts the task, unless it runs. A blocked task is replaced. Outside of a runtime, a known
    /// one runs it.
    pub(super) fn ensure_task(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.rounds.is_alive(Instant::now(), BLOCKED_AFTER) {
            return;
        }
        let runtime = match Runtime::try_current() {
            Ok(runtime) => {
                self.runtimes.add(&runtime);
                runtime
            }
            Err(_) => match self.runtimes.newest() {
                Some(known) => known,
                // A later call in a runtime starts it, or the leases expire.
                None => return,
            },
        };
        // The answers to its claims are awaited in its runtime, which is blocked.
        let stuck = match state.running {
            Some(_) => state.queues.sent(),
            None => Vec::new(),
        };
        let running = self.new_task(&mut state, runtime);
        drop(state);
        running.into_iter().for_each(AgentTask::start);
        self.give_up(&stuck);
    }

    /// A new task, if one is needed. Start it after the state is unlocked, because a runtime that
    /// shuts down drops it at once.
    fn new_task(self: &Arc<Self>, state: &mut LocalHolders, runtime: Runtime) -> Option<AgentTask> {
        if self.has_nothing_to_do(state) {
            return None;
        }
        state.started += 1;
        state.running = Some(state.started);
        // The task that is replaced ends, and leaves the next signal to the new one.
        self.wake.notify_waiters();
        state.rounds.beat(Instant::now());
        Some(AgentTask {
            agent: Arc::clone(self),
            task: state.started,
            runtime,
        })
    }

    /// Sends the claims of queued holders. A separate task awaits the answers.
    fn send(self: &Arc<Self>) {
        let mut state = self.lock();
        let claims = state.take(self.lease);
        let unawaited = state.queues.take_unawaited();
        drop(state);
        let new = claims.iter().map(|(number, _)| *number);
        let mut under_way = ClaimsUnderWay {
            agent: Arc::clone(self),
            numbers: new
                .chain(unawaited.iter().map(|(number, _)| *number))
                .collect(),
        };
        if under_way.numbers.is_empty() {
            return;
        }
        // tokio's cooperative budget would be used up by the timers of the first claims, and the
        // last ones would never get theirs.
        tokio::spawn(unconstrained(async move {
            let agent = &under_way.agent;
            let mut answers = unawaited;
            answers.extend(claims.into_iter().map(|(number, claim)| {
                let answer = agent.store.apply(claim);
                (number, answer)
            }));
            let answered = timeout(agent.paces.lost, agent.await_answers(answers)).await;
            if answered.is_ok() {
                under_way.numbers.clear();
            }
        }));
    }

    /// Applies answers as they come, until all are there.
    async fn await_answers(self: &Arc<Self>, mut answers: Vec<(u64, Answer)>) {
        poll_fn(|cx| {
            let mut ready = Vec::new();
            answers.retain_mut(|(number, answer)| match Pin::new(answer).poll(cx) {
                Poll::Ready(answer) => {
                    ready.push((*number, answer));
                    false
                }
                Poll::Pending => true,
            });
            if !ready.is_empty() {
                self.apply_answers(ready);
            }
            match answers.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Begins a round of the task, and returns the time until the next. `None` if the task ends.
    fn begin_round(&self, task: u64) -> Option<Duration> {
        let mut state = self.lock();
        if state.running != Some(task) {
            return None;
        }
        if self.has_nothing_to_do(&state) {
            state.end_task();
            return None;
        }
        state.rounds.beat(Instant::now());
        Some(if state.watched.is_empty() {
            self.paces.retry
        } else {
            self.paces.poll
        })
    }

    /// Applies answers. The answer to a claim that counts as lost changes nothing.
    fn apply_answers(self: &Arc<Self>, answers: Vec<(u64, Result<Decision, Error>)>) {
        let now = Instant::now();
        let mut outcomes = Vec::with_capacity(answers.len());
        let mut guard = self.lock();
        let state = &mut *guard;
        if answers.iter().any(|(_, answer)| answer.is_ok()) {
            state.answered_at = Some(now);
        }
        for (number, answer) in answers {
            let Some((budget, holder)) = state.land(number) else {
                continue;
            };
            let mut deliveries = Vec::new();
            match &answer {
                Ok(decision) => holder.apply_answer(decision.remaining(), now, &mut deliveries),
                Err(error) => holder.apply_failure(error, now, &mut deliveries),
            }
            outcomes.push((budget.clone(), deliveries, answer.err()));
            self.requeue_or_remove(state, &budget);
        }
        drop(guard);
        for (budget, deliveries, error) in outcomes {
            self.deliver(&budget, deliveries, error.as_ref());
        }
        self.claims_ended.notify_waiters();
        self.wake.notify_one();
    }

    /// Queues a holder whose claim is over if it has changed meanwhile, and forgets it if nothing
    /// is left.
    pub(super) fn requeue_or_remove(&self, state: &mut LocalHolders, budget: &Arc<HashedBudget>) {
        let Some(holder) = state.holders.get_mut(budget) else {
            return;
        };
        state.queues.enqueue(budget, holder);
        // Nothing expires in an embedded store.
        let is_unconfirmed = !self.is_embedded && holder.is_idle_after_failure();
        if is_unconfirmed {
            state.unconfirmed.insert(budget.clone());
        } else {
            state.unconfirmed.remove(budget);
        }
        let is_forgotten = is_unconfirmed && state.unconfirmed.len() > MOST_UNCONFIRMED;
        if holder.is_over() || is_forgotten {
            state.remove(budget);
        } else if self.is_embedded && holder.is_watched() {
            state.watched.insert(budget.clone());
        }
    }

    /// Gives up the claims that are not answered, and queues their holders again. A claim that
    /// arrives twice changes nothing.
    fn give_up(self: &Arc<Self>, numbers: &[u64]) {
        let now = Instant::now();
        let mut are_lost = false;
        let mut guard = self.lock();
        let state = &mut *guard;
        for number in numbers {
            if let Some((budget, holder)) = state.land(*number) {
                holder.apply_loss(now);
                self.requeue_or_remove(state, &budget);
                are_lost = true;
            }
        }
        drop(guard);
        if are_lost {
            self.claims_ended.notify_waiters();
            self.ensure_task();
            self.wake.notify_one();
        }
    }

    /// Gives up claims whose runtime is blocked, so that their deadlines do not fire.
    fn give_up_late_claims(self: &Arc<Self>) {
        let late = self.lock().queues.sent_before(self.paces.lost);
        self.give_up(&late);
    }
}

/// Claims in flight. Those without an answer are lost when this is dropped, after a deadline, or
/// with their runtime.
struct ClaimsUnderWay {
    agent: Arc<Agent>,
    numbers: Vec<u64>,
}

impl Drop for ClaimsUnderWay {
    fn drop(&mut self) {
        if !self.numbers.is_empty() {
            self.agent.give_up(&self.numbers);
        }
    }
}

/// The task. It runs while permits are held or wanted.
struct AgentTask {
    agent: Arc<Agent>,
    task: u64,
    runtime: Runtime,
}

impl AgentTask {
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
            // More holders join the next call. A runtime that shuts down drops the task here.
            yield_now().await;
            if Instant::now() >= next_scan {
                last_scan = Instant::now();
                agent.give_up_late_claims();
                agent.claim_due();
            }
        }
    }
}

impl Drop for AgentTask {
    /// The task moves to another runtime when its own shuts down.
    fn drop(&mut self) {
        let mut state = self.agent.lock();
        if state.running != Some(self.task) {
            return;
        }
        state.end_task();
        let runtimes = &self.agent.runtimes;
        runtimes.remove(self.runtime.id());
        let next = runtimes.newest();
        let next = next.and_then(|runtime| self.agent.new_task(&mut state, runtime));
        drop(state);
        next.into_iter().for_each(Self::start);
    }
}
