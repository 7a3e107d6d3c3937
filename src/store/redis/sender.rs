//! Who sends the batches of a lane, and sees to it that everybody in them gets an answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use redis::RedisResult;
use tokio::runtime::Handle as Runtime;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::batch::Batch;
use super::call;
use super::connection::Handle;
use super::lane::{Departure, Lane, Reply};
use crate::store::Answer;
use crate::{Decision, Error};

/// What sends one batch after another, until none waits. Dropped before that, as with its runtime,
/// it leaves nobody waiting.
pub(super) struct Sender {
    lane: Arc<Lane>,
    done: bool,
}

/// The caller of a check that came alone: it sends its check itself.
pub(super) struct Escort(Arc<Lane>);

impl Sender {
    pub(super) const fn new(lane: Arc<Lane>) -> Self {
        Self { lane, done: false }
    }

    pub(super) async fn run(mut self) {
        while let Some(deadline) = self.next_deadline() {
            match timeout_at(deadline, self.lane.connections.get()).await {
                Ok(Ok(handle)) => self.send(handle).await,
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
    async fn send(&self, handle: Handle) {
        let lane = &self.lane;
        match poll_fn(|cx| Poll::Ready(lane.depart(&handle.connection, cx, |_| true))).await {
            Departure::None => {}
            Departure::Unsent(error) => lane.connections.discard(&handle, &error),
            Departure::Failed(batch, error) => conclude(lane, &handle, batch, Some(Err(error))),
            Departure::Sent(batch, reply) => {
                Travel { lane: Arc::clone(lane), handle, batch, reply }.see_through().await;
            }
        }
    }
}

impl Escort {
    pub(super) const fn new(lane: Arc<Lane>) -> Self {
        Self(lane)
    }

    /// Sends the caller's check, unless somebody took it along.
    pub(super) async fn see_to(self, answer: Answer) -> Result<Decision, Error> {
        let Self(lane) = &self;
        let runtime = Runtime::try_current().map_err(Error::misuse)?;
        let Some(handle) = lane.connections.current() else {
            lane.send()?;
            return answer.await;
        };
        let is_own = |batch: &Batch| batch.has_escort;
        match poll_fn(|cx| Poll::Ready(lane.depart(&handle.connection, cx, is_own))).await {
            Departure::None => {}
            Departure::Unsent(error) => {
                lane.connections.discard(&handle, &error);
                lane.send()?;
            }
            Departure::Failed(batch, error) => conclude(lane, &handle, batch, Some(Err(error))),
            Departure::Sent(batch, reply) => {
                let is_alone = batch.len() == 1;
                let travel = Some(Travel { lane: Arc::clone(lane), handle, batch, reply });
                let mut escorted = Escorted { travel, runtime };
                // Others who came along must not wait for this caller to go on.
                if is_alone {
                    escorted.see_through().await;
                }
            }
        }
        answer.await
    }
}

/// A batch on its way.
struct Travel {
    lane: Arc<Lane>,
    handle: Handle,
    batch: Batch,
    reply: Reply,
}

impl Travel {
    async fn see_through(mut self) {
        let answer = self.answer().await;
        self.conclude(answer);
    }

    /// The answer, unless all deadlines of the batch are over before. Each check's own holds.
    async fn answer(&mut self) -> Option<RedisResult<Vec<i64>>> {
        while let Some(deadline) = self.batch.first_deadline() {
            match timeout_at(deadline, &mut self.reply).await {
                Ok(answer) => return Some(answer),
                Err(_) => self.batch.expire(Instant::now(), Error::timeout),
            }
        }
        None
    }

    fn conclude(self, answer: Option<RedisResult<Vec<i64>>>) {
        conclude(&self.lane, &self.handle, self.batch, answer);
    }
}

/// A batch whose caller may go away. It is seen through all the same, on a task of its own: whoever
/// came along waits for it, and a connection that hangs has to be noticed.
struct Escorted {
    travel: Option<Travel>,
    runtime: Runtime,
}

impl Escorted {
    async fn see_through(&mut self) {
        let Some(travel) = &mut self.travel else { return };
        let answer = travel.answer().await;
        if let Some(travel) = self.travel.take() {
            travel.conclude(answer);
        }
    }
}

impl Drop for Escorted {
    fn drop(&mut self) {
        if let Some(travel) = self.travel.take() {
            self.runtime.spawn(travel.see_through());
        }
    }
}

/// Tells everybody in a batch what it was answered, if it was.
fn conclude(lane: &Lane, handle: &Handle, mut batch: Batch, answer: Option<RedisResult<Vec<i64>>>) {
    match answer {
        Some(Ok(reply)) => batch.conclude(&reply),
        Some(Err(error)) => {
            if call::ends_connection(&error) {
                lane.connections.discard(handle, &error);
            }
            let error = Arc::new(error);
            batch.fail(|| Error::store(Arc::clone(&error)));
        }
        None => lane.connections.discard(handle, &Error::timeout()),
    }
    lane.queue().recycle(batch);
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
