//! The units that were allowed locally, and are not charged to the store yet.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::model::{Budget, Check};
use crate::units::{Mutex, MutexGuard, Receipt, Timestamp};

/// Threads rarely contend for one of so many.
const SHARDS: usize = 16;

pub(super) struct Ledger {
    shards: [Mutex<HashMap<Budget, Owed>>; SHARDS],
    hasher: DefaultHashBuilder,
    /// The number of budgets, of all shards.
    budgets: AtomicUsize,
    max_budgets: usize,
}

/// Units that were allowed locally.
struct Owed {
    /// A check of them, of any cost.
    check: Check,
    units: u64,
    /// The local time of the first charge.
    since: Timestamp,
}

impl Ledger {
    pub(super) fn new(max_budgets: usize) -> Self {
        Self {
            shards: Default::default(),
            hasher: DefaultHashBuilder::default(),
            budgets: AtomicUsize::new(0),
            max_budgets,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.budgets.load(Ordering::Acquire) == 0
    }

    /// Enters the units of a check that was charged at a local time. The budgets are bounded, so a
    /// new one may be left out.
    pub(super) fn add(&self, check: &Check, at: Timestamp) {
        let units = u64::from(check.cost());
        if units == 0 {
            return;
        }
        let mut shard = self.shard(check.budget());
        if let Some(owed) = shard.get_mut(check.budget()) {
            owed.units = owed.units.saturating_add(units);
            owed.since = owed.since.min(at);
        } else if self.budgets.fetch_add(1, Ordering::AcqRel) < self.max_budgets {
            let owed = Owed {
                // By the time it is repaid, the key may have an account in the store.
                check: check.clone().of_new_key(false),
                units,
                since: at,
            };
            shard.insert(check.budget().clone(), owed);
        } else {
            self.budgets.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Replaces the units of a charge by its real cost, if they are owed. Returns a check of the
    /// budget then.
    pub(super) fn settle(&self, budget: &Budget, charged: Receipt, cost: u32) -> Option<Check> {
        let mut shard = self.shard(budget);
        let owed = shard
            .get_mut(budget)
            .filter(|owed| owed.since <= charged.at)?;
        let check = owed.check.clone();
        let more = i64::from(cost) - i64::from(charged.cost);
        owed.units = owed.units.saturating_add_signed(more);
        if owed.units == 0 {
            shard.remove(budget);
            self.budgets.fetch_sub(1, Ordering::AcqRel);
        }
        Some(check)
    }

    pub(super) fn forget(&self, budget: &Budget) {
        if self.shard(budget).remove(budget).is_some() {
            self.budgets.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Takes up to so many budgets out, with their units and the time of the first charge.
    pub(super) fn take(&self, budgets: usize) -> Vec<(Check, u64, Timestamp)> {
        let mut taken = Vec::with_capacity(budgets);
        for shard in &self.shards {
            let mut shard = shard.lock();
            let room = budgets - taken.len();
            taken.extend(
                shard
                    .extract_if(|_, _| true)
                    .take(room)
                    .map(|(_, owed)| (owed.check, owed.units, owed.since)),
            );
        }
        self.budgets.fetch_sub(taken.len(), Ordering::AcqRel);
        taken
    }

    fn shard(&self, budget: &Budget) -> MutexGuard<'_, HashMap<Budget, Owed>> {
        self.shards[self.hasher.hash_one(budget) as usize % SHARDS].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;
    use crate::units::Quota;

    #[test]
    fn units_of_a_key_that_was_new_are_repaid_as_those_of_any_other() {
        let limit = Limit::fixed_window("api", Quota::per_day(100)).unwrap();
        let ledger = Ledger::new(10);
        let check = Check::new(&limit, "alice").of_new_key(true);
        ledger.add(&check.with_cost(3), Timestamp::EPOCH);
        let taken = ledger.take(10);
        let [(check, 3, _)] = &taken[..] else {
            panic!("{} budgets", taken.len());
        };
        assert!(!check.is_of_new_key(), "its units in this process count");
    }
}
