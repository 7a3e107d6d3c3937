//! Limits of requests in flight.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::limit::check_name;
use super::{ConfigError, Enforced, Key, OnStoreFailure};

/// The most permits of a key.
pub(crate) const MAX_PERMITS: u32 = 1_000_000;

const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60 * 60);

/// A limit on the requests of a key that are in flight.
///
/// A rate says how many requests may start in a time. This says how many may be in flight: a slow endpoint with ten
/// connections to its database needs the second. See [`ConcurrencyLimiter`](crate::ConcurrencyLimiter).
///
/// The name is part of the key in the store, as that of a [`Limit`](crate::Limit). The two do not share names.
///
/// ```
/// use tollgate::ConcurrencyLimit;
/// use tollgate::limit::OnStoreFailure;
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let exports = ConcurrencyLimit::new("exports", 3)?
///     .on_store_failure(OnStoreFailure::Local { replicas: 3 })?;
/// assert_eq!(exports.to_string(), "3 at once");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    name: Arc<str>,
    limit: u32,
    on_store_failure: Option<OnStoreFailure>,
    enforced: Enforced,
    retry_after: Duration,
}

impl ConcurrencyLimit {
    /// Creates a limit of `limit` requests in flight for each key. Range: 1 to 1,000,000.
    ///
    /// # Errors
    ///
    /// Returns an error if the name or the number is out of range.
    pub fn new(name: &str, limit: u32) -> Result<Self, ConfigError> {
        check_name(name).map_err(|error| error.of_limit(name))?;
        if limit == 0 || limit > MAX_PERMITS {
            return Err(ConfigError::new(format!(
                "{limit} requests at once are out of range; use 1 to {MAX_PERMITS}"
            ))
            .of_limit(name));
        }
        let (on_store_failure, enforced) = (None, Enforced::default());
        let retry_after = DEFAULT_RETRY_AFTER;
        Ok(Self { name: name.into(), limit, on_store_failure, enforced, retry_after })
    }

    /// Sets the `Retry-After` of a request without a permit. Range: 1 second to 1 hour. Default: 1 second. The end of a
    /// request is not known in advance: choose about the duration of one.
    ///
    /// # Errors
    ///
    /// Returns an error if the time is out of range.
    pub fn retry_after(mut self, wait: Duration) -> Result<Self, ConfigError> {
        let (shortest, longest) = (DEFAULT_RETRY_AFTER, LONGEST_RETRY_AFTER);
        if wait < shortest || wait > longest {
            return Err(ConfigError::new(format!(
                "`retry_after` is {wait:?}; use {shortest:?} to {longest:?}"
            ))
            .of_limit(&self.name));
        }
        self.retry_after = wait;
        Ok(self)
    }

    /// The `Retry-After` of a request without a permit.
    #[must_use]
    pub const fn advised_retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Sets the outcome when the store is unavailable. Default: that of the layer, and without a layer
    /// [`FailOpen`](OnStoreFailure::FailOpen). A local limit
    /// allows each replica `limit / replicas` requests at once, rounded down, and at least 1.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of replicas is out of its range.
    pub fn on_store_failure(mut self, policy: OnStoreFailure) -> Result<Self, ConfigError> {
        policy.replicas().map_err(|error| error.of_limit(&self.name))?;
        self.on_store_failure = Some(policy);
        Ok(self)
    }

    /// Puts the limit into shadow mode: the same as [`enforce(0)`](Self::enforce).
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.enforced = Enforced::NEVER;
        self
    }

    /// Enforces the limit for a share of its keys, in percent. Default: 100. For all other keys, it is in *shadow mode*: a
    /// layer acquires permits and reports, and forwards a request that gets none. The share is stable, as that of
    /// [`Limit::enforce`](crate::Limit::enforce).
    ///
    /// It is a setting for layers. [`ConcurrencyLimiter::acquire`](crate::ConcurrencyLimiter::acquire) does not look at it.
    ///
    /// # Errors
    ///
    /// Returns an error if the share is above 100 percent.
    pub fn enforce(mut self, percent: u8) -> Result<Self, ConfigError> {
        self.enforced = Enforced::new(percent).map_err(|error| error.of_limit(&self.name))?;
        Ok(self)
    }

    /// The share of keys for which the limit is enforced, in percent.
    #[must_use]
    pub const fn enforced_percent(&self) -> u8 {
        self.enforced.percent()
    }

    /// Whether the limit is enforced for a key. Otherwise it is in [shadow mode](Self::enforce).
    #[must_use]
    pub fn enforces(&self, key: &Key) -> bool {
        self.enforced.includes(&self.name, key)
    }

    /// The same limit with another number: the share of a replica.
    #[cfg(feature = "http")]
    pub(crate) const fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// With the settings of a layer: a policy for a limit that has none, and a share in place of its own.
    #[cfg(feature = "http")]
    pub(crate) fn of_layer(mut self, policy: OnStoreFailure, enforced: Option<Enforced>) -> Self {
        self.on_store_failure.get_or_insert(policy);
        self.enforced = enforced.unwrap_or(self.enforced);
        self
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The most requests of a key at once.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The outcome when the store is unavailable. `None` if it is that of the layer.
    #[must_use]
    pub const fn failure_policy(&self) -> Option<OnStoreFailure> {
        self.on_store_failure
    }

    /// The most requests of a key at once on each of so many replicas, while the store is unavailable.
    pub(crate) fn share_of(&self, replicas: u32) -> u32 {
        (self.limit / replicas.max(1)).max(1)
    }
}

impl fmt::Debug for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConcurrencyLimit({}: {self})", self.name)
    }
}

impl fmt::Display for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at once{}", self.limit, self.enforced)
    }
}

/// What identifies a process for one key: eight random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(pub(crate) [u8; 8]);

impl HolderId {
    /// The bytes, for a store elsewhere.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl From<[u8; 8]> for HolderId {
    fn from(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_out_of_range_is_an_error_that_says_the_range() {
        for limit in [0, 1_000_001] {
            let error = ConcurrencyLimit::new("exports", limit).unwrap_err().to_string();
            assert!(error.contains("`exports`") && error.contains("use 1 to 1000000"), "{error}");
        }
        assert!(ConcurrencyLimit::new(" exports", 1).is_err());
        let exports = ConcurrencyLimit::new("exports", 1).unwrap();
        let error = exports.on_store_failure(OnStoreFailure::Local { replicas: 0 }).unwrap_err();
        assert!(error.to_string().contains("use 1 to 10000"), "{error}");
    }

    #[test]
    fn share_of_a_replica_is_rounded_down_and_at_least_one() {
        let share =
            |limit, replicas| ConcurrencyLimit::new("exports", limit).unwrap().share_of(replicas);
        assert_eq!([share(10, 3), share(2, 3)], [3, 1]);
    }
}
