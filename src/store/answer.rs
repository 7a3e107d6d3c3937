//! The answer of a store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "redis")]
use super::promise::Promised;
use crate::nouns::{Decision, Error};

/// The future of a decision, which a [`Store`](crate::store::Store) returns.
#[must_use = "a decision does nothing until it is awaited"]
pub struct Answer(Inner);

enum Inner {
    Ready(Option<Result<Decision, Error>>),
    Later(Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>),
    #[cfg(feature = "redis")]
    Promised(Promised),
}

impl Answer {
    /// An answer that is ready. It needs no allocation.
    #[inline]
    pub const fn ready(answer: Result<Decision, Error>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// An answer that has to be awaited.
    pub fn later(answer: impl Future<Output = Result<Decision, Error>> + Send + 'static) -> Self {
        Self(Inner::Later(Box::pin(answer)))
    }

    #[cfg(feature = "redis")]
    pub(super) const fn promised(promised: Promised) -> Self {
        Self(Inner::Promised(promised))
    }

    /// The answer, if it is ready.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) const fn as_ready(&self) -> Option<&Result<Decision, Error>> {
        match &self.0 {
            Inner::Ready(answer) => answer.as_ref(),
            _ => None,
        }
    }

    /// Takes the answer, if it is ready.
    pub(crate) fn take_ready(&mut self) -> Option<Result<Decision, Error>> {
        match &mut self.0 {
            Inner::Ready(answer) => answer.take(),
            _ => None,
        }
    }
}

impl Future for Answer {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            // Polled again after completion, it stays pending.
            Inner::Ready(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Inner::Later(answer) => answer.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Inner::Promised(answer) => Pin::new(answer).poll(cx),
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
