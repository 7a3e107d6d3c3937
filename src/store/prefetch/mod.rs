//! Units of a hot key, charged in blocks and spent in this process.

mod background;
mod builder;
mod stock;

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use self::background::{GivenBack, Reaping, Refilling, give_back};
pub use self::builder::PrefetchBuilder;
use self::stock::{Stock, Unspent};
use super::{Answer, Store};
use crate::nouns::{Check, ConfigError, Decision, Error, Key, Limit, Op, validate_group};

/// A power of two: two threads rarely meet in one.
const SHARDS: usize = 64;

/// A store that charges units of a hot key in blocks, and spends them in this process: for one key
/// with more checks than a round trip each is worth.
///
/// A key that is asked for often gets a *lease*: a block of units, charged from the store behind
/// in one check, as many as the key needs in about 50 ms. Its checks are then decided here, in
/// nanoseconds, and say so: their [source](Decision::source) is
/// [`Source::Prefetched`](crate::decision::Source::Prefetched). The next block is charged in the background before the
/// last one is spent. Keys that are not hot are asked as ever, and so is whatever does not fit into
/// what is left of a block.
///
/// **What it costs.** Never more is admitted than was charged. But a unit can be spent later than it
/// was charged, and that bends the algorithm's promise within two bounds:
///
/// - *Stranded*: at any time each replica can spend at most one block of a key, charged and not
///   spent. Others may be refused meanwhile. What is left of it may be spent until no block was
///   charged for [`max_age`](PrefetchBuilder::max_age) (250 ms if this is not set), is given back
///   within half of that time more, and at [`release`](Self::release). If a replica dies, or the key
///   is reset while a block is being charged, the block is lost, and comes back as spent units do.
/// - *Exceeded*: in any interval, at most one block for each replica more is admitted than the
///   algorithm promises: what was charged before the interval, and spent in it.
///
/// A block is a tenth of the capacity at most, or [what is set](PrefetchBuilder::limit_up_to). Where
/// the promise itself would be broken, a limit is refused when the store is built: the sliding
/// log, whose promise is exactness, and the leaky bucket as a queue, whose checks leave one by one.
/// So is a layer that has a leased limit beside others, because those are charged all or none.
///
/// ```no_run
/// use tollgate::store::Prefetch;
/// use tollgate::{Limit, Quota, RateLimiter, RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let everybody = Limit::token_bucket("everybody", Quota::per_second(50_000))?;
/// let redis = RedisStore::connect("redis://127.0.0.1/").await?;
/// let store = Prefetch::builder(redis).limit(&everybody).build()?;
/// let limiter = RateLimiter::new(store.clone());
/// // ... and after the last request:
/// store.release().await?;
/// # Ok(())
/// # }
/// ```
pub struct Prefetch<S: Store> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Store> {
    store: Arc<S>,
    settings: Settings,
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<HashTable<Entry>>]>,
    /// Whether somebody takes back what nobody spends.
    is_reaped: AtomicBool,
}

struct Settings {
    /// By name: the limit, and its largest block.
    limits: HashMap<String, (Limit, u64)>,
    max_age: Duration,
}

struct Entry {
    limit: Limit,
    key: Key,
    stock: Stock,
}

impl<S: Store> Prefetch<S> {
    /// Leases of what `store` has.
    pub fn builder(store: S) -> PrefetchBuilder<S> {
        PrefetchBuilder::new(store)
    }

    /// Gives all units back that were charged and not spent: for the end of a service, after its
    /// last request.
    ///
    /// The last handle that is dropped does so too, as far as the runtime lets it.
    ///
    /// # Errors
    ///
    /// The first error of the store behind. The other units are given back all the same.
    pub async fn release(&self) -> Result<(), Error> {
        let unspent = self.shared.take(&Arc::downgrade(&self.shared), Stock::take_all);
        give_back(&*self.shared.store, unspent).await
    }
}

impl<S: Store> Store for Prefetch<S> {
    fn apply(&self, op: Op, group: &[Check]) -> Answer {
        let shared = &self.shared;
        match group {
            [check] => match shared.max_block(check) {
                Some(max) => shared.apply_prefetching(op, check, max),
                None => shared.store.apply(op, group),
            },
            _ => match validate_group(group).and_then(|()| shared.settings.check_group(group)) {
                Ok(()) => shared.store.apply(op, group),
                Err(error) => Answer::ready(Err(error)),
            },
        }
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let leased = limits.iter().find(|limit| self.shared.settings.prefetches(limit));
        if let (Some(leased), 2..) = (leased, limits.len()) {
            return Err(ConfigError::new(ALONE).of_limit(leased.name()));
        }
        self.shared.store.check_limits(limits)
    }
}

const ALONE: &str = "it is leased, and a lease cannot be charged together with other limits, all or \
                     none: give it a layer of its own, or do not lease it";

impl Settings {
    fn prefetches(&self, limit: &Limit) -> bool {
        self.limits.get(limit.name()).is_some_and(|(leased, _)| leased.decides_as(limit))
    }

    fn check_group(&self, group: &[Check]) -> Result<(), Error> {
        match group.iter().find(|check| self.prefetches(check.limit())) {
            Some(check) => {
                Err(Error::misuse(ConfigError::new(ALONE).of_limit(check.limit().name())))
            }
            None => Ok(()),
        }
    }
}

impl<S: Store> Shared<S> {
    /// The largest block of a charge's limit, if it is leased. A limit of the same name with another
    /// quota is not.
    fn max_block(&self, check: &Check) -> Option<u64> {
        let (limit, max) = self.settings.limits.get(check.limit().name())?;
        limit.decides_as(check.limit()).then_some(*max)
    }

    fn apply_prefetching(self: &Arc<Self>, op: Op, check: &Check, max: u64) -> Answer {
        let now = Instant::now();
        match op {
            // Leases are only for where somebody can see to them.
            Op::Charge if check.units() > 0 && self.is_seen_to() => {
                let (decision, wanted) = self.with_stock(check, now, |stock| {
                    let decision = stock.spend(check.units(), max, now);
                    (decision, stock.wants(max, now))
                });
                if let Some(block) = wanted {
                    self.refill(check, block);
                }
                if let Some(decision) = decision {
                    return Answer::ready(Ok(decision));
                }
            }
            Op::Peek => {
                if let Some(decision) = self.peek(check, now) {
                    return Answer::ready(Ok(decision));
                }
            }
            // What was charged in advance is forgotten with the rest.
            Op::Reset => self.forget(check),
            Op::Charge | Op::Refund => {}
        }
        self.store.apply(op, std::slice::from_ref(check))
    }

    /// Charges a block in the background.
    fn refill(self: &Arc<Self>, check: &Check, units: u32) {
        let refilling = Refilling::new(self, check.clone().cost(units));
        let shared = Arc::clone(self);
        let refill = async move {
            let asked = Instant::now();
            let block = std::slice::from_ref(&refilling.block);
            let answer = shared.store.apply(Op::Charge, block).await;
            let lost = shared.granted(&refilling.block, answer, asked);
            refilling.end();
            // Units that cannot be given back are spent: fewer are allowed, not more.
            drop(give_back(&*shared.store, lost.into_iter().collect()).await);
        };
        if let Ok(runtime) = Runtime::try_current() {
            runtime.spawn(refill);
        }
    }

    /// Enters what the store said to a block. Returns the block if its lease is gone.
    fn granted(
        self: &Arc<Self>,
        block: &Check,
        answer: Result<Decision, Error>,
        asked: Instant,
    ) -> Option<GivenBack<S>> {
        let units = block.units();
        let granted = answer.ok().filter(Decision::allowed);
        let (hash, mut entries) = self.shard(block);
        let entry = entries.find_mut(hash, |entry| entry.is_of(block));
        match (entry, granted) {
            (Some(entry), Some(decision)) if entry.stock.is_refilling() => {
                entry.stock.grant(units, &decision, asked, self.settings.max_age);
                None
            }
            (Some(entry), None) => {
                entry.stock.deny(Instant::now());
                None
            }
            // It was reset meanwhile. If the block was charged before that, its receipt is void.
            (_, Some(decision)) => {
                let receipt = decision.receipt()?;
                let unspent = Unspent { units, receipt };
                Some(GivenBack::new(Weak::new(), block.limit(), block.key(), unspent))
            }
            (None, None) => None,
        }
    }

    /// Does something to a key's lease, if it has one.
    fn with_known(&self, check: &Check, act: impl FnOnce(&mut Stock)) {
        let (hash, mut entries) = self.shard(check);
        if let Some(entry) = entries.find_mut(hash, |entry| entry.is_of(check)) {
            act(&mut entry.stock);
        }
    }

    fn peek(&self, check: &Check, now: Instant) -> Option<Decision> {
        let (hash, entries) = self.shard(check);
        let entry = entries.find(hash, |entry| entry.is_of(check))?;
        entry.stock.peek(check.units(), now)
    }

    fn forget(&self, check: &Check) {
        let (hash, mut entries) = self.shard(check);
        if let Ok(entry) = entries.find_entry(hash, |entry| entry.is_of(check)) {
            entry.remove();
        }
    }

    fn with_stock<T>(&self, check: &Check, now: Instant, act: impl FnOnce(&mut Stock) -> T) -> T {
        let (hash, mut entries) = self.shard(check);
        let hash_of = |entry: &Entry| self.hash(&entry.limit, &entry.key);
        let entry = entries.entry(hash, |entry| entry.is_of(check), hash_of).or_insert_with(|| {
            Entry { limit: check.limit().clone(), key: check.key().clone(), stock: Stock::new(now) }
        });
        act(&mut entry.into_mut().stock)
    }

    fn shard(&self, check: &Check) -> (u64, MutexGuard<'_, HashTable<Entry>>) {
        let hash = self.hash(check.limit(), check.key());
        // The table inside goes by the lowest and the highest bits.
        (hash, lock(&self.shards[(hash >> 32) as usize & (SHARDS - 1)]))
    }

    fn hash(&self, limit: &Limit, key: &Key) -> u64 {
        self.hasher.hash_one((limit.name(), key))
    }

    /// What `take` takes out of all leases. Those that are idle are forgotten.
    fn take(
        &self,
        this: &Weak<Self>,
        mut take: impl FnMut(&mut Stock) -> Vec<Unspent>,
    ) -> Vec<GivenBack<S>> {
        let now = Instant::now();
        let mut unspent = Vec::new();
        for shard in &self.shards {
            lock(shard).retain(|Entry { limit, key, stock }| {
                let blocks = take(stock).into_iter();
                unspent.extend(blocks.map(|it| GivenBack::new(Weak::clone(this), limit, key, it)));
                !stock.is_idle(now, self.settings.max_age)
            });
        }
        unspent
    }

    fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| lock(shard).is_empty())
    }

    /// Whether what nobody asks for any more is forgotten, and what nobody spends is given back:
    /// by a task, as long as there is anything.
    fn is_seen_to(self: &Arc<Self>) -> bool {
        if self.is_reaped.load(Ordering::Acquire) {
            return true;
        }
        let Ok(runtime) = Runtime::try_current() else { return false };
        if !self.is_reaped.swap(true, Ordering::AcqRel) {
            let reaping = Reaping::new(self);
            runtime.spawn(reaping.run(self.settings.max_age.checked_div(2).unwrap_or_default()));
        }
        true
    }
}

impl<S: Store> Drop for Shared<S> {
    fn drop(&mut self) {
        let unspent = self.take(&Weak::new(), Stock::take_all);
        if let (Ok(runtime), false) = (Runtime::try_current(), unspent.is_empty()) {
            let store = Arc::clone(&self.store);
            runtime.spawn(async move { drop(give_back(&*store, unspent).await) });
        }
    }
}

fn lock(shard: &Mutex<HashTable<Entry>>) -> MutexGuard<'_, HashTable<Entry>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    fn is_of(&self, check: &Check) -> bool {
        self.key == *check.key() && self.limit.name() == check.limit().name()
    }
}

impl<S: Store> Clone for Prefetch<S> {
    /// A handle on the same leases.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> fmt::Debug for Prefetch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch")
            .field("store", &self.shared.store)
            .field("limits", &self.shared.settings.limits.keys())
            .field("max_age", &self.shared.settings.max_age)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nouns::Quota;
    use crate::store::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn keys_that_were_never_hot_are_forgotten() {
        let limit = Limit::gcra("api", Quota::per_second(1_000)).unwrap();
        let store = Prefetch::builder(MemoryStore::new()).limit(&limit).build().unwrap();
        for number in 0..1_000_u64 {
            let decision =
                store.apply(Op::Charge, &[Check::new(&limit, &Key::from(number)).cost(1)]).await;
            assert!(decision.unwrap().allowed());
        }
        let known = || store.shared.shards.iter().map(|shard| lock(shard).len()).sum::<usize>();
        assert_eq!(known(), 1_000);
        tokio::time::sleep(store.shared.settings.max_age * 3).await;
        assert_eq!(known(), 0);
    }
}
