//! The rate limit service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::ResponseBody;
use super::conclusion::Conclusion;
use super::future::ResponseFuture;
use super::policy::Question;
use super::settings::LayerSettings;
use super::waiting::Waiting;

/// A service that checks each request before it calls the inner service. Created by
/// [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<LayerSettings>,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, settings: Arc<LayerSettings>) -> Self {
        Self { inner, settings }
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
        let asked = match self.settings.policy.question(&parts) {
            Ok(Question::Checks(asked)) => asked,
            Ok(Question::Pending(pending)) => {
                let inner = self.release_inner();
                let settings = Arc::clone(&self.settings);
                let waiting = Waiting::for_lookup(inner, (parts, body), pending, settings);
                return ResponseFuture::waiting(waiting);
            }
            Err(rejected) => {
                self.release_inner();
                return ResponseFuture::answered(self.settings.reject_early(rejected, &parts));
            }
        };
        let settings = &*self.settings;
        settings
            .comparison
            .compare(&settings.limiter, &asked, &mut parts);
        if !asked.permits.is_empty() {
            // Permits come first. So a request without one is charged under no limit.
            let inner = self.release_inner();
            let settings = Arc::clone(&self.settings);
            return ResponseFuture::waiting(Waiting::for_permits(
                inner,
                (parts, body),
                asked,
                settings,
            ));
        }
        self.settings.insert_no_permits(&mut parts);
        let Some(group) = asked.group else {
            self.settings.insert_empty_settlement(&mut parts);
            let request = Request::from_parts(parts, body);
            return ResponseFuture::calling(self.inner.call(request), None);
        };
        let undecided = self.settings.undecided(&group);
        let answer = self.settings.charge(group, &undecided);
        let Some(decided) = answer.as_ready() else {
            let inner = self.release_inner();
            let settings = Arc::clone(&self.settings);
            let waiting = Waiting::for_decision(inner, (parts, body), answer, undecided, settings);
            return ResponseFuture::waiting(waiting);
        };
        let conclusion = self.settings.conclude(decided, &undecided, &mut parts);
        // The span of the check does not include the inner service.
        drop(undecided);
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
        ResponseFuture::waiting(Waiting::for_delay(inner, (parts, body), delay, report))
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
            .field("limits", &self.settings.names)
            .finish_non_exhaustive()
    }
}
