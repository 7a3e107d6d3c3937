//! Overrides: exceptions for single keys, set while the service runs.

mod changes;
#[cfg(all(feature = "config", feature = "redis"))]
mod followed;
mod in_force;
mod overridden_group;
mod table;

use std::fmt;
use std::sync::Arc;

#[cfg(all(feature = "config", feature = "redis"))]
use self::followed::FollowedOverrides;
pub(super) use self::in_force::LimiterOverrides;
pub(crate) use self::in_force::{OverriddenCheck, OverrideInForce};
pub(super) use self::overridden_group::OverriddenGroup;
use self::table::OverrideTable;
use crate::model::{Error, Key, MAX_OVERRIDES, Override};
#[cfg(all(feature = "config", feature = "redis"))]
use crate::store::RedisStore;
use crate::telemetry::{self, GaugeLevel};
use crate::units::{ConfigError, ManualClock, Mutex, Timestamp};

/// The overrides of [limiters](crate::RateLimiter), for example a customer's quota that is raised
/// for a week.
///
/// Give a handle to [`RateLimiterBuilder::overrides`](crate::RateLimiterBuilder::overrides), and
/// set overrides while the service runs. Handles are clones of each other.
///
/// ```
/// use std::time::Duration;
/// use tollgate::overrides::{Override, Overrides};
/// use tollgate::{Limit, MemoryStore, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let overrides = Overrides::new();
/// let limiter = RateLimiter::builder(MemoryStore::new()).overrides(&overrides).build()?;
/// let api = Limit::token_bucket("api", Quota::per_minute(100))?;
/// limiter.check_n(&api, "acme", 60).await?;
///
/// let week = Duration::from_secs(7 * 24 * 60 * 60);
/// overrides.set(Override::quota("api", "acme", Quota::per_minute(1_000)).lasting(week)).await?;
/// let decision = limiter.check(&api, "acme").await?;
/// assert_eq!((decision.capacity(), decision.remaining()), (1_000, 939));
///
/// overrides.remove("api", "acme").await?;
/// assert_eq!(limiter.check(&api, "bob").await?.capacity(), 100);
/// # Ok(())
/// # }
/// ```
///
/// - An override wins over the plan of a request, and over an override in a [file of
///   limits](crate::guide::limit_files).
/// - It applies to all checks of the limiter: requests, direct calls, permits, and usage.
/// - Units that a key used stay used when its override begins, and when it ends.
/// - A key without an override costs one table look-up and no call to Redis. If there are no
///   overrides, it costs a comparison.
/// - There are at most 100,000.
///
/// The overrides of `new` are in the memory of this process. The overrides of `in_redis` are the
/// same on all replicas.
#[derive(Clone, Default)]
pub struct Overrides {
    shared: Arc<SharedOverrides>,
}

#[derive(Default)]
struct SharedOverrides {
    table: OverrideTable,
    /// A clock that is set by hand.
    clock: Option<ManualClock>,
    /// The part of this process in the gauge of overrides.
    level: Mutex<GaugeLevel>,
    #[cfg(all(feature = "config", feature = "redis"))]
    followed: Option<FollowedOverrides>,
}

impl Overrides {
    /// Creates a handle for overrides in this process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a handle for overrides in this process, which end by this clock, for tests.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        let shared = SharedOverrides {
            clock: Some(clock),
            ..SharedOverrides::default()
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Sets an override, in place of the one that the key has under the limit.
    ///
    /// In Redis, all replicas follow it within a second. It is not compared with limits, because
    /// there may be none of that name yet. So a mistyped name is not noticed, nor a quota per
    /// minute for a limit per month. `tollgate override` notices both. If the limit cannot have it,
    /// for example a quota for a concurrency limit, the key has the limit as it is, and the event
    /// `override without effect` says why.
    ///
    /// # Errors
    ///
    /// Returns an error that [is misuse](Error::is_misuse) if the override has ended already, if
    /// the name of the limit, the author or the reason is invalid, or if there are 100,000
    /// overrides. Returns an error if Redis [is unavailable](Error::is_unavailable).
    pub async fn set(&self, new: Override) -> Result<(), Error> {
        let now = self.now();
        check(&new, now)?;
        #[cfg(all(feature = "config", feature = "redis"))]
        if let Some(followed) = &self.shared.followed {
            return followed.set(&self.shared, &new).await;
        }
        let table = &self.shared.table;
        let known = table.find(new.limit_name(), new.key(), || now);
        if known.is_none() && table.len() >= MAX_OVERRIDES {
            table.retain(|entry| !entry.given.is_over(now));
            if table.len() >= MAX_OVERRIDES {
                return Err(too_many().into());
            }
        }
        self.shared.insert(new);
        Ok(())
    }

    /// Removes the override of a key under the limit of this name. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis [is unavailable](Error::is_unavailable).
    pub async fn remove(&self, limit: &str, key: impl Into<Key>) -> Result<bool, Error> {
        let key = key.into();
        #[cfg(all(feature = "config", feature = "redis"))]
        if let Some(followed) = &self.shared.followed {
            return followed.remove(&self.shared, limit, &key).await;
        }
        Ok(self.shared.remove(limit, &key))
    }

    /// The overrides that have not ended, in the order of their limits and keys. In Redis, they are
    /// read there.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis [is unavailable](Error::is_unavailable).
    pub async fn list(&self) -> Result<Vec<Override>, Error> {
        #[cfg(all(feature = "config", feature = "redis"))]
        if let Some(followed) = &self.shared.followed {
            return Ok(sorted(followed.read(&self.shared).await?));
        }
        Ok(sorted(self.shared.table.list(self.now())))
    }

    /// The override that a key has under the limit of this name, in this process. It does
    /// not call Redis.
    #[must_use]
    pub fn get(&self, limit: &str, key: impl Into<Key>) -> Option<Override> {
        let (entry, _) = self.shared.table.find(limit, &key.into(), || self.now())?;
        Some(entry.given.clone())
    }

    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    fn table(&self) -> &OverrideTable {
        &self.shared.table
    }
}

#[cfg(all(feature = "config", feature = "redis"))]
impl Overrides {
    /// Creates a handle for the overrides in a store's Redis, which all replicas follow. `tollgate
    /// override` sets them from a shell.
    ///
    /// They are in a hash, `prefix-config:overrides`, and a channel of the same name announces
    /// changes. On a cluster, the hash has the tag of a partition.
    ///
    /// - A limiter that has the handle reads the overrides in the background, and follows changes.
    ///   Until they are read, it has none. To start with them, await [`list`](Self::list) before
    ///   serving.
    /// - If Redis is unavailable, or has lost the hash, the overrides stay as they are. An event
    ///   reports it once.
    /// - A message that was lost costs at most 10 seconds, because the version of the hash is read
    ///   that often. A store with a pool has no subscription, and reads it each second.
    /// - Beside the rights of the [store](crate::RedisStore), a replica's user needs
    ///   `%R~prefix-config:* &prefix-config:* +subscribe +hget +hmget +hscan`. A user that sets
    ///   overrides needs `~prefix-config:*` in its place, and `+eval +hset +hdel +hlen +time
    ///   +publish`. Write access allows exempting any client, so give it to
    ///   operators alone.
    ///
    /// ```no_run
    /// use tollgate::overrides::{Override, Overrides};
    /// use tollgate::{RateLimiter, RedisStore};
    ///
    /// # async fn start() -> Result<(), tollgate::Error> {
    /// let store = RedisStore::connect("redis://127.0.0.1/", "shop").await?;
    /// let overrides = Overrides::in_redis(&store)?;
    /// let limiter = RateLimiter::builder(store).overrides(&overrides).build()?;
    /// # let _ = limiter;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error outside of a tokio runtime.
    pub fn in_redis(store: &RedisStore) -> Result<Self, ConfigError> {
        let shared = SharedOverrides {
            followed: Some(FollowedOverrides::new(store)?),
            clock: store.clock().cloned(),
            ..SharedOverrides::default()
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl Overrides {
    /// Follows the overrides in Redis, from now on.
    pub(super) fn follow(&self) {
        #[cfg(all(feature = "config", feature = "redis"))]
        if let Some(followed) = &self.shared.followed {
            followed.follow(&self.shared);
        }
    }
}

impl SharedOverrides {
    fn insert(&self, new: Override) {
        self.table.insert(new, None);
        self.count();
    }

    fn remove(&self, limit: &str, key: &Key) -> bool {
        let is_removed = self.table.remove(limit, key, self.now());
        self.count();
        is_removed
    }

    fn now(&self) -> Timestamp {
        match &self.clock {
            Some(clock) => clock.now(),
            None => Timestamp::EPOCH.or_now(),
        }
    }

    fn count(&self) {
        telemetry::overrides_counted(&mut self.level.lock(), self.table.len());
    }
}

fn sorted(mut list: Vec<Override>) -> Vec<Override> {
    list.sort_by(|one, other| {
        (one.limit_name(), one.key()).cmp(&(other.limit_name(), other.key()))
    });
    list
}

/// Checks an override that is to be set.
fn check(new: &Override, now: Timestamp) -> Result<(), ConfigError> {
    new.validate()?;
    if new.is_over(now) {
        return Err(ConfigError::new(
            "the override has ended already; use a later time",
        ));
    }
    Ok(())
}

fn too_many() -> ConfigError {
    ConfigError::new(format!(
        "there are {MAX_OVERRIDES} overrides, which is the most; remove one, or use plans"
    ))
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides")
            .field("len", &self.shared.table.len())
            .finish_non_exhaustive()
    }
}
