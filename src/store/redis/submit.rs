//! The path of a check: queued, sent, answered.
//!
//! Every check is queued. A check that finds a place free and nothing queued is sent by its caller,
//! at the first poll of its answer, so no other task has to wake up for it. Tasks send all others.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::flight;
use super::lane::{CallPlace, Lane, QueuedCheck, Urgency};
use crate::model::{Decision, Error, Operation};
use crate::store::Answer;
use crate::store::promise::Promised;
use crate::units::later;

/// The pause before a claim is sent again.
const PAUSE: Duration = Duration::from_millis(5);

/// Has an operation sent. Its answer is awaited by its caller.
pub(super) fn submit(lane: &Arc<Lane>, operation: &Operation, urgency: Urgency) -> Answer {
    if urgency != Urgency::GivesBack
        && let Err(error) = lane.route.admit()
    {
        return Answer::ready(Err(error));
    }
    let Some(QueuedCheck {
        promised,
        is_alone,
        has_place,
        leaves_next,
    }) = lane.add(operation, urgency)
    else {
        // Without a task, cancelled checks would fill the queue for ever.
        flight::start(lane);
        return Answer::ready(Err(Error::overloaded(lane.settings.max_waiting)));
    };
    let answer = if is_alone {
        Answer::later(SentByCaller {
            lane: Arc::clone(lane),
            promised,
            call: LoneCall::Unsent,
        })
    } else {
        if has_place {
            flight::start(lane);
        }
        Answer::promised(promised)
    };
    match (&lane.settings.deny_cache, operation) {
        (Some(deny_cache), Operation::Charge(group)) if !leaves_next => {
            deny_cache.with_fallback(group, answer)
        }
        _ => answer,
    }
}

/// Has a claim of permits sent, and again if its connection ended, or its key moved to another
/// node.
pub(super) fn submit_claim(lane: &Arc<Lane>, claim: Operation, urgency: Urgency) -> Answer {
    let deadline = later(Instant::now(), lane.settings.deadline);
    let first = submit(lane, &claim, urgency);
    let lane = Arc::clone(lane);
    Answer::later(async move {
        match first.await {
            // In a box of its own, because few claims are repeated, and the future of each would
            // have room for it.
            Err(error) if error.goes_elsewhere() => {
                Box::pin(repeat_claim(lane, claim, urgency, deadline, error)).await
            }
            answer => answer,
        }
    })
}

/// Sends a claim again until it is answered, or its deadline is over. It can be repeated, because
/// it has counters and not changes.
async fn repeat_claim(
    lane: Arc<Lane>,
    claim: Operation,
    urgency: Urgency,
    deadline: Instant,
    mut error: Error,
) -> Result<Decision, Error> {
    let mut may_be_applied = false;
    while error.goes_elsewhere() {
        may_be_applied |= error.may_have_charged();
        let next_try = later(Instant::now(), PAUSE);
        if next_try >= deadline {
            break;
        }
        sleep_until(next_try).await;
        let again = submit(&lane, &claim, urgency);
        // At the deadline, the repetition may have been sent.
        let answer = timeout_at(deadline, again).await;
        match answer.unwrap_or_else(|_| Err(Error::timeout())) {
            Ok(decision) => return Ok(decision),
            Err(again) => error = again,
        }
    }
    Err(match may_be_applied {
        true => error.that_may_have_charged(),
        false => error,
    })
}

/// The answer to a check that is alone in the queue of its lane. Its caller sends it, at the first
/// poll. If another check joins before the first poll, or if no connection is open, a task sends
/// it.
struct SentByCaller {
    lane: Arc<Lane>,
    promised: Promised,
    call: LoneCall,
}

enum LoneCall {
    Unsent,
    InFlight(BoxFuture<'static, CallPlace>, Runtime),
    /// It is over, or left to a task.
    Done,
}

impl SentByCaller {
    /// Leaves a call in flight to a task of the runtime on which it was sent.
    fn leave_to_task(&mut self) {
        if let LoneCall::InFlight(flight, runtime) = mem::replace(&mut self.call, LoneCall::Done) {
            runtime.spawn(async { flight::send(flight.await).await });
        }
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        let runtime = Runtime::try_current().map_err(Error::outside_of_runtime)?;
        self.call = match flight::send_lone(&self.lane, &self.promised, cx) {
            Some(flight) => LoneCall::InFlight(flight, runtime),
            None => {
                flight::start(&self.lane);
                LoneCall::Done
            }
        };
        Ok(())
    }
}

impl Future for SentByCaller {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let LoneCall::Unsent = self.call {
            self.send(cx)?;
        }
        // The timers of a runtime that was shut down panic.
        if let LoneCall::InFlight(_, runtime) = &self.call
            && !Runtime::try_current().is_ok_and(|current| current.id() == runtime.id())
        {
            self.leave_to_task();
        }
        if let LoneCall::InFlight(flight, runtime) = &mut self.call {
            let Poll::Ready(place) = flight.as_mut().poll(cx) else {
                // The call answers the check at its deadline, so the promise needs no timer.
                return self.promised.kept().map_or(Poll::Pending, Poll::Ready);
            };
            // Send the checks that were queued meanwhile.
            if let Some(place) = place.continue_or_free() {
                runtime.spawn(flight::send(place));
            }
            self.call = LoneCall::Done;
        }
        Pin::new(&mut self.promised).poll(cx)
    }
}

impl Drop for SentByCaller {
    /// If the caller is dropped, or its deadline is over, the call becomes a task of its own,
    /// because a connection that hangs has to be noticed, and a late denial counts.
    fn drop(&mut self) {
        self.leave_to_task();
    }
}
