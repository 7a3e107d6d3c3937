//! The layer's settings for requests that wait instead of being denied.

use std::sync::Arc;
use std::time::Duration;

use super::RateLimitLayer;
use crate::nouns::ConfigError;

impl RateLimitLayer {
    /// Lets a request wait for its units for up to `max_wait`, instead of being denied. Default: it does not wait.
    ///
    /// A request that fits is decided as without this setting. Any other waits if its `retry_after` is within
    /// `max_wait`, and there are not too many [waiters](Self::max_waiters). Else it is denied at once. While it
    /// waits, it does not hold the inner service ready.
    ///
    /// | | order within a process | order across processes |
    /// |---|---|---|
    /// | one limit: token bucket, GCRA, leaky bucket as a meter | first come, first served | the processes take turns, in the order in which the store decided |
    /// | other algorithms, and layers with several limits | first come, first served | when units are available, the first process to ask gets them |
    ///
    /// A client that disconnects gives up its place, and its turn goes to the next waiter of this process. If there is
    /// none, its units are given back as far as they are not behind other turns. The place in a leaky bucket as a
    /// queue stays taken.
    ///
    /// `max_wait` bounds the wait for units and for the store's answers. A request that the store does not answer in
    /// time is handled like any error of the store.
    ///
    /// ```
    /// # use tollgate::key::Global;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// // Around an HTTP client: at most 5 calls a second to a provider, over all processes.
    /// let layer = RateLimitLayer::token_bucket(&limiter, "provider", Quota::per_second(5))
    ///     .key(Global)?
    ///     .wait_up_to(Duration::from_secs(10))?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if it is zero or longer than an hour.
    pub fn wait_up_to(mut self, max_wait: Duration) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.settings).wait.set_max_wait(max_wait)?;
        Ok(self)
    }

    /// Sets the most requests that wait in this process, of this layer and its clones. Default: 1,024. Any more are
    /// denied at once.
    #[must_use]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(|settings| settings.wait.max_waiters = waiters)
    }

    /// Sets the most requests that wait for one budget in this process. Default: 64. Any more are denied at once. So one
    /// client does not take the places of all.
    #[must_use]
    pub fn max_waiters_per_key(self, waiters: usize) -> Self {
        self.with(|settings| settings.wait.max_waiters_per_key = waiters)
    }
}
