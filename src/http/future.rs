//! The way of one request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::ResponseBody;
use super::admission::Outcome;
use super::headers::Told;
use super::settings::Settings;
use crate::store::Answer;

pin_project! {
    /// The response of [`RateLimit`](crate::layer::RateLimit).
    ///
    /// A request is decided, waits out the decision's delay, if it has one, and is handed on.
    /// Dropped before that, the inner service never sees it.
    ///
    /// While it waits, for a decision or for its delay, it does not hold the inner service ready.
    /// It waits for the service again before it calls it.
    pub struct ResponseFuture<S, ReqBody, ResBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, S::Future, ReqBody, ResBody>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, ReqBody, ResBody> {
        Checking {
            answer: Answer,
            settings: Arc<Settings>,
            // Taken when the request goes on; so in the other states.
            held: Option<Held<S, ReqBody>>,
        },
        Delaying {
            #[pin]
            delay: Sleep,
            held: Option<Held<S, ReqBody>>,
            told: Option<Told>,
        },
        Preparing {
            held: Option<Held<S, ReqBody>>,
            told: Option<Told>,
        },
        Calling {
            #[pin]
            response: F,
            told: Option<Told>,
        },
        Answered {
            response: Option<Response<ResponseBody<ResBody>>>,
        },
    }
}

/// A request that waits, and the service that it waits for.
struct Held<S, ReqBody> {
    request: Request<ReqBody>,
    service: S,
}

impl<S, ReqBody> Held<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// What follows a decision that had to be waited for: the service is not ready.
    fn proceed<ResBody>(self, outcome: Outcome<ResBody>) -> State<S, S::Future, ReqBody, ResBody> {
        let told = match outcome {
            Outcome::Refuse(response) => return State::Answered { response: Some(response) },
            Outcome::Forward => None,
            Outcome::Admit(told) => Some(told),
        };
        match told.as_ref().map(|told| told.decision.delay()).filter(|delay| !delay.is_zero()) {
            Some(delay) => State::Delaying { delay: sleep(delay), held: Some(self), told },
            None => State::Preparing { held: Some(self), told },
        }
    }

    /// What follows a decision that was there at once: the service is ready.
    fn proceed_ready<ResBody>(
        mut self,
        outcome: Outcome<ResBody>,
    ) -> State<S, S::Future, ReqBody, ResBody>
    where
        S: Clone,
    {
        match outcome {
            Outcome::Refuse(response) => State::Answered { response: Some(response) },
            Outcome::Forward => self.call(None),
            Outcome::Admit(told) if told.decision.delay().is_zero() => self.call(Some(told)),
            outcome @ Outcome::Admit(_) => {
                // What the ready service reserved is for others while this one waits.
                self.service = self.service.clone();
                self.proceed(outcome)
            }
        }
    }

    /// Hands the request on to the service, which is ready.
    fn call<ResBody>(mut self, told: Option<Told>) -> State<S, S::Future, ReqBody, ResBody> {
        State::Calling { response: self.service.call(self.request), told }
    }
}

impl<S, ReqBody, ResBody> ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    /// A request that waits for its decision, and a service that need not be ready.
    pub(super) const fn checking(
        answer: Answer,
        request: Request<ReqBody>,
        service: S,
        settings: Arc<Settings>,
    ) -> Self {
        let held = Some(Held { request, service });
        Self { state: State::Checking { answer, settings, held } }
    }

    /// A request that was decided at once, and a service that is ready.
    pub(super) fn decided(outcome: Outcome<ResBody>, request: Request<ReqBody>, service: S) -> Self
    where
        S: Clone,
    {
        Self { state: Held { request, service }.proceed_ready(outcome) }
    }

    pub(super) const fn calling(response: S::Future) -> Self {
        Self { state: State::Calling { response, told: None } }
    }

    pub(super) const fn answered(response: Response<ResponseBody<ResBody>>) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let output = ready!(state.as_mut().poll(cx));
        // What the response's future held is for others, even if this one is kept. Polled again,
        // it finds nothing to take, and stays pending.
        state.set(State::Answered { response: None });
        Poll::Ready(output)
    }
}

impl<S, ReqBody, ResBody> State<S, S::Future, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody<ResBody>>, S::Error>> {
        loop {
            let next = match self.as_mut().project() {
                StateProjection::Checking { answer, settings, held } => {
                    let answer = ready!(Pin::new(answer).poll(cx));
                    let Some(mut held) = held.take() else { return Poll::Pending };
                    let outcome = settings.conclude(answer, held.request.extensions_mut());
                    held.proceed(outcome)
                }
                StateProjection::Delaying { delay, held, told } => {
                    ready!(delay.poll(cx));
                    State::Preparing { held: held.take(), told: told.take() }
                }
                StateProjection::Preparing { held, told } => {
                    let Some(waiting) = held else { return Poll::Pending };
                    ready!(waiting.service.poll_ready(cx))?;
                    let Some(held) = held.take() else { return Poll::Pending };
                    held.call(told.take())
                }
                StateProjection::Calling { response, told } => {
                    let mut response = ready!(response.poll(cx))?;
                    if let Some(told) = told.take() {
                        told.tell(&mut response);
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProjection::Answered { response } => {
                    return response.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it)));
                }
            };
            self.set(next);
        }
    }
}

impl<S, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Checking { .. } => "ResponseFuture(checking)",
            State::Delaying { .. } | State::Preparing { .. } => "ResponseFuture(delaying)",
            State::Calling { .. } => "ResponseFuture(calling)",
            State::Answered { .. } => "ResponseFuture(answered)",
        })
    }
}
