//! An answer from another task, with a deadline.
//!
//! The caller's own future enforces the deadline, or the call if the caller drives it. So a blocked
//! worker thread or a server that hangs may hold up the sending task, but not the caller. A caller
//! that returns leaves its check behind. The sender drops it if it is not sent yet. A check in
//! flight counts until its call is over.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle as Runtime, Id};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::model::{Decision, Error};
use crate::units::Mutex;

/// The sender's end. Dropping it answers with an error.
pub(crate) struct Promise(Arc<Mutex<PromiseState>>);

/// The caller's end.
pub(crate) struct Promised {
    state: Arc<Mutex<PromiseState>>,
    deadline: Instant,
    /// The name of the server in errors.
    server: Arc<str>,
    /// The timer, and the runtime that drives it. It starts at the first poll inside a runtime.
    timer: Option<(Id, Pin<Box<Sleep>>)>,
}

enum PromiseState {
    /// The caller waits. `sent`: whether the server may have the check.
    Waiting { sent: bool, waker: Option<Waker> },
    /// The answer is here.
    Kept(Result<Decision, Error>),
    /// The caller timed out, was dropped, or has its answer.
    Over,
}

impl Promise {
    /// A promise, and the answer that waits for it until the deadline.
    pub(crate) fn new(deadline: Instant, server: &Arc<str>) -> (Self, Promised) {
        let state = Arc::new(Mutex::new(PromiseState::Waiting {
            sent: false,
            waker: None,
        }));
        let promised = Promised {
            state: Arc::clone(&state),
            deadline,
            server: Arc::clone(server),
            timer: None,
        };
        (Self(state), promised)
    }

    /// Notes that the check is about to be sent. Returns whether its caller waits for the answer.
    pub(crate) fn mark_sent(&self) -> bool {
        match &mut *self.0.lock() {
            PromiseState::Waiting { sent, .. } => {
                *sent = true;
                true
            }
            PromiseState::Kept(_) | PromiseState::Over => false,
        }
    }

    /// Answers the caller, unless it is gone, or has an answer already.
    pub(crate) fn answer(&self, answer: Result<Decision, Error>) {
        let mut state = self.0.lock();
        if let PromiseState::Waiting { waker, .. } = &mut *state {
            let waker = waker.take();
            *state = PromiseState::Kept(answer);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        const REASON: &str = "the runtime that its connection ran on was shut down";
        let sent = match *self.0.lock() {
            PromiseState::Waiting { sent, .. } => sent,
            PromiseState::Kept(_) | PromiseState::Over => return,
        };
        let error = if sent {
            Error::store(REASON)
        } else {
            Error::unreachable(REASON)
        };
        self.answer(Err(error.going_elsewhere(true)));
    }
}

impl PromiseState {
    /// Takes the answer, if it is here.
    fn take(&mut self) -> Option<Result<Decision, Error>> {
        match mem::replace(self, Self::Over) {
            Self::Kept(answer) => Some(answer),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Promised {
    /// Returns whether this is the answer to that promise.
    pub(crate) fn is_of(&self, promise: &Promise) -> bool {
        Arc::ptr_eq(&self.state, &promise.0)
    }

    /// The answer, if it is here. Does not enforce the deadline.
    pub(crate) fn kept(&mut self) -> Option<Result<Decision, Error>> {
        self.state.lock().take()
    }

    /// Returns whether the deadline is over. Timers need a runtime. Outside of one, the sender
    /// alone enforces the deadline then. The timer of a runtime that was shut down panics, so
    /// another runtime has its own.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let Ok(runtime) = Runtime::try_current() else {
            return false;
        };
        let deadline = self.deadline;
        let own = self.timer.take_if(|(id, _)| *id == runtime.id());
        let (_, timer) = self
            .timer
            .insert(own.unwrap_or_else(|| (runtime.id(), Box::pin(sleep_until(deadline)))));
        timer.as_mut().poll(cx).is_ready()
    }

    fn give_up(&self) -> Poll<Result<Decision, Error>> {
        let state = mem::replace(&mut *self.state.lock(), PromiseState::Over);
        let error = match state {
            PromiseState::Kept(answer) => return Poll::Ready(answer),
            PromiseState::Waiting { sent: true, .. } => Error::timeout(),
            PromiseState::Waiting { sent: false, .. } => Error::timeout_unsent(),
            PromiseState::Over => return Poll::Pending,
        };
        Poll::Ready(Err(error.at_server(&self.server)))
    }
}

impl Future for Promised {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.lock();
        match &mut *state {
            PromiseState::Waiting { waker, .. } => match waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                waker => *waker = Some(cx.waker().clone()),
            },
            PromiseState::Kept(_) | PromiseState::Over => {
                return state.take().map_or(Poll::Pending, Poll::Ready);
            }
        }
        drop(state);
        if self.is_late(cx) {
            self.give_up()
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        // The waker and the answer are dropped outside of the lock.
        let left = mem::replace(&mut *self.state.lock(), PromiseState::Over);
        drop(left);
    }
}

#[cfg(all(test, tollgate_loom))]
mod tests {
    mod interleavings;
}
