//! The units that were allowed locally, and are not charged to the store yet.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::nouns::Check;

/// Threads rarely contend for one of so many.
const SHARDS: usize = 16;

pub(super) struct Ledger {
    shards: [Mutex<HashMap<Budget, u64>>; SHARDS],
    hasher: DefaultHashBuilder,
    /// The number of budgets, of all shards.
    budgets: AtomicUsize,
    max_budgets: usize,
}

/// A check, of any cost.
struct Budget(Check);

impl PartialEq for Budget {
    fn eq(&self, other: &Self) -> bool {
        self.0.shares_budget_with(&other.0)
    }
}

impl Eq for Budget {}

impl Hash for Budget {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.limit().name(), self.0.limit().kind(), self.0.key()).hash(state);
    }
}

impl Ledger {
    pub(super) fn new(max_budgets: usize) -> Self {
        let (shards, hasher, budgets) = Default::default();
        Self { shards, hasher, budgets, max_budgets }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.budgets.load(Ordering::Acquire) == 0
    }

    /// Enters the units of a check. The budgets are bounded: a new one may be left out.
    pub(super) fn add(&self, check: &Check) {
        let units = u64::from(check.cost());
        if units == 0 {
            return;
        }
        let budget = Budget(check.clone());
        let mut shard = self.shard(&budget);
        if let Some(owed) = shard.get_mut(&budget) {
            *owed = owed.saturating_add(units);
        } else if self.budgets.fetch_add(1, Ordering::AcqRel) < self.max_budgets {
            shard.insert(budget, units);
        } else {
            self.budgets.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn forget(&self, check: &Check) {
        let budget = Budget(check.clone());
        if self.shard(&budget).remove(&budget).is_some() {
            self.budgets.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Takes up to so many budgets out, with their units.
    pub(super) fn take(&self, budgets: usize) -> Vec<(Check, u64)> {
        let mut taken = Vec::with_capacity(budgets);
        for shard in &self.shards {
            let mut shard = lock(shard);
            let room = budgets - taken.len();
            taken.extend(
                shard
                    .extract_if(|_, _| true)
                    .take(room)
                    .map(|(Budget(check), units)| (check, units)),
            );
        }
        self.budgets.fetch_sub(taken.len(), Ordering::AcqRel);
        taken
    }

    fn shard(&self, budget: &Budget) -> MutexGuard<'_, HashMap<Budget, u64>> {
        lock(&self.shards[self.hasher.hash_one(budget) as usize % SHARDS])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
