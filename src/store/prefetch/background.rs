//! What runs in the background of leases: charging blocks, and giving back what is not spent.
//!
//! Each of these ends with its runtime, wherever it is then. So each leaves its lease usable when
//! it is dropped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Shared;
use super::stock::{Stock, Unspent};
use crate::nouns::{Check, Error, Key, Limit, Op};
use crate::store::Store;

/// A block that is requested.
pub(super) struct Refilling<S: Store> {
    shared: Weak<Shared<S>>,
    pub(super) block: Check,
}

impl<S: Store> Refilling<S> {
    pub(super) fn new(shared: &Arc<Shared<S>>, block: Check) -> Self {
        Self { shared: Arc::downgrade(shared), block }
    }

    /// The store answered, and the stock knows.
    pub(super) fn end(mut self) {
        self.shared = Weak::new();
    }
}

impl<S: Store> Drop for Refilling<S> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.with_known(&self.block, |stock| stock.deny(Instant::now()));
        }
    }
}

/// A block that is being given back. Its stock gets no other block meanwhile.
pub(super) struct GivenBack<S: Store> {
    shared: Weak<Shared<S>>,
    refund: Check,
}

impl<S: Store> GivenBack<S> {
    pub(super) fn new(shared: Weak<Shared<S>>, limit: &Limit, key: &Key, unspent: Unspent) -> Self {
        let Unspent { units, receipt } = unspent;
        Self { shared, refund: Check::new(limit, key).cost(units).of(receipt) }
    }
}

impl<S: Store> Drop for GivenBack<S> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.with_known(&self.refund, Stock::returned);
        }
    }
}

/// Gives blocks back, one after another. Returns the first error.
pub(super) async fn give_back<S: Store>(store: &S, blocks: Vec<GivenBack<S>>) -> Result<(), Error> {
    let mut result = Ok(());
    for block in blocks {
        let answer = store.apply(Op::Refund, std::slice::from_ref(&block.refund)).await;
        result = result.and(answer.map(drop));
    }
    result
}

/// Gives back stale units, until there are no leases, or its runtime ends.
pub(super) struct Reaping<S: Store>(Weak<Shared<S>>);

impl<S: Store> Reaping<S> {
    pub(super) fn new(shared: &Arc<Shared<S>>) -> Self {
        Self(Arc::downgrade(shared))
    }

    pub(super) async fn run(self, period: Duration) {
        loop {
            sleep(period).await;
            let Some(shared) = self.0.upgrade() else { return };
            let now = Instant::now();
            let unspent = shared.take(&self.0, |stock| stock.take_stale(now));
            drop(give_back(&*shared.store, unspent).await);
            if shared.is_empty() {
                return;
            }
        }
    }
}

impl<S: Store> Drop for Reaping<S> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.is_reaped.store(false, Ordering::Release);
        }
    }
}
