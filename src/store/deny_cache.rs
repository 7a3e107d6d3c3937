//! Refusals that cost nothing.
//!
//! A check that was refused is refused until its `retry_after` is over, whoever asks: units only
//! come back with time, or with a refund or a reset. So the same check need not be asked again until
//! then. What is remembered is the whole check (its limits with their numbers, its keys, its
//! costs), so that an answer is exactly what the store would say, and not a guess from another cost.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::answer::{Watched, Watcher};
use super::{Answer, Store};
use crate::{Charge, ConfigError, Decision, Limit, Op, Source};

/// How long a refusal may be wrong, if somebody else takes it back.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);

/// About 20 MB, if all are in use.
const DEFAULT_CAPACITY: usize = 100_000;

/// Counters of what was taken back. Budgets that share one only cost a question more.
const GENERATIONS: usize = 1024;

/// A store that refuses by itself what the store behind it has refused, until the units are back.
///
/// A client that keeps sending while it is over its limit is most of what a limiter sees on a bad
/// day. Such checks are answered here, without a question to the store behind, and their
/// decisions say so: their [source](Decision::source) is [`Source::DenyCache`].
///
/// - Refused is the same check only: the same limits, keys and costs. Peeks are always asked.
/// - `retry_after` and `reset_after` go down as time passes. `remaining` is what it was.
/// - A refund or a reset that goes through this store (and its clones) counts at once. One that
///   another replica makes counts after at most [`max_age`](Self::max_age), 1 second if this is not
///   set; so does a store that lost its memory.
/// - At most [`capacity`](Self::capacity) refusals are remembered.
///
/// [`RedisStore`](crate::RedisStore) has one built in.
///
/// ```
/// use tollgate::{DenyCache, Key, Limit, MemoryStore, Quota, RateLimiter, Source};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::new(DenyCache::new(MemoryStore::new()));
/// let limit = Limit::gcra("api", Quota::per_minute(1))?;
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&limit, &key).await?.allowed());
/// assert_eq!(limiter.check(&limit, &key).await?.source(), Source::Store);
/// let again = limiter.check(&limit, &key).await?;
/// assert!(!again.allowed());
/// assert_eq!(again.source(), Source::DenyCache);
/// # Ok(())
/// # }
/// ```
pub struct DenyCache<S> {
    store: S,
    refusals: Option<Arc<Refusals>>,
    max_age: Duration,
    capacity: usize,
}

impl<S: Store> DenyCache<S> {
    /// Remembers what `store` refuses.
    pub fn new(store: S) -> Self {
        Self { store, refusals: None, max_age: DEFAULT_MAX_AGE, capacity: DEFAULT_CAPACITY }
            .rebuilt()
    }

    /// How long a refusal is remembered at most, however long its `retry_after` is: this is how
    /// long it can be wrong after another replica has taken it back. Zero remembers nothing.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self.rebuilt()
    }

    /// How many refusals are remembered at most; those that are not asked for go first.
    #[must_use]
    pub fn capacity(mut self, refusals: usize) -> Self {
        self.capacity = refusals;
        self.rebuilt()
    }

    fn rebuilt(mut self) -> Self {
        let remembers = !self.max_age.is_zero() && self.capacity > 0;
        self.refusals = remembers.then(|| Arc::new(Refusals::new(self.max_age, self.capacity)));
        self
    }

    /// The store behind.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.store
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
        let Some(refusals) = &self.refusals else { return self.store.apply(op, batch) };
        match op {
            Op::Peek => self.store.apply(op, batch),
            Op::Refund | Op::Reset => {
                let answer = self.store.apply(op, batch);
                let taking_back = TakingBack::new(refusals, batch);
                Answer::later(async move {
                    let decision = answer.await;
                    drop(taking_back);
                    decision
                })
            }
            Op::Charge => {
                let now = Instant::now();
                let id = refusals.id(batch);
                let generation = refusals.generation(batch);
                if let Some(decision) = refusals.get(id, generation, now) {
                    return Answer::ready(Ok(decision));
                }
                let watcher: Arc<dyn Watcher> = Arc::<Refusals>::clone(refusals);
                self.store.apply(op, batch).watched(watcher, Watched { id, generation, asked: now })
            }
        }
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        self.store.check_limits(limits)
    }
}

impl<S: Clone> Clone for DenyCache<S> {
    /// A handle on the same refusals, if the store's clone is one on the same store.
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), refusals: self.refusals.clone(), ..*self }
    }
}

impl<S: fmt::Debug> fmt::Debug for DenyCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenyCache")
            .field("store", &self.store)
            .field("max_age", &self.max_age)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

struct Refusals {
    cache: Cache<u128, Refusal>,
    max_age: Duration,
    /// Two, each with a seed of its own: what a check is known by has 128 bits that no client can
    /// foresee.
    hashers: [DefaultHashBuilder; 2],
    generations: Box<[AtomicU64]>,
    started: Instant,
    /// When the last refusal ends, in microseconds since the start: most of the time, there is
    /// none, and nothing to look up.
    last_ends: AtomicU64,
}

#[derive(Clone)]
struct Refusal {
    decision: Decision,
    /// What was known to have been taken back when it was asked.
    generation: u64,
    told: Instant,
    until: Instant,
}

impl Refusals {
    fn new(max_age: Duration, capacity: usize) -> Self {
        Self {
            cache: Cache::new(capacity),
            max_age,
            hashers: [DefaultHashBuilder::default(), DefaultHashBuilder::default()],
            generations: (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect(),
            started: Instant::now(),
            last_ends: AtomicU64::new(0),
        }
    }

    /// What a check is known by.
    fn id(&self, batch: &[Charge<'_>]) -> u128 {
        let half = |hasher: &DefaultHashBuilder| {
            let mut hasher = hasher.build_hasher();
            for charge in batch {
                let limit = charge.limit;
                (limit.name(), limit.algorithm(), charge.key, charge.cost).hash(&mut hasher);
            }
            u128::from(hasher.finish())
        };
        half(&self.hashers[0]) << 64 | half(&self.hashers[1])
    }

    /// Grows with each refund or reset of a budget of the batch.
    fn generation(&self, batch: &[Charge<'_>]) -> u64 {
        let count = |charge| self.generations[self.counter(charge)].load(Ordering::Acquire);
        batch.iter().map(count).sum()
    }

    fn counter(&self, charge: &Charge<'_>) -> usize {
        self.hashers[0].hash_one((charge.limit.name(), charge.key)) as usize % GENERATIONS
    }

    fn get(&self, id: u128, generation: u64, now: Instant) -> Option<Decision> {
        if self.last_ends.load(Ordering::Acquire) <= self.micros(now) {
            return None;
        }
        let refusal = self.cache.get(&id)?;
        let holds = refusal.generation == generation && now < refusal.until;
        let elapsed = now.saturating_duration_since(refusal.told);
        holds.then(|| refusal.decision.told_after(elapsed).given_by(Source::DenyCache))
    }

    fn micros(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

impl Watcher for Refusals {
    fn decided(&self, watched: Watched, decision: &Decision) {
        if decision.allowed() {
            return;
        }
        // What can never pass can never pass later, either.
        let wait = decision.retry_after().unwrap_or(self.max_age).min(self.max_age);
        let Watched { id, generation, asked } = watched;
        // From when it was asked: the store decided later than that, so this is never too long.
        let until = crate::clock::later(asked, wait);
        let told = Instant::now();
        if told < until {
            self.cache.insert(id, Refusal { decision: decision.clone(), generation, told, until });
            self.last_ends.fetch_max(self.micros(until), Ordering::AcqRel);
        }
    }
}

/// A refund or a reset on its way. What was refused before it happened no longer counts: neither
/// what is remembered when it leaves, nor what is answered until it is back.
struct TakingBack {
    refusals: Arc<Refusals>,
    /// The numbers of the counters.
    counters: Vec<usize>,
}

impl TakingBack {
    fn new(refusals: &Arc<Refusals>, batch: &[Charge<'_>]) -> Self {
        let counters = batch.iter().map(|charge| refusals.counter(charge)).collect();
        let taking_back = Self { refusals: Arc::clone(refusals), counters };
        taking_back.count();
        taking_back
    }

    fn count(&self) {
        for &counter in &self.counters {
            self.refusals.generations[counter].fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for TakingBack {
    fn drop(&mut self) {
        self.count();
    }
}
