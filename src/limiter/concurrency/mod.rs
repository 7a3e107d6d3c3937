//! Requests in flight: at most so many of a key at once, on all replicas.

mod agent;
mod permit;
mod slot;
mod state;
mod task;

use std::fmt;
#[cfg(feature = "config")]
use std::sync::Weak;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

use self::agent::{Agent, Reports};
pub(crate) use self::permit::Acquired;
pub use self::permit::Permit;
use self::slot::Outcome;
use self::state::SlotKey;
#[cfg(feature = "config")]
use super::SetId;
use super::denied_keys::DeniedKeys;
use super::registry::Registry;
use crate::nouns::{ConcurrencyLimit, ConfigError, Error, Key, Source, later};
use crate::store::MemoryStore;
use crate::store::permits::PermitStore;

const DEFAULT_LEASE: Duration = Duration::from_secs(10);
const LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

/// The longest wait for the store's answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The interval at which waiting callers check that the task runs.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// A limiter of requests in flight: at most so many of a key at once, on all replicas.
///
/// A caller acquires a [`Permit`], works, and drops it. A store counts the permits: [`MemoryStore`] for one process,
/// `RedisStore` for all replicas.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{ConcurrencyLimit, ConcurrencyLimiter, Key};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = ConcurrencyLimiter::in_memory();
/// let exports = ConcurrencyLimit::new("exports", 2)?;
/// let acme = Key::new("acme");
///
/// let first = limiter.try_acquire(&exports, &acme).await?.expect("none is in flight");
/// let second = limiter.try_acquire(&exports, &acme).await?.expect("one is in flight");
/// assert!(limiter.try_acquire(&exports, &acme).await?.is_none());
///
/// // The next in the queue gets the permit of the first that is done.
/// let waiting = limiter.acquire(&exports, &acme, Duration::from_secs(1));
/// drop(first);
/// assert!(waiting.await?.is_some());
/// # drop(second);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// - **At most the limit.** The store counts the permits of all processes, atomically.
/// - **First come, first served**, on all replicas: a new caller does not pass callers that wait. A process has one place for
///   each of its callers. If a caller gives up, the later callers of the same process move up. A waiting caller gets a
///   permit that another process has released within about 25 ms.
/// - **Leases.** A process renews its permits three times in a [lease](Self::lease) of 10 seconds. If the process crashes, its
///   permits and its places in the queue count as released when the lease expires.
/// - **Lost state.** After a failover, the new Redis master may lack the last permits, or all of them. Each process
///   restores its own within a third of a lease. Until then at most twice the limit is in flight. Afterwards, a new permit is
///   granted as soon as fewer than the limit are in flight.
/// - **Store unavailable.** The limit's [policy](ConcurrencyLimit::on_store_failure) decides. Permits stay valid. Permits
///   that were granted meanwhile count when the store answers again. [`Permit::source`] returns the source of a grant.
/// - **Expired leases.** A process that was blocked, or could not reach Redis, for longer than a lease may hold permits
///   that other processes have, too. [`Permit::is_renewed`] and an event report that.
/// - **The end of a program.** Permits are released in the background. Call [`flush`](Self::flush) last.
///
/// One call to the store carries the claims of up to 256 keys, and up to four calls are in flight. Each part of a cluster has
/// its own calls.
///
/// A task renews the permits, in a runtime that uses the limiter. A current-thread runtime drives that task only inside
/// `block_on`.
#[derive(Clone)]
pub struct ConcurrencyLimiter {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    store: Arc<dyn PermitStore>,
    /// One for each part of the store.
    agents: Box<[Arc<Agent>]>,
    registry: Arc<Registry<ConcurrencyLimit>>,
    /// Where denials are counted by key.
    pub(super) denied_keys: OnceLock<DeniedKeys>,
}

impl ConcurrencyLimiter {
    /// Creates a limiter on a store.
    pub fn new(store: impl PermitStore) -> Self {
        Self::build(Arc::new(store), DEFAULT_LEASE, Arc::default(), OnceLock::new())
    }

    /// Creates a limiter on the embedded store: for one process, for development and for tests.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::new())
    }

    /// Connects to Redis and creates a limiter that shares its permits with all replicas on that Redis: those with the same
    /// [prefix](crate::RedisStore::builder). With rates, too, connect once, and give both limiters a clone of the
    /// [`RedisStore`](crate::RedisStore).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid, or if the server cannot be used.
    #[cfg(feature = "redis")]
    pub async fn redis(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(crate::RedisStore::connect(url, prefix).await?))
    }

    /// Creates a limiter as [`redis`](Self::redis) does, but without connecting: a service that restarts during an outage
    /// starts.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid.
    #[cfg(feature = "redis")]
    pub fn redis_lazy(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(crate::RedisStore::builder(prefix).url(url).build()?))
    }

    /// Sets the time after which the permits of a process that crashed count as given back. Range: 1 second to 10
    /// minutes. Default: 10 seconds. All replicas should have the same.
    ///
    /// Call it first: the returned limiter does not renew permits that were acquired before.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is out of range.
    pub fn lease(self, lease: Duration) -> Result<Self, ConfigError> {
        let [shortest, longest] = LEASES;
        if lease < shortest || lease > longest {
            return Err(ConfigError::new(format!(
                "the lease of permits is {lease:?}; use {shortest:?} to {longest:?}"
            )));
        }
        let Shared { store, registry, denied_keys, .. } = &*self.shared;
        Ok(Self::build(Arc::clone(store), lease, Arc::clone(registry), denied_keys.clone()))
    }

    fn build(
        store: Arc<dyn PermitStore>,
        lease: Duration,
        registry: Arc<Registry<ConcurrencyLimit>>,
        denied_keys: OnceLock<DeniedKeys>,
    ) -> Self {
        let reports = Arc::new(Reports::default());
        let agent = |_| Arc::new(Agent::new(Arc::clone(&store), lease, Arc::clone(&reports)));
        let agents = (0..store.parts().max(1)).map(agent).collect();
        Self { shared: Arc::new(Shared { store, agents, registry, denied_keys }) }
    }

    fn agent(&self, key: &Key) -> &Arc<Agent> {
        let Shared { store, agents, .. } = &*self.shared;
        &agents[store.part(key) % agents.len()]
    }

    /// Acquires a permit, if one is free and no caller waits. `None`: no permit is free.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unavailable, and the limit fails closed.
    pub async fn try_acquire(
        &self,
        limit: &ConcurrencyLimit,
        key: &Key,
    ) -> Result<Option<Permit>, Error> {
        Ok(self.observe(limit, key, true, self.ask(limit, key)).await?.permit)
    }

    /// Acquires a permit, and waits for it for at most `max_wait`. `None`: no permit was free in time.
    ///
    /// A free permit is granted even if `max_wait` is shorter than the store's latency: the first answer may take up to a
    /// second. Dropping the future gives up the place in the queue. If the store becomes unavailable, the [failure
    /// policy](ConcurrencyLimit::on_store_failure) decides all waiting callers at once.
    ///
    /// # Errors
    ///
    /// Returns an error like [`try_acquire`](Self::try_acquire).
    pub async fn acquire(
        &self,
        limit: &ConcurrencyLimit,
        key: &Key,
        max_wait: Duration,
    ) -> Result<Option<Permit>, Error> {
        let acquiring = async {
            let asked = Instant::now();
            let acquired = self.ask(limit, key).await?;
            let left = max_wait.saturating_sub(asked.elapsed());
            if acquired.permit.is_some() || left.is_zero() {
                return Ok(acquired);
            }
            self.wait(limit, key, left, usize::MAX).await
        };
        Ok(self.observe(limit, key, true, acquiring).await?.permit)
    }

    /// Asks for a permit, without a wait.
    pub(crate) async fn ask(&self, limit: &ConcurrencyLimit, key: &Key) -> Result<Acquired, Error> {
        Runtime::try_current().map_err(Error::misuse)?;
        let (slot, (caller, outcome)) = (SlotKey::new(limit, key), oneshot::channel());
        let agent = self.agent(key);
        agent.ask(&slot, limit.limit(), caller);
        let outcome = within(agent, ANSWERS_WITHIN, outcome).await;
        conclude(agent, &slot, limit, outcome.unwrap_or_else(|| Err(Error::timeout())))
    }

    /// Queues for a permit. Returns none at once if `most_waiters` callers of the key wait in this process.
    pub(crate) async fn wait(
        &self,
        limit: &ConcurrencyLimit,
        key: &Key,
        max_wait: Duration,
        most_waiters: usize,
    ) -> Result<Acquired, Error> {
        Runtime::try_current().map_err(Error::misuse)?;
        let (slot, (caller, outcome)) = (SlotKey::new(limit, key), oneshot::channel());
        let agent = self.agent(key);
        agent.wait(&slot, limit.limit(), caller, most_waiters);
        let outcome = within(agent, max_wait, outcome).await;
        conclude(agent, &slot, limit, outcome.unwrap_or(Ok(None)))
    }

    /// Waits until the store has confirmed all released permits, for at most a second.
    ///
    /// Permits are released in the background. If a program ends before that, they count until their lease expires. Call this
    /// last, also after a graceful shutdown of a server.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{ConcurrencyLimit, ConcurrencyLimiter, Key};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let permits = ConcurrencyLimiter::in_memory();
    /// let imports = ConcurrencyLimit::new("imports", 1)?;
    /// if let Some(permit) = permits.try_acquire(&imports, &Key::new("acme")).await? {
    ///     // Import.
    ///     drop(permit);
    /// }
    /// permits.flush().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flush(&self) {
        let deadline = later(Instant::now(), ANSWERS_WITHIN);
        for agent in &self.shared.agents {
            drop(timeout_at(deadline, agent.flush()).await);
        }
    }

    /// Registers the name of a limit, so that no other number can use it in this limiter. Layers register their limits when
    /// they are built.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is registered with another number.
    pub fn register(&self, limit: &ConcurrencyLimit) -> Result<(), ConfigError> {
        self.register_all(&[limit])
    }

    /// Registers all limits, or none.
    pub(crate) fn register_all(&self, limits: &[&ConcurrencyLimit]) -> Result<(), ConfigError> {
        self.shared.registry.register_all(limits)
    }

    /// Registers the limits of a set in place of those that it had, or leaves them as they are. An error comes with its
    /// limit.
    #[cfg(feature = "config")]
    pub(crate) fn register_set<'a>(
        &self,
        set: &Arc<SetId>,
        limits: &[&'a ConcurrencyLimit],
    ) -> Result<(), (&'a str, ConfigError)> {
        self.shared.registry.replace_set(set, limits.iter().map(|limit| limit.name()))
    }

    /// Whether both are handles of one limiter.
    #[cfg(feature = "http")]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A handle that does not keep the limiter.
    #[cfg(feature = "config")]
    pub(crate) fn downgrade(&self) -> WeakConcurrencyLimiter {
        WeakConcurrencyLimiter(Arc::downgrade(&self.shared))
    }

    /// The number of keys with permits, callers or unconfirmed releases in this process.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared.agents.iter().map(|agent| agent.keys()).sum()
    }

    /// The permits that this process holds of a key.
    #[must_use]
    pub fn held(&self, limit: &ConcurrencyLimit, key: &Key) -> u64 {
        let slot = SlotKey::new(limit, key);
        self.agent(key).held(&slot)
    }
}

/// The outcome of a caller. While the store is unavailable, the limit's policy decides.
fn conclude(
    agent: &Arc<Agent>,
    slot: &SlotKey,
    limit: &ConcurrencyLimit,
    outcome: Outcome,
) -> Result<Acquired, Error> {
    match outcome {
        Ok(permit) => Ok(Acquired { permit, source: Source::Store, limit: limit.limit() }),
        Err(error) if error.is_unavailable() => agent.decide_locally(slot, limit, error),
        Err(error) => Err(error),
    }
}

/// The outcome, if it comes in time.
async fn within(
    agent: &Arc<Agent>,
    max_wait: Duration,
    mut outcome: oneshot::Receiver<Outcome>,
) -> Option<Outcome> {
    let lost = |_| Err(Error::store("the runtime was shut down"));
    match outcome.try_recv() {
        Err(TryRecvError::Empty) => {}
        decided => return Some(decided.unwrap_or_else(lost)),
    }
    let deadline = later(Instant::now(), max_wait);
    loop {
        let look = later(Instant::now(), LOOK_AFTER).min(deadline);
        match timeout_at(look, &mut outcome).await {
            Ok(outcome) => return Some(outcome.unwrap_or_else(|_| lost(TryRecvError::Closed))),
            Err(_) if look >= deadline => return None,
            // The task may be blocked.
            Err(_) => agent.ensure_task(),
        }
    }
}

impl fmt::Debug for ConcurrencyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimiter").finish_non_exhaustive()
    }
}

impl From<&Self> for ConcurrencyLimiter {
    fn from(limiter: &Self) -> Self {
        limiter.clone()
    }
}

/// A handle of a limiter that may be gone.
#[cfg(feature = "config")]
pub(crate) struct WeakConcurrencyLimiter(Weak<Shared>);

#[cfg(feature = "config")]
impl WeakConcurrencyLimiter {
    pub(crate) fn upgrade(&self) -> Option<ConcurrencyLimiter> {
        self.0.upgrade().map(|shared| ConcurrencyLimiter { shared })
    }
}
