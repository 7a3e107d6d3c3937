//! The future of a response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::ResponseBody;
use super::conclusion::Report;
use super::pending_request::{PendingRequest, Progress, ProgressProjection};

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
        state: Progress<S, ReqBody, ResBody>,
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
    pub(super) fn answered(response: Response<Bytes>) -> Self {
        Self {
            state: Progress::answered(response),
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
            match state.as_mut().project() {
                ProgressProjection::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok(next) => state.set(next),
                    Err(error) => {
                        state.set(Progress::Answered { response: None });
                        return Poll::Ready(Err(error));
                    }
                },
                ProgressProjection::Calling {
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
                ProgressProjection::Answered { response } => {
                    return response
                        .take()
                        .map_or(Poll::Pending, |it| Poll::Ready(Ok(*it)));
                }
            }
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
