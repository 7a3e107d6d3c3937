//! The layer's settings for requests in flight.

use super::RateLimitLayer;
use crate::http::KeyExtractor;
#[expect(unused_imports, reason = "for the documentation")]
use crate::http::{InFlight, RateLimitLayerBuilder};
use crate::limiter::{ConcurrencyLimiter, RateLimiter};
use crate::nouns::{ConcurrencyLimit, ConfigError};

impl RateLimitLayer {
    /// At most so many requests of a key at once, on all replicas that share the limiter's store, and no rate. See
    /// [`RateLimitLayerBuilder::concurrency_limit`].
    ///
    /// ```
    /// use tollgate::key::Global;
    /// use tollgate::{ConcurrencyLimit, ConcurrencyLimiter, RateLimitLayer};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let permits = ConcurrencyLimiter::in_memory();
    /// let layer = RateLimitLayer::concurrency(&permits, ConcurrencyLimit::new("reports", 4)?, Global)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error like [`RateLimitLayerBuilder::build`].
    pub fn concurrency(
        limiter: impl Into<ConcurrencyLimiter>,
        limit: ConcurrencyLimit,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        // It has no rate, so it asks no store of rates.
        Self::builder(RateLimiter::in_memory()).concurrency_limit(limiter, limit, key).build()
    }

    /// Puts the permits of a request into its extensions, as [`InFlight`]. Default: they are not there.
    ///
    /// The permits are given back when the response body has ended, and the last clone is dropped. An upgraded
    /// connection outlasts its response: move the clone of a handler into the task that serves it. So does work that
    /// continues in the background.
    #[must_use]
    pub fn insert_permits(self) -> Self {
        self.with(|settings| settings.inserts_permits = true)
    }
}
