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
use super::settings::Settings;
use super::waiting::Waiting;

/// A service that checks each request before it calls the inner service. Created by
/// [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
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
        let (question, wanted) = self.settings.policy.question(&parts);
        if !wanted.is_empty() {
            // Permits come first. So a request without one is charged under no limit.
            let (entering, settings) = (self.settings.enter(wanted), Arc::clone(&self.settings));
            let inner = self.release_inner();
            let waiting = Waiting::for_permits(inner, (parts, body), entering, question, settings);
            return ResponseFuture::waiting(waiting);
        }
        self.settings.hold_none(&mut parts);
        let asked;
        let answer = match question {
            Question::Unlimited | Question::Exempt => {
                self.settings.forward_uncharged(&mut parts);
                let request = Request::from_parts(parts, body);
                return ResponseFuture::calling(self.inner.call(request), None);
            }
            Question::Group(group) => {
                asked = self.settings.kept(&group);
                self.settings.ask(group, &asked)
            }
            Question::LookUp(lookup) => {
                let (inner, settings) = (self.release_inner(), Arc::clone(&self.settings));
                let waiting = Waiting::for_lookup(inner, (parts, body), lookup, settings);
                return ResponseFuture::waiting(waiting);
            }
            Question::Rejected(unasked) => {
                self.release_inner();
                return ResponseFuture::answered(self.settings.answer(unasked, &parts));
            }
        };
        let Some(decided) = answer.as_ready() else {
            let (inner, settings) = (self.release_inner(), Arc::clone(&self.settings));
            let waiting = Waiting::for_decision(inner, (parts, body), answer, asked, settings);
            return ResponseFuture::waiting(waiting);
        };
        let conclusion = self.settings.conclude(decided, &asked, &mut parts);
        // The span of the check does not include the inner service.
        drop(asked);
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
