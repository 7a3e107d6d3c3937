//! Fleets of replicas with random requests, on a slow and unreliable store, in virtual time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::Asynchronous;
use crate::model::{Check, Decision, Error, Group, Limit, Operation, Source};
use crate::store::deny_cache::WithDenyCache;
use crate::store::{Answer, MemoryStore, Store};
use crate::units::Quota;

/// A store that answers after a while, and of which some requests and answers are lost.
#[derive(Clone, Debug)]
struct Distant {
    store: Arc<MemoryStore>,
    /// The longest way, in milliseconds.
    way: u64,
    /// Of a thousand messages.
    lost: u64,
    random: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    /// Whether it cannot be reached.
    away: Arc<AtomicBool>,
}

impl Distant {
    fn new(way: u64, lost: u64, seed: u64) -> Self {
        Self {
            store: Arc::new(MemoryStore::new()),
            way,
            lost,
            random: Arc::new(AtomicU64::new(seed)),
            asked: Arc::default(),
            away: Arc::default(),
        }
    }

    /// A number below a bound (splitmix64).
    fn below(&self, bound: u64) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let mut z = self
            .random
            .fetch_add(step, Ordering::Relaxed)
            .wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    async fn travel(self) -> Result<(), Error> {
        sleep(Duration::from_millis(self.below(self.way + 1))).await;
        match self.below(1_000) < self.lost {
            true => Err(Error::timeout()),
            false => Ok(()),
        }
    }
}

impl Store for Distant {
    fn apply(&self, operation: Operation) -> Answer {
        if self.away.load(Ordering::Relaxed) {
            return Answer::ready(Err(Error::unreachable("the store is away")));
        }
        let store = self.clone();
        store.asked.fetch_add(1, Ordering::Relaxed);
        Answer::later(async move {
            store.clone().travel().await?;
            let answer = store.store.apply(operation).await;
            store.travel().await?;
            answer
        })
    }
}

/// What passed in each window of the store, by the number of the window.
#[derive(Default)]
struct Passed(Mutex<HashMap<u64, u64>>);

impl Passed {
    /// Counts a decision when it is made.
    fn count(&self, decision: &Decision, cost: u32, now: Duration, window: Duration) {
        if !decision.allowed() {
            return;
        }
        // The store decided when it says. This process decides now.
        let at = match decision.source() {
            Source::Asynchronous => now,
            _ => decision.decided_at(),
        };
        let number = u64::try_from(at.as_nanos() / window.as_nanos()).unwrap();
        *self.0.lock().unwrap().entry(number).or_default() += u64::from(cost);
    }

    /// The windows in order, without the first and the last one, which may be shorter.
    fn whole_windows(&self) -> Vec<u64> {
        let passed = self.0.lock().unwrap();
        let first = passed.keys().min().unwrap() + 1;
        let last = *passed.keys().max().unwrap();
        (first..last)
            .map(|number| passed.get(&number).copied().unwrap_or(0))
            .collect()
    }

    fn most(&self) -> u64 {
        self.0.lock().unwrap().values().copied().max().unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
struct Fleet {
    replicas: usize,
    limit: u64,
    window: Duration,
    way: u64,
    lost: u64,
    /// The mean time between requests of all replicas, in microseconds.
    every: u64,
    most_cost: u64,
    seed: u64,
}

fn fleets() -> impl Strategy<Value = Fleet> {
    (
        1..8_usize,
        5..400_u64,
        200..5_000_u64,
        prop_oneof![Just(0), 1..80_u64],
        prop_oneof![Just(0), 1..200_u64],
        1..8_u64,
        1..4_u64,
        any::<u64>(),
    )
        .prop_map(
            |(replicas, limit, window, way, lost, demand, most_cost, seed)| Fleet {
                replicas,
                limit,
                window: Duration::from_millis(window),
                way,
                lost,
                // From half of the limit to four times the limit.
                every: (window * 1_000 * 2 / (limit * demand)).max(1),
                most_cost,
                seed,
            },
        )
}

/// Sends requests to a fleet for some windows. Returns what passed, and how often the store was
/// asked.
async fn run(fleet: &Fleet, groups: u64) -> (Arc<Passed>, u64) {
    let quota = Quota::new(fleet.limit, fleet.window);
    let limit = Limit::fixed_window_aligned("api", quota)
        .and_then(Limit::asynchronous)
        .unwrap();
    let strict = Limit::token_bucket("strict", Quota::per_second(fleet.limit * 2)).unwrap();
    let store = Distant::new(fleet.way, fleet.lost, fleet.seed);
    let replicas: Vec<_> = (0..fleet.replicas)
        .map(|_| {
            Asynchronous::new(
                WithDenyCache::new(store.clone()),
                Duration::from_millis(2 * fleet.way),
            )
        })
        .collect();
    let passed = Arc::new(Passed::default());
    // The time of the store, by the clock of this test.
    let peek = Operation::Peek(Check::new(&limit, "alice").into());
    let base = store.store.apply(peek).await.unwrap().decided_at();
    let start = Instant::now();
    let mut requests = JoinSet::new();
    while start.elapsed() < 4 * fleet.window {
        sleep(Duration::from_micros(1 + store.below(2 * fleet.every))).await;
        let replica = Arc::clone(&replicas[store.below(fleet.replicas as u64) as usize]);
        let cost = u32::try_from(1 + store.below(fleet.most_cost)).unwrap();
        let check = Check::new(&limit, "alice").with_cost(cost);
        let group = match store.below(4) {
            number if number < groups => Group::new([check, Check::new(&strict, "alice")]).unwrap(),
            _ => Group::from(check),
        };
        let patience = Duration::from_millis(store.below(40));
        let is_impatient = groups > 0 && store.below(8) == 0;
        let (passed, window) = (Arc::clone(&passed), fleet.window);
        requests.spawn(async move {
            let answer = replica.apply(Operation::Charge(group));
            if is_impatient {
                // A caller that leaves has passed nothing.
                drop(tokio::time::timeout(patience, answer).await.map(|answer| {
                    answer.map(|it| passed.count(&it, cost, base + start.elapsed(), window))
                }));
            } else if let Ok(decision) = answer.await {
                passed.count(&decision, cost, base + start.elapsed(), window);
            }
        });
    }
    while requests.join_next().await.is_some() {}
    (passed, store.asked.load(Ordering::Relaxed))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Demand that exceeds the limit by half.
#[test]
fn busy_key_uses_its_limit_and_the_store_is_rarely_asked() {
    for replicas in [1, 4, 10] {
        let fleet = Fleet {
            replicas,
            limit: 1_000,
            window: Duration::from_secs(10),
            way: 1,
            lost: 0,
            every: 10_000_000 / 1_500,
            most_cost: 1,
            seed: 1,
        };
        let (passed, asked) = runtime().block_on(run(&fleet, 0));
        let windows = passed.whole_windows();
        assert!(
            windows.iter().all(|passed| (900..=1_000).contains(passed)),
            "{replicas} replicas: {windows:?}"
        );
        // 4,000 units in four windows.
        assert!(asked < 1_000, "{replicas} replicas: {asked}");
    }
}

#[test]
fn units_that_are_not_spent_are_given_back_also_after_an_outage() {
    runtime().block_on(async {
        let limit = Limit::fixed_window("api", Quota::per_day(1_000))
            .and_then(Limit::asynchronous)
            .unwrap();
        let store = Distant::new(0, 0, 1);
        let charge = || Operation::Charge(Check::new(&limit, "alice").into());
        let used = async |store: &Distant| {
            let peek = Operation::Peek(Check::new(&limit, "alice").with_cost(0).into());
            1_000 - store.store.apply(peek).await.unwrap().remaining()
        };
        let replica = Asynchronous::new(store.clone(), Duration::from_millis(1));
        for _ in 0..20 {
            assert!(replica.apply(charge()).await.unwrap().allowed());
            sleep(Duration::from_millis(10)).await;
        }
        assert!(used(&store).await > 20, "units are here");
        // Nothing is sent, so nothing was given back.
        store.away.store(true, Ordering::Relaxed);
        sleep(Duration::from_secs(30)).await;
        assert!(used(&store).await > 20);
        store.away.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(used(&store).await, 20);
    });
}

#[test]
fn key_is_decided_here_again_after_blocks_failed() {
    runtime().block_on(async {
        let limit = Limit::fixed_window("api", Quota::per_day(1_000_000))
            .and_then(Limit::asynchronous)
            .unwrap();
        let store = Distant::new(0, 0, 1);
        let replica = Asynchronous::new(store.clone(), Duration::from_millis(1));
        let check_for = async |seconds: u64| {
            let mut last = Source::Store;
            for _ in 0..seconds * 10 {
                let charge = Operation::Charge(Check::new(&limit, "alice").into());
                if let Ok(decision) = replica.apply(charge).await {
                    last = decision.source();
                }
                sleep(Duration::from_millis(100)).await;
            }
            last
        };
        assert_eq!(check_for(20).await, Source::Asynchronous);
        store.away.store(true, Ordering::Relaxed);
        check_for(60).await;
        store.away.store(false, Ordering::Relaxed);
        assert_eq!(check_for(20).await, Source::Asynchronous);
    });
}

#[test]
fn fleets_pass_at_most_the_limit_in_each_window() {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    };
    let tested = TestRunner::new(config).run(&fleets(), |fleet| {
        let most = runtime().block_on(run(&fleet, 1)).0.most();
        prop_assert!(most <= fleet.limit, "{most} of {} passed", fleet.limit);
        Ok(())
    });
    tested.unwrap();
}
