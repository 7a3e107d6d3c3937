//! The answer of a store.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::ready;
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;

use super::promise::Promised;
use crate::model::{Decision, Error};

/// The future of a decision, which a [`Store`](crate::store::Store) returns.
#[must_use = "without its answer, a check limits nothing, and may still be charged"]
pub struct Answer(Inner);

enum Inner {
    Ready(Option<Result<Decision, Error>>),
    /// In its place, because most checks on Redis wait for one.
    Promised(Promised, Option<Box<Resolve>>),
    Later(
        BoxFuture<'static, Result<Decision, Error>>,
        Option<Box<Resolve>>,
    ),
}

/// A function that is applied to the answer when it is there.
type Resolve = dyn FnOnce(Result<Decision, Error>) -> Result<Decision, Error> + Send;

impl Answer {
    /// An answer that is ready. It needs no allocation.
    #[inline]
    pub const fn ready(answer: Result<Decision, Error>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// An answer that has to be awaited.
    pub fn later(answer: impl Future<Output = Result<Decision, Error>> + Send + 'static) -> Self {
        Self(Inner::Later(Box::pin(answer), None))
    }

    /// An answer that another task gives.
    pub(crate) const fn promised(answer: Promised) -> Self {
        Self(Inner::Promised(answer, None))
    }

    /// The same answer, with `resolve` applied to it.
    pub(crate) fn resolved(
        mut self,
        resolve: impl FnOnce(Result<Decision, Error>) -> Result<Decision, Error> + Send + 'static,
    ) -> Self {
        match &mut self.0 {
            Inner::Ready(answer) => match answer.take() {
                Some(answer) => Self::ready(resolve(answer)),
                None => self,
            },
            // The functions are composed instead of wrapping the future: a wrapper would cost each
            // check on Redis a move and an indirect poll.
            Inner::Promised(_, last) | Inner::Later(_, last) => {
                *last = Some(match last.take() {
                    Some(first) => Box::new(move |answer| resolve(first(answer))),
                    None => Box::new(resolve),
                });
                self
            }
        }
    }

    /// The answer, if it is ready.
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
            Inner::Promised(answer, resolve) => {
                let answer = ready!(Pin::new(answer).poll(cx));
                Poll::Ready(resolved(answer, resolve.take()))
            }
            Inner::Later(answer, resolve) => {
                let answer = ready!(answer.as_mut().poll(cx));
                Poll::Ready(resolved(answer, resolve.take()))
            }
        }
    }
}

fn resolved(
    answer: Result<Decision, Error>,
    resolve: Option<Box<Resolve>>,
) -> Result<Decision, Error> {
    match resolve {
        Some(resolve) => resolve(answer),
        None => answer,
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Ready(_) => "Answer(ready)",
            Inner::Promised(..) | Inner::Later(..) => "Answer(later)",
        })
    }
}

/// All answers, which are awaited at the same time: one that is dropped may cancel its operation.
pub(crate) async fn all(answers: Vec<Answer>) -> Vec<Result<Decision, Error>> {
    let mut results: Vec<_> = answers.iter().map(|_| None).collect();
    let numbered = answers.into_iter().enumerate().collect();
    each(numbered, |number: usize, answer| {
        if let Some(result) = results.get_mut(number) {
            *result = Some(answer);
        }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Awaits answers at the same time, and calls a function with each as soon as it is there.
pub(crate) async fn each<T>(
    answers: Vec<(T, Answer)>,
    mut call: impl FnMut(T, Result<Decision, Error>),
) {
    let mut pending: Vec<_> = answers.into_iter().map(Some).collect();
    poll_fn(|cx| {
        for place in &mut pending {
            if let Some((_, answer)) = place
                && let Poll::Ready(answer) = Pin::new(answer).poll(cx)
                && let Some((of, _)) = place.take()
            {
                call(of, answer);
            }
        }
        match pending.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::size_of;

    use super::*;

    /// Up to 128 bytes, the compiler moves a value in registers. Each request moves these a dozen
    /// times.
    #[test]
    fn answers_are_moved_in_registers() {
        assert!(size_of::<Decision>() <= 128, "{}", size_of::<Decision>());
        assert!(size_of::<Result<Decision, Error>>() <= 128);
        assert!(size_of::<Answer>() <= 128, "{}", size_of::<Answer>());
    }
}
