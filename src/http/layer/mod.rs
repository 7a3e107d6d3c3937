//! The layer and its settings.

// The documentation has the methods in the order of these groups.
mod constructors;
mod limits;

mod exempt;
mod rejections;

mod headers;

mod failures;
mod shadow;

mod settling;
mod waiting;

mod in_flight;

mod usage;

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::RateLimit;
use super::request_limiter::RequestLimiter;

/// Limits your service. It takes a key from each request, asks the limiter, and forwards the
/// request or answers 429.
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::key::PeerIp;
/// use tollgate::{Quota, RateLimitLayer, RateLimiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory();
/// let quota = Quota::per_second(10).burst(20);
/// let app: Router = Router::new()
///     .route("/search", get(|| async { "found" }))
///     .layer(RateLimitLayer::token_bucket(&limiter, "search", quota, PeerIp)?);
/// # Ok(())
/// # }
/// ```
///
/// A setter returns a `Result` if its value can be out of a range, or can contradict the limits.
///
/// # The path of a request
///
/// 1. A request that a [`forbid`](Self::forbid) predicate matches is answered with 403. One that a
///    [`skip`](Self::skip) predicate matches is not limited. Nor are CORS preflight requests,
///    unless [`limit_preflight`](Self::limit_preflight) is set.
/// 2. The key is extracted. A limit cannot be added without a key, because no default is safe. A
///    request without a key is rejected with 400, unless [`on_missing_key`](Self::on_missing_key)
///    is set. If the layer has [concurrency limits](crate::Limit::concurrency), the request
///    acquires its permits then, and holds them until the body of its response ends.
/// 3. All limits of the layer are decided in one call. All are charged, or none.
/// 4. A denied request is answered with 429, `Retry-After` in whole seconds, rounded up, at least
///    1, `Cache-Control: no-store`, and a line of text. A request whose [cost](Self::cost) is above
///    the capacity is answered with 422, and no `Retry-After` or reset, because no wait helps.
///    [`respond_with`](Self::respond_with) changes these and all other responses of the layer.
/// 5. An allowed request waits out a leaky bucket's delay, and is forwarded. A request that waits,
///    for a decision or for its delay, does not hold the inner service ready. It waits for the
///    service again afterwards. A request that need not wait uses the service that is ready.
///    Dropping the response future cancels the wait.
/// 6. Both responses carry `X-RateLimit-Limit`, `X-RateLimit-Remaining` and
///    [`X-RateLimit-Reset`](Self::reset_in_delta_seconds), and the [`RateLimit`
///    fields](Self::ietf_headers) if they are set.
///    [`report_denials_only`](Self::report_denials_only) and
///    [`report_nothing`](Self::report_nothing) restrict that. If the inner service sent a field,
///    the stricter value stays. If the two cannot be compared, its own value stays. Lists get both
///    values. A response with status 304 or 101, and the response to an allowed `CONNECT`, have
///    none. The response to a denied request has the [`Decision`](crate::Decision) in its
///    extensions, for layers outside. For allowed requests, see
///    [`insert_decision`](Self::insert_decision).
/// 7. When the store is unavailable, the request is forwarded without rate limit headers, or
///    answered with 503, or limited in this process. See
///    [`on_store_failure`](Self::on_store_failure). An event reports it.
///
/// # Several layers
///
/// Layers share a budget only if they use the same limiter (or Redis and prefix), the same limit
/// name, and the same key. Stacked layers are decided one after another, the outer one first. A
/// charge of the outer layer stays charged if the inner layer denies. If you want to charge all or
/// none, put the limits into [one layer](Self::limit).
///
/// If two of them share a budget, a request charges it twice. An event says so once.
///
/// With stacked layers, the headers report a budget that is used up, or else the one with the
/// fewest units left. Give your layers the same settings for headers, because fields of different
/// kinds are not compared. The headers of a denial come from the layer that denied. Its
/// `Retry-After` names a time at which the layers outside also allow the request. The same holds
/// for the `Retry-After` of a 429 or 503 of your service. There are three exceptions:
///
/// - The layers inside of one that denied were not asked, and may deny the next request.
/// - A sliding window or a log outside does not say when it allows the next request.
/// - A layer between the two that drops the request's extensions keeps the inner one from knowing.
///
/// None of these exceptions applies to one layer with several limits.
///
/// The decision in the extensions is the strictest of the layers with
/// [`insert_decision`](Self::insert_decision). Of equally strict decisions, the outer layer's
/// stays. With stacked layers it has the receipt of that one layer only. If you refund all charges
/// of a request, put its limits into one layer.
///
/// Put the layer inside your CORS layer, so that its responses carry the CORS headers, and let that
/// layer expose [its headers](Self::exposed_headers). Put it inside your authentication if the key
/// is a user. The headers belong to one client, so a response that a shared cache may keep should
/// not carry them.
///
/// The layer needs a tokio runtime with time enabled.
#[derive(Clone)]
#[must_use = "a layer limits nothing until a service has it"]
pub struct RateLimitLayer {
    limiter: Arc<RequestLimiter>,
}

impl RateLimitLayer {
    fn with(mut self, set: impl FnOnce(&mut RequestLimiter)) -> Self {
        set(Arc::make_mut(&mut self.limiter));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        self.limiter.report_settings_without_effect();
        RateLimit::new(inner, Arc::clone(&self.limiter))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limits", &self.limiter.names)
            .field("on_missing_key", &self.limiter.policy.on_missing_key)
            .field(
                "is_open_when_overloaded",
                &self.limiter.is_open_when_overloaded,
            )
            .finish_non_exhaustive()
    }
}
