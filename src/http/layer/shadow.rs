//! The layer's settings for limits that are tried before they are enforced.

use std::sync::Arc;

use super::RateLimitLayer;
#[expect(unused_imports, reason = "for the documentation")]
use crate::model::Limit;
use crate::units::ConfigError;

/// # Shadow mode
impl RateLimitLayer {
    /// Enforces the layer's limits for a share of their keys, in percent. Default: 100. For all
    /// other keys, they are in *shadow mode*: they decide, count and report, and never deny. See
    /// [`Limit::with_enforced_percent`].
    ///
    /// It replaces what the limits say, also of those that a closure [chooses](Self::from_fn).
    /// Below 100 percent, a request without a key is not rejected. Nor is a request that the
    /// closure rejects.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(30), PeerIp)?
    ///     // For one client of ten. An event says what the limit would do to the others.
    ///     .enforce(10)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the share is above 100 percent.
    pub fn enforce(mut self, percent: u8) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.settings).policy.enforce(percent)?;
        Ok(self)
    }
}
