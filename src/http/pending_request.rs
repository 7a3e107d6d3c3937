//! A request that waits: for a look-up, for its decision, for its delay, for the inner service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service;

use super::acquiring::WithoutPermits;
use super::conclusion::{Charging, Conclusion, Report};
use super::policy::Pending;
use super::request_checks::RequestChecks;
use super::request_limiter::RequestLimiter;
use super::{InFlight, ResponseBody};
use crate::model::Group;
use crate::store::Answer;
use crate::telemetry::CheckSpan;

pub(super) struct PendingRequest<S, ReqBody> {
    /// Not ready. It is polled when the request is about to be forwarded.
    service: S,
    /// In parts, because each stage reads or changes the head. Taken when the wait is over.
    request: Option<(Parts, ReqBody)>,
    report: Option<Report>,
    permits: Option<InFlight>,
    stage: Stage,
}

pub(super) enum Stage {
    /// The request waits for permits. The group is charged when they are there.
    Acquiring {
        acquiring: BoxFuture<'static, Result<InFlight, WithoutPermits>>,
        group: Option<Group>,
        since: Instant,
        limiter: Arc<RequestLimiter>,
    },
    /// It waits for look-ups of your application.
    LookingUp {
        pending: Pending,
        since: Instant,
        limiter: Arc<RequestLimiter>,
    },
    /// It waits for a decision.
    Checking {
        answer: Answer,
        charging: Charging,
        limiter: Arc<RequestLimiter>,
    },
    /// It is allowed, and waits for its delay.
    Delaying(Pin<Box<Sleep>>),
    /// It waits for the inner service.
    Preparing,
}

pin_project! {
    /// How far a request is.
    #[project = ProgressProjection]
    pub(super) enum Progress<S, ReqBody, ResBody>
    where
        S: Service<Request<ReqBody>>,
    {
        // In a box, so that a request that is decided at once does not carry the room.
        Waiting { waiting: Box<PendingRequest<S, ReqBody>> },
        Calling {
            #[pin]
            response: S::Future,
            // Taken when the response is there.
            report: Option<Report>,
            permits: Option<InFlight>,
        },
        // Taken when the future is polled. In a box for the same reason.
        Answered { response: Option<Box<Response<ResponseBody<ResBody>>>> },
    }
}

impl<S, ReqBody, ResBody> Progress<S, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    /// A request that is rejected.
    pub(super) fn answered(response: Response<Bytes>) -> Self {
        Self::Answered {
            response: Some(Box::new(response.map(ResponseBody::rejection))),
        }
    }
}

impl<S, ReqBody> PendingRequest<S, ReqBody> {
    /// A request at a stage, with the report of its decision, if it was decided.
    pub(super) const fn new(
        service: S,
        request: (Parts, ReqBody),
        stage: Stage,
        report: Option<Report>,
    ) -> Self {
        Self {
            service,
            request: Some(request),
            report,
            permits: None,
            stage,
        }
    }
}

impl<S, ReqBody> PendingRequest<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// Waits until the request is forwarded or rejected. It is not a part of the code of a request
    /// that is decided at once.
    #[inline(never)]
    pub(super) fn poll<ResBody>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Progress<S, ReqBody, ResBody>, S::Error>> {
        loop {
            match &mut self.stage {
                Stage::Acquiring {
                    acquiring,
                    group,
                    since,
                    limiter,
                } => {
                    let acquired = ready!(acquiring.as_mut().poll(cx));
                    let Some((parts, _)) = &mut self.request else {
                        return Poll::Pending;
                    };
                    match acquired {
                        Ok(permits) => {
                            limiter.insert_permits(&permits, parts);
                            self.permits = Some(permits);
                            let group = match group.take() {
                                Some(group) => limiter
                                    .policy
                                    .apply_overrides_again(&limiter.rate_limiter, group),
                                None => Ok(None),
                            };
                            self.stage = match group {
                                Ok(group) => Stage::charging(group, *since, limiter, parts),
                                Err(rejected) => {
                                    let response = limiter.reject_early(rejected, parts);
                                    return Poll::Ready(Ok(Progress::answered(response)));
                                }
                            };
                        }
                        Err(why) => {
                            let response = limiter.without_permits(&why, parts);
                            return Poll::Ready(Ok(Progress::answered(response)));
                        }
                    }
                }
                Stage::LookingUp {
                    pending,
                    since,
                    limiter,
                } => {
                    let Some((parts, _)) = &mut self.request else {
                        return Poll::Pending;
                    };
                    let rate_limiter = &limiter.rate_limiter;
                    let asked = limiter
                        .policy
                        .poll_pending(rate_limiter, pending, parts, cx);
                    match ready!(asked) {
                        Ok(asked) => self.stage = Stage::asking(asked, *since, limiter, parts),
                        Err(rejected) => {
                            let response = limiter.reject_early(rejected, parts);
                            return Poll::Ready(Ok(Progress::answered(response)));
                        }
                    }
                }
                Stage::Checking {
                    answer,
                    charging,
                    limiter,
                } => {
                    let answer = ready!(charging.observation.span.poll(answer, cx));
                    let Some((parts, _)) = &mut self.request else {
                        return Poll::Pending;
                    };
                    let delay = match limiter.conclude(&answer, charging, parts) {
                        Conclusion::Forward { delay, report } => {
                            self.report = report;
                            delay
                        }
                        Conclusion::Reject(response) => {
                            return Poll::Ready(Ok(Progress::answered(response)));
                        }
                    };
                    self.stage = Stage::after(delay);
                }
                Stage::Delaying(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    self.stage = Stage::Preparing;
                }
                Stage::Preparing => {
                    if self.request.is_none() {
                        return Poll::Pending;
                    }
                    ready!(self.service.poll_ready(cx))?;
                    let Some((parts, body)) = self.request.take() else {
                        return Poll::Pending;
                    };
                    let report = self.report.take();
                    let permits = self.permits.take();
                    let response = self.service.call(Request::from_parts(parts, body));
                    return Poll::Ready(Ok(Progress::Calling {
                        response,
                        report,
                        permits,
                    }));
                }
            }
        }
    }
}

impl Stage {
    /// The stage of a request whose permits and charge are known.
    pub(super) fn asking(
        asked: RequestChecks,
        since: Instant,
        limiter: &Arc<RequestLimiter>,
        parts: &mut Parts,
    ) -> Self {
        limiter.compare(&asked, parts);
        if asked.permits.is_empty() {
            limiter.insert_no_permits(parts);
            return Self::charging(asked.group, since, limiter, parts);
        }
        let acquiring = limiter.acquire_permits(asked.permits, since);
        let limiter = Arc::clone(limiter);
        Self::Acquiring {
            acquiring,
            group: asked.group,
            since,
            limiter,
        }
    }

    /// The stage of a request that has its permits.
    fn charging(
        group: Option<Group>,
        since: Instant,
        limiter: &Arc<RequestLimiter>,
        parts: &mut Parts,
    ) -> Self {
        let Some(group) = group else {
            limiter.insert_empty_settlement(parts);
            return Self::Preparing;
        };
        let charging = limiter.begin_charge(CheckSpan::begin(), &group);
        let answer = limiter.charge(group, Some(since), &charging);
        Self::Checking {
            answer,
            charging,
            limiter: Arc::clone(limiter),
        }
    }

    /// The stage of an allowed request, which waits out its delay.
    pub(super) fn after(delay: Duration) -> Self {
        if delay.is_zero() {
            Self::Preparing
        } else {
            Self::Delaying(Box::pin(sleep(delay)))
        }
    }
}
