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
use super::histories;
use crate::model::{Change, Check, Decision, Error, Group, Limit, Operation, Source};
use crate::store::deny_cache::WithDenyCache;
use crate::store::{Answer, MemoryStore, Store};
use crate::units::Quota;

/// A store that answers after a while, and of which some requests and answers are lost.
#[derive(Clone, Debug)]
struct Distant {
    store: Arc<MemoryStore>,
    /// The longest way, in milliseconds.
    way: u64,
    /// The number of lost ones of a thousand messages.
    lost: u64,
    random: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    /// Set while it cannot be reached.
    away: Arc<AtomicBool>,
    /// The last payment of each payer. Only one budget is paid.
    paid: Arc<Mutex<HashMap<[u8; 8], u64>>>,
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
            paid: Arc::default(),
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

    /// A payment that was charged before changes nothing.
    fn once(&self, operation: Operation) -> Operation {
        let Operation::Change(budget, Change::Pay(payment)) = &operation else {
            return operation;
        };
        let mut paid = self.paid.lock().unwrap();
        let last = paid.entry(payment.payer).or_default();
        if payment.number > *last {
            *last = payment.number;
            return operation;
        }
        let look = Check::new(budget.limit(), budget.key()).with_cost(0);
        Operation::Peek(look.into())
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
            let operation = store.once(operation);
            let answer = store.store.apply(operation).await;
            store.travel().await?;
            answer
        })
    }
}

/// The times at which units passed, by the clock of the store, and how many.
#[derive(Default)]
struct Passed {
    units: Mutex<Vec<(Duration, u64)>>,
    /// The number of requests that were denied.
    denied: AtomicU64,
}

impl Passed {
    /// Counts a decision when it is made.
    fn count(&self, decision: &Decision, cost: u32, now: Duration) {
        if !decision.allowed() {
            self.denied.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // The store decided when it says. This process decides now.
        let at = match decision.source() {
            Source::Asynchronous => now,
            _ => decision.decided_at(),
        };
        self.units.lock().unwrap().push((at, cost.into()));
    }

    fn all(&self) -> Vec<(Duration, u64)> {
        let mut all = self.units.lock().unwrap().clone();
        all.sort_unstable();
        all
    }

    /// The units that passed in each window of this length from the epoch on, by its number.
    fn by_window(&self, length: Duration) -> HashMap<u128, u64> {
        let mut windows = HashMap::new();
        for (at, units) in self.all() {
            *windows
                .entry(at.as_nanos() / length.as_nanos())
                .or_default() += units;
        }
        windows
    }

    /// The same in order, without the first and the last one, which may be shorter.
    fn whole_windows(&self, length: Duration) -> Vec<u64> {
        let windows = self.by_window(length);
        let first = windows.keys().min().unwrap() + 1;
        let last = *windows.keys().max().unwrap();
        (first..last)
            .map(|number| windows.get(&number).copied().unwrap_or(0))
            .collect()
    }

    /// The most that passed in one window.
    fn most_in_window(&self, length: Duration) -> u64 {
        self.by_window(length).values().copied().max().unwrap_or(0)
    }

    /// The most that passed in any time of this length.
    fn most_in_any(&self, length: Duration) -> u64 {
        let all = self.all();
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for &(at, units) in &all {
            sum += units;
            while all[first].0 + length <= at {
                sum -= all[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    /// The highest level of a bucket without a capacity that drains `limit` units in `period`.
    fn highest_level(&self, limit: u64, period: Duration) -> f64 {
        let (mut level, mut highest, mut last) = (0.0_f64, 0.0_f64, Duration::ZERO);
        let rate = limit as f64 / period.as_secs_f64();
        for (at, units) in self.all() {
            level = (level - rate * (at - last).as_secs_f64()).max(0.0) + units as f64;
            highest = highest.max(level);
            last = at;
        }
        highest
    }
}

#[derive(Clone, Copy, Debug)]
enum FleetLimit {
    Window,
    Bucket,
    Gcra,
    Meter,
    SlidingWindow,
    Log,
}

impl FleetLimit {
    fn limit(self, quota: Quota) -> Limit {
        let limit = match self {
            Self::Window => {
                return Limit::fixed_window_aligned("api", quota)
                    .and_then(Limit::asynchronous)
                    .unwrap();
            }
            Self::Bucket => Limit::token_bucket("api", quota),
            Self::Gcra => Limit::gcra("api", quota),
            Self::Meter => Limit::leaky_bucket_meter("api", quota),
            Self::SlidingWindow => Limit::sliding_window("api", quota),
            Self::Log => Limit::sliding_log("api", quota),
        };
        limit.unwrap().with_overshoot_percent(OVERSHOOT).unwrap()
    }

    /// The units that passed above the limit.
    fn excess(self, passed: &Passed, fleet: &Fleet) -> f64 {
        let limit = fleet.limit as f64;
        let most = match self {
            Self::Window => passed.most_in_window(fleet.window) as f64,
            Self::Bucket | Self::Gcra | Self::Meter => {
                passed.highest_level(fleet.limit, fleet.window)
            }
            // Windows from the epoch on.
            Self::SlidingWindow => passed.most_in_window(fleet.window) as f64,
            Self::Log => passed.most_in_any(fleet.window) as f64,
        };
        most - limit
    }
}

/// In percent.
const OVERSHOOT: u8 = 20;

#[derive(Clone, Debug)]
struct Fleet {
    kind: FleetLimit,
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

fn fleets(kind: impl Strategy<Value = FleetLimit>) -> impl Strategy<Value = Fleet> {
    (
        kind,
        1..8_usize,
        10..400_u64,
        200..5_000_u64,
        prop_oneof![Just(0), 1..80_u64],
        prop_oneof![Just(0), 1..200_u64],
        1..8_u64,
        1..4_u64,
        any::<u64>(),
    )
        .prop_map(
            |(kind, replicas, limit, window, way, lost, demand, most_cost, seed)| Fleet {
                kind,
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
    let limit = fleet.kind.limit(quota);
    let strict = Limit::token_bucket("strict", Quota::per_second(fleet.limit * 2)).unwrap();
    let store = Distant::new(fleet.way, fleet.lost, fleet.seed);
    let replicas: Vec<_> = (0..fleet.replicas)
        .map(|_| {
            Asynchronous::new(
                WithDenyCache::new(store.clone()),
                Duration::from_millis(2 * fleet.way),
                "test".into(),
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
        let passed = Arc::clone(&passed);
        requests.spawn(async move {
            let answer = replica.apply(Operation::Charge(group));
            if is_impatient {
                // A caller that leaves has passed nothing.
                drop(tokio::time::timeout(patience, answer).await.map(|answer| {
                    answer.map(|it| passed.count(&it, cost, base + start.elapsed()))
                }));
            } else if let Ok(decision) = answer.await {
                passed.count(&decision, cost, base + start.elapsed());
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

/// Units that a replica charges and does not need are missing on others.
#[test]
fn hardly_a_request_is_denied_below_the_limit() {
    for (seconds, demand) in [(10, 0.9), (60, 0.9)] {
        let (mut allowed, mut denied) = (0, 0);
        for seed in 1..=4 {
            let fleet = Fleet {
                kind: FleetLimit::Window,
                replicas: 4,
                limit: 1_000,
                window: Duration::from_secs(seconds),
                way: 1,
                lost: 0,
                every: (seconds as f64 * 1e3 / demand) as u64,
                most_cost: 1,
                seed,
            };
            let (passed, _) = runtime().block_on(run(&fleet, 0));
            allowed += passed.all().len() as u64;
            denied += passed.denied.load(Ordering::Relaxed);
        }
        assert!(
            denied * 1_000 < allowed,
            "{denied} denied, {allowed} allowed"
        );
    }
}

/// Demand that exceeds the limit by half.
#[test]
fn busy_key_uses_its_limit_and_the_store_is_rarely_asked() {
    for replicas in [1, 4, 10] {
        let fleet = Fleet {
            kind: FleetLimit::Window,
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
        let windows = passed.whole_windows(fleet.window);
        assert!(
            windows.iter().all(|passed| (900..=1_000).contains(passed)),
            "{replicas} replicas: {windows:?}"
        );
        // 4,000 units in four windows.
        assert!(asked < 1_000, "{replicas} replicas: {asked}");
    }
}

/// Demand that exceeds the limit by half, and four times.
#[test]
fn store_is_rarely_asked_for_a_bucket_at_its_limit() {
    for demand in [1_500, 4_000] {
        let fleet = Fleet {
            kind: FleetLimit::Bucket,
            replicas: 4,
            limit: 1_000,
            window: Duration::from_secs(10),
            way: 1,
            lost: 0,
            every: 10_000_000 / demand,
            most_cost: 1,
            seed: 1,
        };
        let (passed, asked) = runtime().block_on(run(&fleet, 0));
        let passed: u64 = passed.all().iter().map(|(_, units)| units).sum();
        // The bucket and four times its refill.
        assert!(passed > 4_900, "{passed} passed");
        assert!(asked < 1_000, "{asked} calls");
    }
}

#[test]
fn checks_of_more_than_half_of_the_credit_are_decided_here() {
    runtime().block_on(async {
        // A process alone may owe 12 units.
        let quota = Quota::per_second(100_000).burst(100);
        let limit = Limit::token_bucket("api", quota)
            .and_then(|limit| limit.with_overshoot_percent(12))
            .unwrap();
        let replica = Asynchronous::new(
            Distant::new(1, 0, 1),
            Duration::from_millis(2),
            "test".into(),
        );
        for costs in [[1, 1], [5, 5], [7, 7], [8, 8], [12, 12], [8, 1]] {
            let mut here = 0;
            for cost in costs.repeat(100) {
                sleep(Duration::from_millis(50)).await;
                let check = Check::new(&limit, "alice").with_cost(cost);
                let charge = Operation::Charge(check.into());
                let decision = replica.apply(charge).await.unwrap();
                here += u32::from(decision.source() == Source::Asynchronous);
            }
            assert!(here > 190, "{here} of 200 checks of {costs:?}");
        }
    });
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
        let replica = Asynchronous::new(store.clone(), Duration::from_millis(1), "test".into());
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
        let replica = Asynchronous::new(store.clone(), Duration::from_millis(1), "test".into());
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

/// Runs random fleets, and checks what passed above the limit.
fn check_fleets(kind: impl Strategy<Value = FleetLimit>, overshoot: u8) {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(histories(200))
    };
    let tested = TestRunner::new(config).run(&fleets(kind), |fleet| {
        let (passed, _) = runtime().block_on(run(&fleet, 1));
        let excess = fleet.kind.excess(&passed, &fleet);
        let bound = fleet.limit * u64::from(overshoot) / 100;
        // The sums of floating-point numbers are not exact.
        prop_assert!(excess <= bound as f64 + 0.001, "{excess} of {bound} above");
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn fleets_pass_at_most_the_limit_in_each_window() {
    check_fleets(Just(FleetLimit::Window), 0);
}

#[test]
fn fleets_on_credit_stay_within_the_overshoot() {
    let kinds = prop_oneof![
        Just(FleetLimit::Bucket),
        Just(FleetLimit::Gcra),
        Just(FleetLimit::Meter),
        Just(FleetLimit::SlidingWindow),
        Just(FleetLimit::Log),
    ];
    check_fleets(kinds, OVERSHOOT);
}

/// A bucket that no test uses up.
fn large_bucket() -> Limit {
    Limit::token_bucket("api", Quota::per_day(1_000_000))
        .and_then(|limit| limit.with_overshoot_percent(OVERSHOOT))
        .unwrap()
}

#[test]
fn replica_that_joins_soon_has_its_share() {
    runtime().block_on(async {
        let limit = large_bucket();
        let store = Distant::new(1, 0, 1);
        let check_for = async |replica: &Arc<Asynchronous<_>>, time: Duration| {
            let start = Instant::now();
            let mut last = Source::Store;
            while start.elapsed() < time {
                // A tenth of the overshoot of the key, so a small share does not allow it.
                let charge = Check::new(&limit, "alice").with_cost(20_000);
                if let Ok(decision) = replica.apply(Operation::Charge(charge.into())).await {
                    last = decision.source();
                }
                sleep(Duration::from_millis(50)).await;
            }
            last
        };
        let replica = || Asynchronous::new(store.clone(), Duration::from_millis(10), "test".into());
        let first = replica();
        let second = replica();
        let alone = check_for(&first, Duration::from_millis(400)).await;
        assert_eq!(alone, Source::Asynchronous);
        let joined = check_for(&second, Duration::from_secs(2)).await;
        assert_eq!(joined, Source::Asynchronous);
    });
}

#[test]
fn share_outlasts_an_outage_of_three_seconds() {
    runtime().block_on(async {
        let limit = large_bucket();
        for millis in (0..1_700).step_by(100) {
            let store = Distant::new(1, 0, 1);
            let replica =
                Asynchronous::new(store.clone(), Duration::from_millis(10), "test".into());
            // Returns whether this process decided all checks.
            let check_for = async |time: Duration| {
                let start = Instant::now();
                let mut is_here = true;
                while start.elapsed() < time {
                    let charge = Operation::Charge(Check::new(&limit, "alice").into());
                    let decision = replica.apply(charge).await;
                    is_here &= decision.is_ok_and(|it| it.source() == Source::Asynchronous);
                    sleep(Duration::from_millis(50)).await;
                }
                is_here
            };
            check_for(Duration::from_secs(2)).await;
            let meanwhile = check_for(Duration::from_secs(3) + Duration::from_millis(millis));
            assert!(meanwhile.await, "it has a share");
            store.away.store(true, Ordering::Relaxed);
            let during = check_for(Duration::from_secs(3)).await;
            store.away.store(false, Ordering::Relaxed);
            let afterwards = check_for(Duration::from_secs(8)).await;
            assert!(during && afterwards, "with an outage {millis} ms later");
        }
    });
}

#[test]
fn units_that_are_allowed_during_a_reset_are_charged() {
    runtime().block_on(async {
        let limit = large_bucket();
        let store = Distant::new(20, 0, 1);
        let replica = Asynchronous::new(store.clone(), Duration::from_millis(100), "test".into());
        let allow_here = async |units: u32| {
            for _ in 0..units {
                let charge = Operation::Charge(Check::new(&limit, "alice").into());
                let decision = replica.apply(charge).await.unwrap();
                assert_eq!(decision.source(), Source::Asynchronous);
            }
        };
        for _ in 0..20 {
            let charge = Operation::Charge(Check::new(&limit, "alice").into());
            assert!(replica.apply(charge).await.unwrap().allowed());
            sleep(Duration::from_millis(100)).await;
        }
        allow_here(3).await;
        let budget = Check::new(&limit, "alice").budget().clone();
        let reset = replica.apply(Operation::Change(budget, Change::Reset));
        let resetting = tokio::spawn(reset);
        tokio::task::yield_now().await;
        allow_here(5).await;
        assert!(!resetting.is_finished());
        assert!(resetting.await.unwrap().is_ok());
        replica.release().await;
        let peek = Operation::Peek(Check::new(&limit, "alice").with_cost(0).into());
        let left = store.store.apply(peek).await.unwrap().remaining();
        assert_eq!(1_000_000 - left, 5);
    });
}
