//! Group commit: checks that come while a batch is on its way leave together in the next.
//!
//! A lane is a connection and a queue. A check that finds the lane idle leaves at once, on its
//! own, and on its caller's task: no other has to wake up for it. Under load, up to [`IN_FLIGHT`]
//! tasks send one batch after another, so that the server has the next one at hand when it is done
//! with one; what comes meanwhile gathers. There is no timer: the batches grow with the load, and
//! no check waits for another to come.
//!
//! The lane keeps the order: batches leave in the order in which they were begun, on one
//! connection, and Redis decides in that order.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};
use tokio::runtime::Handle as Runtime;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::batch::{Batch, MAX_CHARGES};
use super::call;
use super::connection::{Connections, Handle};
use crate::clock::ManualClock;
use crate::store::{Answer, Promise};
use crate::{Charge, Decision, Error, Op};

/// Batches on their way at a time.
const IN_FLIGHT: usize = 2;

/// What all lanes of a store have in common.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) prefix: Arc<str>,
    pub(super) deadline: Duration,
    pub(super) max_waiting: usize,
    pub(super) clock: Option<ManualClock>,
}

/// A queue of checks, and the connection they leave on.
pub(super) struct Lane {
    connections: Connections,
    settings: Settings,
    queue: Mutex<Queue>,
    /// Held from taking a batch until it is handed to the connection, so that none overtakes.
    leaving: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    /// Checks in those.
    waiting: usize,
    senders: usize,
    /// Whether a caller sees to a check that came alone.
    escorted: bool,
    /// Batches that are done, to be filled again.
    spare: Vec<Batch>,
}

/// What sends one batch after another, until none waits. Dropped before that, as with its runtime,
/// it leaves nobody waiting.
struct Sender {
    lane: Arc<Lane>,
    done: bool,
}

/// The caller of a check that came alone, who sends it.
struct Escort(Arc<Lane>);

/// The answer of the script, to come.
type Reply = Pin<Box<dyn Future<Output = RedisResult<Vec<i64>>> + Send>>;

/// What became of the first batch in the queue.
enum Departure {
    /// There is none, or nobody waits for it any more.
    None,
    /// It is on its way.
    Sent(Batch, Reply),
    /// It came to nothing, and is in the queue again.
    Unsent(RedisError),
    /// It was answered at once, as by a connection that is gone.
    Failed(Batch, RedisError),
}

impl Lane {
    pub(super) fn new(connections: Connections, settings: Settings) -> Arc<Self> {
        let (queue, leaving) = Default::default();
        Arc::new(Self { connections, settings, queue, leaving })
    }

    pub(super) async fn connect(&self) -> Result<(), String> {
        self.connections.get().await.map(drop)
    }

    /// Lines a check up.
    pub(super) fn ask(self: &Arc<Self>, op: Op, charges: &[Charge<'_>]) -> Answer {
        let Settings { prefix, deadline, max_waiting, .. } = &self.settings;
        let deadline = Instant::now() + *deadline;
        let mut queue = self.queue();
        if queue.is_full_for(charges, prefix, *max_waiting) {
            return Answer::ready(Err(Error::overloaded(*max_waiting)));
        }
        let (promise, answer) = Promise::new();
        queue.batch_for(charges).push(prefix, op, charges, deadline, promise);
        queue.waiting += 1;
        if queue.senders == IN_FLIGHT {
            return answer;
        }
        // It may come to others that its caller never waits; they send what is there themselves.
        if queue.senders == 0 && queue.waiting == 1 && !queue.escorted {
            queue.escorted = true;
            drop(queue);
            return Answer::later(Escort(Arc::clone(self)).see_to(answer));
        }
        drop(queue);
        match Runtime::try_current() {
            Ok(runtime) => {
                self.send_on(&runtime);
                answer
            }
            // Asked outside of the runtime, it is sent once somebody waits for it inside.
            Err(_) => {
                let lane = Arc::clone(self);
                Answer::later(async move {
                    lane.send_on(&Runtime::current());
                    answer.await
                })
            }
        }
    }

    /// Begins to send what waits, unless enough do.
    fn send_on(self: &Arc<Self>, runtime: &Runtime) {
        let mut queue = self.queue();
        if queue.senders < IN_FLIGHT && !queue.batches.is_empty() {
            queue.senders += 1;
            drop(queue);
            runtime.spawn(Sender { lane: Arc::clone(self), done: false }.run());
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the first batch to the connection.
    fn depart(&self, connection: &MultiplexedConnection, cx: &mut Context<'_>) -> Departure {
        let _one_by_one = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut batch) = self.queue().pop() else { return Departure::None };
        batch.seal(Instant::now());
        if batch.is_empty() {
            self.queue().recycle(batch);
            return Departure::None;
        }
        let command = call::command(&batch, self.settings.clock.as_ref().map(ManualClock::now));
        let mut reply = Box::pin(call::run(command, connection.clone()));
        // A call is handed to the connection's task when it is first polled. If that task is gone,
        // as after the server closed the connection while nobody used it, it is known at once: the
        // batch did not leave. An error that comes later may be a lost answer.
        match reply.as_mut().poll(cx) {
            Poll::Ready(Err(error)) if error.is_unrecoverable_error() && batch.may_try_again() => {
                self.queue().put_back(batch);
                Departure::Unsent(error)
            }
            Poll::Ready(Err(error)) => Departure::Failed(batch, error),
            Poll::Ready(Ok(reply)) => Departure::Sent(batch, Box::pin(ready(Ok(reply)))),
            Poll::Pending => Departure::Sent(batch, reply),
        }
    }

    async fn depart_on(&self, handle: &Handle) -> Departure {
        poll_fn(|cx| Poll::Ready(self.depart(&handle.connection, cx))).await
    }

    /// Waits for a batch's answers.
    async fn see_through(&self, handle: &Handle, mut batch: Batch, reply: Reply) {
        let answer = in_time(&mut batch, reply).await;
        self.conclude(handle, batch, answer);
    }

    /// Tells everybody in a batch what it was answered, if it was.
    fn conclude(&self, handle: &Handle, mut batch: Batch, answer: Option<RedisResult<Vec<i64>>>) {
        match answer {
            Some(Ok(reply)) => batch.conclude(&reply),
            Some(Err(error)) => {
                if call::ends_connection(&error) {
                    self.connections.discard(handle, &error);
                }
                let error = Arc::new(error);
                batch.fail(|| Error::store(Arc::clone(&error)));
            }
            None => self.connections.discard(handle, &Error::timeout()),
        }
        self.queue().recycle(batch);
    }

    /// Fails the checks that could not leave in time, or the whole batch that could not leave.
    fn fail_first(&self, now: Option<Instant>, reason: &str) {
        let mut queue = self.queue();
        let Some(mut batch) = queue.pop() else { return };
        let error = || Error::unreachable(reason.to_owned());
        match now {
            Some(now) => batch.expire(now, error),
            None => batch.fail(error),
        }
        if batch.first_deadline().is_some() && now.is_some() {
            queue.put_back(batch);
        } else {
            queue.recycle(batch);
        }
    }
}

impl Queue {
    /// Whether it has no room for one more check, or not for this one: the second half of the
    /// room is not for a key that alone takes up a quarter of the newest batch.
    fn is_full_for(&self, charges: &[Charge<'_>], prefix: &str, max_waiting: usize) -> bool {
        let crowded = || {
            self.batches.back().is_some_and(|batch| {
                charges.iter().any(|charge| batch.checks_of(prefix, charge) > MAX_CHARGES / 4)
            })
        };
        self.waiting >= max_waiting || (self.waiting >= max_waiting / 2 && crowded())
    }

    /// The batch that the next check goes into.
    fn batch_for(&mut self, charges: &[Charge<'_>]) -> &mut Batch {
        if !self.batches.back().is_some_and(|batch| batch.has_room_for(charges)) {
            self.batches.push_back(self.spare.pop().unwrap_or_default());
        }
        let last = self.batches.len() - 1;
        &mut self.batches[last]
    }

    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.waiting -= batch.len();
        Some(batch)
    }

    fn put_back(&mut self, batch: Batch) {
        self.waiting += batch.len();
        self.batches.push_front(batch);
    }

    fn recycle(&mut self, mut batch: Batch) {
        if self.spare.len() < IN_FLIGHT {
            batch.clear();
            self.spare.push(batch);
        }
    }
}

impl Sender {
    async fn run(mut self) {
        while let Some(deadline) = self.next_deadline() {
            match timeout_at(deadline, self.lane.connections.get()).await {
                Ok(Ok(handle)) => self.send(&handle).await,
                Ok(Err(reason)) => self.lane.fail_first(None, &reason),
                Err(_) => {
                    let now = Some(Instant::now());
                    self.lane.fail_first(now, "no connection within the deadline");
                }
            }
            // Those who were answered go first: their next checks leave together.
            yield_now().await;
        }
    }

    /// Until when the next check has to be answered. None, and this sender is through, if none
    /// waits.
    fn next_deadline(&mut self) -> Option<Instant> {
        let mut queue = self.lane.queue();
        let deadline = queue.batches.front().and_then(Batch::first_deadline);
        if deadline.is_none() {
            queue.senders -= 1;
            drop(queue);
            self.done = true;
        }
        deadline
    }

    /// Sends the first batch, and sees to its answers.
    async fn send(&self, handle: &Handle) {
        let lane = &self.lane;
        match lane.depart_on(handle).await {
            Departure::None => {}
            Departure::Unsent(error) => lane.connections.discard(handle, &error),
            Departure::Failed(batch, error) => lane.conclude(handle, batch, Some(Err(error))),
            Departure::Sent(batch, reply) => lane.see_through(handle, batch, reply).await,
        }
    }
}

impl Escort {
    /// Sends what is first in the queue, which is the caller's check unless another took it along.
    async fn see_to(self, answer: Answer) -> Result<Decision, Error> {
        let Self(lane) = &self;
        let Some(handle) = lane.connections.current() else {
            lane.send_on(&Runtime::current());
            return answer.await;
        };
        match lane.depart_on(&handle).await {
            Departure::None => {}
            Departure::Unsent(error) => {
                lane.connections.discard(&handle, &error);
                lane.send_on(&Runtime::current());
            }
            Departure::Failed(batch, error) => lane.conclude(&handle, batch, Some(Err(error))),
            Departure::Sent(batch, reply) if batch.len() == 1 => {
                lane.see_through(&handle, batch, reply).await;
            }
            // Others came along, who must not wait for this caller to go on.
            Departure::Sent(batch, reply) => {
                let lane = Arc::clone(lane);
                Runtime::current()
                    .spawn(async move { lane.see_through(&handle, batch, reply).await });
            }
        }
        answer.await
    }
}

/// The answer, unless all deadlines of the batch are over before. Each check's own holds.
async fn in_time<T>(batch: &mut Batch, mut answer: impl Future<Output = T> + Unpin) -> Option<T> {
    while let Some(deadline) = batch.first_deadline() {
        match timeout_at(deadline, &mut answer).await {
            Ok(answer) => return Some(answer),
            Err(_) => batch.expire(Instant::now(), Error::timeout),
        }
    }
    None
}

impl Drop for Escort {
    fn drop(&mut self) {
        self.0.queue().escorted = false;
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.done {
            let mut queue = self.lane.queue();
            queue.senders -= 1;
            if queue.senders == 0 {
                // Their promises are dropped with them: that is an answer, too.
                queue.batches.clear();
                queue.waiting = 0;
            }
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("prefix", &self.settings.prefix)
            .field("deadline", &self.settings.deadline)
            .field("max_waiting", &self.settings.max_waiting)
            .finish_non_exhaustive()
    }
}
