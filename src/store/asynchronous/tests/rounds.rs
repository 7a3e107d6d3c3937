//! Rounds of blocks: all leave together, and a runtime that ends stops no key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use super::super::Asynchronous;
use crate::model::{Check, Limit, Operation, Source};
use crate::store::{Answer, MemoryStore, Store};
use crate::units::Quota;

/// A store that notes how many operations it had when the answer to one was polled first.
#[derive(Clone, Debug, Default)]
struct Noting {
    store: Arc<MemoryStore>,
    applied: Arc<AtomicUsize>,
    /// The most operations that were applied since the last poll.
    most_together: Arc<AtomicUsize>,
}

impl Store for Noting {
    fn apply(&self, operation: Operation) -> Answer {
        self.applied.fetch_add(1, Ordering::Relaxed);
        let noting = self.clone();
        Answer::later(async move {
            let together = noting.applied.swap(0, Ordering::Relaxed);
            noting.most_together.fetch_max(together, Ordering::Relaxed);
            noting.store.apply(operation).await
        })
    }
}

/// After a pause of this length, the units of a key seem to last until the next round.
const SLOWLY: Duration = Duration::from_millis(100);

fn limit() -> Limit {
    Limit::fixed_window("api", Quota::per_day(1_000_000))
        .and_then(Limit::asynchronous)
        .unwrap()
}

fn replica(store: &Noting) -> Arc<Asynchronous<Noting>> {
    Asynchronous::new(store.clone(), Duration::from_millis(1), "test".into())
}

/// Checks a key once. Returns whether this process decided.
async fn is_decided_here(replica: &Arc<Asynchronous<Noting>>, key: u64) -> bool {
    let charge = Operation::Charge(Check::new(&limit(), key).into());
    let decision = replica.apply(charge).await.unwrap();
    decision.source() == Source::Asynchronous
}

/// Checks a key until this process decides.
async fn heat(replica: &Arc<Asynchronous<Noting>>, key: u64) {
    let heat = async {
        while !is_decided_here(replica, key).await {
            sleep(Duration::from_millis(1)).await;
        }
    };
    // A block that is never answered is in flight for five seconds.
    timeout(Duration::from_secs(4), heat).await.unwrap();
}

fn on_one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn blocks_of_many_keys_are_charged_together() {
    on_one_thread().block_on(async {
        tokio::time::pause();
        let store = Noting::default();
        let replica = replica(&store);
        for key in 0..100 {
            heat(&replica, key).await;
        }
        sleep(SLOWLY).await;
        store.most_together.store(0, Ordering::Relaxed);
        for _ in 0..10 {
            for key in 0..100 {
                is_decided_here(&replica, key).await;
            }
        }
        sleep(SLOWLY).await;
        let together = store.most_together.load(Ordering::Relaxed);
        assert_eq!(together, 100, "each key needed a block");
    });
}

#[test]
fn key_is_decided_here_again_after_the_runtime_of_its_round_ended() {
    let store = Noting::default();
    let replica = replica(&store);
    let first = on_one_thread();
    first.block_on(async {
        heat(&replica, 1).await;
        sleep(SLOWLY).await;
        // The last of its units are spent before the round in which the next block is charged.
        while is_decided_here(&replica, 1).await {}
    });
    drop(first);
    on_one_thread().block_on(async {
        for _ in 0..100 {
            heat(&replica, 1).await;
        }
    });
}
