//! The store that all replicas of a service share.

mod ask;
mod backoff;
mod batch;
mod builder;
mod call;
mod connection;
mod flight;
mod greeting;
mod keys;
mod lane;
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
use self::lane::Lane;
#[cfg(feature = "tls")]
pub use self::tls::Tls;
use super::{Answer, Store};
use crate::nouns::{Check, ConfigError, Op, validate_group};

/// The store that all replicas of a service share: Redis, or a server that speaks its protocol
/// and runs its scripts, such as Valkey.
///
/// - A check is decided within one script call, atomic on the server, at the server's time: neither
///   racing replicas nor their clocks can admit too much.
/// - Every check has a [deadline](RedisStoreBuilder::deadline), which its caller's own future
///   enforces. A check that finds Redis gone fails at once.
/// - A charge is sent once. An error says whether units [may have been
///   charged](crate::Error::may_have_charged).
/// - A restart, a failover and `SCRIPT FLUSH` heal by themselves. The pause between
///   attempts to connect is a second at most.
/// - A new connection is greeted: a wrong password, a missing right, a read-only replica or a server
///   in cluster mode is an error by name. Redis Cluster is not supported.
/// - Budgets are kept under `prefix:{key}:kind:limit`, each with a time to live that ends in the second
///   after it is whole again.
/// - Checks that come while others are on their way leave together in the next call: under load a
///   call decides hundreds, and a check that comes alone leaves at once.
/// - A check that was denied is denied again without asking Redis, for at most
///   [a second](RedisStoreBuilder::deny_for) at a time. While Redis does not answer, a denial stands
///   until its `retry_after` is over. See [`DenyCache`](crate::store::DenyCache).
/// - A connection is checked out of the pool once for each [lane](RedisStoreBuilder::lanes), and
///   kept for as long as it works.
/// - Checks are sent by tasks of the tokio runtime that asks. If that runtime stops being polled, its
///   queued checks stall until their deadlines.
///
/// A Redis user for it needs no more than `~tollgate:*` (or another prefix) and `+evalsha
/// +eval +script|load +time +mget +exists +get +psetex +del +getrange +set +setrange +strlen
/// +pexpire +ping +unwatch`.
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
    /// By which a key finds its lane.
    hasher: DefaultHashBuilder,
}

impl RedisStore {
    /// Connects to `redis://[user:password@]host[:port][/database]`, or to `rediss://` with the
    /// feature `tls`, with the defaults of the [builder](Self::builder).
    ///
    /// # Errors
    ///
    /// If the URL is not one, or the Redis behind it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, ConfigError> {
        Self::builder().url(url).connect().await
    }

    /// A store from a URL or a pool, with settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }
}

impl Lanes {
    /// The lane of a batch. That of one key is always the same, so that its checks stay in order.
    fn lane(&self, batch: &[Check]) -> &Arc<Lane> {
        let index = match batch {
            [first, ..] if self.lanes.len() > 1 => {
                self.hasher.hash_one(first.key().as_str()) as usize % self.lanes.len()
            }
            _ => 0,
        };
        &self.lanes[index]
    }
}

impl Store for RedisStore {
    fn apply(&self, op: Op, batch: &[Check]) -> Answer {
        if let Err(error) = validate_group(batch) {
            return Answer::ready(Err(error));
        }
        let lane = self.lanes.lane(batch);
        match (&lane.settings.denials, op) {
            (Some(denials), Op::Charge) => denials.around(batch, || ask(lane, op, batch, None)),
            (Some(denials), Op::Refund | Op::Reset) => {
                ask(lane, op, batch, Some(denials.change(batch)))
            }
            (None, _) | (_, Op::Peek) => ask(lane, op, batch, None),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address: a URL has a password.
        f.debug_struct("RedisStore").field("lanes", &self.lanes.lanes).finish_non_exhaustive()
    }
}
