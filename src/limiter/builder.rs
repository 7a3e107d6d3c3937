//! The settings of a limiter.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::failover::Failover;
use super::near_limit::NearLimit;
use super::overrides::LimiterOverrides;
use super::registry::Registry;
use super::waiting::Turns;
use super::{DeniedKeys, Overrides, RateLimiter, Shared};
use crate::model::{Key, Usage};
use crate::store::Store;
use crate::telemetry::Throttles;
use crate::units::ConfigError;

const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// The shortest and the longest lease.
const LEASE_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10 * 60)];

/// Builds a [`RateLimiter`]. See [`RateLimiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::denied_keys::DeniedKeys;
/// use tollgate::{MemoryStore, RateLimiter};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let denied = DeniedKeys::new();
/// let limiter = RateLimiter::builder(MemoryStore::new())
///     .count_denied_keys(&denied)
///     .permit_lease(Duration::from_secs(30))
///     .build()?;
/// # let _ = limiter;
/// # Ok(())
/// # }
/// ```
#[must_use = "call `build`"]
pub struct RateLimiterBuilder {
    failover: Arc<Failover>,
    permit_lease: Duration,
    denied_keys: Option<DeniedKeys>,
    near_limit: NearLimit,
    overrides: LimiterOverrides,
}

impl RateLimiterBuilder {
    pub(super) fn new(store: impl Store) -> Self {
        Self {
            failover: Failover::new(store),
            permit_lease: DEFAULT_LEASE,
            denied_keys: None,
            near_limit: NearLimit::default(),
            overrides: LimiterOverrides::default(),
        }
    }

    /// Counts the keys that the limiter denies, in all its layers and direct calls: those without
    /// units, and those without a permit. Default: none are counted.
    pub fn count_denied_keys(mut self, keys: &DeniedKeys) -> Self {
        self.denied_keys = Some(keys.clone());
        self
    }

    /// Calls a function when a key is near a limit that
    /// [warns](crate::Limit::with_warn_at_percent). The usage has the limit, the units that are
    /// left, and the end of a fixed window. Default: none, and only the event `key near a limit`
    /// says so.
    ///
    /// The function runs while a request or a settlement waits, so it should only start what takes
    /// longer, such as to spawn a task or to send to a channel. If it panics, an event reports it.
    /// It is called once for each key, as the limit says. A key may be reported again after 50,000
    /// others.
    pub fn on_near_limit(
        mut self,
        function: impl Fn(&Key, &Usage) + Send + Sync + 'static,
    ) -> Self {
        self.near_limit.set(function);
        self
    }

    /// Sets the [overrides](Overrides) of single keys. Default: none.
    pub fn overrides(mut self, overrides: &Overrides) -> Self {
        self.overrides.use_handle(overrides);
        self
    }

    /// Sets the time after which the permits of a process that crashed count as given back. Range:
    /// 1 second to 10 minutes. Default: 10 seconds. All replicas should have the same.
    pub const fn permit_lease(mut self, lease: Duration) -> Self {
        self.permit_lease = lease;
        self
    }

    /// Creates the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is out of range.
    pub fn build(self) -> Result<RateLimiter, ConfigError> {
        let lease = self.permit_lease;
        let [shortest, longest] = LEASE_RANGE;
        if lease < shortest || lease > longest {
            return Err(ConfigError::new(format!(
                "the lease of permits is {lease:?}; use {shortest:?} to {longest:?}"
            )));
        }
        Ok(self.into_limiter())
    }

    /// The limiter, with settings that are in their ranges.
    pub(super) fn into_limiter(self) -> RateLimiter {
        if let Some(overrides) = self.overrides.handle() {
            overrides.follow();
        }
        if let Some(keys) = &self.denied_keys {
            keys.note_to(self.failover.store());
        }
        let shared = Shared {
            failover: self.failover,
            registry: Registry::default(),
            turns: Turns::default(),
            blocked: Throttles::default(),
            exceeded: Throttles::default(),
            denied_keys: self.denied_keys,
            near_limit: self.near_limit,
            overrides: self.overrides,
            agents: OnceLock::new(),
            permit_lease: self.permit_lease,
            unanswered: watch::Sender::default(),
            owner: Arc::default(),
        };
        RateLimiter {
            shared: Arc::new(shared),
        }
    }
}

impl fmt::Debug for RateLimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiterBuilder")
            .field("store", &self.failover)
            .field("permit_lease", &self.permit_lease)
            .field("denied_keys", &self.denied_keys)
            .field("near_limit", &self.near_limit)
            .field("overrides", &self.overrides.handle())
            .finish()
    }
}
