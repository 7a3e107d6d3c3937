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

use super::admission::Outcome;
use super::settings::Settings;
use super::{ResponseBody, headers};
use crate::{Answer, Decision};

pin_project! {
    /// The response of [`RateLimit`](crate::RateLimit).
    ///
    /// A request is decided, waits out the decision's delay, if it has one, and is handed on.
    /// Dropped before that, the inner service never sees it.
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
            // Taken when the request is handed on.
            held: Option<Held<S, ReqBody>>,
        },
        Delaying {
            #[pin]
            delay: Sleep,
            held: Option<Held<S, ReqBody>>,
            decision: Option<Decision>,
        },
        Calling {
            #[pin]
            response: F,
            decision: Option<Decision>,
            settings: Arc<Settings>,
        },
        Answered {
            response: Option<Response<ResponseBody<ResBody>>>,
        },
    }
}

/// A request that waits, and the service that is ready for it.
struct Held<S, ReqBody> {
    request: Request<ReqBody>,
    service: S,
    settings: Arc<Settings>,
}

impl<S, ReqBody> Held<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// Hands the request on.
    fn call<ResBody>(
        mut self,
        decision: Option<Decision>,
    ) -> State<S, S::Future, ReqBody, ResBody> {
        let response = self.service.call(self.request);
        State::Calling { response, decision, settings: self.settings }
    }
}

impl<S, ReqBody, ResBody> ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) const fn checking(
        answer: Answer,
        request: Request<ReqBody>,
        service: S,
        settings: Arc<Settings>,
    ) -> Self {
        let held = Some(Held { request, service, settings });
        Self { state: State::Checking { answer, held } }
    }

    pub(super) const fn calling(response: S::Future, settings: Arc<Settings>) -> Self {
        Self { state: State::Calling { response, decision: None, settings } }
    }

    pub(super) const fn answered(response: Response<ResponseBody<ResBody>>) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Checking { answer, held } => {
                    let answer = ready!(Pin::new(answer).poll(cx));
                    // Polled again after completion, the future stays pending.
                    let Some(mut held) = held.take() else { return Poll::Pending };
                    match held.settings.conclude(answer, held.request.extensions_mut()) {
                        Outcome::Refuse(response) => State::Answered { response: Some(response) },
                        Outcome::Forward(Some(decision)) if !decision.delay().is_zero() => {
                            State::Delaying {
                                delay: sleep(decision.delay()),
                                held: Some(held),
                                decision: Some(decision),
                            }
                        }
                        Outcome::Forward(decision) => held.call(decision),
                    }
                }
                StateProjection::Delaying { delay, held, decision } => {
                    ready!(delay.poll(cx));
                    let Some(held) = held.take() else { return Poll::Pending };
                    held.call(decision.take())
                }
                StateProjection::Calling { response, decision, settings } => {
                    let mut response = ready!(response.poll(cx))?;
                    if let Some(decision) = decision.take() {
                        headers::budget(response.headers_mut(), &decision, settings.reset_format);
                        if response.extensions().get::<Decision>().is_none() {
                            response.extensions_mut().insert(decision);
                        }
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProjection::Answered { response } => {
                    return response.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it)));
                }
            };
            state.set(next);
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
            State::Delaying { .. } => "ResponseFuture(delaying)",
            State::Calling { .. } => "ResponseFuture(calling)",
            State::Answered { .. } => "ResponseFuture(answered)",
        })
    }
}
