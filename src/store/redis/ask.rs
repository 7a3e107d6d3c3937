//! From a check that is asked to its answer.
//!
//! Every check is queued. One that finds its lane idle is sent by its caller as soon as the answer
//! is first polled: no other task has to wake up for it. All others are sent by tasks.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle as Runtime;

use super::flight::{self, Flight};
use super::lane::{Entry, Lane, Queued};
use super::sender;
use crate::nouns::{Check, Decision, Error, Op};
use crate::store::Answer;
use crate::store::denials::Change;
use crate::store::promise::Promised;

pub(super) fn ask(lane: &Arc<Lane>, op: Op, group: &[Check], change: Option<Change>) -> Answer {
    let Some(Queued { promised, entry, leaves_next }) = lane.enter(op, group, change) else {
        // Checks that were given up before a task sent them must not take up the room for good.
        // Outside of a runtime no task can begin to; the next check inside one will.
        drop(sender::start(lane));
        return Answer::ready(Err(Error::overloaded(lane.settings.max_waiting)));
    };
    let answer = match entry {
        Entry::Alone => Answer::later(send_alone(Arc::clone(lane), promised)),
        Entry::Sent => Answer::promised(promised),
        Entry::Unsent if sender::start(lane).is_ok() => Answer::promised(promised),
        // Asked outside of the runtime, it is sent once its answer is awaited inside.
        Entry::Unsent => Answer::later(send_later(Arc::clone(lane), promised)),
    };
    match &lane.settings.denials {
        Some(denials) if op == Op::Charge && !leaves_next => denials.behind(group, answer),
        _ => answer,
    }
}

async fn send_later(lane: Arc<Lane>, promised: Promised) -> Result<Decision, Error> {
    sender::start(&lane)?;
    promised.await
}

/// Sends a check that is alone in an idle lane. A task sends it if another check came before it was
/// first polled, or if there is no connection yet.
async fn send_alone(lane: Arc<Lane>, mut promised: Promised) -> Result<Decision, Error> {
    let runtime = Runtime::try_current().map_err(Error::misuse)?;
    let Some(flight) = flight::of_lone(&lane, &promised).await else {
        return send_later(lane, promised).await;
    };
    let mut call = Alone { flight: Some(flight), runtime };
    poll_fn(|cx| {
        call.poll(cx);
        // The call keeps the promise, with an error when the deadline is over.
        promised.kept().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The call of a check that its caller sends. If the caller goes away, or is answered before the
/// server did, the call goes on as a task of its own: a connection that hangs has to be noticed,
/// and a late denial counts.
struct Alone {
    flight: Option<Flight>,
    runtime: Runtime,
}

impl Alone {
    fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(flight) = &mut self.flight else { return };
        if let Poll::Ready(place) = flight.as_mut().poll(cx) {
            self.flight = None;
            // Other checks may have been queued meanwhile.
            if let Some(place) = place.unless_idle() {
                self.runtime.spawn(sender::send(place));
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.runtime.spawn(async { sender::send(flight.await).await });
        }
    }
}
