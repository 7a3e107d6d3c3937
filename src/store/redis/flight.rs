//! A batch in flight: from its departure to the answers of all its checks.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use redis::{RedisError, RedisResult};
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout, timeout_at};

use super::batch::Batch;
use super::call::{self, Failure};
use super::connection::Handle;
use super::lane::{Lane, Sending};
use crate::nouns::{Error, ManualClock};

/// The answer of the script, to come.
type Reply = Pin<Box<dyn Future<Output = RedisResult<Vec<i64>>> + Send>>;

pub(super) struct Flight {
    sending: Sending,
    cargo: Cargo,
    reply: Reply,
}

/// The batch, until it is over. Dropped before that, as with its runtime, its checks are answered
/// with an error.
struct Cargo {
    lane: Arc<Lane>,
    handle: Handle,
    batch: Option<Batch>,
}

impl Flight {
    /// Hands the first batch to the connection, if it is `wanted`. Returns the place if none left:
    /// there is none, no caller waits for it any more, or the connection is closed.
    pub(super) async fn depart(
        sending: Sending,
        handle: Handle,
        wanted: impl FnOnce(&Batch) -> bool,
    ) -> Result<Self, Sending> {
        let mut state = Some((sending, handle, wanted));
        poll_fn(|cx| match state.take() {
            Some((sending, handle, wanted)) => {
                Poll::Ready(Self::depart_now(sending, handle, wanted, cx))
            }
            None => Poll::Pending,
        })
        .await
    }

    fn depart_now(
        sending: Sending,
        handle: Handle,
        wanted: impl FnOnce(&Batch) -> bool,
        cx: &mut Context<'_>,
    ) -> Result<Self, Sending> {
        let lane = Arc::clone(sending.lane());
        let _one_by_one = lane.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that was closed in silence fails the ping, before any charge is handed over.
        // A charge that was handed over is never sent again: it may have left.
        if handle.was_silent
            && let Some(error) = is_closed(&handle, cx)
        {
            lane.connections.replace(&handle, &call::brief(&error));
            return Err(sending);
        }
        let Some(batch) = lane.take_first(wanted) else { return Err(sending) };
        let mut reply = call_for(&lane, &batch, &handle);
        // A call is handed to the connection's task when it is first polled. Whatever else its
        // caller has done in this turn, it has to be handed over now, to keep the order.
        if let Poll::Ready(answer) = pin!(unconstrained(reply.as_mut())).poll(cx) {
            reply = Box::pin(std::future::ready(answer));
        }
        let cargo = Cargo { lane: Arc::clone(&lane), handle, batch: Some(batch) };
        Ok(Self { sending, cargo, reply })
    }

    /// Whether no caller but the first waits for this batch.
    pub(super) fn is_alone(&self) -> bool {
        self.cargo.batch.as_ref().is_some_and(|batch| batch.len() == 1)
    }

    /// Waits for the answer, and answers all checks. Cancel safe.
    pub(super) async fn land(&mut self) {
        let mut answer = self.answer().await;
        if let Some(Err(error)) = &answer
            && Failure::of(error) == Failure::NotWritten
            && let Some(batch) = self.cargo.batch.as_mut().filter(|batch| !batch.is_read_only())
        {
            // Redis deletes keys also when it is out of memory.
            let deletes = call::is_said(error, "OOM");
            let failed = batch.make_read_only(call::brief(error).into(), deletes);
            self.cargo.lane.connections.undecided(failed);
            if batch.is_empty() {
                return self.cargo.finish();
            }
            self.reply = call_for(&self.cargo.lane, batch, &self.cargo.handle);
            answer = self.answer().await;
        }
        self.conclude(answer);
    }

    /// Gives the place back that it was sent from.
    pub(super) fn into_sending(self) -> Sending {
        self.sending
    }

    /// The answer, unless it is too late even for a late one: each check's own deadline holds, and
    /// what the server says after that still counts, as a denial that stands.
    async fn answer(&mut self) -> Option<RedisResult<Vec<i64>>> {
        let Self { cargo: Cargo { lane, batch, .. }, reply, .. } = self;
        let timeout_error = || Error::timeout().of(lane.connections.events().server());
        while let Some(deadline) = batch.as_ref().and_then(Batch::first_deadline) {
            match timeout_at(deadline, &mut *reply).await {
                Ok(answer) => return Some(answer),
                Err(_) => {
                    let now = Instant::now();
                    let expired = batch.as_mut().map(|batch| batch.expire(now, timeout_error));
                    lane.connections.undecided(expired.unwrap_or(0));
                }
            }
        }
        timeout(lane.settings.deadline, reply).await.ok()
    }

    fn conclude(&mut self, answer: Option<RedisResult<Vec<i64>>>) {
        let Some(mut batch) = self.cargo.batch.take() else { return };
        let lane = &self.cargo.lane;
        let (connections, handle) = (&lane.connections, &self.cargo.handle);
        let failed = match answer {
            Some(Ok(reply)) if handle.is_trusted() => {
                match batch.conclude(&reply, connections.events()) {
                    Ok(declined) => {
                        connections.heard(handle, batch.is_in_time() && !batch.is_read_only());
                        declined
                    }
                    Err(reason) => {
                        // What follows may be the answers to other questions.
                        handle.distrust();
                        connections.discard(handle, &reason);
                        batch.fail(|| Error::store(reason.clone()))
                    }
                }
            }
            Some(Ok(_)) => batch.fail(|| Error::store("an earlier answer was malformed")),
            Some(Err(error)) => {
                if call::is_out_of_step(&error) {
                    handle.distrust();
                }
                let text = call::brief(&error);
                if call::ends_connection(&error) {
                    connections.discard(handle, &text);
                }
                let charged = Failure::of(&error) == Failure::Unknown;
                let error = format!("{}: {text}", connections.events().server());
                batch.fail(|| match charged {
                    true => Error::store(error.clone()),
                    false => Error::declined(error.clone()),
                })
            }
            None => {
                connections.discard(handle, &Error::timeout());
                batch.fail(|| Error::timeout().of(connections.events().server()))
            }
        };
        connections.undecided(failed);
        lane.finish(batch);
    }
}

impl Cargo {
    fn finish(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.lane.finish(batch);
        }
    }
}

impl Drop for Cargo {
    fn drop(&mut self) {
        self.finish();
    }
}

fn call_for(lane: &Lane, batch: &Batch, handle: &Handle) -> Reply {
    let time = lane.settings.clock.as_ref().map(ManualClock::now);
    Box::pin(call::run(call::command(batch, time), handle.connection.clone()))
}

/// Why a connection is closed, if it is known to be.
fn is_closed(handle: &Handle, cx: &mut Context<'_>) -> Option<RedisError> {
    let mut connection = handle.connection.clone();
    let ping = redis::cmd("PING");
    let ping = async { ping.query_async::<()>(&mut connection).await };
    match pin!(unconstrained(ping)).poll(cx) {
        Poll::Ready(Err(error)) => Some(error),
        Poll::Ready(Ok(())) | Poll::Pending => None,
    }
}
