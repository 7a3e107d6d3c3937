//! The tasks that send queued checks.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle as Runtime;

use super::flight;
use super::lane::{CallPlace, Lane};
use crate::nouns::Error;

/// Starts to send queued checks, if a place is free.
pub(super) fn start(lane: &Arc<Lane>) -> Result<(), Error> {
    let runtime = Runtime::try_current().map_err(Error::misuse)?;
    if let Some(place) = lane.place() {
        runtime.spawn(send(place));
    }
    Ok(())
}

/// Sends one batch after another, until none is queued.
pub(super) async fn send(mut place: CallPlace) {
    while let Some(next) = place.unless_idle() {
        place = flight::send_first(next).await;
        let_others_run().await;
    }
}

/// Lets answered callers run first: their next checks are sent together.
///
/// A task that wakes itself goes to the end of its worker's queue, from which idle workers steal.
/// `tokio::task::yield_now` keeps it out of that queue until the worker has run all other tasks. A
/// task that blocks its thread would hold up the lane.
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
