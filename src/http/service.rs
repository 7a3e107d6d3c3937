//! The service that limits another.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::ResponseBody;
use super::admission::Admission;
use super::future::ResponseFuture;
use super::settings::Settings;

/// A service that asks whether a request fits before it calls the inner one. Made by
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
        // The inner service that is ready is this one, and not its clone. It goes with the request,
        // so that what it reserved is given back when the request is refused.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);

        let (parts, body) = request.into_parts();
        let admission = self.settings.admit(&parts);
        let mut request = Request::from_parts(parts, body);
        match admission {
            Admission::Forward => ResponseFuture::calling(ready.call(request)),
            Admission::Refuse(response) => ResponseFuture::answered(response),
            Admission::Check(mut answer) => match answer.now() {
                Some(answer) => {
                    let outcome = self.settings.conclude(answer, request.extensions_mut());
                    ResponseFuture::decided(outcome, request, ready)
                }
                None => {
                    // What the ready service reserved is for others while this request waits.
                    drop(ready);
                    let inner = self.inner.clone();
                    ResponseFuture::checking(answer, request, inner, Arc::clone(&self.settings))
                }
            },
        }
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
