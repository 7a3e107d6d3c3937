//! The rate limit service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use tokio::time::Instant;
use tower_service::Service;

use super::ResponseBody;
use super::conclusion::{Conclusion, Report};
use super::future::ResponseFuture;
use super::pending_request::{PendingRequest, Stage};
use super::policy::Question;
use super::request_limiter::RequestLimiter;
use crate::telemetry::CheckSpan;

/// A service that checks each request before it calls the inner service. Created by
/// [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    limiter: Arc<RequestLimiter>,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, limiter: Arc<RequestLimiter>) -> Self {
        Self { inner, limiter }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to be changed.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let limiter = &self.limiter;
        let asked = match limiter.policy.question(&limiter.rate_limiter, &parts) {
            Ok(Question::One { keyed, key, cost }) => {
                match limiter.charge_here(keyed, &key, cost, &mut parts) {
                    Ok(conclusion) => return self.follow(conclusion, (parts, body)),
                    Err(it) => keyed.check(key, cost).of_new_key(it.is_new_key).into(),
                }
            }
            Ok(Question::Checks(asked)) => asked,
            Ok(Question::Pending(pending)) => {
                let stage = Stage::LookingUp {
                    pending,
                    since: Instant::now(),
                    limiter: Arc::clone(limiter),
                };
                return self.wait((parts, body), stage, None);
            }
            Err(rejected) => {
                let response = limiter.reject_early(rejected, &parts);
                self.release_inner();
                return ResponseFuture::answered(response);
            }
        };
        if !asked.permits.is_empty() {
            // Permits come first. So a request without one is charged under no limit.
            let stage = Stage::asking(asked, Instant::now(), limiter, &mut parts);
            return self.wait((parts, body), stage, None);
        }
        limiter.compare(&asked, &mut parts);
        limiter.insert_no_permits(&mut parts);
        let Some(group) = asked.group else {
            limiter.insert_empty_settlement(&mut parts);
            let request = Request::from_parts(parts, body);
            return ResponseFuture::calling(self.inner.call(request), None);
        };
        let charging = limiter.begin_charge(CheckSpan::begin(), &group);
        let answer = limiter.charge(group, None, &charging);
        let Some(decided) = answer.as_ready() else {
            let stage = Stage::Checking {
                answer,
                charging,
                limiter: Arc::clone(limiter),
            };
            return self.wait((parts, body), stage, None);
        };
        let conclusion = limiter.conclude(decided, &charging, &mut parts);
        // The span of the check does not include the inner service.
        drop(charging);
        self.follow(conclusion, (parts, body))
    }
}

impl<S: Clone> RateLimit<S> {
    /// Does what was concluded.
    #[inline]
    fn follow<ReqBody, ResBody>(
        &mut self,
        conclusion: Conclusion,
        (parts, body): (Parts, ReqBody),
    ) -> ResponseFuture<S, ReqBody, ResBody>
    where
        S: Service<Request<ReqBody>>,
    {
        match conclusion {
            Conclusion::Forward { delay, report } if delay.is_zero() => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::calling(self.inner.call(request), report)
            }
            Conclusion::Forward { delay, report } => {
                self.wait((parts, body), Stage::after(delay), report)
            }
            Conclusion::Reject(response) => {
                self.release_inner();
                ResponseFuture::answered(response)
            }
        }
    }

    /// The response of a request that waits.
    #[inline(never)]
    fn wait<ReqBody, ResBody>(
        &mut self,
        request: (Parts, ReqBody),
        stage: Stage,
        report: Option<Report>,
    ) -> ResponseFuture<S, ReqBody, ResBody>
    where
        S: Service<Request<ReqBody>>,
    {
        let inner = self.release_inner();
        ResponseFuture::waiting(PendingRequest::new(inner, request, stage, report))
    }

    /// Drops the ready inner service, so that other requests can use its reservation while this one
    /// waits or after it is rejected. Returns a clone that is not ready.
    fn release_inner(&mut self) -> S {
        self.inner = self.inner.clone();
        self.inner.clone()
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limits", &self.limiter.names)
            .finish_non_exhaustive()
    }
}
