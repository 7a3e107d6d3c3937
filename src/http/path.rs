//! The path of a request, as its client sent it.

use http::request::Parts;

/// The path as the client sent it, also in a nested router of Axum.
///
/// A router that is nested into another one sees the rest of the path. Under `.nest("/api", ...)`,
/// a request for `/api/health` has the path `/health` in `parts.uri`. Limits in files go by the
/// whole path. A closure, for example of [`skip`](crate::RateLimitLayer::skip), sees the whole path
/// through this function, wherever the layer is.
///
/// Without the feature `axum`, it is the path of `parts.uri`.
///
/// ```
/// # use tollgate::key::Global;
/// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
/// use tollgate::layer::original_path;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = RateLimiter::in_memory();
/// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(10), Global)?
///     .skip(|parts| original_path(parts) == "/api/health");
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn original_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    parts.uri.path()
}
