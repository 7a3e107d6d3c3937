//! Background tasks: charging blocks, and refunding units that are not spent.
//!
//! A task ends with its runtime, at any await. So each guard leaves its stock usable when it is
//! dropped.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::SharedBlocks;
use super::stock::{Refill, Stock, Unspent};
use crate::model::{Budget, Change, Check, Error, Operation};
use crate::store::Store;
use crate::telemetry;

/// Guards a charge of a block that is in flight. Dropped, it notes that no block was charged,
/// unless one was granted.
pub(super) struct Refilling<S: Store> {
    shared: Weak<SharedBlocks<S>>,
    pub(super) block: Check,
    refill: Refill,
}

impl<S: Store> Refilling<S> {
    pub(super) fn new(shared: &Arc<SharedBlocks<S>>, check: &Check, refill: Refill) -> Self {
        let block = check.clone().with_cost(refill.units);
        Self {
            shared: Arc::downgrade(shared),
            block,
            refill,
        }
    }
}

impl<S: Store> Drop for Refilling<S> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.with_known(self.block.budget(), |stock| {
                if stock.is_refilled_by(self.refill) {
                    stock.deny(Instant::now());
                }
            });
        }
    }
}

/// Guards a refund of a block. Its stock charges no other block until then.
pub(super) struct Refunding<S: Store> {
    shared: Weak<SharedBlocks<S>>,
    budget: Budget,
    units: Unspent,
}

impl<S: Store> Refunding<S> {
    pub(super) fn new(shared: Weak<SharedBlocks<S>>, budget: &Budget, units: Unspent) -> Self {
        Self {
            shared,
            budget: budget.clone(),
            units,
        }
    }

    fn refund(&self) -> Operation {
        let Unspent { units, receipt } = self.units;
        let cost = receipt.cost().saturating_sub(units);
        Operation::Change(self.budget.clone(), Change::Settle { receipt, cost })
    }
}

impl<S: Store> Drop for Refunding<S> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.with_known(&self.budget, Stock::refunded);
        }
    }
}

/// Refunds blocks, one after another. Returns the first error.
pub(super) async fn refund<S: Store>(store: &S, blocks: Vec<Refunding<S>>) -> Result<(), Error> {
    let mut result = Ok(());
    for block in blocks {
        let answer = store.apply(block.refund()).await;
        if answer.is_ok() {
            let limit = block.budget.limit().name();
            telemetry::prefetched(limit, "returned", block.units.units.into());
        }
        result = result.and(answer.map(drop));
    }
    result
}

/// Refunds stale units until no stock is left.
pub(super) async fn reap<S: Store>(blocks: Weak<SharedBlocks<S>>, period: Duration) {
    loop {
        sleep(period).await;
        let Some(shared) = blocks.upgrade() else {
            return;
        };
        let now = Instant::now();
        let unspent = shared.take(&blocks, |stock| stock.take_stale(now));
        drop(refund(&*shared.store, unspent).await);
        if shared.is_empty() {
            return;
        }
    }
}
