//! The embedded store: exact under concurrency, and bounded in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::advance;
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::store::{Group, Operation, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter};

fn key(number: usize) -> Key {
    Key::from(number as u64)
}

#[test]
fn racing_threads_allow_exactly_the_limit() {
    for limit in [
        Limit::token_bucket("limit", Quota::per_day(1_000)).unwrap(),
        Limit::fixed_window("limit", Quota::per_day(1_000)).unwrap(),
        Limit::sliding_log("limit", Quota::per_day(1_000)).unwrap(),
    ] {
        let store = MemoryStore::with_clock(ManualClock::new());
        let allowed = AtomicU32::new(0);
        thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    for _ in 0..500 {
                        if decide(&store, &limit, &key(1)) {
                            allowed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(allowed.into_inner(), 1_000, "{limit}");
    }
}

/// A check on a store that answers at once.
fn decide(store: &impl Store, limit: &Limit, key: &Key) -> bool {
    let mut answer = store.apply(Operation::Charge(Check::new(limit, key).into()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match Future::poll(std::pin::Pin::new(&mut answer), &mut context) {
        std::task::Poll::Ready(decision) => decision.unwrap().allowed(),
        std::task::Poll::Pending => panic!("the embedded store answers at once"),
    }
}

#[test]
fn crossing_groups_do_not_deadlock_and_are_charged_as_a_whole() {
    let store = MemoryStore::with_clock(ManualClock::new());
    let limit = Limit::fixed_window("limit", Quota::per_day(2_000)).unwrap();
    let keys: Vec<Key> = (0..8).map(key).collect();
    thread::scope(|threads| {
        for number in 0..8 {
            let (store, limit, keys) = (&store, &limit, &keys);
            threads.spawn(move || {
                for turn in 0..250 {
                    let (one, other) = (&keys[number], &keys[(number + turn % 7 + 1) % 8]);
                    let group = [
                        Check::new(limit, other).with_cost(1),
                        Check::new(limit, one),
                    ];
                    drop(store.apply(Operation::Charge(Group::new(group).unwrap())));
                }
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let limiter = RateLimiter::new(store);
    let used: u64 = keys
        .iter()
        .map(|key| {
            2_000
                - runtime
                    .block_on(limiter.peek(&limit, key, 0))
                    .unwrap()
                    .remaining()
        })
        .sum();
    assert_eq!(used, 8 * 250 * 2);
}

#[tokio::test(start_paused = true)]
async fn full_budgets_are_removed_while_one_key_is_busy() {
    let store = Arc::new(MemoryStore::new());
    let limiter = RateLimiter::new(Arc::clone(&store));
    let limit = Limit::token_bucket("limit", Quota::per_second(1)).unwrap();
    for number in 0..10_000 {
        drop(limiter.check(&limit, &key(number)).await.unwrap());
    }
    assert_eq!(store.len(), 10_000);

    advance(Duration::from_secs(2)).await;
    for _ in 0..1_000 {
        advance(Duration::from_millis(4)).await;
        drop(limiter.check(&limit, &key(0)).await.unwrap());
    }
    assert_eq!(store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_by_the_keys_in_use() {
    let store = Arc::new(MemoryStore::new());
    let limiter = RateLimiter::new(Arc::clone(&store));
    let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
    // A new key every millisecond, each full again after a second: 1,000 are in use.
    let mut most = 0;
    for number in 0..20_000 {
        drop(limiter.check(&limit, &key(number)).await.unwrap());
        advance(Duration::from_millis(1)).await;
        most = most.max(store.len());
    }
    assert!((1_000..4_000).contains(&most), "{most}");
}

#[tokio::test]
async fn peek_refund_and_zero_cost_store_no_entry() {
    let store = Arc::new(MemoryStore::new());
    let limiter = RateLimiter::new(Arc::clone(&store));
    let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
    drop(limiter.peek(&limit, &key(1), 1).await.unwrap());
    drop(limiter.check_n(&limit, &key(1), 0).await.unwrap());
    limiter
        .refund(&limit, &key(1), 1, Receipt::new(Duration::ZERO, 1))
        .await
        .unwrap();
    assert!(store.is_empty());
    drop(limiter.check(&limit, &key(1)).await.unwrap());
    limiter.reset(&limit, &key(1)).await.unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn capped_store_never_evicts_a_denied_key() {
    for cap in [1, 10, 100, 5_000] {
        let store = Arc::new(
            MemoryStore::builder()
                .clock(ManualClock::new())
                .max_keys(cap)
                .build(),
        );
        let limiter = RateLimiter::new(Arc::clone(&store));
        let limit = Limit::fixed_window("limit", Quota::per_minute(2)).unwrap();
        let denied = Key::new("denied");
        while limiter.check(&limit, &denied).await.unwrap().allowed() {}
        for number in 0..10_000 {
            // Whether a fresh key finds room depends on the other keys of its shard.
            let decision = limiter.check(&limit, &key(number)).await;
            assert!(decision.is_ok_and(|it| it.allowed()) || cap < 100);
            assert!(store.len() <= cap);
        }
        assert!(
            !limiter.check(&limit, &denied).await.unwrap().allowed(),
            "cap {cap}"
        );
    }
}

#[tokio::test]
async fn store_full_of_denied_keys_is_an_error() {
    let limiter = RateLimiter::new(
        MemoryStore::builder()
            .clock(ManualClock::new())
            .max_keys(10)
            .build(),
    );
    let limit = Limit::fixed_window("limit", Quota::per_minute(1)).unwrap();
    for number in 0..10 {
        assert!(limiter.check(&limit, &key(number)).await.unwrap().allowed());
    }
    let error = limiter.check(&limit, &key(10)).await.unwrap_err();
    assert!(error.is_full() && !error.may_have_charged(), "{error}");
    assert!(error.to_string().contains("max_keys"), "{error}");

    let (known, fresh, other) = (key(3), key(11), key(12));
    let group = [
        Check::new(&limit, &other).with_cost(1),
        Check::new(&limit, &fresh),
    ];
    assert!(limiter.check_all(&group).await.unwrap_err().is_full());
    // A denied group stays denied, with or without room for its other key.
    let group = [
        Check::new(&limit, &known).with_cost(1),
        Check::new(&limit, &fresh),
    ];
    assert!(!limiter.check_all(&group).await.unwrap().allowed());
    assert!(
        !limiter
            .check(&limit, &fresh)
            .await
            .is_ok_and(|decision| decision.allowed())
    );
}

#[tokio::test]
async fn full_budget_makes_room() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::new(
        MemoryStore::builder()
            .clock(clock.clone())
            .max_keys(10)
            .build(),
    );
    let limit = Limit::fixed_window("limit", Quota::per_minute(1)).unwrap();
    for number in 0..30 {
        if number % 10 == 0 {
            clock.advance(Duration::from_secs(60));
        }
        assert!(limiter.check(&limit, &key(number)).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn denied_key_is_kept_after_checks_of_other_costs() {
    let limiter = RateLimiter::new(
        MemoryStore::builder()
            .clock(ManualClock::new())
            .max_keys(64)
            .build(),
    );
    let quota = Quota::new(1_000, Duration::from_secs(1_000));
    let limit = Limit::gcra("limit", quota).unwrap();
    let longer = Limit::gcra("longer", Quota::per_day(1_000)).unwrap();
    let denied = Key::new("denied");
    drop(limiter.check_n(&limit, &denied, 990).await.unwrap());
    assert!(
        !limiter
            .check_n(&limit, &denied, 100)
            .await
            .unwrap()
            .allowed()
    );
    drop(limiter.check_n(&limit, &denied, 0).await.unwrap());
    drop(limiter.check_n(&limit, &denied, 5_000).await.unwrap());
    for number in 0..300 {
        drop(limiter.check(&longer, &key(number)).await.unwrap());
    }
    assert!(
        !limiter
            .check_n(&limit, &denied, 100)
            .await
            .unwrap()
            .allowed()
    );
}

#[tokio::test]
async fn replenished_key_can_make_room() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::new(
        MemoryStore::builder()
            .clock(clock.clone())
            .max_keys(64)
            .build(),
    );
    let quota = Quota::new(1_000, Duration::from_secs(1_000));
    let limit = Limit::gcra("limit", quota).unwrap();
    for number in 0..64 {
        drop(limiter.check_n(&limit, &key(number), 1_000).await.unwrap());
    }
    assert!(
        limiter
            .check(&limit, &Key::new("fresh"))
            .await
            .unwrap_err()
            .is_full()
    );
    clock.advance(Duration::from_secs(500));
    assert!(
        limiter
            .check(&limit, &Key::new("fresh"))
            .await
            .unwrap()
            .allowed()
    );
}

#[tokio::test]
async fn refunded_or_reset_key_can_make_room() {
    for resets in [false, true] {
        let limiter = RateLimiter::new(
            MemoryStore::builder()
                .clock(ManualClock::new())
                .max_keys(1)
                .build(),
        );
        let limit = Limit::fixed_window("limit", Quota::per_minute(2)).unwrap();
        let denied = Key::new("denied");
        let receipt = limiter.check(&limit, &denied).await.unwrap().receipt();
        let receipt = receipt.unwrap();
        while limiter.check(&limit, &denied).await.unwrap().allowed() {}
        assert!(
            limiter
                .check(&limit, &Key::new("fresh"))
                .await
                .unwrap_err()
                .is_full()
        );
        let changed = match resets {
            true => limiter.reset(&limit, &denied).await,
            false => limiter.refund(&limit, &denied, 1, receipt).await,
        };
        changed.unwrap();
        assert!(
            limiter
                .check(&limit, &Key::new("fresh"))
                .await
                .unwrap()
                .allowed(),
            "{resets}"
        );
    }
}
