//! How a limiter is made.

use super::{RateLimiter, RateLimiterBuilder};
use crate::store::{MemoryStore, Store};
#[cfg(feature = "redis")]
use crate::units::ConfigError;

/// # Constructors
impl RateLimiter {
    /// Creates a limiter on a store.
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).into_limiter()
    }

    /// Returns a builder of a limiter on a store, for the lease of its permits, and to count the
    /// keys that it denies.
    pub fn builder(store: impl Store) -> RateLimiterBuilder {
        RateLimiterBuilder::new(store)
    }

    /// Creates a limiter on the embedded store, for one process, for development and for your
    /// tests. In tests, tokio's paused time controls it. See [`MemoryStore`].
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::new())
    }

    /// Connects to Redis and creates a limiter that shares its budgets with all replicas on that
    /// Redis. The URL is `redis://[user:password@]host[:port][/database]`. The prefix of the keys
    /// names your service. Limiters with the same prefix [share](crate::RedisStore::builder)
    /// the budgets of limits with the same name.
    ///
    /// You learn of a wrong address or password at once. Use [`redis_lazy`](Self::redis_lazy) to
    /// start without Redis, and [`RedisStore::builder`](crate::RedisStore::builder) to set
    /// deadlines, or to bring a pool. For a [`RedisChannel`](crate::store::RedisChannel), a
    /// `RedisSource` or the state of the circuit breaker, create a
    /// [`RedisStore`](crate::RedisStore), and give a clone of it to [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid, or if the server cannot be used.
    #[cfg(feature = "redis")]
    pub async fn redis(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(crate::RedisStore::connect(url, prefix).await?))
    }

    /// Creates a limiter as [`redis`](Self::redis) does, but without connecting, so a service that
    /// restarts during an outage starts. The first check connects. Until Redis answers, requests
    /// are decided by their [failure policy](crate::guide::outages).
    ///
    /// ```
    /// # #[cfg(feature = "redis")]
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let limiter = tollgate::RateLimiter::redis_lazy("redis://127.0.0.1/", "shop")?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "redis"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid.
    #[cfg(feature = "redis")]
    pub fn redis_lazy(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(
            crate::RedisStore::builder(prefix).url(url).build()?,
        ))
    }
}
