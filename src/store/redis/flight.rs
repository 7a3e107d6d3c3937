//! A call in flight, from the connection to the answers of all its checks; and the tasks that send
//! one call after another.

mod breaker_report;
mod divide;
mod redirect;

use std::future::{Future, poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use redis::{RedisError, RedisResult};
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout, timeout_at};

use self::breaker_report::BreakerReport;
use self::divide::has_to_be_divided;
pub(super) use self::redirect::{MOST_REDIRECTIONS, pointed_at};
use super::call::{self, CallFailure};
use super::connection::Handle;
use super::lane::{CallPlace, Lane};
use super::node::Node;
use crate::model::Error;
use crate::store::promise::Promised;
use crate::telemetry::ObservedCall;
use crate::units::{ManualClock, later};

/// The resolution of tokio's timers.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// Starts to send queued checks, if a place is free.
pub(super) fn start(lane: &Arc<Lane>) {
    if let Some(place) = lane.place() {
        tokio::spawn(send(place));
    }
}

/// Sends one batch after another, until none is queued.
pub(super) async fn send(mut place: CallPlace) {
    while let Some(next) = place.continue_or_free() {
        place = send_first(next).await;
        if place.has_to_let_others_run() {
            let_others_run().await;
        }
    }
}

/// Lets answered callers run first, so that their next checks are sent together.
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

/// Sends the lane's first batch, once there is a connection.
async fn send_first(place: CallPlace) -> CallPlace {
    let lane = Arc::clone(place.lane());
    let deadline = lane.next_deadline().unwrap_or_else(Instant::now);
    let mut breaker_report = BreakerReport::begin(lane.route.node().as_deref());
    let (node, handle) = match timeout_at(deadline, lane.route.connect()).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(reason)) => {
            lane.fail_first(None, &reason);
            breaker_report.end(true);
            return place;
        }
        Err(_) => {
            lane.fail_first(Some(Instant::now()), "no connection within the deadline");
            breaker_report.end(true);
            return place;
        }
    };
    if handle.needs_pong() {
        let patience = lane.settings.ping_patience();
        if let Ok(Err(error)) = timeout(patience, ping(&handle)).await {
            node.connection.replace(&handle, &call::brief(&error));
            return place;
        }
    } else if !with_context(|cx| is_open(&node, &handle, cx)).await {
        return place;
    }
    let flight = with_context(|cx| {
        let _one_by_one = lane.leaving.lock();
        hand_over(place.with_first(), node, handle, Instant::now(), cx)
    });
    flight.await.await
}

/// Sends a check that is still alone in the queue of a lane, if there is a connection. One that was
/// idle is left to a task, which waits for a ping.
pub(super) fn send_lone(
    lane: &Arc<Lane>,
    check: &Promised,
    cx: &mut Context<'_>,
) -> Option<BoxFuture<'static, CallPlace>> {
    let node = lane.route.node()?;
    let handle = node.connection.current()?;
    if handle.needs_pong() || !is_open(&node, &handle, cx) {
        return None;
    }
    let _one_by_one = lane.leaving.lock();
    let now = Instant::now();
    Some(hand_over(
        lane.place_alone(check, now)?,
        node,
        handle,
        now,
        cx,
    ))
}

/// Returns whether a connection is open, as far as is known. A connection that was silent is
/// pinged. A closed one fails the ping before any charge is handed over, and is replaced. A charge
/// that was handed over is never sent again, because it may have left. Does not wait for the ping's
/// reply.
fn is_open(node: &Node, handle: &Handle, cx: &mut Context<'_>) -> bool {
    if !handle.needs_ping() {
        return true;
    }
    match pin!(unconstrained(ping(handle))).poll(cx) {
        Poll::Ready(Err(error)) => {
            node.connection.replace(handle, &call::brief(&error));
            false
        }
        Poll::Ready(Ok(())) | Poll::Pending => true,
    }
}

async fn ping(handle: &Handle) -> RedisResult<()> {
    redis::cmd("PING")
        .query_async(&mut handle.connection())
        .await
}

/// Calls a function with the context of the task.
async fn with_context<T>(call: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let mut call = Some(call);
    poll_fn(|cx| match call.take() {
        Some(call) => Poll::Ready(call(cx)),
        None => Poll::Pending,
    })
    .await
}

/// Hands a call to the connection. The first poll does that, and it has to happen now, whatever the
/// task's budget for this turn.
fn hand_over(
    place: CallPlace,
    node: Arc<Node>,
    handle: Handle,
    now: Instant,
    cx: &mut Context<'_>,
) -> BoxFuture<'static, CallPlace> {
    let call = Call::new(place, node, handle);
    let mut flight: BoxFuture<'static, CallPlace> = Box::pin(fly(call, now));
    match pin!(unconstrained(flight.as_mut())).poll(cx) {
        Poll::Ready(place) => Box::pin(ready(place)),
        Poll::Pending => flight,
    }
}

/// Sends the checks of a place, and answers them.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` has room for its arguments twice"
)]
fn fly(mut call: Call, now: Instant) -> impl Future<Output = CallPlace> + Send {
    async move {
        if call.place.is_worth_sending(now) {
            call.complete(now).await;
        }
        call.place.unload();
        call.place
    }
}

struct Call {
    place: CallPlace,
    node: Arc<Node>,
    handle: Handle,
    /// `true` if a redirection (`ASK`) is for this call alone.
    is_asking: bool,
    breaker_report: BreakerReport,
    /// `true` if its checks are sent in parts.
    is_divided: bool,
}

impl Call {
    fn new(place: CallPlace, node: Arc<Node>, handle: Handle) -> Self {
        let breaker_report = BreakerReport::begin(Some(&node));
        Self {
            place,
            node,
            handle,
            is_asking: false,
            breaker_report,
            is_divided: false,
        }
    }

    /// Sends the checks, and answers them.
    async fn complete(&mut self, now: Instant) {
        let answer = self.observed_reply(now).await;
        match answer {
            Some(Ok(_)) => self.answer_checks(answer),
            // In a box of its own, because few calls fail, and the future of each would have room
            // for it.
            _ => Box::pin(self.complete_failed(answer)).await,
        }
    }

    /// Sends the checks of a call that failed once more, if that helps, and answers them.
    async fn complete_failed(&mut self, mut answer: Option<RedisResult<Vec<i64>>>) {
        self.follow(&mut answer).await;
        if has_to_be_divided(&answer) {
            return self.complete_apart(answer).await;
        }
        if let Some(Err(error)) = &answer
            && CallFailure::from_redis(error) == CallFailure::NotWritten
            && self.make_read_only(error)
        {
            answer = self.observed_reply(Instant::now()).await;
        }
        self.answer_checks(answer);
    }

    /// The reply to a call that is sent now, as it is seen from outside.
    async fn observed_reply(&mut self, sent: Instant) -> Option<RedisResult<Vec<i64>>> {
        let events = Arc::clone(&self.node.connection.events);
        let (checks, traces) = self.place.batch().traces();
        let mut observed = Some(ObservedCall::begin(&events, checks, traces, sent));
        let answer = self.reply(sent, &mut observed).await;
        if let Some(observed) = observed {
            observed.end(call::failure(answer.as_ref()));
        }
        answer
    }

    /// The reply. Each check fails at its own deadline. After the last one, the reply is awaited
    /// for one more deadline, because a late denial still stands.
    async fn reply(
        &mut self,
        sent: Instant,
        observed: &mut Option<ObservedCall<'_>>,
    ) -> Option<RedisResult<Vec<i64>>> {
        let Self {
            place,
            node,
            handle,
            breaker_report,
            is_asking,
            ..
        } = self;
        let lane = Arc::clone(place.lane());
        let deadline = lane.settings.deadline;
        let time = place.lane().settings.clock.as_ref().map(ManualClock::now);
        let number = handle.number_call();
        let command = call::command(number, place.batch(), time);
        let connection = handle.connection();
        let mut reply = pin!(call::execute(number, command, connection, *is_asking));
        let mut next_leaves_at = Some(later(sent, lane.settings.pace()));
        // The call has a deadline of its own: a check may have waited in the queue, and the time
        // when it expires says nothing of the server.
        let mut late_at = Some(later(sent, deadline));
        loop {
            let first_deadline = place.batch().first_deadline();
            let times = [next_leaves_at, late_at, first_deadline];
            let Some(next) = times.into_iter().flatten().min() else {
                break;
            };
            if let Ok(answer) = timeout_at(next, reply.as_mut()).await {
                return Some(answer);
            }
            if next_leaves_at.take_if(|at| *at <= next).is_some() {
                start(&lane);
            }
            // A check that was sent without queueing has the deadline of its call, up to the
            // resolution of timers: both are reached.
            let is_of_check = first_deadline == Some(next);
            let reached = if is_of_check {
                later(next, TIMER_RESOLUTION)
            } else {
                next
            };
            if late_at.take_if(|late_at| *late_at <= reached).is_some() {
                breaker_report.end(true);
                // Its reply may have been lost. Then each later reply would answer the call before.
                node.connection.discard(handle, &Error::timeout());
                if let Some(observed) = observed.take() {
                    observed.end(call::failure(None));
                }
            }
            place.expire();
        }
        timeout(deadline, reply).await.ok()
    }

    /// Prepares to ask again, for peeks alone. Returns whether there are any.
    fn make_read_only(&mut self, error: &RedisError) -> bool {
        // Redis still deletes keys when it is out of memory.
        let deletes = call::has_code(error, "OOM");
        let failed = self
            .place
            .batch()
            .make_read_only(call::brief_of_script(error).into(), deletes);
        self.place.lane().route.count_undecided(failed);
        !self.place.batch().is_empty()
    }

    /// Answers all checks.
    fn answer_checks(&mut self, answer: Option<RedisResult<Vec<i64>>>) {
        self.tell_breaker(&answer);
        let failed = match answer {
            Some(Ok(reply)) => self.read_reply(&reply),
            Some(Err(error)) => self.set_error(&error),
            None => self.set_timeout(),
        };
        self.node.connection.count_undecided(failed);
        self.place.deliver();
    }

    fn tell_breaker(&mut self, answer: &Option<RedisResult<Vec<i64>>>) {
        let is_of_cluster = self.place.lane().route.is_of_cluster();
        let is_of_key = matches!(answer, Some(Err(error)) if call::is_of_key(error));
        let is_alive = match answer {
            Some(Ok(_)) => true,
            Some(Err(error)) => {
                // A server that does not write at the moment decides peeks.
                is_of_key
                    || CallFailure::from_redis(error) == CallFailure::NotWritten
                    || (is_of_cluster && call::is_of_cluster(error))
            }
            None => false,
        };
        // Parts of a divided call that failed because of their keys are reported together.
        if is_of_key && self.is_divided {
            return;
        }
        match answer {
            Some(Err(error)) if error.is_connection_dropped() => {
                self.breaker_report.end_with_connection(&self.handle);
            }
            _ => self.breaker_report.end(!is_alive),
        }
    }

    /// Sets the answers from the reply. Returns how many checks failed.
    fn read_reply(&mut self, reply: &[i64]) -> usize {
        let connection = &self.node.connection;
        let batch = self.place.batch();
        match batch.read_reply(reply, &connection.events) {
            Ok(declined) => {
                connection.heard(&self.handle, batch.is_in_time() && !batch.is_read_only());
                declined
            }
            Err(reason) => {
                connection.discard(&self.handle, &reason);
                batch.set_failure(|| Error::store(reason.clone()))
            }
        }
    }

    /// Sets the server's error as the answer. Returns how many checks failed.
    fn set_error(&mut self, error: &RedisError) -> usize {
        let text = call::brief_of_script(error);
        let lane = Arc::clone(self.place.lane());
        let connection = &self.node.connection;
        let is_redirected = lane.route.is_of_cluster() && call::is_of_cluster(error);
        let ends_connection = !is_redirected && call::ends_connection(error);
        if ends_connection {
            connection.discard(&self.handle, &text);
        }
        if is_redirected || ends_connection {
            lane.route.refresh();
        }
        let batch = self.place.batch();
        // A charge that is alone in its call makes one write, which is the last command. With a
        // clock set by hand, another command follows.
        let is_last_command = batch.makes_one_write() && lane.settings.clock.is_none();
        let is_forbidden = call::is_forbidden_in_script(error) && is_last_command;
        let may_have_charged =
            CallFailure::from_redis(error) == CallFailure::Unknown && !is_forbidden;
        let reason = format!("{}: {text}", connection.events.server());
        batch.set_failure(|| {
            let failed = if may_have_charged {
                Error::store(reason.clone())
            } else {
                Error::declined(reason.clone())
            };
            failed.going_elsewhere(is_redirected || ends_connection)
        })
    }

    /// Sets a timeout as the answer. Returns how many checks failed.
    fn set_timeout(&mut self) -> usize {
        self.place.lane().route.refresh();
        let server = self.node.connection.events.server();
        let batch = self.place.batch();
        batch.set_failure(|| Error::timeout().at_server(server))
    }
}
