//! The store that all replicas of a service share.

mod ask;
mod backoff;
mod batch;
mod builder;
mod call;
mod connect;
mod connection;
mod flight;
mod greeting;
mod keys;
mod lane;
mod probe;
mod script;
mod sender;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod wire;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

use self::ask::ask;
pub use self::builder::RedisStoreBuilder;
pub use self::connect::Credentials;
use self::lane::Lane;
#[cfg(feature = "tls")]
pub use self::tls::Tls;
use super::{Answer, BreakerState, Store};
use crate::nouns::{Check, ConfigError, Group, Op};

/// The store that all replicas of a service share: Redis, or a server with its protocol and
/// scripts, such as Valkey.
///
/// - One script call decides a check, atomically and at the server's time. Neither concurrent
///   replicas nor their clocks can allow too much.
/// - Every check has a [deadline](RedisStoreBuilder::deadline), which the caller's own future
///   enforces. A Redis that refuses connections fails a check at once.
/// - A [circuit breaker](RedisStoreBuilder::circuit_breaker) is built in. When Redis does not answer, checks
///   fail at once, and a task probes Redis. See [`CircuitBreaker`](crate::store::CircuitBreaker).
/// - A charge is sent once. An error says whether units [may have been
///   charged](crate::Error::may_have_charged).
/// - The store recovers from a restart, a failover and `SCRIPT FLUSH` by itself. The pause between
///   attempts to connect is at most a second.
/// - Every new connection is validated. A wrong password, a missing permission, a read-only replica
///   or a server in cluster mode is an error that says so. Redis Cluster is not supported.
/// - A budget has the key `prefix:{key}:kind:limit`. It expires in the second after it is full
///   again.
/// - Checks that arrive while a call is in flight are sent together in the next call. Under load, a
///   call decides hundreds of checks. A lone check is sent at once.
/// - An identical check is denied again without asking Redis, for at most [a
///   second](RedisStoreBuilder::deny_for). While Redis does not answer, a denial stands until its
///   `retry_after` has passed. See [`DenyCache`](crate::store::DenyCache).
/// - The store keeps one pooled connection for each [lane](RedisStoreBuilder::lanes), for as long
///   as it works.
/// - Tasks of the caller's tokio runtime send the checks. If that runtime stops being polled, or a
///   task blocks its worker in the poll that sends a check, other checks may stall until their
///   deadlines.
///
/// The store's Redis user needs `~tollgate:*` (or another prefix) and `+evalsha +eval +script|load
/// +time +mget +exists +get +psetex +del +getrange +set +setrange +strlen +pexpire +ping +unwatch`,
/// and nothing else.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::{RateLimiter, RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder()
///     .url("redis://127.0.0.1/")
///     .prefix("shop")
///     .deadline(Duration::from_millis(50))
///     .connect()
///     .await?;
/// let limiter = RateLimiter::new(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    lanes: Lanes,
}

#[derive(Clone)]
struct Lanes {
    /// At least one.
    lanes: Arc<[Arc<Lane>]>,
    /// The hash of a key chooses its lane.
    hasher: DefaultHashBuilder,
}

impl RedisStore {
    /// Connects with the defaults of the [builder](Self::builder), to a
    /// [URL](RedisStoreBuilder::url) such as `redis://user:password@host/`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid or the server cannot be used.
    pub async fn connect(url: &str) -> Result<Self, ConfigError> {
        Self::builder().url(url).connect().await
    }

    /// The state of the circuit breaker, for health endpoints. Closed if there is none.
    ///
    /// A readiness check should report it, and not fail because of it: a service that limits locally or fails
    /// open serves its clients without Redis.
    #[must_use]
    pub fn breaker_state(&self) -> BreakerState {
        let breaker = self.lanes.lanes.first().and_then(|lane| lane.settings.breaker.as_ref());
        breaker.map_or(BreakerState::Closed, |breaker| breaker.state())
    }

    /// Returns a builder for a store on a URL or a pool.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }
}

impl Lanes {
    /// The lane of a group. The same first key always has the same lane, so that its checks stay in
    /// order.
    fn lane(&self, group: &[Check]) -> &Arc<Lane> {
        let index = match group {
            [first, ..] if self.lanes.len() > 1 => {
                self.hasher.hash_one(first.key().as_str()) as usize % self.lanes.len()
            }
            _ => 0,
        };
        &self.lanes[index]
    }
}

impl Store for RedisStore {
    fn apply(&self, op: Op, group: Group) -> Answer {
        let lane = self.lanes.lane(&group);
        match (&lane.settings.denials, op) {
            (Some(denials), Op::Charge) => {
                denials.around(group, |group| ask(lane, op, &group, None))
            }
            (Some(denials), Op::Refund | Op::Reset) => {
                ask(lane, op, &group, Some(denials.change(&group)))
            }
            (None, _) | (_, Op::Peek) => ask(lane, op, &group, None),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address, because a URL can contain a password.
        f.debug_struct("RedisStore").field("lanes", &self.lanes.lanes).finish_non_exhaustive()
    }
}
