//! Prefetching: units of a hot key are charged in blocks and spent in this process.

mod background;
mod builder;
mod stock;

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use self::background::{Refilling, Refunding, reap, refund};
pub use self::builder::PrefetchBuilder;
use self::stock::{Refill, Stock, Unspent};
use super::{Answer, Note, Store};
use crate::model::{Budget, Change, Check, Decision, Error, Limit, Operation};
use crate::telemetry;
use crate::units::{ConfigError, Mutex, MutexGuard, spawn_for};

/// A power of two, and large enough that threads rarely contend for a shard.
const SHARDS: usize = 64;

/// A store that charges units of a hot key in blocks and spends them in this process. You need it
/// for keys with too many checks for one round trip each.
///
/// The first checks of a key go to the wrapped store. A hot key then gets a *block* of units,
/// charged in one check: the units that it needs in about 50 ms. This process decides its checks in
/// nanoseconds, with the [source](Decision::source)
/// [`Source::Prefetched`](crate::decision::Source::Prefetched). A background task charges the next
/// block before the last one is spent. All other checks go to the store: checks of keys that are
/// not hot, and those that cost more than the block has left.
///
/// **Guarantee.** The allowed units never exceed the charged units. But a unit can be spent later
/// than it was charged, which weakens the algorithm's guarantee within two bounds:
///
/// - *Stranded*: at any time, each replica has at most one charged block of a key left to spend.
///   Other checks may be denied meanwhile. The block can be spent until no block has been charged
///   for [`max_age`](PrefetchBuilder::max_age) (default: 250 ms). The rest is given back at most
///   half that time later, or at [`release`](Self::release). If the replica dies, if Redis's answer
///   to its charge is lost, if the key is reset while it is being charged, or if the rate of a
///   bucket changes, the block is lost. Its units refill like spent ones. A replica that hangs
///   keeps its block until it runs again.
/// - *Exceeded*: in any interval, each replica allows at most one block more than the algorithm
///   guarantees, units that were charged before the interval and spent in it.
///
/// A block is at most a tenth of the capacity, unless [set](PrefetchBuilder::limit_up_to)
/// otherwise. Some limits cannot be prefetched, and are an error of the builder: the sliding log,
/// which is exact, the leaky bucket as a queue, which lets checks leave one by one, and limits that
/// [block keys](Limit::with_block_policy). A
/// layer with a prefetched limit and others is also an error, because a layer charges all of its
/// limits or none.
///
/// ```no_run
/// use tollgate::store::Prefetch;
/// use tollgate::{Limit, Quota, RateLimiter, RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let public = Limit::token_bucket("public", Quota::per_second(50_000))?;
/// let redis = RedisStore::connect("redis://127.0.0.1/", "shop").await?;
/// let store = Prefetch::builder(redis).limit(&public).build()?;
/// let limiter = RateLimiter::new(store.clone());
/// // After the last request:
/// store.release().await?;
/// # Ok(())
/// # }
/// ```
pub struct Prefetch<S: Store> {
    shared: Arc<SharedBlocks<S>>,
}

struct SharedBlocks<S: Store> {
    store: Arc<S>,
    /// The limits by name, each with its largest block.
    limits: HashMap<String, (Limit, u64)>,
    max_age: Duration,
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<HashTable<HotKey>>]>,
    /// Whether a task refunds stale units.
    has_reaper: AtomicBool,
}

struct HotKey {
    budget: Budget,
    stock: Stock,
}

impl<S: Store> Prefetch<S> {
    /// Returns a builder that wraps `store`.
    pub fn builder(store: S) -> PrefetchBuilder<S> {
        PrefetchBuilder::new(store)
    }

    /// Gives back all prefetched units that are not spent. Call it when you shut down, after the
    /// last request.
    ///
    /// Dropping the last handle does the same in a background task, if the runtime still runs it.
    ///
    /// # Errors
    ///
    /// Returns the first error of the wrapped store. The other units are given back all the same.
    pub async fn release(&self) -> Result<(), Error> {
        let unspent = self
            .shared
            .take(&Arc::downgrade(&self.shared), Stock::take_all);
        refund(&*self.shared.store, unspent).await
    }
}

impl<S: Store> Store for Prefetch<S> {
    fn apply(&self, operation: Operation) -> Answer {
        let shared = &self.shared;
        let prefetched = match &operation {
            Operation::Charge(group) | Operation::Peek(group) if group.len() > 1 => {
                shared.check_group(group)
            }
            Operation::Charge(group) => Ok(shared.charge(&group[0])),
            Operation::Peek(group) => Ok(shared.peek(&group[0])),
            // A reset also voids the prefetched units.
            Operation::Change(budget, Change::Reset) => {
                shared.forget(budget);
                Ok(None)
            }
            Operation::Change(..) => Ok(None),
        };
        match prefetched.transpose() {
            Some(decided) => Answer::ready(decided),
            None => shared.store.apply(operation),
        }
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let prefetched = limits
            .iter()
            .find(|limit| self.shared.max_block(limit).is_some());
        if let (Some(prefetched), 2..) = (prefetched, limits.len()) {
            return Err(ConfigError::new(ALONE).of_limit(prefetched.name()));
        }
        self.shared.store.check_limits(limits)
    }

    fn note(&self, note: Note<'_>) {
        self.shared.store.note(note);
    }

    fn is_embedded(&self) -> bool {
        self.shared.store.is_embedded()
    }
}

const ALONE: &str = "a prefetched limit cannot be charged with other limits, all or none; give it \
                     a layer of its own, or do not prefetch it";

impl<S: Store> SharedBlocks<S> {
    /// Returns no decision of a group, or an error if it has a prefetched limit.
    fn check_group(&self, group: &[Check]) -> Result<Option<Decision>, Error> {
        let mut limits = group.iter().map(Check::limit);
        match limits.find(|limit| self.max_block(limit).is_some()) {
            Some(limit) => {
                let alone = ConfigError::new(ALONE).of_limit(limit.name());
                Err(Error::misuse(alone))
            }
            None => Ok(None),
        }
    }

    /// The largest block of a limit, if that is prefetched. A limit of the same name with another
    /// quota is not prefetched, nor one that blocks keys, because a blocked key could spend its
    /// stock.
    fn max_block(&self, limit: &Limit) -> Option<u64> {
        let (known, max) = self.limits.get(limit.name())?;
        (limit.blocking().is_none() && known.decides_as(limit)).then_some(*max)
    }

    /// The decision of a charge, if the prefetched units are enough. `None` if the store has to
    /// decide.
    fn charge(self: &Arc<Self>, check: &Check) -> Option<Decision> {
        let max = self.max_block(check.limit())?;
        // Without a reaper, unspent units would be stranded.
        if check.is_shadow() || check.cost() == 0 || !self.ensure_reaper() {
            return None;
        }
        let now = Instant::now();
        let (decision, wanted) = self.with_stock(check.budget(), now, |stock| {
            let decision = stock.spend(check.cost(), max, now);
            (decision, stock.wants(max, now))
        });
        if let Some(refill) = wanted {
            self.refill(check, refill);
        }
        decision
    }

    fn peek(&self, check: &Check) -> Option<Decision> {
        self.max_block(check.limit())
            .filter(|_| !check.is_shadow())?;
        let (hash, entries) = self.shard(check.budget());
        let entry = entries.find(hash, |entry| entry.budget == *check.budget())?;
        entry.stock.peek(check.cost(), Instant::now())
    }

    /// Charges a block in the background. If its stock is gone then, gives it back.
    fn refill(self: &Arc<Self>, check: &Check, refill: Refill) {
        let refilling = Refilling::new(self, check, refill);
        let shared = Arc::clone(self);
        let Ok(runtime) = Runtime::try_current() else {
            // Dropping the guard notes that no block was charged.
            return;
        };
        runtime.spawn(async move {
            let asked = Instant::now();
            let block = &refilling.block;
            let charge = Operation::Charge(block.clone().into());
            let answer = shared.store.apply(charge).await;
            // Without a grant, the guard notes that no block was charged.
            let Some(decision) = answer.ok().filter(Decision::allowed) else {
                return;
            };
            let Refill { units, .. } = refill;
            telemetry::prefetched(block.limit().name(), "charged", units.into());
            let mut is_granted = false;
            shared.with_known(block.budget(), |stock| {
                is_granted = stock.is_refilled_by(refill);
                if is_granted {
                    stock.grant(units, &decision, asked, shared.max_age);
                }
            });
            // The key was reset meanwhile. If that was after the charge, the receipt is void.
            if !is_granted && let Some(receipt) = decision.receipt() {
                let lost = Unspent { units, receipt };
                let lost = Refunding::new(Weak::new(), block.budget(), lost);
                // If the refund fails, fewer units are allowed, not more.
                drop(refund(&*shared.store, vec![lost]).await);
            }
        });
    }

    /// Calls `act` with the stock of a budget, if it has one.
    fn with_known(&self, budget: &Budget, act: impl FnOnce(&mut Stock)) {
        let (hash, mut entries) = self.shard(budget);
        if let Some(entry) = entries.find_mut(hash, |entry| entry.budget == *budget) {
            act(&mut entry.stock);
        }
    }

    fn forget(&self, budget: &Budget) {
        let (hash, mut entries) = self.shard(budget);
        if let Ok(entry) = entries.find_entry(hash, |entry| entry.budget == *budget) {
            entry.remove();
        }
    }

    fn with_stock<T>(&self, budget: &Budget, now: Instant, act: impl FnOnce(&mut Stock) -> T) -> T {
        let (hash, mut entries) = self.shard(budget);
        let hash_of = |entry: &HotKey| self.hasher.hash_one(&entry.budget);
        let entry = entries
            .entry(hash, |entry| entry.budget == *budget, hash_of)
            .or_insert_with(|| HotKey {
                budget: budget.clone(),
                stock: Stock::new(now),
            });
        act(&mut entry.into_mut().stock)
    }

    fn shard(&self, budget: &Budget) -> (u64, MutexGuard<'_, HashTable<HotKey>>) {
        let hash = self.hasher.hash_one(budget);
        // The table uses the lowest and the highest bits.
        (
            hash,
            self.shards[(hash >> 32) as usize & (SHARDS - 1)].lock(),
        )
    }

    /// Collects the units that `take` removes from all stocks. Removes idle stocks.
    fn take(
        &self,
        this: &Weak<Self>,
        mut take: impl FnMut(&mut Stock) -> Vec<Unspent>,
    ) -> Vec<Refunding<S>> {
        let now = Instant::now();
        let mut unspent = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|HotKey { budget, stock }| {
                let blocks = take(stock).into_iter();
                let refunding = |block| Refunding::new(Weak::clone(this), budget, block);
                unspent.extend(blocks.map(refunding));
                !stock.is_idle(now, self.max_age)
            });
        }
        unspent
    }

    fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// Spawns the reaper if there is none. Returns false outside a runtime.
    fn ensure_reaper(self: &Arc<Self>) -> bool {
        if self.has_reaper.load(Ordering::Acquire) {
            return true;
        }
        let Ok(runtime) = Runtime::try_current() else {
            return false;
        };
        if !self.has_reaper.swap(true, Ordering::AcqRel) {
            let period = self.max_age.checked_div(2).unwrap_or_default();
            let end = |shared: &Self| shared.has_reaper.store(false, Ordering::Release);
            spawn_for(self, &runtime, end, reap(Arc::downgrade(self), period));
        }
        true
    }
}

impl<S: Store> Drop for SharedBlocks<S> {
    fn drop(&mut self) {
        let unspent = self.take(&Weak::new(), Stock::take_all);
        if let (Ok(runtime), false) = (Runtime::try_current(), unspent.is_empty()) {
            let store = Arc::clone(&self.store);
            runtime.spawn(async move { drop(refund(&*store, unspent).await) });
        }
    }
}

impl<S: Store> Clone for Prefetch<S> {
    /// Returns a handle on the same prefetched units.
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: Store> fmt::Debug for Prefetch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch")
            .field("store", &self.shared.store)
            .field("limits", &self.shared.limits.keys())
            .field("max_age", &self.shared.max_age)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Source;
    use crate::store::MemoryStore;
    use crate::units::Quota;

    /// Charges a key until its units are prefetched. Returns whether they were.
    async fn is_prefetched(store: &Prefetch<MemoryStore>, limit: &Limit) -> bool {
        for _ in 0..5_000 {
            let charge = Operation::Charge(Check::new(limit, "hot").into());
            if store.apply(charge).await.unwrap().source() == Source::Prefetched {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn key_whose_block_ran_out_outside_of_a_runtime_is_prefetched_again() {
        let limit = Limit::gcra("api", Quota::per_second(100_000).burst(100_000)).unwrap();
        let store = Prefetch::builder(MemoryStore::new())
            .limit(&limit)
            .build()
            .unwrap();
        assert!(is_prefetched(&store, &limit).await);
        let charge_all = || {
            for _ in 0..20_000 {
                drop(store.apply(Operation::Charge(Check::new(&limit, "hot").into())));
            }
        };
        std::thread::scope(|threads| threads.spawn(charge_all).join().unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(is_prefetched(&store, &limit).await);
    }

    #[tokio::test(start_paused = true)]
    async fn cold_keys_are_removed() {
        let limit = Limit::gcra("api", Quota::per_second(1_000)).unwrap();
        let store = Prefetch::builder(MemoryStore::new())
            .limit(&limit)
            .build()
            .unwrap();
        for number in 0..1_000_u64 {
            let decision = store
                .apply(Operation::Charge(Check::new(&limit, number).into()))
                .await;
            assert!(decision.unwrap().allowed());
        }
        let known = || {
            store
                .shared
                .shards
                .iter()
                .map(|shard| shard.lock().len())
                .sum::<usize>()
        };
        assert_eq!(known(), 1_000);
        tokio::time::sleep(store.shared.max_age * 3).await;
        assert_eq!(known(), 0);
    }
}
