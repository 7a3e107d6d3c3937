//! Requests in flight: at most so many of a key at once, on all replicas.

mod agent;
mod slot;
mod task;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use tokio::runtime::Handle as Runtime;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

use self::agent::{Agent, SlotKey};
use self::slot::Outcome;
use crate::nouns::{ConcurrencyLimit, ConfigError, Error, Key, later};
use crate::store::MemoryStore;
use crate::store::permits::PermitStore;

const DEFAULT_LEASE: Duration = Duration::from_secs(10);
const LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

/// How long a caller waits for the store's answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// More than cores, so that threads rarely contend for one.
const AGENTS_OF_EMBEDDED: usize = 16;

/// How often a caller that waits makes sure that the task runs.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// A limiter of requests in flight: at most so many of a key at once, on all replicas.
///
/// A caller acquires a [`Permit`], works, and drops it. A store keeps who holds permits: [`MemoryStore`] for one process,
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
/// # What holds
///
/// - **At most the limit.** The store counts the permits of all processes, atomically.
/// - **First come, first served**, on all replicas: while callers wait, others do not get ahead of them. A process has the
///   places of its callers: if one gives up, those of this process that came later move up. A waiting caller
///   learns of a permit that another process has given back within about 25 ms.
/// - **Leases.** A process renews what it holds three times in a [lease](Self::lease) of 10 seconds. If it crashes, its
///   permits, and its places in the queue, count as given back when the lease is over.
/// - **Lost state.** If Redis fails over and the new master has not got the last permits, or none, each process tells it
///   within a third of a lease what it holds. Until then, up to the limit more can be granted: at most twice the limit
///   is in flight. After that no more are granted until fewer than the limit are in flight.
/// - **A store that is unavailable.** The limit's [policy](ConcurrencyLimit::on_store_failure) decides. Permits that are held stay valid.
///   Permits that were granted meanwhile count when the store is back.
/// - A process that is paused or cut off from Redis for longer than a lease may hold permits that others got meanwhile.
///
/// A call to the store has the claims of up to 256 keys, and calls are in flight all the time: under load, one call
/// acquires and releases many permits.
#[derive(Clone)]
pub struct ConcurrencyLimiter {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn PermitStore>,
    /// One, or for an embedded store several, so that threads rarely contend for one. A key has the same one always.
    agents: Box<[Arc<Agent>]>,
    hasher: DefaultHashBuilder,
}

impl ConcurrencyLimiter {
    /// Creates a limiter on a store.
    pub fn new(store: impl PermitStore) -> Self {
        Self::with_lease(Arc::new(store), DEFAULT_LEASE)
    }

    /// Creates a limiter on the embedded store: for one process, for development and for tests.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::new())
    }

    /// Sets the time after which the permits of a process that crashed count as given back. Range: 1 second to 10
    /// minutes. Default: 10 seconds. All replicas should have the same.
    ///
    /// Call it before the first permit is acquired: it makes a limiter that holds none.
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
        Ok(Self::with_lease(Arc::clone(&self.shared.store), lease))
    }

    fn with_lease(store: Arc<dyn PermitStore>, lease: Duration) -> Self {
        let agents = if store.embedded().is_some() { AGENTS_OF_EMBEDDED } else { 1 };
        let agent = |_| Arc::new(Agent::new(Arc::clone(&store), lease));
        let agents = (0..agents).map(agent).collect();
        Self { shared: Arc::new(Shared { store, agents, hasher: DefaultHashBuilder::default() }) }
    }

    fn agent(&self, slot: &SlotKey) -> &Arc<Agent> {
        let Shared { agents, hasher, .. } = &*self.shared;
        let hash = if agents.len() > 1 { hasher.hash_one(slot) } else { 0 };
        &agents[hash as usize % agents.len()]
    }

    /// Acquires a permit, if one is free and no caller waits for one. `None`: there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unavailable, and the limit fails closed.
    pub async fn try_acquire(
        &self,
        limit: &ConcurrencyLimit,
        key: &Key,
    ) -> Result<Option<Permit>, Error> {
        self.ask(limit, key, Duration::ZERO).await
    }

    /// Acquires a permit, and waits for it for at most `max_wait`. `None`: there was none in time.
    ///
    /// A permit that is free is granted however short the wait: the store's answer is awaited for at most a second. Dropping the
    /// future gives up the place in the queue.
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
        let asked = Instant::now();
        match self.ask(limit, key, Duration::ZERO).await {
            Ok(None) if !max_wait.is_zero() => {
                self.wait(limit, key, max_wait.saturating_sub(asked.elapsed())).await
            }
            acquired => acquired,
        }
    }

    /// Queues for a permit that was not free.
    pub(crate) async fn wait(
        &self,
        limit: &ConcurrencyLimit,
        key: &Key,
        max_wait: Duration,
    ) -> Result<Option<Permit>, Error> {
        match max_wait.is_zero() {
            true => Ok(None),
            false => self.ask(limit, key, max_wait).await,
        }
    }

    async fn ask(
        &self,
        limit: &ConcurrencyLimit,
        key: &Key,
        max_wait: Duration,
    ) -> Result<Option<Permit>, Error> {
        Runtime::try_current().map_err(Error::misuse)?;
        let slot = SlotKey::new(limit, key);
        let (caller, outcome) = oneshot::channel();
        let agent = self.agent(&slot);
        agent.ask(&slot, limit.limit(), caller, !max_wait.is_zero());
        let outcome = match within(agent, max_wait, outcome).await {
            Some(outcome) => outcome,
            None if max_wait.is_zero() => Err(Error::timeout()),
            None => Ok(None),
        };
        match outcome {
            Err(error) if error.is_unavailable() => agent.decide_locally(&slot, limit, error),
            outcome => outcome,
        }
    }

    /// The number of keys of which this process holds a permit, waits for one, or has to tell the store something.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared.agents.iter().map(|agent| agent.keys()).sum()
    }

    /// The permits that this process holds of a key.
    #[must_use]
    pub fn held(&self, limit: &ConcurrencyLimit, key: &Key) -> u64 {
        let slot = SlotKey::new(limit, key);
        self.agent(&slot).held(&slot)
    }
}

/// The outcome, if it comes in time. A caller that does not wait for a permit waits for the answer.
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
    let wait = if max_wait.is_zero() { ANSWERS_WITHIN } else { max_wait };
    let deadline = later(Instant::now(), wait);
    loop {
        let look = later(Instant::now(), LOOK_AFTER).min(deadline);
        match timeout_at(look, &mut outcome).await {
            Ok(outcome) => return Some(outcome.unwrap_or_else(|_| lost(TryRecvError::Closed))),
            Err(_) if look >= deadline => return None,
            // The runtime of the task may stand still.
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

/// A permit of a [`ConcurrencyLimit`]. Dropping it gives it back.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit {
    agent: Arc<Agent>,
    slot: SlotKey,
}

impl Permit {
    const fn new(agent: Arc<Agent>, slot: SlotKey) -> Self {
        Self { agent, slot }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.agent.release(&self.slot);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("limit", &self.slot.name()).finish_non_exhaustive()
    }
}
