//! The tasks and callers that send the batches of a lane.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, timeout_at};

use super::batch::Batch;
use super::flight::Flight;
use super::lane::{Lane, Sending};
use crate::nouns::{Decision, Error};
use crate::store::promise::Promised;

/// Sends one batch after another, until none is queued.
pub(super) struct Sender(Sending);

impl Sender {
    pub(super) const fn new(sending: Sending) -> Self {
        Self(sending)
    }

    pub(super) async fn run(self) {
        let Self(mut sending) = self;
        while let Some(next) = sending.end_if_idle() {
            sending = Self::send(next).await;
            let_others_run().await;
        }
    }

    /// Sends the first batch, and sees to its answers.
    async fn send(sending: Sending) -> Sending {
        let lane = Arc::clone(sending.lane());
        let now = Instant::now();
        let deadline = lane.next_deadline().unwrap_or(now);
        let handle = match timeout_at(deadline, lane.connections.get()).await {
            Ok(Ok(handle)) => handle,
            Ok(Err(reason)) => {
                lane.fail_first(None, &reason);
                return sending;
            }
            Err(_) => {
                lane.fail_first(Some(Instant::now()), "no connection within the deadline");
                return sending;
            }
        };
        match Flight::depart(sending, handle, |_| true).await {
            Err(sending) => sending,
            Ok(mut flight) => {
                flight.land().await;
                flight.into_sending()
            }
        }
    }
}

/// Lets callers that were answered go first: their next checks leave together.
///
/// A task that wakes itself goes to the end of its worker's queue, from which idle workers steal.
/// `tokio::task::yield_now` keeps it out of that queue until the worker is done with all other
/// tasks: one that blocks its thread would hold up the lane.
async fn let_others_run() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The caller of a check that came alone: it sends its check itself.
pub(super) struct Escort(Arc<Lane>);

impl Escort {
    pub(super) const fn new(lane: Arc<Lane>) -> Self {
        Self(lane)
    }

    /// Sends the caller's check, unless another task took it along.
    pub(super) async fn see_to(self, answer: Promised) -> Result<Decision, Error> {
        let Self(lane) = &self;
        let runtime = Runtime::try_current().map_err(Error::misuse)?;
        let places = lane.connections.current().and_then(|handle| Some((lane.begin()?, handle)));
        let Some((sending, handle)) = places else {
            lane.send()?;
            return answer.await;
        };
        let is_own = |batch: &Batch| batch.has_escort;
        match Flight::depart(sending, handle, is_own).await {
            Err(sending) => go_on(sending, &runtime),
            Ok(flight) => {
                let is_alone = flight.is_alone();
                let mut escorted = Escorted { flight: Some(flight), runtime };
                // Other checks that came along must not wait for this caller to go on.
                if is_alone {
                    escorted.land_before(&answer).await;
                }
            }
        }
        answer.await
    }
}

/// Sends on in the background what was queued meanwhile.
fn go_on(sending: Sending, runtime: &Runtime) {
    if let Some(sending) = sending.end_if_idle() {
        runtime.spawn(Sender::new(sending).run());
    }
}

impl Drop for Escort {
    fn drop(&mut self) {
        self.0.end_escort();
    }
}

/// A batch whose caller may go away. It lands all the same, on a task of its own: other callers may
/// wait for it, and a connection that hangs has to be noticed. It keeps its place meanwhile, so
/// there are never more such tasks than places.
struct Escorted {
    flight: Option<Flight>,
    runtime: Runtime,
}

impl Escorted {
    /// Lands, unless the answer is there before, as an error when the deadline is over.
    async fn land_before(&mut self, answer: &Promised) {
        let Some(flight) = &mut self.flight else { return };
        let has_landed = {
            let mut landing = pin!(flight.land());
            poll_fn(|cx| match landing.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending if answer.is_kept() => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            })
            .await
        };
        if has_landed && let Some(flight) = self.flight.take() {
            go_on(flight.into_sending(), &self.runtime);
        }
    }
}

impl Drop for Escorted {
    fn drop(&mut self) {
        if let Some(mut flight) = self.flight.take() {
            let runtime = self.runtime.clone();
            self.runtime.spawn(async move {
                flight.land().await;
                go_on(flight.into_sending(), &runtime);
            });
        }
    }
}
