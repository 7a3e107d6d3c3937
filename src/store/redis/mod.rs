//! The store that all replicas of a service share.

mod backoff;
mod batch;
mod builder;
mod call;
mod channel;
mod cluster;
mod command;
mod connect;
mod connection;
mod flight;
mod greeting;
mod keys;
mod lane;
mod node;
mod notes;
#[cfg(feature = "config")]
mod overrides;
mod probe;
mod route;
mod script;
#[cfg(feature = "config")]
mod source;
mod spread;
mod submit;
mod terms;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod wire;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use tokio::runtime::Handle as Runtime;

pub use self::builder::RedisStoreBuilder;
pub use self::channel::RedisChannel;
use self::cluster::Cluster;
pub use self::connect::Credentials;
use self::lane::{Lane, Urgency};
use self::notes::Notes;
#[cfg(feature = "config")]
pub(crate) use self::overrides::{OverrideChanges, OverridesInRedis};
#[cfg(feature = "config")]
pub use self::source::RedisSource;
use self::submit::{submit, submit_claim};
#[cfg(feature = "tls")]
pub use self::tls::Tls;
use super::asynchronous::Asynchronous;
use super::deny_cache::DenyCache;
use super::{Answer, BreakerState, NotHere, Note, Store};
use crate::model::{Budget, Change, Check, Error, Key, Limit, Operation};
#[cfg(feature = "config")]
use crate::units::ManualClock;
use crate::units::{ConfigError, Outcome, Timestamp};

/// The store that all replicas of a service share: Redis, or a server with its protocol and
/// scripts, such as Valkey.
///
/// - One script call decides a check, atomically and at the server's time. Neither concurrent
///   replicas nor their clocks can allow too much.
/// - Every check has a [deadline](RedisStoreBuilder::deadline), which the caller's own future
///   enforces. A Redis that refuses connections fails a check at once.
/// - A [circuit breaker](RedisStoreBuilder::circuit_breaker) is built in. When Redis does not
///   answer, checks fail at once, and a task probes Redis. See
///   [`BreakerSettings`](crate::store::BreakerSettings).
/// - A charge is sent once. An error says whether units [may have been
///   charged](crate::Error::may_have_charged).
/// - The store recovers from a restart, a failover and `SCRIPT FLUSH` by itself. The pause between
///   attempts to connect is at most a second.
/// - Every new connection is validated. A wrong password, a missing permission or a read-only
///   replica is an error that says so. So is a server in cluster mode, unless the URL names a
///   cluster, and a proxy that spreads keys over several servers. If the server closes new
///   connections, the error repeats its reason.
/// - A connection that was silent for 250 ms is pinged before a charge is sent, and the answer is
///   awaited for up to a twelfth of the deadline. So a charge is not lost on a connection that was
///   closed while the process was stopped.
/// - A connection on which a call was not answered within its deadline is replaced.
/// - A budget has the key `prefix:{key}:kind:limit`. It expires at most a second, or
///   a quarter of its refill time, after the budget is full. On a cluster it is
///   `prefix:{partition}{key}:kind:limit`. See [`partitions`](RedisStoreBuilder::partitions).
/// - The key `prefix:limits` has the quotas of limits in use, for five minutes. See
///   [`RateLimiter::register`](crate::RateLimiter::register). Keys such as `prefix:denied:29744102`
///   have clients that were denied, for 65 minutes, if they [are
///   counted](crate::denied_keys::DeniedKeys).
/// - Checks that arrive while a call is in flight are sent together in the next call. Under load, a
///   call decides hundreds of checks. A lone check is sent at once.
/// - An identical check is denied again without asking Redis, for at most [a
///   second](RedisStoreBuilder::deny_for). While Redis does not answer, a denial stands until its
///   `retry_after` has passed.
/// - Replicas can decide a fixed window without waiting for Redis, and exactly. See
///   [`Limit::asynchronous`].
/// - The store keeps one connection for each [lane](RedisStoreBuilder::lanes), and on a cluster one
///   for each node, for as long as it works.
/// - Tasks of the caller's tokio runtime send the checks. If that runtime stops being polled, or a
///   task blocks its worker in the poll that sends a check, other checks may stall until their
///   deadlines. A check outside of a tokio runtime [is misuse](crate::Error::is_misuse).
/// - A store can serve several runtimes. The runtime that opened a connection also drives it. If
///   that runtime is dropped, the first check from another runtime fails, and the second opens a
///   new connection. If that runtime is not polled, such as a current-thread runtime between two
///   `block_on`, checks from other runtimes stall for one or two deadlines. So give a runtime that
///   does not live as long as the process, or is not polled all the time, a store of its own, as in
///   tests.
///
/// The store's Redis user needs `~shop:*` (with your prefix) and `+evalsha +eval +script|load +time
/// +mget +exists +psetex +del +getrange +set +setrange +strlen +pexpire +pttl +ping +unwatch`, and
/// nothing else with the default settings. On a cluster it also needs `+asking +cluster|slots`. A
/// database other than 0 in the URL needs `+select`, and a
/// [client name](RedisStoreBuilder::client_name) `+client|setname`.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::{RateLimiter, RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder("shop")
///     .url("redis://127.0.0.1/")
///     .deadline(Duration::from_millis(50))
///     .connect()
///     .await?;
/// let limiter = RateLimiter::new(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    /// The accounts by which this process decides by itself, and the lanes for all else.
    asynchronous: Arc<Asynchronous<Lanes>>,
    notes: Arc<Notes>,
}

#[derive(Clone)]
struct Lanes {
    /// At least one.
    all: Arc<[Arc<Lane>]>,
    /// Chooses the lane of a key, without a cluster.
    hasher: DefaultHashBuilder,
    /// Its partition of the cluster chooses the lane of a key. There is a lane for each.
    cluster: Option<Arc<Cluster>>,
    /// `true` if the servers have connections for the messages of channels.
    has_channels: bool,
}

impl RedisStore {
    /// Connects with a [prefix](Self::builder) and the defaults of the builder, to a
    /// [URL](RedisStoreBuilder::url) such as `redis://user:password@host/`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid, or if the server cannot be used.
    pub async fn connect(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Self::builder(prefix).url(url).connect().await
    }

    /// The state of the circuit breaker, for health endpoints. Closed if there is none. Each node
    /// of a cluster has a breaker. This is the state of the one that is most open.
    ///
    /// A readiness check should report it, and not fail because of it, because a service that
    /// limits locally or fails open serves its clients without Redis.
    #[must_use]
    pub fn breaker_state(&self) -> BreakerState {
        let states = self
            .lanes()
            .all
            .iter()
            .filter_map(|lane| lane.route.breaker_state());
        // The worst of several nodes.
        states
            .max_by_key(|state| match state {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            })
            .unwrap_or(BreakerState::Closed)
    }

    /// Returns the key in Redis of the budget that `key` has under `limit`, for tools that look
    /// into Redis. It exists while the budget is not full.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Quota, RedisStore};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let store = RedisStore::builder("shop").url("redis://127.0.0.1/").build()?;
    /// let limit = Limit::token_bucket("api", Quota::per_second(10))?;
    /// assert_eq!(store.redis_key(&limit, &Key::new("alice")), "shop:{alice}:b:api");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn redis_key(&self, limit: &Limit, key: &Key) -> String {
        let mut text = String::new();
        let lanes = self.lanes();
        let prefix = &lanes.all[lanes.index(key)].prefix;
        keys::append_key(&mut text, prefix, &Budget::new(limit, key), "");
        text
    }

    /// Returns a builder for a store on a URL or a pool.
    ///
    /// The prefix begins every key in Redis, and names your service: 1 to 64 printable ASCII
    /// characters without spaces and braces. Stores with the same prefix share the budgets of
    /// limits with the same name, so all replicas of a service have the same one, and another
    /// service on the same Redis has another one. It has no default, because two services would
    /// share it without knowing, and a client that one of them served would have less left at the
    /// other.
    pub fn builder(prefix: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(prefix.into())
    }

    fn lanes(&self) -> &Lanes {
        self.asynchronous.store()
    }

    /// The clock of the store, if it is set by hand.
    #[cfg(feature = "config")]
    pub(crate) fn clock(&self) -> Option<&ManualClock> {
        self.lanes().all[0].settings.clock.as_ref()
    }

    /// Charges a check of an asynchronous limit, if this process can decide it. Returns its
    /// outcome, and the time of Redis.
    #[inline]
    pub(crate) fn charge_here(
        &self,
        limit: &Limit,
        key: &Key,
        cost: u32,
    ) -> Result<(Outcome, Timestamp), NotHere> {
        self.asynchronous.charge_here(limit, key, cost)
    }

    /// Gives back the units that were charged ahead and are not spent.
    pub(crate) async fn release(&self) {
        self.asynchronous.release().await;
    }
}

impl Lanes {
    /// The place of a key's lane. The same key always has the same lane, so that its checks stay in
    /// order.
    fn index(&self, key: &Key) -> usize {
        match &self.cluster {
            Some(cluster) => cluster.partitions.partition_of(key.as_str()),
            None if self.all.len() == 1 => 0,
            None => self.hasher.hash_one(key.as_str()) as usize % self.all.len(),
        }
    }

    /// The lane of an operation. Its first key chooses it.
    fn lane(&self, operation: &Operation) -> &Arc<Lane> {
        let first = operation.budgets().next();
        &self.all[first.map_or(0, |first| self.index(first.key()))]
    }

    /// Returns whether all keys of the group have one lane.
    fn is_in_one_lane(&self, group: &[Check]) -> bool {
        let mut indices = group.iter().map(|check| self.index(check.key()));
        let first = indices.next();
        indices.all(|index| Some(index) == first)
    }

    /// The deadline of every check.
    fn deadline(&self) -> Duration {
        self.all
            .first()
            .map_or(Duration::ZERO, |lane| lane.settings.deadline)
    }

    fn deny_cache(&self) -> Option<&Arc<DenyCache>> {
        self.all
            .first()
            .and_then(|lane| lane.settings.deny_cache.as_ref())
    }

    /// Charges a group, or only peeks.
    fn decide(&self, operation: Operation) -> Answer {
        if let Some(cluster) = &self.cluster
            && let Operation::Charge(group) | Operation::Peek(group) = &operation
            && !self.is_in_one_lane(group)
        {
            let is_charge = matches!(operation, Operation::Charge(_));
            return spread::ask_parts(self, cluster, group.clone(), is_charge);
        }
        submit(self.lane(&operation), &operation, Urgency::Usual)
    }
}

impl Store for RedisStore {
    fn apply(&self, operation: Operation) -> Answer {
        if let Err(error) = operation.validate() {
            return Answer::ready(Err(error));
        }
        if let Err(error) = Runtime::try_current() {
            return Answer::ready(Err(Error::outside_of_runtime(error)));
        }
        if let Operation::Charge(group) = &operation {
            self.notes.sample(group);
        }
        self.asynchronous.apply(operation)
    }

    fn note(&self, note: Note<'_>) {
        self.notes.note(note);
    }
}

/// Redis decides every operation, but for denials that are remembered.
impl Store for Lanes {
    fn apply(&self, operation: Operation) -> Answer {
        match operation {
            Operation::Charge(group) => {
                let ask = |group| self.decide(Operation::Charge(group));
                match self.deny_cache() {
                    Some(deny_cache) => deny_cache.answer_or_ask(group, ask),
                    None => ask(group),
                }
            }
            Operation::Peek(_) => self.decide(operation),
            Operation::Change(_, Change::Claim(ref claim)) => {
                let is_known = claim.granted > 0 || claim.waiting > 0;
                let urgency = match is_known {
                    true => Urgency::Renews,
                    false => Urgency::Usual,
                };
                submit_claim(self.lane(&operation), operation, urgency)
            }
            Operation::Change(_, Change::Pay(_)) => {
                submit(self.lane(&operation), &operation, Urgency::Renews)
            }
            Operation::Change(..) => submit(self.lane(&operation), &operation, Urgency::Usual),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefixes", self.lanes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address, because a URL can contain a password.
        f.debug_list()
            .entries(self.all.iter().map(|lane| &lane.prefix))
            .finish()
    }
}
