//! The local limit, each limit's share, on an embedded store.

use std::sync::Arc;

use super::ledger::Ledger;
use crate::model::{Budget, Change, Check, Decision, Error, Group, Operation, Source, Verdict};
use crate::store::MemoryStore;
use crate::telemetry::{self, Throttles};
use crate::units::{Micros, Receipt};

/// The most budgets that are kept. About 40 MB, if all are in use.
const MAX_BUDGETS: usize = 100_000;

pub(super) struct Local {
    store: MemoryStore,
    pub(super) ledger: Ledger,
    /// The throttles of events about blocks.
    blocked: Throttles,
    /// Locked by the task that charges what is owed.
    pub(super) repaying: Arc<tokio::sync::Mutex<()>>,
}

impl Local {
    pub(super) fn new() -> Self {
        let store = MemoryStore::builder().max_keys(MAX_BUDGETS).build();
        let ledger = Ledger::new(MAX_BUDGETS);
        let blocked = Throttles::default();
        Self {
            store,
            ledger,
            blocked,
            repaying: Arc::default(),
        }
    }

    /// Decides a group in which at least one limit has a share. The others fail open. `wait` is the
    /// time until the store is asked again. What the store may have charged is not owed to it,
    /// because it would be charged twice.
    pub(super) fn decide(
        &self,
        group: &[Check],
        is_charge: bool,
        wait: Micros,
        may_be_charged: bool,
    ) -> Result<Decision, Error> {
        let shares: Vec<_> = group.iter().map(share).collect();
        let of_shares = Group::of_distinct(shares.iter().flatten().cloned().collect());
        let operation = match is_charge {
            true => Operation::Charge(of_shares.clone()),
            false => Operation::Peek(of_shares.clone()),
        };
        let decision = self.store.apply_now(operation).map_err(full)?;
        telemetry::blocks_of(&self.blocked, &of_shares, is_charge, &decision);
        let mut of_shares = decision.verdicts().iter();
        let verdicts = group.iter().zip(&shares).map(|(check, share)| match share {
            Some(_) => of_shares
                .next()
                .map(|verdict| within_quota(check, verdict.clone(), wait)),
            None => {
                let unlimited = Verdict::unlimited(check.limit().clone());
                Some(unlimited.in_shadow(check.is_shadow()))
            }
        });
        let verdicts: Option<Vec<_>> = verdicts.collect();
        let decided = Decision::in_place_of_store(verdicts.unwrap_or_default(), Source::Local)?;
        if is_charge && decided.allowed() && !may_be_charged {
            let verdicts = group.iter().zip(decided.verdicts());
            let charged = verdicts.filter(|(_, it)| !it.is_unlimited() && !it.would_deny());
            charged.for_each(|(check, _)| self.ledger.add(check, decision.timestamp()));
        }
        Ok(decided.with_timestamp(decision.timestamp()))
    }

    /// Settles a local charge. Returns what is left if the charge was still owed to the store. Then
    /// the store need not be asked.
    pub(super) fn settle(
        &self,
        budget: &Budget,
        receipt: Receipt,
        cost: u32,
    ) -> Option<Result<Decision, Error>> {
        let owed = self.ledger.settle(budget, receipt, cost);
        let is_owed = owed.is_some();
        // If a call was lost, the store may have the charge, so it is not owed. But the local
        // budget was charged.
        let charged = owed.unwrap_or_else(|| Check::new(budget.limit(), budget.key()));
        let share = Budget::from(share(&charged)?);
        let left = Check::new(share.limit(), share.key()).with_cost(0);
        let settle = Change::Settle { receipt, cost };
        // A store that is full has evicted the budget.
        drop(self.store.apply_now(Operation::Change(share, settle)));
        is_owed.then(|| {
            let left = self.store.apply_now(Operation::Peek(left.into()))?;
            let verdicts = left.verdicts().to_vec();
            let decision = Decision::in_place_of_store(verdicts, Source::Local)?;
            Ok(decision.with_timestamp(left.timestamp()))
        })
    }

    /// Resets a local budget, or blocks its key, whatever the failure policy of its limit. After a
    /// reset there is nothing to settle any more.
    pub(super) fn change(&self, budget: &Budget, change: &Change) {
        if *change == Change::Reset {
            self.ledger.forget(budget);
        }
        // A budget is found by name and key. A store that is full has no room for a block.
        let changed = Operation::Change(budget.clone(), change.clone());
        drop(self.store.apply_now(changed));
    }

    /// The units of a budget that were consumed locally and have not drained since, rounded up.
    pub(super) fn used(&self, check: &Check) -> u64 {
        share(check).map_or(0, |share| {
            let capacity = share.limit().quota().capacity();
            capacity.saturating_sub(self.store.left_in_budget(&share))
        })
    }
}

fn full(_: Error) -> Error {
    Error::full(format!(
        "the local limit keeps {MAX_BUDGETS} budgets, all are exhausted, and an exhausted budget \
         is never evicted"
    ))
}

/// The check under the share of its limit, if it has one.
fn share(check: &Check) -> Option<Check> {
    check.of_share().ok().flatten()
}

/// A cost above the share, and within the quota, is one for which the store has to be asked again.
fn within_quota(check: &Check, verdict: Verdict, wait: Micros) -> Verdict {
    let is_within_quota = u64::from(check.cost()) <= check.limit().quota().capacity();
    if verdict.exceeds_capacity() && is_within_quota {
        verdict.denied_for(wait)
    } else {
        verdict
    }
}
