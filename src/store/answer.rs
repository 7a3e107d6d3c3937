//! What a store answers with.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "redis")]
use super::denials::Standing;
#[cfg(feature = "redis")]
use super::promise::Promised;
use crate::nouns::{Decision, Error};

/// A decision, now or later: the future that a [`Store`](crate::store::Store) answers with.
#[must_use = "a decision does nothing until it is awaited"]
pub struct Answer {
    inner: Inner,
    /// What is answered in place of an error, if a denial is still in force.
    #[cfg(feature = "redis")]
    standing: Option<Standing>,
}

enum Inner {
    Ready(Option<Result<Decision, Error>>),
    Later(Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>),
    #[cfg(feature = "redis")]
    Promised(Promised),
}

impl Answer {
    const fn new(inner: Inner) -> Self {
        Self {
            inner,
            #[cfg(feature = "redis")]
            standing: None,
        }
    }

    /// An answer that is there already; it costs no allocation.
    pub const fn ready(answer: Result<Decision, Error>) -> Self {
        Self::new(Inner::Ready(Some(answer)))
    }

    /// An answer that has to be waited for.
    pub fn later(answer: impl Future<Output = Result<Decision, Error>> + Send + 'static) -> Self {
        Self::new(Inner::Later(Box::pin(answer)))
    }

    #[cfg(feature = "redis")]
    pub(super) const fn promised(promised: Promised) -> Self {
        Self::new(Inner::Promised(promised))
    }

    /// The answer, if it is there already.
    #[cfg(any(feature = "http", feature = "redis"))]
    pub(crate) fn now(&mut self) -> Option<Result<Decision, Error>> {
        match &mut self.inner {
            Inner::Ready(answer) => {
                let answer = answer.take();
                #[cfg(feature = "redis")]
                let answer = answer.map(|answer| Standing::over(&self.standing, answer));
                answer
            }
            _ => None,
        }
    }

    /// The same answer, in which a denial that is still in force stands in for an error.
    #[cfg(feature = "redis")]
    pub(super) fn or_standing(mut self, standing: Standing) -> Self {
        self.standing = Some(standing);
        self
    }
}

impl Future for Answer {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.inner {
            // Polled again after completion, it stays pending: there is no second answer.
            Inner::Ready(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Inner::Later(answer) => answer.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Inner::Promised(answer) => Pin::new(answer).poll(cx),
        };
        #[cfg(feature = "redis")]
        let answer = answer.map(|answer| Standing::over(&self.standing, answer));
        answer
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.inner {
            Inner::Ready(_) => "Answer(ready)",
            Inner::Later(_) => "Answer(later)",
            #[cfg(feature = "redis")]
            Inner::Promised(_) => "Answer(promised)",
        })
    }
}
