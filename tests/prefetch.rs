//! Units of a hot key, charged in blocks: what a lease saves, and what it may cost.
#![cfg(feature = "redis")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep};
use tollgate::decision::Source;
use tollgate::store::{Answer, Op, Prefetch, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter};

use self::support::counting::Counting;

fn leased(store: &Counting, limit: &Limit) -> Prefetch<Counting> {
    Prefetch::builder(store.clone()).limit(limit).build().unwrap()
}

/// Ten thousand a day: what is used stays used while a test lasts.
fn ten_thousand() -> Limit {
    Limit::fixed_window("everybody", Quota::per_day(10_000)).unwrap()
}

/// Checks one unit every 100 us, and lets the background do its work. Returns how many were
/// admitted, and how many of those by a lease.
async fn hammer(limiter: &RateLimiter, limit: &Limit, key: &Key, checks: u32) -> (u32, u32) {
    let (mut admitted, mut by_lease) = (0, 0);
    for _ in 0..checks {
        let decision = limiter.check(limit, key).await.unwrap();
        admitted += u32::from(decision.allowed());
        by_lease += u32::from(decision.allowed() && decision.source() == Source::Prefetched);
        advance(Duration::from_micros(100)).await;
        yield_now().await;
    }
    (admitted, by_lease)
}

#[tokio::test(start_paused = true)]
async fn hot_key_is_mostly_answered_by_prefetched_units() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(leased(&store, &limit));
    let (admitted, by_lease) = hammer(&limiter, &limit, &key, 5_000).await;
    assert_eq!(admitted, 5_000);
    assert!(by_lease > 4_800, "{by_lease} of 5,000 by a lease");
    let asked = store.asked();
    assert!(asked < 200, "the store was asked {asked} times");
}

#[tokio::test(start_paused = true)]
async fn remaining_counts_down_across_blocks() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(leased(&store, &limit));
    let mut before = 10_000;
    for _ in 0..2_000 {
        let decision = limiter.check(&limit, &key).await.unwrap();
        // A check that the store decides does not see what is charged in advance.
        if decision.source() == Source::Prefetched {
            assert!(decision.remaining() < before, "{} after {before}", decision.remaining());
            before = decision.remaining();
        }
        advance(Duration::from_micros(100)).await;
        yield_now().await;
    }
    assert_eq!(before, 8_000);
}

#[tokio::test(start_paused = true)]
async fn cold_key_is_always_decided_by_the_store() {
    let (store, limit) = (Counting::default(), ten_thousand());
    let limiter = RateLimiter::new(leased(&store, &limit));
    for number in 0..1_000_u64 {
        let decision = limiter.check(&limit, &Key::from(number % 100)).await.unwrap();
        assert_eq!(decision.source(), Source::Store);
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(store.asked(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn allowed_units_never_exceed_charged_units() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let replicas: Vec<_> = (0..3).map(|_| RateLimiter::new(leased(&store, &limit))).collect();
    let mut admitted = 0;
    for turn in 0..150 {
        let (some, _) = hammer(&replicas[turn % 3], &limit, &key, 100).await;
        admitted += u64::from(some);
        let charged = store.used(&limit, &key).await;
        assert!(admitted <= charged, "{admitted} admitted, {charged} charged");
        // Stranded are at most a block of each replica.
        assert!(charged <= admitted + 3 * 1_000, "{charged} charged, {admitted} admitted");
    }
    // All that is given back can be used: nothing is lost.
    sleep(Duration::from_secs(1)).await;
    for replica in &replicas {
        let (some, _) = hammer(replica, &limit, &key, 2_000).await;
        admitted += u64::from(some);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(admitted, 10_000);
}

#[tokio::test(start_paused = true)]
async fn interval_exceeds_the_limit_by_at_most_a_block_per_replica() {
    let store = Counting::default();
    let (rate, burst, block) = (1_000.0, 1_000, 100);
    let limit = Limit::token_bucket("all", Quota::per_second(1_000).burst(burst)).unwrap();
    let key = Key::global();
    let replica = || {
        let store = Prefetch::builder(store.clone()).limit_up_to(&limit, block).build().unwrap();
        RateLimiter::new(store)
    };
    let replicas = [replica(), replica(), replica()];
    let start = Instant::now();
    let mut admissions = Vec::new();
    let mut random = 7_u64;
    for _ in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let pick = (random >> 33) as usize;
        if replicas[pick % 3].check(&limit, &key).await.unwrap().allowed() {
            admissions.push(start.elapsed().as_secs_f64());
        }
        // Bursts, and pauses long enough for leases to grow stale.
        let pause = if pick.is_multiple_of(997) { 400_000 } else { 200 };
        advance(Duration::from_micros(pause)).await;
        yield_now().await;
    }
    let exceeds = f64::from(3 * block) + 1.0;
    for (i, from) in admissions.iter().enumerate().step_by(37) {
        for (j, to) in admissions.iter().enumerate().skip(i) {
            let (admitted, promised) = ((j - i + 1) as f64, burst as f64 + rate * (to - from));
            assert!(admitted <= promised + exceeds, "{admitted} in {} s", to - from);
        }
    }
    assert!(admissions.len() > 4_000, "{} were admitted", admissions.len());
}

#[tokio::test(start_paused = true)]
async fn unspent_units_are_refunded_at_max_age() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(leased(&store, &limit));
    let (admitted, _) = hammer(&limiter, &limit, &key, 1_000).await;
    assert!(store.used(&limit, &key).await > u64::from(admitted), "something is stranded");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(store.used(&limit, &key).await, u64::from(admitted));
}

#[tokio::test(start_paused = true)]
async fn stale_units_are_not_spent() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(leased(&store, &limit));
    hammer(&limiter, &limit, &key, 1_000).await;
    let last = limiter.check(&limit, &key).await.unwrap();
    assert_eq!(last.source(), Source::Prefetched);
    advance(Duration::from_millis(251)).await;
    assert_eq!(limiter.check(&limit, &key).await.unwrap().source(), Source::Store);
}

#[tokio::test(start_paused = true)]
async fn release_and_drop_refund_unspent_units() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let leased = leased(&store, &limit);
    let limiter = RateLimiter::new(leased.clone());
    let (first, _) = hammer(&limiter, &limit, &key, 1_000).await;
    leased.release().await.unwrap();
    assert_eq!(store.used(&limit, &key).await, u64::from(first));

    let (second, _) = hammer(&limiter, &limit, &key, 1_000).await;
    drop((limiter, leased));
    yield_now().await;
    assert_eq!(store.used(&limit, &key).await, u64::from(first + second));
}

#[tokio::test(start_paused = true)]
async fn reset_discards_prefetched_units_and_peek_sees_them() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(leased(&store, &limit));
    hammer(&limiter, &limit, &key, 1_000).await;
    let peeked = limiter.peek(&limit, &key, 1).await.unwrap();
    assert_eq!((peeked.source(), peeked.allowed()), (Source::Prefetched, true));
    assert_eq!(limiter.reset(&limit, &key).await.unwrap().remaining(), 10_000);
    let decision = limiter.check(&limit, &key).await.unwrap();
    assert_eq!((decision.source(), decision.remaining()), (Source::Store, 9_999));
}

#[tokio::test(start_paused = true)]
async fn exhausted_key_is_denied_by_the_store() {
    let (store, key) = (Counting::default(), Key::global());
    let limit = Limit::fixed_window("all", Quota::per_day(500)).unwrap();
    let limiter = RateLimiter::new(leased(&store, &limit));
    let (admitted, _) = hammer(&limiter, &limit, &key, 2_000).await;
    assert_eq!(admitted, 500);
    let refused = limiter.check(&limit, &key).await.unwrap();
    assert_eq!((refused.allowed(), refused.source()), (false, Source::Store));
    assert!(refused.retry_after().is_some());
}

#[test]
fn unsupported_limits_are_errors_of_the_builder() {
    let error = |limit: &Limit| {
        let built = Prefetch::builder(MemoryStore::new()).limit(limit).build();
        built.unwrap_err().to_string()
    };
    let log = Limit::sliding_log("log", Quota::per_second(1_000)).unwrap();
    assert!(error(&log).contains("limit `log`: a sliding log is exact, and prefetching"));
    let queue = Limit::leaky_bucket("queue", Quota::per_second(1_000)).unwrap();
    assert!(error(&queue).contains("limit `queue`: a leaky bucket lets checks leave one by one"));
    let small = Limit::gcra("small", Quota::per_second(50)).unwrap();
    assert!(error(&small).contains("the block is 5 units; use 8 to the capacity of 50"));
    let none = Prefetch::builder(MemoryStore::new()).build().unwrap_err();
    assert!(none.to_string().contains("no limit is prefetched"));
    let large = Limit::gcra("large", Quota::per_second(5_000)).unwrap();
    let twice = Prefetch::builder(MemoryStore::new()).limit(&large).limit(&large).build();
    assert!(twice.unwrap_err().to_string().contains("limit `large`: the limit is named twice"));
    let old = Prefetch::builder(MemoryStore::new()).limit(&large).max_age(Duration::from_secs(11));
    assert!(old.build().unwrap_err().to_string().contains("`max_age` is 11s; use 50ms to 10s"));
}

#[tokio::test(start_paused = true)]
async fn group_with_a_prefetched_limit_is_an_error() {
    let large = Limit::gcra("large", Quota::per_second(5_000)).unwrap();
    let other = Limit::gcra("other", Quota::per_second(5_000)).unwrap();
    let leased = Prefetch::builder(MemoryStore::new()).limit(&large).build().unwrap();
    let limiter = RateLimiter::new(leased);
    let key = Key::global();
    let group = [Check::new(&large, &key).cost(1), Check::new(&other, &key)];
    let error = limiter.apply(Op::Charge, &group).await.unwrap_err();
    assert!(error.is_misuse());
    assert!(error.to_string().contains("limit `large`: a prefetched limit"), "{error}");
}

#[cfg(feature = "http")]
#[test]
fn layer_of_several_limits_rejects_a_prefetched_limit() {
    use tollgate::RateLimitLayer;
    use tollgate::key::Global;

    let large = Limit::gcra("large", Quota::per_second(5_000)).unwrap();
    let other = Limit::gcra("other", Quota::per_second(5_000)).unwrap();
    let leased = Prefetch::builder(MemoryStore::new()).limit(&large).build().unwrap();
    let limiter = RateLimiter::new(leased);
    let two = RateLimitLayer::builder(&limiter).limit(large.clone(), Global).limit(other, Global);
    let error = two.build().unwrap_err().to_string();
    assert!(error.contains("limit `large`: a prefetched limit"), "{error}");
    assert!(RateLimitLayer::builder(&limiter).limit(large, Global).build().is_ok());
}

/// A store that gives units back 150 ms after it was asked to.
#[derive(Debug, Default)]
struct LateRefunds(Arc<MemoryStore>);

impl Store for LateRefunds {
    fn apply(&self, op: Op, batch: &[Check]) -> Answer {
        if op != Op::Refund {
            return self.0.apply(op, batch);
        }
        let [refund] = batch else { return self.0.apply(op, batch) };
        let (store, refund) = (Arc::clone(&self.0), refund.clone());
        Answer::later(async move {
            sleep(Duration::from_millis(150)).await;
            store.apply(Op::Refund, &[refund]).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn late_refund_exceeds_a_window_by_at_most_a_block() {
    let limit = Limit::fixed_window_aligned("all", Quota::per_second(1_000)).unwrap();
    let key = Key::global();
    let mut most = 0;
    for (max_age, first, second) in (0..50)
        .map(|case| ([50, 100][case % 2], 110 + 6 * case as u32, 60 + 13 * (case as u32 % 17)))
    {
        let store = Prefetch::builder(LateRefunds::default())
            .limit_up_to(&limit, 100)
            .max_age(Duration::from_millis(max_age))
            .build()
            .unwrap();
        let limiter = RateLimiter::new(store);
        let start = Instant::now();
        let end = start + limiter.check(&limit, &key).await.unwrap().reset_after();
        // A block is left over that grows stale, and its refund is late for its window.
        tokio::time::sleep_until(end - Duration::from_millis(300)).await;
        hammer(&limiter, &limit, &key, first).await;
        tokio::time::sleep_until(end - Duration::from_millis(40)).await;
        // Another is left over at the end of the window.
        hammer(&limiter, &limit, &key, second).await;
        tokio::time::sleep_until(end).await;
        let (allowed, _) = hammer(&limiter, &limit, &key, 3_000).await;
        most = most.max(allowed);
    }
    assert!(most <= 1_100, "{most} units in one window");
}

#[tokio::test(start_paused = true)]
async fn cost_that_exceeds_the_capacity_prefetches_nothing() {
    let (store, limit, key) = (Counting::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(leased(&store, &limit));
    for _ in 0..2_000 {
        assert!(limiter.check_n(&limit, &key, 10_001).await.unwrap().exceeds_capacity());
        advance(Duration::from_micros(100)).await;
        yield_now().await;
    }
    assert_eq!(store.used(&limit, &key).await, 0, "no block was charged");
}

/// A store that never answers a charge of several units while it is switched off.
#[derive(Clone, Debug, Default)]
struct Stalling(Arc<MemoryStore>, Arc<AtomicBool>);

impl Store for Stalling {
    fn apply(&self, op: Op, batch: &[Check]) -> Answer {
        if self.1.load(Ordering::SeqCst) && batch.iter().any(|check| check.units() > 1) {
            return Answer::later(std::future::pending());
        }
        self.0.apply(op, batch)
    }
}

#[test]
fn key_is_prefetched_again_after_its_runtime_ended() {
    let (store, limit, key) = (Stalling::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(Prefetch::builder(store.clone()).limit(&limit).build().unwrap());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    store.1.store(true, Ordering::SeqCst);
    let (_, by_lease) = runtime().block_on(hammer(&limiter, &limit, &key, 500));
    assert_eq!(by_lease, 0, "the first block is never answered");
    store.1.store(false, Ordering::SeqCst);
    let (allowed, by_lease) = runtime().block_on(async {
        // The pause after a block that was not granted.
        sleep(Duration::from_millis(50)).await;
        hammer(&limiter, &limit, &key, 5_000).await
    });
    assert!(by_lease > 4_000, "{by_lease} of {allowed} by a lease");
}
