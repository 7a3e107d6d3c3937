//! The store that all replicas of a service share.

mod batch;
mod builder;
mod call;
mod connection;
mod lane;
mod script;
mod wire;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

pub use self::builder::RedisStoreBuilder;
use self::lane::Lane;
use super::{Answer, Store};
use crate::{Charge, ConfigError, Op, check_batch};

/// The store that all replicas of a service share: Redis, or a server that speaks its protocol
/// and runs its scripts, such as Valkey.
///
/// - One check is one script call, atomic on the server, at the server's time: neither racing
///   replicas nor their clocks can admit too much.
/// - Every call has a [deadline](RedisStoreBuilder::deadline). A check that finds Redis gone
///   fails, never hangs, and a charge whose answer was lost is not sent again: it may have
///   happened.
/// - A restart, a failover and `SCRIPT FLUSH` heal by themselves.
/// - Budgets are kept under `prefix:{key}:limit`, each with a time to live that ends when it is
///   whole again. The braces keep all limits of one key in one slot of a Redis Cluster.
/// - The connection is checked out of the pool once, and kept for as long as it works.
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
    shared: Arc<Shared>,
}

struct Shared {
    /// At least one.
    lanes: Vec<Arc<Lane>>,
    /// By which a key finds its lane.
    hasher: DefaultHashBuilder,
    settings: lane::Settings,
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

impl RedisStore {
    /// The lane of a batch. That of one key is always the same, so that its checks stay in order.
    fn lane(&self, batch: &[Charge<'_>]) -> &Arc<Lane> {
        let Shared { lanes, hasher, .. } = &*self.shared;
        let index = match batch {
            [first, ..] if lanes.len() > 1 => {
                hasher.hash_one(first.key.as_str()) as usize % lanes.len()
            }
            _ => 0,
        };
        &lanes[index]
    }
}

impl Store for RedisStore {
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
        match check_batch(batch) {
            Ok(()) => self.lane(batch).ask(op, batch),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address: a URL has a password.
        f.debug_struct("RedisStore")
            .field("prefix", &self.shared.settings.prefix)
            .field("deadline", &self.shared.settings.deadline)
            .field("lanes", &self.shared.lanes.len())
            .finish_non_exhaustive()
    }
}
