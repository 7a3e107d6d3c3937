//! What a store answers with.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
#[cfg(feature = "redis")]
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(feature = "redis")]
use tokio::sync::oneshot;
#[cfg(feature = "redis")]
use tokio::time::Instant;

use crate::{Decision, Error};

/// A decision, now or later: the future that a [`Store`](crate::Store) answers with.
#[must_use = "a decision does nothing until it is awaited"]
pub struct Answer(Inner);

#[cfg(feature = "redis")]
/// Sees the decision of an answer on its way to whoever waits for it.
pub(crate) trait Watcher: Send + Sync {
    fn decided(&self, watched: Watched, decision: &Decision);
}

#[cfg(feature = "redis")]
/// What a watcher knows of a check that it has seen leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// Stands for the check.
    pub(crate) id: u128,
    /// What was known to have been taken back before it left.
    pub(crate) generation: u64,
    pub(crate) asked: Instant,
}

enum Inner {
    Ready(Option<Result<Decision, Error>>),
    Later(Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>),
    #[cfg(feature = "redis")]
    Promised(oneshot::Receiver<Result<Decision, Error>>, Option<(Arc<dyn Watcher>, Watched)>),
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

    /// The answer, if it is there already.
    #[cfg(feature = "http")]
    pub(crate) fn now(&mut self) -> Option<Result<Decision, Error>> {
        match &mut self.0 {
            Inner::Ready(answer) => answer.take(),
            _ => None,
        }
    }

    /// The same answer, with its decision shown to a watcher.
    #[cfg(feature = "redis")]
    pub(crate) fn watched(self, watcher: Arc<dyn Watcher>, watched: Watched) -> Self {
        match self.0 {
            Inner::Ready(answer) => {
                if let Some(Ok(decision)) = &answer {
                    watcher.decided(watched, decision);
                }
                Self(Inner::Ready(answer))
            }
            Inner::Promised(answer, None) => {
                Self(Inner::Promised(answer, Some((watcher, watched))))
            }
            other => Self::later(async move {
                let answer = Self(other).await;
                if let Ok(decision) = &answer {
                    watcher.decided(watched, decision);
                }
                answer
            }),
        }
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
            Inner::Promised(answer, watcher) => Pin::new(answer).poll(cx).map(|kept| {
                let lost = || Error::store("the runtime that its connection ran on was shut down");
                let answer = kept.unwrap_or_else(|_| Err(lost()));
                if let (Ok(decision), Some((watcher, watched))) = (&answer, watcher.take()) {
                    watcher.decided(watched, decision);
                }
                answer
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
            Inner::Promised(..) => "Answer(promised)",
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
        (Self(sender), Answer(Inner::Promised(receiver, None)))
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
