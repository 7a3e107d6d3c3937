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
use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};
use tokio::runtime::Handle as Runtime;
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout};

use super::batch::{Batch, MAX_CHARGES};
use super::call;
use super::connection::{CONNECT_TIMEOUT, Connections, in_words};
use super::sender::{Escort, Sender};
use crate::clock::ManualClock;
use crate::store::{Answer, Promise};
use crate::{Charge, Error, Op};

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
    pub(super) connections: Connections,
    settings: Settings,
    queue: Mutex<Queue>,
    /// Held from taking a batch until it is handed to the connection, so that none overtakes.
    leaving: Mutex<()>,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) batches: VecDeque<Batch>,
    /// Checks in those.
    pub(super) waiting: usize,
    pub(super) senders: usize,
    /// Whether a caller sees to a check that came alone.
    pub(super) escorted: bool,
    /// Batches that are done, to be filled again.
    spare: Vec<Batch>,
}

/// The answer of the script, to come.
pub(super) type Reply = Pin<Box<dyn Future<Output = RedisResult<Vec<i64>>> + Send>>;

/// What became of the first batch in the queue.
pub(super) enum Departure {
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

    /// Connects, and loads the script: a server that wants a password that it was not given says so
    /// now, and not at the first check.
    pub(super) async fn connect(&self) -> Result<(), String> {
        let mut handle = self.connections.get().await?;
        match timeout(CONNECT_TIMEOUT, call::greet(&mut handle.connection)).await {
            Ok(loaded) => loaded.map_err(|error| in_words(&error)),
            Err(_) => Err(format!("no answer within {CONNECT_TIMEOUT:?}")),
        }
    }

    /// Lines a check up.
    pub(super) fn ask(self: &Arc<Self>, op: Op, charges: &[Charge<'_>]) -> Answer {
        let Settings { prefix, deadline, max_waiting, .. } = &self.settings;
        let deadline = crate::clock::later(Instant::now(), *deadline);
        let mut queue = self.queue();
        if queue.is_full_for(charges, prefix, *max_waiting) {
            // Those who went away before anybody sent their checks must not take up the room for good.
            let nobody_sends = queue.senders == 0;
            drop(queue);
            if nobody_sends {
                // Outside of a runtime nobody can; whoever comes next inside will.
                drop(self.send());
            }
            return Answer::ready(Err(Error::overloaded(*max_waiting)));
        }
        let (promise, answer) = Promise::new();
        let comes_alone = queue.senders == 0 && queue.waiting == 0 && !queue.escorted;
        let batch = queue.batch_for(charges);
        batch.push(prefix, op, charges, deadline, promise);
        batch.has_escort |= comes_alone;
        queue.waiting += 1;
        if queue.senders == IN_FLIGHT {
            return answer;
        }
        if comes_alone {
            // Its caller may never ask for the answer. Whoever comes next takes it along then.
            queue.escorted = true;
            drop(queue);
            return Answer::later(Escort::new(Arc::clone(self)).see_to(answer));
        }
        drop(queue);
        if self.send().is_ok() {
            return answer;
        }
        // Asked outside of the runtime, it is sent once somebody waits for it inside.
        let lane = Arc::clone(self);
        Answer::later(async move {
            lane.send()?;
            answer.await
        })
    }

    /// Begins to send what waits, unless enough do.
    pub(super) fn send(self: &Arc<Self>) -> Result<(), Error> {
        let runtime = Runtime::try_current().map_err(Error::misuse)?;
        let mut queue = self.queue();
        if queue.senders < IN_FLIGHT && !queue.batches.is_empty() {
            queue.senders += 1;
            drop(queue);
            runtime.spawn(Sender::new(Arc::clone(self)).run());
        }
        Ok(())
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the first batch to the connection, if it is `wanted`.
    pub(super) fn depart(
        &self,
        connection: &MultiplexedConnection,
        cx: &mut Context<'_>,
        wanted: impl FnOnce(&Batch) -> bool,
    ) -> Departure {
        let _one_by_one = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut batch) = self.queue().pop_if(wanted) else { return Departure::None };
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
        // Whatever else its caller has done in this turn, it has to be handed over now.
        match pin!(unconstrained(reply.as_mut())).poll(cx) {
            Poll::Ready(Err(error)) if error.is_unrecoverable_error() && batch.may_try_again() => {
                self.queue().put_back(batch);
                Departure::Unsent(error)
            }
            Poll::Ready(Err(error)) => Departure::Failed(batch, error),
            Poll::Ready(Ok(reply)) => Departure::Sent(batch, Box::pin(ready(Ok(reply)))),
            Poll::Pending => Departure::Sent(batch, reply),
        }
    }

    /// Fails the checks that could not leave in time, or the whole batch that could not leave.
    pub(super) fn fail_first(&self, now: Option<Instant>, reason: &str) {
        let mut queue = self.queue();
        let Some(mut batch) = queue.pop_if(|_| true) else { return };
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

    fn pop_if(&mut self, wanted: impl FnOnce(&Batch) -> bool) -> Option<Batch> {
        self.batches.front().filter(|batch| wanted(batch))?;
        let batch = self.batches.pop_front()?;
        self.waiting -= batch.len();
        Some(batch)
    }

    fn put_back(&mut self, batch: Batch) {
        self.waiting += batch.len();
        self.batches.push_front(batch);
    }

    pub(super) fn recycle(&mut self, mut batch: Batch) {
        if self.spare.len() < IN_FLIGHT {
            batch.clear();
            self.spare.push(batch);
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
