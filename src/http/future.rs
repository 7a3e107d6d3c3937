//! The future of a response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::conclusion::Report;
use super::pending_request::{Next, PendingRequest};
use super::{InFlight, ResponseBody};

pin_project! {
    /// The response of [`RateLimit`](crate::layer::RateLimit).
    ///
    /// A request is decided, waits out the decision's delay, if it has one, and is forwarded.
    /// If it is dropped before that, the request is not forwarded.
    ///
    /// While it waits, for a decision or for its delay, it does not hold the inner service ready.
    /// It waits for the service again before it calls it.
    pub struct ResponseFuture<S, ReqBody, ResBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: Progress<S, S::Future, ReqBody, ResBody>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum Progress<S, F, ReqBody, ResBody> {
        // In a box, so that a request that is decided at once does not carry the room.
        Waiting { waiting: Box<PendingRequest<S, ReqBody>> },
        Calling {
            #[pin]
            response: F,
            // Taken when the response is there.
            report: Option<Report>,
            permits: Option<InFlight>,
        },
        // Taken when the future is polled. In a box for the same reason.
        Answered { response: Option<Box<Response<ResponseBody<ResBody>>>> },
    }
}

impl<S, ReqBody, ResBody> ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    /// A request that waits, and a service that need not be ready.
    pub(super) fn waiting(waiting: PendingRequest<S, ReqBody>) -> Self {
        Self {
            state: Progress::Waiting {
                waiting: Box::new(waiting),
            },
        }
    }

    /// A request that the inner service has.
    pub(super) const fn calling(response: S::Future, report: Option<Report>) -> Self {
        Self {
            state: Progress::Calling {
                response,
                report,
                permits: None,
            },
        }
    }

    /// A request that is rejected.
    pub(super) fn answered(response: Response<ResponseBody<ResBody>>) -> Self {
        Self {
            state: Progress::Answered {
                response: Some(Box::new(response)),
            },
        }
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
            let output = match state.as_mut().project() {
                StateProjection::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok(Next::Calling {
                        response,
                        report,
                        permits,
                    }) => {
                        state.set(Progress::Calling {
                            response,
                            report,
                            permits,
                        });
                        continue;
                    }
                    Ok(Next::Rejected(response)) => Ok(response),
                    Err(error) => Err(error),
                },
                StateProjection::Calling {
                    response,
                    report,
                    permits,
                } => {
                    let response = ready!(response.poll(cx));
                    let report = report.take();
                    let permits = permits.take();
                    // Drop the inner future now, so that its resources are free even if this one is
                    // kept. Polled again, this one stays pending.
                    state.set(Progress::Answered { response: None });
                    return Poll::Ready(response.map(|response| {
                        let response = match report {
                            Some(report) => report.close(response),
                            None => response,
                        };
                        response.map(|body| ResponseBody::inner(body, permits))
                    }));
                }
                StateProjection::Answered { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(*response)),
                    None => return Poll::Pending,
                },
            };
            state.set(Progress::Answered { response: None });
            return Poll::Ready(output);
        }
    }
}

impl<S, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            Progress::Waiting { .. } => "ResponseFuture(waiting)",
            Progress::Calling { .. } => "ResponseFuture(calling)",
            Progress::Answered { .. } => "ResponseFuture(answered)",
        })
    }
}
