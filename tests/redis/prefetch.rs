//! Prefetching: the store charges units of a hot key in blocks. Prefetched units save calls, are
//! never spent twice, and are refunded when they are not spent.
#![cfg(feature = "redis")]

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep};
use tollgate::decision::Source;
use tollgate::store::{Answer, Change, Operation, Prefetch, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::scripted::{Scripted, decide};

fn prefetch(store: &Scripted, limit: &Limit) -> Prefetch<Scripted> {
    Prefetch::builder(store.clone())
        .limit(limit)
        .build()
        .unwrap()
}

/// Ten thousand a day: nothing replenishes while a test runs.
fn ten_thousand() -> Limit {
    Limit::fixed_window("everyone", Quota::per_day(10_000)).unwrap()
}

/// Checks one unit every 100 us, and lets background tasks run. Returns the number of allowed
/// checks, and how many of them prefetched units answered.
async fn hammer(limiter: &RateLimiter, limit: &Limit, key: &Key, checks: u32) -> (u32, u32) {
    let (mut allowed, mut prefetched) = (0, 0);
    for _ in 0..checks {
        let decision = limiter.check(limit, key).await.unwrap();
        allowed += u32::from(decision.allowed());
        prefetched += u32::from(decision.allowed() && decision.source() == Source::Prefetched);
        advance(Duration::from_micros(100)).await;
        yield_now().await;
    }
    (allowed, prefetched)
}

#[tokio::test(start_paused = true)]
async fn hot_key_is_mostly_answered_by_prefetched_units() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    let (allowed, prefetched) = hammer(&limiter, &limit, &key, 5_000).await;
    assert_eq!(allowed, 5_000);
    assert!(prefetched > 4_800, "{prefetched} of 5,000 were prefetched");
    let asked = store.asked();
    assert!(asked < 200, "the store was called {asked} times");
}

#[tokio::test(start_paused = true)]
async fn remaining_counts_down_across_blocks() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    let mut before = 10_000;
    for _ in 0..2_000 {
        let decision = limiter.check(&limit, &key).await.unwrap();
        // A decision of the store leaves out prefetched units.
        if decision.source() == Source::Prefetched {
            assert!(
                decision.remaining() < before,
                "{} after {before}",
                decision.remaining()
            );
            before = decision.remaining();
        }
        advance(Duration::from_micros(100)).await;
        yield_now().await;
    }
    assert_eq!(before, 8_000);
}

#[tokio::test(start_paused = true)]
async fn cold_key_is_always_decided_by_the_store() {
    let (store, limit) = (Scripted::default(), ten_thousand());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    for number in 0..1_000_u64 {
        let decision = limiter
            .check(&limit, &Key::from(number % 100))
            .await
            .unwrap();
        assert_eq!(decision.source(), Source::Store);
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(store.asked(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn allowed_units_never_exceed_charged_units() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let replicas: Vec<_> = (0..3)
        .map(|_| RateLimiter::new(prefetch(&store, &limit)))
        .collect();
    let mut allowed = 0;
    for turn in 0..150 {
        let (newly_allowed, _) = hammer(&replicas[turn % 3], &limit, &key, 100).await;
        allowed += u64::from(newly_allowed);
        let charged = store.used(&limit, &key).await;
        assert!(allowed <= charged, "{allowed} allowed, {charged} charged");
        // Each replica holds at most a block.
        assert!(
            charged <= allowed + 3 * 1_000,
            "{charged} charged, {allowed} allowed"
        );
    }
    // Refunded units can be used: nothing is lost.
    sleep(Duration::from_secs(1)).await;
    for replica in &replicas {
        let (newly_allowed, _) = hammer(replica, &limit, &key, 2_000).await;
        allowed += u64::from(newly_allowed);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(allowed, 10_000);
}

#[tokio::test(start_paused = true)]
async fn interval_exceeds_the_limit_by_at_most_a_block_per_replica() {
    let store = Scripted::default();
    let (rate, burst, block) = (1_000.0, 1_000, 100);
    let limit = Limit::token_bucket("all", Quota::per_second(1_000).burst(burst)).unwrap();
    let key = Key::global();
    let replica = || {
        let store = Prefetch::builder(store.clone())
            .limit_up_to(&limit, block)
            .build()
            .unwrap();
        RateLimiter::new(store)
    };
    let replicas = [replica(), replica(), replica()];
    let start = Instant::now();
    let mut allowed_at = Vec::new();
    let mut random = 7_u64;
    for _ in 0..20_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let pick = (random >> 33) as usize;
        if replicas[pick % 3]
            .check(&limit, &key)
            .await
            .unwrap()
            .allowed()
        {
            allowed_at.push(start.elapsed().as_secs_f64());
        }
        // Bursts, and pauses longer than `max_age`.
        let pause = if pick.is_multiple_of(997) {
            400_000
        } else {
            200
        };
        advance(Duration::from_micros(pause)).await;
        yield_now().await;
    }
    let excess = f64::from(3 * block) + 1.0;
    for (i, from) in allowed_at.iter().enumerate().step_by(37) {
        for (j, to) in allowed_at.iter().enumerate().skip(i) {
            let (allowed, promised) = ((j - i + 1) as f64, burst as f64 + rate * (to - from));
            assert!(allowed <= promised + excess, "{allowed} in {} s", to - from);
        }
    }
    assert!(
        allowed_at.len() > 4_000,
        "{} were allowed",
        allowed_at.len()
    );
}

#[tokio::test(start_paused = true)]
async fn unspent_units_are_refunded_at_max_age() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    let (allowed, _) = hammer(&limiter, &limit, &key, 1_000).await;
    assert!(
        store.used(&limit, &key).await > u64::from(allowed),
        "unspent units are prefetched"
    );
    sleep(Duration::from_millis(500)).await;
    assert_eq!(store.used(&limit, &key).await, u64::from(allowed));
}

#[tokio::test(start_paused = true)]
async fn stale_units_are_not_spent() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    hammer(&limiter, &limit, &key, 1_000).await;
    let last = limiter.check(&limit, &key).await.unwrap();
    assert_eq!(last.source(), Source::Prefetched);
    advance(Duration::from_millis(251)).await;
    assert_eq!(
        limiter.check(&limit, &key).await.unwrap().source(),
        Source::Store
    );
}

#[tokio::test(start_paused = true)]
async fn release_and_drop_refund_unspent_units() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let prefetch = prefetch(&store, &limit);
    let limiter = RateLimiter::new(prefetch.clone());
    let (first, _) = hammer(&limiter, &limit, &key, 1_000).await;
    prefetch.release().await.unwrap();
    assert_eq!(store.used(&limit, &key).await, u64::from(first));

    let (second, _) = hammer(&limiter, &limit, &key, 1_000).await;
    drop((limiter, prefetch));
    yield_now().await;
    assert_eq!(store.used(&limit, &key).await, u64::from(first + second));
}

#[tokio::test(start_paused = true)]
async fn reset_discards_prefetched_units_and_peek_sees_them() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    hammer(&limiter, &limit, &key, 1_000).await;
    let peeked = limiter.peek(&limit, &key, 1).await.unwrap();
    assert_eq!(
        (peeked.source(), peeked.allowed()),
        (Source::Prefetched, true)
    );
    limiter.reset(&limit, &key).await.unwrap();
    let decision = limiter.check(&limit, &key).await.unwrap();
    assert_eq!(
        (decision.source(), decision.remaining()),
        (Source::Store, 9_999)
    );
}

#[tokio::test(start_paused = true)]
async fn exhausted_key_is_denied_by_the_store() {
    let (store, key) = (Scripted::default(), Key::global());
    let limit = Limit::fixed_window("all", Quota::per_day(500)).unwrap();
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    let (allowed, _) = hammer(&limiter, &limit, &key, 2_000).await;
    assert_eq!(allowed, 500);
    let denied = limiter.check(&limit, &key).await.unwrap();
    assert_eq!((denied.allowed(), denied.source()), (false, Source::Store));
    assert!(denied.retry_after().is_some());
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
    let twice = Prefetch::builder(MemoryStore::new())
        .limit(&large)
        .limit(&large)
        .build();
    assert!(
        twice
            .unwrap_err()
            .to_string()
            .contains("limit `large`: the limit is named twice")
    );
    let old = Prefetch::builder(MemoryStore::new())
        .limit(&large)
        .max_age(Duration::from_secs(11));
    assert!(
        old.build()
            .unwrap_err()
            .to_string()
            .contains("`max_age` is 11s; use 50ms to 10s")
    );
}

#[tokio::test(start_paused = true)]
async fn group_with_a_prefetched_limit_is_an_error() {
    let large = Limit::gcra("large", Quota::per_second(5_000)).unwrap();
    let other = Limit::gcra("other", Quota::per_second(5_000)).unwrap();
    let prefetch = Prefetch::builder(MemoryStore::new())
        .limit(&large)
        .build()
        .unwrap();
    let limiter = RateLimiter::new(prefetch);
    let key = Key::global();
    let group = [
        Check::new(&large, &key).with_cost(1),
        Check::new(&other, &key),
    ];
    let error = limiter.check_all(&group).await.unwrap_err();
    assert!(error.is_misuse());
    assert!(
        error
            .to_string()
            .contains("limit `large`: a prefetched limit"),
        "{error}"
    );
}

#[cfg(feature = "http")]
#[test]
fn layer_of_several_limits_rejects_a_prefetched_limit() {
    use tollgate::RateLimitLayer;
    use tollgate::key::Global;

    let large = Limit::gcra("large", Quota::per_second(5_000)).unwrap();
    let other = Limit::gcra("other", Quota::per_second(5_000)).unwrap();
    let prefetch = Prefetch::builder(MemoryStore::new())
        .limit(&large)
        .build()
        .unwrap();
    let limiter = RateLimiter::new(prefetch);
    let one = RateLimitLayer::new(&limiter, large.clone(), Global).unwrap();
    let error = one.limit(other, Global).unwrap_err().to_string();
    assert!(
        error.contains("limit `large`: a prefetched limit"),
        "{error}"
    );
    assert!(RateLimitLayer::new(&limiter, large, Global).is_ok());
}

#[tokio::test(start_paused = true)]
async fn late_refund_exceeds_a_window_by_at_most_a_block() {
    let limit = Limit::fixed_window_aligned("all", Quota::per_second(1_000)).unwrap();
    let key = Key::global();
    let mut most = 0;
    for (max_age, first, second) in (0..50).map(|case| {
        (
            [50, 100][case % 2],
            110 + 6 * case as u32,
            60 + 13 * (case as u32 % 17),
        )
    }) {
        // Refunds take 150 ms.
        let late = Scripted::asked_late(Duration::from_millis(150), |operation| {
            matches!(operation, Operation::Change(_, Change::Settle { .. }))
        });
        let store = Prefetch::builder(late)
            .limit_up_to(&limit, 100)
            .max_age(Duration::from_millis(max_age))
            .build()
            .unwrap();
        let limiter = RateLimiter::new(store);
        let start = Instant::now();
        let end = start + limiter.check(&limit, &key).await.unwrap().reset_after();
        // The first block is not spent, and its refund arrives after the end of its window.
        tokio::time::sleep_until(end - Duration::from_millis(300)).await;
        hammer(&limiter, &limit, &key, first).await;
        tokio::time::sleep_until(end - Duration::from_millis(40)).await;
        // The second block is not spent at the end of the window.
        hammer(&limiter, &limit, &key, second).await;
        tokio::time::sleep_until(end).await;
        let (allowed, _) = hammer(&limiter, &limit, &key, 3_000).await;
        most = most.max(allowed);
    }
    assert!(most <= 1_100, "{most} units in one window");
}

#[tokio::test(start_paused = true)]
async fn cost_that_exceeds_the_capacity_prefetches_nothing() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    for _ in 0..2_000 {
        assert!(
            limiter
                .check_n(&limit, &key, 10_001)
                .await
                .unwrap()
                .exceeds_capacity()
        );
        advance(Duration::from_micros(100)).await;
        yield_now().await;
    }
    assert_eq!(store.used(&limit, &key).await, 0, "no block was charged");
}

#[test]
fn key_is_prefetched_again_after_its_runtime_ended() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(
        Prefetch::builder(store.clone())
            .limit(&limit)
            .build()
            .unwrap(),
    );
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    // It never answers a charge of several units.
    store.does(|memory, operation| match &operation {
        Operation::Charge(group) if group[0].cost() > 1 => Answer::later(std::future::pending()),
        _ => memory.apply(operation),
    });
    let (_, prefetched) = runtime().block_on(hammer(&limiter, &limit, &key, 500));
    assert_eq!(prefetched, 0, "the first block is never answered");
    store.does(decide);
    let (allowed, prefetched) = runtime().block_on(async {
        // The pause after a block that was not granted.
        sleep(Duration::from_millis(50)).await;
        hammer(&limiter, &limit, &key, 5_000).await
    });
    assert!(
        prefetched > 4_000,
        "{prefetched} of {allowed} were prefetched"
    );
}

#[tokio::test(start_paused = true)]
async fn settled_charge_of_prefetched_units_is_settled_in_the_store() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let prefetch = prefetch(&store, &limit);
    let limiter = RateLimiter::new(prefetch.clone());
    let (hammered, _) = hammer(&limiter, &limit, &key, 2_000).await;
    let used_after = async |cost: u32, real: u32| {
        let charged = limiter.check_n(&limit, &key, cost).await.unwrap();
        assert_eq!(charged.source(), Source::Prefetched);
        limiter
            .settle(&limit, &key, real, charged.receipt())
            .await
            .unwrap();
    };
    used_after(5, 2).await;
    used_after(1, 30).await;
    prefetch.release().await.unwrap();
    let stored = RateLimiter::new(store.clone())
        .peek(&limit, &key, 0)
        .await
        .unwrap();
    assert_eq!(stored.remaining(), 10_000 - u64::from(hammered) - 2 - 30);
}

#[tokio::test(start_paused = true)]
async fn check_in_shadow_mode_is_not_answered_by_prefetched_units() {
    let (store, limit, key) = (Scripted::default(), ten_thousand(), Key::global());
    let limiter = RateLimiter::new(prefetch(&store, &limit));
    hammer(&limiter, &limit, &key, 2_000).await;
    let shadow = limiter
        .check(&limit.clone().with_shadow_mode(), &key)
        .await
        .unwrap();
    assert_eq!((shadow.allowed(), shadow.source()), (true, Source::Store));
    let enforced = limiter.check(&limit, &key).await.unwrap();
    assert_eq!(
        (enforced.allowed(), enforced.source()),
        (true, Source::Prefetched)
    );
}
