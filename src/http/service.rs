//! The rate limit service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::ResponseBody;
use super::conclusion::Conclusion;
use super::future::ResponseFuture;
use super::pending_request::PendingRequest;
use super::policy::Question;
use super::request_limiter::RequestLimiter;

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
        let asked = match self.limiter.policy.question(&parts) {
            Ok(Question::Checks(asked)) => asked,
            Ok(Question::Pending(pending)) => {
                let inner = self.release_inner();
                let limiter = Arc::clone(&self.limiter);
                let waiting = PendingRequest::for_lookup(inner, (parts, body), pending, limiter);
                return ResponseFuture::waiting(waiting);
            }
            Err(rejected) => {
                self.release_inner();
                return ResponseFuture::answered(self.limiter.reject_early(rejected, &parts));
            }
        };
        let limiter = &*self.limiter;
        limiter
            .comparison
            .compare(&limiter.rate_limiter, &asked, &mut parts);
        if !asked.permits.is_empty() {
            // Permits come first. So a request without one is charged under no limit.
            let inner = self.release_inner();
            let limiter = Arc::clone(&self.limiter);
            return ResponseFuture::waiting(PendingRequest::for_permits(
                inner,
                (parts, body),
                asked,
                limiter,
            ));
        }
        self.limiter.insert_no_permits(&mut parts);
        let Some(group) = asked.group else {
            self.limiter.insert_empty_settlement(&mut parts);
            let request = Request::from_parts(parts, body);
            return ResponseFuture::calling(self.inner.call(request), None);
        };
        let charging = self.limiter.begin_charge(&group);
        let answer = self.limiter.charge(group, &charging);
        let Some(decided) = answer.as_ready() else {
            let inner = self.release_inner();
            let limiter = Arc::clone(&self.limiter);
            let waiting =
                PendingRequest::for_decision(inner, (parts, body), answer, charging, limiter);
            return ResponseFuture::waiting(waiting);
        };
        let conclusion = self.limiter.conclude(decided, &charging, &mut parts);
        // The span of the check does not include the inner service.
        drop(charging);
        let (delay, report) = match conclusion {
            Conclusion::Forward { delay, report } => (delay, report),
            Conclusion::Reject(response) => {
                self.release_inner();
                return ResponseFuture::answered(response);
            }
        };
        if delay.is_zero() {
            let request = Request::from_parts(parts, body);
            return ResponseFuture::calling(self.inner.call(request), report);
        }
        let inner = self.release_inner();
        ResponseFuture::waiting(PendingRequest::for_delay(
            inner,
            (parts, body),
            delay,
            report,
        ))
    }
}

impl<S: Clone> RateLimit<S> {
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
