//! The path of a check: queued, sent, answered.
//!
//! Every check is queued. A check that finds its lane idle is sent by its caller, at the first poll
//! of its answer: no other task has to wake up for it. Tasks send all others.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle as Runtime;

use super::flight::{self, Flight};
use super::lane::{Lane, QueuedCheck, SentBy, Urgency};
use super::sender;
use crate::nouns::{Check, Decision, Error, Op};
use crate::store::Answer;
use crate::store::denials::ChangeUnderWay;
use crate::store::promise::Promised;

pub(super) fn submit(
    lane: &Arc<Lane>,
    op: Op,
    group: &[Check],
    change: Option<ChangeUnderWay>,
) -> Answer {
    ask_with(lane, op, group, change, Urgency::Usual)
}

pub(super) fn ask_with(
    lane: &Arc<Lane>,
    op: Op,
    group: &[Check],
    change: Option<ChangeUnderWay>,
    urgency: Urgency,
) -> Answer {
    if urgency == Urgency::Usual
        && let Err(error) = lane.route.admit()
    {
        let answer = Err(error);
        // A change that is not sent does not happen.
        change
            .into_iter()
            .for_each(|mut change| change.answered(&answer));
        return Answer::ready(answer);
    }
    let Some(QueuedCheck {
        promised,
        entry,
        leaves_next,
    }) = lane.add(op, group, change, urgency)
    else {
        // Without a task, cancelled checks would fill the queue for ever. Outside of a runtime no
        // task can start; the next check inside one starts it.
        drop(sender::start(lane));
        return Answer::ready(Err(Error::overloaded(lane.settings.max_waiting)));
    };
    let answer = match entry {
        SentBy::ByCaller => Answer::later(send_by_caller(Arc::clone(lane), promised)),
        SentBy::Sent => Answer::promised(promised),
        SentBy::Unsent if sender::start(lane).is_ok() => Answer::promised(promised),
        // A check from outside of a runtime is sent when its answer is awaited inside.
        SentBy::Unsent => Answer::later(send_later(Arc::clone(lane), promised)),
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

/// Sends a check that is alone in an idle lane. A task sends it if another check was queued before
/// the first poll, or if there is no connection yet.
async fn send_by_caller(lane: Arc<Lane>, mut promised: Promised) -> Result<Decision, Error> {
    let runtime = Runtime::try_current().map_err(Error::misuse)?;
    let Some(flight) = flight::send_lone(&lane, &promised).await else {
        return send_later(lane, promised).await;
    };
    let mut call = SentByCaller {
        flight: Some(flight),
        runtime,
    };
    poll_fn(|cx| {
        call.poll(cx);
        // The call answers in any case, with an error at the deadline.
        promised.kept().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The call of a check that its caller sends. If the caller is dropped, or its deadline is over, the
/// call becomes a task of its own: a connection that hangs has to be noticed, and a late denial
/// counts.
struct SentByCaller {
    flight: Option<Flight>,
    runtime: Runtime,
}

impl SentByCaller {
    fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        if let Poll::Ready(place) = flight.as_mut().poll(cx) {
            self.flight = None;
            // Send the checks that were queued meanwhile.
            if let Some(place) = place.unless_idle() {
                self.runtime.spawn(sender::send(place));
            }
        }
    }
}

impl Drop for SentByCaller {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.runtime
                .spawn(async { sender::send(flight.await).await });
        }
    }
}
