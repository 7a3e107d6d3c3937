//! The outcome of a request that the store does not decide.

use std::sync::Arc;

use super::RateLimitLayer;
#[expect(unused_imports, reason = "for the documentation")]
use crate::model::Limit;
use crate::model::OnStoreFailure;
use crate::units::ConfigError;

/// # Failures
impl RateLimitLayer {
    /// Sets the outcome of a request when the store [is unavailable](crate::Error::is_unavailable),
    /// for the limits without [one of their own](Limit::with_on_store_failure). Default: fail open.
    /// If limits of the layer have different outcomes, the strictest decides.
    ///
    /// A check that the store denied stays denied until its `retry_after`, whatever this setting
    /// is, because a `RedisStore` [remembers](crate::store::RedisStoreBuilder::deny_for) it. This
    /// holds for an identical check, with the same limits, keys and costs. A store that is
    /// [full](crate::Error::is_full) always fails closed. Otherwise a client could escape its limit
    /// by sending many keys.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use tollgate::layer::OnStoreFailure;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(30), PeerIp)?
    ///     // While Redis is away, each of the three replicas allows 10 a second.
    ///     .on_store_failure(OnStoreFailure::local(3))?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the number of replicas is out of its range, or if the share of one
    /// cannot be decided.
    #[doc(alias = "on_outage")]
    pub fn on_store_failure(mut self, outcome: OnStoreFailure) -> Result<Self, ConfigError> {
        let limiter = Arc::make_mut(&mut self.limiter);
        limiter.policy.set_on_store_failure(outcome)?;
        Ok(self)
    }

    /// Forwards a request, unlimited and without rate limit headers, when the store [is
    /// overloaded](crate::Error::is_overloaded), because more checks wait for an answer than it was
    /// built for. Default: the request is rejected with 503 and a `Retry-After` of at least a
    /// second, because otherwise a flood of requests would turn the limit off.
    pub fn fail_open_when_overloaded(self) -> Self {
        self.with(|limiter| limiter.is_open_when_overloaded = true)
    }
}
