//! A request that waits: for a look-up, for its decision, for its delay, for the inner service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response};
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

pub(super) struct PendingRequest<S, ReqBody> {
    /// Not ready. It is polled when the request is about to be forwarded.
    service: S,
    /// In parts, because each stage reads or changes the head. Taken when the wait is over.
    request: Option<(Parts, ReqBody)>,
    report: Option<Report>,
    permits: Option<InFlight>,
    stage: Stage,
}

enum Stage {
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

/// The next step after the wait.
pub(super) enum Next<S: Service<Request<ReqBody>>, ReqBody, ResBody> {
    Calling {
        response: S::Future,
        report: Option<Report>,
        permits: Option<InFlight>,
    },
    Rejected(Response<ResponseBody<ResBody>>),
}

impl<S, ReqBody> PendingRequest<S, ReqBody> {
    /// A request that waits for permits.
    pub(super) fn for_permits(
        service: S,
        request: (Parts, ReqBody),
        asked: RequestChecks,
        limiter: Arc<RequestLimiter>,
    ) -> Self {
        let since = Instant::now();
        let acquiring = limiter.acquire_permits(asked.permits, since);
        let stage = Stage::Acquiring {
            acquiring,
            group: asked.group,
            since,
            limiter,
        };
        Self::new(service, request, stage)
    }

    /// A request that waits for look-ups.
    pub(super) fn for_lookup(
        service: S,
        request: (Parts, ReqBody),
        pending: Pending,
        limiter: Arc<RequestLimiter>,
    ) -> Self {
        let stage = Stage::LookingUp {
            pending,
            since: Instant::now(),
            limiter,
        };
        Self::new(service, request, stage)
    }

    /// A request that waits for its decision.
    pub(super) fn for_decision(
        service: S,
        request: (Parts, ReqBody),
        answer: Answer,
        charging: Charging,
        limiter: Arc<RequestLimiter>,
    ) -> Self {
        let stage = Stage::Checking {
            answer,
            charging,
            limiter,
        };
        Self::new(service, request, stage)
    }

    /// An allowed request that waits for its delay.
    pub(super) fn for_delay(
        service: S,
        request: (Parts, ReqBody),
        delay: Duration,
        report: Option<Report>,
    ) -> Self {
        let stage = Stage::after(delay);
        Self {
            report,
            ..Self::new(service, request, stage)
        }
    }

    const fn new(service: S, request: (Parts, ReqBody), stage: Stage) -> Self {
        Self {
            service,
            request: Some(request),
            report: None,
            permits: None,
            stage,
        }
    }
}

impl<S, ReqBody> PendingRequest<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn poll<ResBody>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Next<S, ReqBody, ResBody>, S::Error>> {
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
                            self.stage = Stage::charging(group.take(), *since, limiter, parts);
                        }
                        Err(why) => {
                            let response = limiter.without_permits(&why, parts);
                            return Poll::Ready(Ok(Next::Rejected(response)));
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
                    match ready!(limiter.policy.poll_pending(pending, parts, cx)) {
                        Ok(asked) => self.stage = Stage::asking(asked, *since, limiter, parts),
                        Err(rejected) => {
                            let response = limiter.reject_early(rejected, parts);
                            return Poll::Ready(Ok(Next::Rejected(response)));
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
                            return Poll::Ready(Ok(Next::Rejected(response)));
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
                    return Poll::Ready(Ok(Next::Calling {
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
    fn asking(
        asked: RequestChecks,
        since: Instant,
        limiter: &Arc<RequestLimiter>,
        parts: &mut Parts,
    ) -> Self {
        limiter
            .comparison
            .compare(&limiter.rate_limiter, &asked, parts);
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
        let charging = limiter.begin_charge(&group);
        let answer = limiter.charge_since(since, group, &charging);
        Self::Checking {
            answer,
            charging,
            limiter: Arc::clone(limiter),
        }
    }

    fn after(delay: Duration) -> Self {
        if delay.is_zero() {
            Self::Preparing
        } else {
            Self::Delaying(Box::pin(sleep(delay)))
        }
    }
}
