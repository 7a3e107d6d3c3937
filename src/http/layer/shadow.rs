//! The layer's settings for limits that are tried before they are enforced.

use super::RateLimitLayer;
use crate::model::Enforced;
#[expect(unused_imports, reason = "for the documentation")]
use crate::model::Limit;
use crate::units::ConfigError;

/// # Shadow mode
impl RateLimitLayer {
    /// Puts the layer's limits in *shadow mode*: they decide, count and report, and never deny. See
    /// [`Limit::with_shadow_mode`].
    ///
    /// It overrides the shadow mode of each limit, including limits that a closure
    /// [chooses](Self::from_fn). In shadow mode, a request without a key is not rejected. Nor is a
    /// request that the closure rejects.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(30), PeerIp)?
    ///     // Nobody is denied. An event says whom the limit would deny.
    ///     .shadow_mode();
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shadow_mode(self) -> Self {
        self.with(|limiter| limiter.policy.set_enforced(Enforced::NEVER))
    }

    /// Puts the layer's limits in [shadow mode](Self::shadow_mode) for a share of their keys, in
    /// percent. Default: 0, which means that all keys are limited. See
    /// [`Limit::with_shadow_percent`].
    ///
    /// # Errors
    ///
    /// Returns an error if the share is above 100 percent.
    pub fn shadow_percent(self, percent: u8) -> Result<Self, ConfigError> {
        let enforced = Enforced::except_percent(percent)?;
        Ok(self.with(|limiter| limiter.policy.set_enforced(enforced)))
    }
}
