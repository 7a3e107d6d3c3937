//! The store that all replicas of a service share.

mod batch;
mod builder;
mod call;
mod connection;
mod keys;
mod lane;
mod script;
mod sender;
mod wire;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

pub use self::builder::RedisStoreBuilder;
use self::lane::Lane;
use super::{Answer, DenyCache, Store};
use crate::{Charge, ConfigError, Op, check_batch};

/// The store that all replicas of a service share: Redis, or a server that speaks its protocol
/// and runs its scripts, such as Valkey.
///
/// - A check is decided within one script call, atomic on the server, at the server's time: neither
///   racing replicas nor their clocks can admit too much.
/// - Every call has a [deadline](RedisStoreBuilder::deadline). A check that finds Redis gone
///   fails, never hangs, and a charge whose answer was lost is not sent again: it may have
///   happened.
/// - A restart, a failover and `SCRIPT FLUSH` heal by themselves.
/// - Budgets are kept under `prefix:{key}:kind:limit`, each with a time to live that ends in the second
///   after it is whole again. The braces keep all limits of one key in one slot of a Redis Cluster.
/// - Checks that come while others are on their way leave together in the next call: under load a
///   call decides hundreds, and a check that comes alone leaves at once.
/// - A check that was refused is refused again without asking Redis, until its units are back: for
///   at most [a second](RedisStoreBuilder::deny_for) at a time. See [`DenyCache`].
/// - A connection is checked out of the pool once for each [lane](RedisStoreBuilder::lanes), and
///   kept for as long as it works.
/// - Checks are sent by tasks of the tokio runtime that asks. One that is kept and no longer driven
///   holds up what it was asked to send, and who waits for that.
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
    store: DenyCache<Lanes>,
}

/// The same without a memory of its own.
#[derive(Clone)]
struct Lanes {
    /// At least one.
    lanes: Arc<[Arc<Lane>]>,
    /// By which a key finds its lane.
    hasher: DefaultHashBuilder,
}

impl RedisStore {
    /// Connects to `redis://[user:password@]host[:port][/database]`, with the defaults of the
    /// [builder](Self::builder).
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
    fn lane(&self, batch: &[Charge<'_>]) -> &Arc<Lane> {
        let index = match batch {
            [first, ..] if self.lanes.len() > 1 => {
                self.hasher.hash_one(first.key.as_str()) as usize % self.lanes.len()
            }
            _ => 0,
        };
        &self.lanes[index]
    }
}

impl Store for RedisStore {
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
        self.store.apply(op, batch)
    }
}

impl Store for Lanes {
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
        match check_batch(batch) {
            Ok(()) => self.lane(batch).ask(op, batch),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address: a URL has a password.
        f.debug_struct("Redis").field("lanes", &self.lanes).finish()
    }
}
