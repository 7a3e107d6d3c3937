//! What a store answers with.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "redis")]
use tokio::sync::oneshot;

use crate::{Decision, Error};

/// A decision, now or later: the future that a [`Store`] answers with.
#[must_use = "a decision does nothing until it is awaited"]
pub struct Answer(Inner);

enum Inner {
    Ready(Option<Result<Decision, Error>>),
    Later(Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>),
    #[cfg(feature = "redis")]
    Promised(oneshot::Receiver<Result<Decision, Error>>),
}

impl Answer {
    /// An answer that is there already; it costs no allocation.
    pub fn ready(answer: Result<Decision, Error>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// An answer that has to be waited for.
    pub fn later(answer: impl Future<Output = Result<Decision, Error>> + Send + 'static) -> Self {
        Self(Inner::Later(Box::pin(answer)))
    }
}

impl Future for Answer {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            // Polled again after completion, it stays pending: there is no second answer.
            Inner::Ready(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Inner::Later(answer) => answer.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Inner::Promised(answer) => Pin::new(answer).poll(cx).map(|kept| {
                kept.unwrap_or_else(|_| {
                    Err(Error::store("the runtime that its connection ran on was shut down"))
                })
            }),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Ready(_) => "Answer(ready)",
            Inner::Later(_) => "Answer(later)",
            #[cfg(feature = "redis")]
            Inner::Promised(_) => "Answer(promised)",
        })
    }
}

/// The other end of an [`Answer`] that somebody else will give. Dropped, it is answered with an
/// error.
#[cfg(feature = "redis")]
pub(crate) struct Promise(oneshot::Sender<Result<Decision, Error>>);

#[cfg(feature = "redis")]
impl Promise {
    pub(crate) fn new() -> (Self, Answer) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), Answer(Inner::Promised(receiver)))
    }

    pub(crate) fn keep(self, answer: Result<Decision, Error>) {
        // If nobody waits any more, nobody needs it.
        drop(self.0.send(answer));
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.0.is_closed()
    }
}
