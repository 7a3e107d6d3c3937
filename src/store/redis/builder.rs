//! The settings of `RedisStore`.

mod build;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use deadpool_redis::Pool;

use super::connect::{self, Credentials, Provider};
use super::tls::Tls;
use crate::store::breaker::BreakerSettings;
use crate::store::deny_cache::{DEFAULT_DENY_BLOCKED_FOR, DEFAULT_DENY_FOR};
use crate::units::ManualClock;

const DEFAULT_URL: &str = "redis://127.0.0.1/";

const DEFAULT_LABEL: &str = "redis";

/// Much longer than a round trip in a data centre, and short enough for a user.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

const DEFAULT_LANES: usize = 1;

const DEFAULT_PARTITIONS: usize = 16;

/// More requests than a replica serves at once. The checks need a few megabytes.
const DEFAULT_MAX_WAITING: usize = 16_384;

/// The settings of a [`RedisStore`](crate::RedisStore).
///
/// | setting | default |
/// |---|---|
/// | [`url`](Self::url) or [`pool`](Self::pool) | `redis://127.0.0.1/` |
/// | [`credentials`](Self::credentials) | those in the URL |
/// | `tls`, with the feature `tls`: a CA, a client certificate | the operating system's CAs, none |
/// | [`client_name`](Self::client_name) | none |
/// | [`deadline`](Self::deadline) | 250 ms |
/// | [`lanes`](Self::lanes) | 1 |
/// | [`partitions`](Self::partitions), of a cluster | 16 |
/// | [`max_waiting`](Self::max_waiting) | 16,384 checks |
/// | [`deny_for`](Self::deny_for) | 1 second |
/// | [`deny_blocked_for`](Self::deny_blocked_for) | 10 seconds |
/// | [`circuit_breaker`](Self::circuit_breaker) | on, with [`BreakerSettings::new`] |
/// | [`metrics_label`](Self::metrics_label) | `redis` |
/// | [`clock`](Self::clock) | the server's own |
#[must_use = "a builder does nothing until the store is built"]
pub struct RedisStoreBuilder {
    url: String,
    /// In place of the URL.
    pool: Option<Pool>,
    tls: Option<Tls>,
    credentials: Option<Provider>,
    prefix: String,
    client_name: Option<String>,
    label: String,
    deadline: Duration,
    lanes: usize,
    partitions: usize,
    max_waiting: usize,
    deny_for: Duration,
    deny_blocked_for: Duration,
    breaker: Option<BreakerSettings>,
    clock: Option<ManualClock>,
}

impl RedisStoreBuilder {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            url: DEFAULT_URL.to_owned(),
            pool: None,
            tls: None,
            credentials: None,
            prefix,
            client_name: None,
            label: DEFAULT_LABEL.to_owned(),
            deadline: DEFAULT_DEADLINE,
            lanes: DEFAULT_LANES,
            partitions: DEFAULT_PARTITIONS,
            max_waiting: DEFAULT_MAX_WAITING,
            deny_for: DEFAULT_DENY_FOR,
            deny_blocked_for: DEFAULT_DENY_BLOCKED_FOR,
            breaker: Some(BreakerSettings::new()),
            clock: None,
        }
    }

    /// Sets the label `store` of this store in metrics (feature `metrics`): 1 to 64 printable ASCII
    /// characters without spaces. Default: `redis`. A service with two stores gives each its own,
    /// because gauges of one label add up.
    pub fn metrics_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the URL of Redis. Default: `redis://127.0.0.1/`.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | TCP |
    /// | `rediss://...` | TLS, with the feature `tls` |
    /// | `redis+unix:///path/to/redis.sock?db=0&user=limiter&pass=secret` | a Unix socket |
    /// | `redis-sentinel://[user:password@]host[:port],host[:port]/service[/database]` | the master that sentinels name. Default port: 26379 |
    /// | `rediss-sentinel://...` | the same by TLS, of the sentinels and the servers, with the feature `tls` |
    /// | `redis-cluster://[user:password@]host[:port],host[:port]` | a Redis Cluster, by some of its nodes |
    /// | `rediss-cluster://...` | the same by TLS, with the feature `tls` |
    /// | `...?protocol=resp3` | RESP3. Default: RESP2, which every server speaks |
    ///
    /// The user and the password of a URL with sentinels are for Redis. The sentinels have settings
    /// of their own: `?sentinel_username=...&sentinel_password=...`. Percent-encode special
    /// characters in them all.
    ///
    /// A host is resolved anew for each connection, so a name that moves to another server is
    /// followed. With TLS, certificates have to name the addresses that sentinels and clusters
    /// tell.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self.pool = None;
        self
    }

    /// Sets the CA and the client certificate for a `rediss://` URL. Default: the operating
    /// system's CAs and no client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets a provider of the user and the password, in place of those in the URL. It is asked for
    /// each new connection, so a password can be rotated, or be a token that expires, such as one
    /// of IAM. Default: none.
    ///
    /// The time for connecting includes the provider's answer, so cache a token that is slow to
    /// get. A connection lasts as long as the server lets it. One that is closed because its token
    /// expired is replaced by the next check.
    ///
    /// ```no_run
    /// use tollgate::RedisStore;
    /// use tollgate::store::Credentials;
    ///
    /// # fn build() -> Result<(), tollgate::ConfigError> {
    /// let store = RedisStore::builder("shop")
    ///     .url("rediss://redis.internal:6379/")
    ///     .credentials(|| async {
    ///         let token = tokio::fs::read_to_string("/run/secrets/redis-token").await?;
    ///         Ok::<_, std::io::Error>(Credentials::user("limiter", token.trim()))
    ///     })
    ///     .build()?;
    /// # let _ = store;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials<F, E>(mut self, provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.credentials = Some(connect::provider(provider));
        self
    }

    /// Sets your pool, in place of a URL. The store keeps one connection of it for
    /// each [lane](Self::lanes), so the pool's `max_size` has to be larger than the number of
    /// lanes. The store brings each connection back to the database of the pool's URL.
    ///
    /// The pool is that of deadpool-redis 0.23. A release of tollgate that takes a later one is a
    /// breaking release.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Sets the name of the store's connections in `CLIENT LIST`: 1 to 64 printable ASCII
    /// characters without spaces. Default: none. The Redis user needs `+client|setname`. A proxy
    /// that does not know the command is used without a name.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = Some(name.into());
        self
    }

    /// Sets the deadline of a check, including the time to connect. Default: 250 ms. Range: 1 ms to
    /// a minute, because a longer deadline hangs requests.
    ///
    /// A check takes one round trip and, behind other checks, at most some milliseconds more. So a
    /// deadline should be at least the slowest round trip that is not an outage (its p99.9), plus
    /// 20 ms. The table has the p99.9 of a check, on two cores that clients and Redis share (`make
    /// attack`):
    ///
    /// | round trip | 1 check | 100 checks at once | 1,024 checks at once |
    /// |---|---|---|---|
    /// | below 1 ms | 0.3 ms | 1.2 ms | 6 ms |
    /// | 5 ms | 10 ms | 14 ms | 22 ms |
    /// | 20 ms | 23 ms | 30 ms | 38 ms |
    /// | 60 ms | 65 ms | 72 ms | 76 ms |
    /// | 110 ms | 113 ms | 120 ms | 124 ms |
    /// | 225 ms | 229 ms | 235 ms | 240 ms |
    ///
    /// `tollgate doctor` compares the round trips that it measures with the deadline. Behind a call
    /// in flight, a check waits for at most 4 ms until it leaves with the next call. If the
    /// deadline is above 256 ms, it waits for at most a 64th of the deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the number of lanes, connections with a queue each. Range: 1 to 16. Default: 1. A check
    /// uses the lane of its key, and a group the lane of its first key.
    ///
    /// One lane is usually enough, because it sends checks in batches. More lanes make smaller
    /// batches. On the same machine, they were not measurably faster. On a cluster this has no
    /// effect. See [`partitions`](Self::partitions).
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets the number of partitions of a Redis Cluster. Range: a power of two, 1 to 1,024.
    /// Default: 16. On one server it has no effect.
    ///
    /// Every key belongs to a partition, and a partition to a slot of the cluster. Checks of one
    /// partition share a call, and have a queue: [`max_waiting`](Self::max_waiting) is divided
    /// among the partitions, with at least 1,024 for each. Fewer partitions make larger batches.
    /// More partitions can be spread over more masters. Use several for each master. All replicas
    /// need the same number. Another number changes all keys, so that budgets start anew.
    pub fn partitions(mut self, partitions: usize) -> Self {
        self.partitions = partitions;
        self
    }

    /// Sets the most checks that are queued or in flight, at least 1. Default: 16,384.
    ///
    /// When the queue is full, a check fails at once. The store [is
    /// overloaded](crate::Error::is_overloaded). A cancelled check counts until its batch ends. The
    /// maximum is divided among the lanes. When a lane is half full, it rejects further checks of a
    /// key that has more than 256 checks in the newest batch. So one hot key does not crowd out the
    /// others.
    pub fn max_waiting(mut self, checks: usize) -> Self {
        self.max_waiting = checks;
        self
    }

    /// After a denial, sets how long the identical check is denied again without asking Redis, at
    /// most until its `retry_after` has passed. Default: 1 second. Zero always asks Redis. Under an
    /// [asynchronous](crate::Limit::asynchronous) limit, the time is doubled each time that Redis
    /// repeats the denial, up to 8 seconds: 1, 2, 4, 8, 8 seconds, and so on. While Redis does not
    /// answer, a denial stands until its `retry_after` has passed, whatever this
    /// setting is.
    ///
    /// A client that keeps sending while it is over its limit causes most of the checks in an
    /// attack. Such checks are answered in this process. Their [source](crate::Decision::source) is
    /// [`Source::DenyCache`](crate::decision::Source::DenyCache).
    ///
    /// - Only an identical check is denied so: same limits, keys and costs. Peeks always ask Redis.
    /// - `retry_after` and `reset_after` decrease as time passes. `remaining` does not change.
    /// - A refund, a reset, a block or its end by this store voids the denial at once, and so does
    ///   the identical check under another quota. Any other change is seen after this time, such as
    ///   a change by another replica, or a loss of Redis' data.
    /// - At most 100,000 denials are remembered, in about 40 MB. A denial takes one place, and one
    ///   more for each four limits of its check.
    pub fn deny_for(mut self, time: Duration) -> Self {
        self.deny_for = time;
        self
    }

    /// Sets how long a [blocked](crate::Limit::with_block_policy) key is denied without asking
    /// Redis. Default: 10 seconds. Zero always asks Redis. At most 366 days.
    ///
    /// While it is denied here, a client that hammers costs Redis nothing. If this store ends the
    /// block, the key is free at once. If another replica does, it is free after this time.
    pub fn deny_blocked_for(mut self, at_most: Duration) -> Self {
        self.deny_blocked_for = at_most;
        self
    }

    /// Sets when the circuit breaker opens, and how it closes. Default: [`BreakerSettings::new`].
    ///
    /// While it is open, a check fails at once, and Redis is not asked. The error [says
    /// so](crate::Error::is_circuit_open). See [`BreakerSettings`].
    pub fn circuit_breaker(mut self, settings: BreakerSettings) -> Self {
        self.breaker = Some(settings);
        self
    }

    /// Removes the circuit breaker. Every check asks Redis, and may wait for its deadline.
    pub fn without_circuit_breaker(mut self) -> Self {
        self.breaker = None;
        self
    }

    /// Sets a manual clock, for tests and dry runs. Default: the server's clock. With a manual
    /// clock, no denial is remembered, because [`deny_for`](Self::deny_for) and
    /// [`deny_blocked_for`](Self::deny_blocked_for) count in real time.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
