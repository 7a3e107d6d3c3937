//! The layer's settings for requests that wait instead of being denied.

use std::sync::Arc;
use std::time::Duration;

use super::RateLimitLayer;
#[expect(unused_imports, reason = "for the documentation")]
use crate::model::{Limit, OnStoreFailure};
use crate::units::ConfigError;

/// # Waiting
impl RateLimitLayer {
    /// Lets a request wait for its units for up to `max_wait`, if the layer would otherwise deny
    /// it. By default, no request waits.
    ///
    /// A request that fits is decided as without this setting. Any other waits if its `retry_after`
    /// is within `max_wait`, and there are not too many [waiters](Self::max_waiters). Else it is
    /// denied at once. While it waits, it does not hold the inner service ready.
    ///
    /// | limits of the layer | order within a process | order across processes |
    /// |---|---|---|
    /// | a token bucket, GCRA, or a leaky bucket as a meter | first come, first served. A request that cannot be in time behind others is denied at once | the processes take turns, in the order in which the store decided |
    /// | a leaky bucket as a queue | in the order of the store's places | in the order in which the store decided |
    /// | a limit of another algorithm | first come, first served | when units are available, the first process to ask gets them |
    /// | several | a request queues only for the budgets that denied it | when units are available, the first process to ask gets them |
    ///
    /// A client that disconnects gives up its place, and its turn goes to the next waiter of this
    /// process. If there is none, its units are given back. Fewer are given back if another process
    /// has reserved a later turn. The place in a leaky bucket as a queue stays taken.
    ///
    /// `max_wait` starts when the request is sent. It bounds the wait for [permits](Self::limit)
    /// and for units together. It does not bound the store's answers, which have the store's own
    /// deadline. A request that fits is forwarded, however short `max_wait` is. The time of a
    /// look-up counts, and is bounded by the [look-up](crate::layer::Lookup). If the store is
    /// unavailable, the layer's [failure policy](Self::on_store_failure) decides at once, also for
    /// requests that wait. **By default it fails open. All of them are forwarded.** If you
    /// have to protect a provider during an outage, choose [`OnStoreFailure::local`].
    ///
    /// ```
    /// # use tollgate::key::Global;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use std::time::Duration;
    /// use tollgate::layer::OnStoreFailure;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// // Around an HTTP client: 5 calls a second to a provider, over all processes, evenly.
    /// let quota = Quota::per_second(5).burst(1);
    /// let layer = RateLimitLayer::token_bucket(&limiter, "provider", quota, Global)?
    ///     .on_store_failure(OnStoreFailure::local(3))?
    ///     .wait_up_to(Duration::from_secs(10))?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if it is zero or longer than an hour, or if the layer [sheds
    /// load](Self::load_shed), because that is decided without a wait.
    #[doc(alias = "max_wait")]
    #[doc(alias = "timeout")]
    pub fn wait_up_to(mut self, max_wait: Duration) -> Result<Self, ConfigError> {
        let limiter = Arc::make_mut(&mut self.limiter);
        if limiter.policy.fixed_limits().any(Limit::sheds_load) {
            return Err(ConfigError::new(
                "the layer sheds load, and never waits; remove `wait_up_to`, or use \
                 `RateLimitLayer::concurrency` for requests that wait",
            ));
        }
        limiter.wait.set_max_wait(max_wait)?;
        Ok(self)
    }

    /// Sets the most requests that wait in this process, of this layer and its clones. Default:
    /// 1,024. The layer denies any further request at once. Under a leaky bucket as a queue, a
    /// request already counts as waiting while the store decides, because the store gives it its
    /// turn then.
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(|limiter| limiter.wait.max_waiters = waiters)
    }

    /// Sets the most requests that wait for one budget, or for the permits of one key, in this
    /// process. Default: 64. The layer denies any further request at once. So one client does not
    /// take the places of all. It has no effect on a leaky bucket as a queue, whose burst bounds
    /// the queue.
    pub fn max_waiters_per_key(self, waiters: usize) -> Self {
        self.with(|limiter| limiter.wait.max_waiters_per_key = waiters)
    }
}
