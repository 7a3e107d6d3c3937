//! Requests that the limits of the layer do not apply to.

use std::sync::Arc;

use http::request::Parts;

use super::RateLimitLayer;

/// # Requests that are not limited, or forbidden
impl RateLimitLayer {
    /// Adds a predicate for requests that are not limited, for example health checks. A request is
    /// skipped if one of them matches. Default: CORS preflight requests only.
    ///
    /// In a nested router, `parts.uri` has the rest of the path.
    /// [`original_path`](crate::layer::original_path) has the whole, as limits in files do:
    ///
    /// ```
    /// # use tollgate::key::Global;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use tollgate::layer::original_path;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// # let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(10), Global)?;
    /// let layer = layer.skip(|parts| original_path(parts) == "/api/health");
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn skip(self, predicate: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|limiter| limiter.policy.skip.push(Arc::new(predicate)))
    }

    /// Adds a predicate for requests that are answered with 403, for example requests from
    /// [forbidden networks](crate::key::ClientIp::may_be_in). They consume nothing, and the store
    /// is not asked. A request that a `skip` predicate also matches is forbidden. Default: none.
    /// The whole path of a request is its [`original_path`](crate::layer::original_path).
    pub fn forbid(self, predicate: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|limiter| limiter.policy.forbid.push(Arc::new(predicate)))
    }

    /// Also limits CORS preflight requests.
    ///
    /// A preflight request is an `OPTIONS` request with two headers that any client can send. By
    /// default it is not limited, because a browser sends it unasked and a CORS layer answers it.
    /// If your service itself does costly work for `OPTIONS` (a catch-all handler, a proxy), limit
    /// it. Behind a CORS layer this changes nothing, because no preflight request gets here.
    pub fn limit_preflight(self) -> Self {
        self.with(|limiter| limiter.policy.limits_preflight = true)
    }
}
