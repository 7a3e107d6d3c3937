//! `RateLimiter` without HTTP: waiting, turns, groups and registered names.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Check, Decision, Key, Limit, Quota, RateLimiter};

use crate::support::scripted::Scripted;

const MS: Duration = Duration::from_millis(1);

fn ten_a_second(burst: u64) -> Limit {
    Limit::gcra("limit", Quota::per_second(10).burst(burst)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_exactly_until_units_are_available() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(2), Key::new("k"));
    let started = Instant::now();
    for waited in [0, 0, 100, 200, 300] {
        let decision = limiter.acquire(&limit, &key, 1, 1_000 * MS).await.unwrap();
        assert!(decision.allowed());
        assert_eq!(started.elapsed(), waited * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_denies_at_once_what_max_wait_cannot_satisfy() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(2), Key::new("k"));
    let started = Instant::now();
    assert!(
        limiter
            .acquire(&limit, &key, 2, Duration::ZERO)
            .await
            .unwrap()
            .allowed()
    );
    let decision = limiter.acquire(&limit, &key, 2, 199 * MS).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.retry_after(), Some(200 * MS));
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(
        limiter
            .acquire(&limit, &key, 2, 200 * MS)
            .await
            .unwrap()
            .allowed()
    );
    assert_eq!(started.elapsed(), 200 * MS);

    let never = limiter
        .acquire(&limit, &key, 3, Duration::MAX)
        .await
        .unwrap();
    assert!(never.exceeds_capacity());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_of_arrival() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(5), Key::new("k"));
    drop(limiter.check_n(&limit, &key, 5).await.unwrap());
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = JoinSet::new();
    // Small costs behind a large one do not starve it.
    for (number, units) in [(0, 5), (1, 1), (2, 1), (3, 1)] {
        let (limiter, limit, key, done) =
            (limiter.clone(), limit.clone(), key.clone(), done.clone());
        waiters.spawn(async move {
            let decision = limiter
                .acquire(&limit, &key, units, 10_000 * MS)
                .await
                .unwrap();
            assert!(decision.allowed());
            done.send(number).unwrap();
        });
        tokio::task::yield_now().await;
    }
    drop(done);
    let started = Instant::now();
    for expected in 0..4 {
        assert_eq!(order.recv().await, Some(expected));
    }
    assert_eq!(started.elapsed(), 800 * MS);
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_gives_up_its_turn() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(1), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let cancelled = {
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { limiter.acquire(&limit, &key, 1, 10_000 * MS).await })
    };
    tokio::task::yield_now().await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    let started = Instant::now();
    assert!(
        limiter
            .acquire(&limit, &key, 1, 100 * MS)
            .await
            .unwrap()
            .allowed()
    );
    assert_eq!(started.elapsed(), 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn acquire_is_denied_at_once_behind_a_queue_that_is_too_long() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(1), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let mut front = JoinSet::new();
    for _ in 0..5 {
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        front.spawn(async move { limiter.acquire(&limit, &key, 1, 10_000 * MS).await });
    }
    tokio::task::yield_now().await;
    let started = Instant::now();
    let decision = limiter.acquire(&limit, &key, 1, 250 * MS).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(
        decision.retry_after(),
        Some(600 * MS),
        "after the five in front"
    );
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(
        front
            .join_all()
            .await
            .into_iter()
            .all(|it| it.unwrap().allowed())
    );
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_out_a_leaky_buckets_delay() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::leaky_bucket("queue", Quota::per_second(10)).unwrap();
    let key = Key::new("k");
    let started = Instant::now();
    let mut waiters = JoinSet::new();
    for _ in 0..5 {
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        waiters.spawn(async move {
            drop(limiter.acquire(&limit, &key, 1, 10_000 * MS).await.unwrap());
            started.elapsed()
        });
    }
    let mut left = waiters.join_all().await;
    left.sort();
    assert_eq!(left, [0, 100, 200, 300, 400].map(|waited| waited * MS));
}

#[tokio::test(start_paused = true)]
async fn delay_longer_than_max_wait_is_refunded() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::leaky_bucket("queue", Quota::per_second(10)).unwrap();
    let key = Key::new("k");
    drop(limiter.check_n(&limit, &key, 4).await.unwrap());
    let decision = limiter.acquire(&limit, &key, 1, 150 * MS).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.retry_after(), Some(250 * MS));
    assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 6);
}

#[tokio::test(start_paused = true)]
async fn group_is_acquired_as_a_whole() {
    let limiter = RateLimiter::in_memory();
    let fast = Limit::gcra("fast", Quota::per_second(10).burst(1)).unwrap();
    let slow = Limit::gcra("slow", Quota::per_second(2).burst(1)).unwrap();
    let (alice, acme) = (Key::new("alice"), Key::new("acme"));
    let group = [
        Check::new(&fast, &alice).with_cost(1),
        Check::new(&slow, &acme),
    ];
    assert!(limiter.check_all(&group).await.unwrap().allowed());

    let started = Instant::now();
    assert!(
        limiter
            .acquire_all(&group, 1_000 * MS)
            .await
            .unwrap()
            .allowed()
    );
    assert_eq!(started.elapsed(), 500 * MS);
    assert_eq!(limiter.peek(&fast, &alice, 0).await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn empty_group_and_duplicate_budget_are_errors() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(1), Key::new("k"));
    let error = limiter.check_all([]).await.unwrap_err();
    assert!(error.is_misuse(), "{error}");
    let twice = [
        Check::new(&limit, &key).with_cost(1),
        Check::new(&limit, &key),
    ];
    let error = limiter.acquire_all(&twice, MS).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid call of the rate limit store: the group has limit `limit` with key `k` twice; use \
         one check with the sum of the costs, or give one of two limits another name"
    );
}

#[tokio::test]
async fn name_is_registered_for_one_quota() {
    let limiter = RateLimiter::in_memory();
    limiter.register(&ten_a_second(1)).unwrap();
    limiter.register(&ten_a_second(1)).unwrap();
    let error = limiter.register(&ten_a_second(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limit `limit`: the name is registered for 10 per 1s, burst 1 (GCRA), and this limit is 10 \
         per 1s, burst 2 (GCRA): limits of one name share what they count; use another name, or \
         choose the limit for each request with `RateLimitLayer::from_fn`"
    );
}

#[tokio::test(start_paused = true)]
async fn zero_cost_and_excessive_cost_do_not_wait_for_a_turn() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (ten_a_second(1), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let waiter = {
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { limiter.acquire(&limit, &key, 1, 10_000 * MS).await })
    };
    tokio::task::yield_now().await;
    let started = Instant::now();
    assert!(
        limiter
            .acquire(&limit, &key, 0, 50 * MS)
            .await
            .unwrap()
            .allowed()
    );
    assert!(
        limiter
            .acquire(&limit, &key, 2, 50 * MS)
            .await
            .unwrap()
            .exceeds_capacity()
    );
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(waiter.await.unwrap().unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn refund_and_reset_wake_the_waiter() {
    for reset in [false, true] {
        let limiter = RateLimiter::in_memory();
        let limit = Limit::fixed_window("limit", Quota::per_hour(1)).unwrap();
        let key = Key::new("k");
        let receipt = limiter
            .check(&limit, &key)
            .await
            .unwrap()
            .receipt()
            .unwrap();
        let waiter = {
            let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
            tokio::spawn(async move { limiter.acquire(&limit, &key, 1, Duration::MAX).await })
        };
        tokio::time::sleep(100 * MS).await;
        let started = Instant::now();
        if reset {
            limiter.reset(&limit, &key).await.unwrap();
        } else {
            limiter.refund(&limit, &key, 1, receipt).await.unwrap();
        }
        assert!(waiter.await.unwrap().unwrap().allowed());
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn refund_wakes_only_waiters_of_its_key() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let limit = Limit::fixed_window("limit", Quota::per_hour(1)).unwrap();
    let receipt = Arc::new(std::sync::Mutex::new(None));
    let mut waiters = JoinSet::new();
    for number in 0..50_u32 {
        let (limiter, limit, its_receipt) = (limiter.clone(), limit.clone(), Arc::clone(&receipt));
        waiters.spawn(async move {
            let key = Key::from(number);
            let charged = limiter.check(&limit, &key).await.unwrap();
            if number == 7 {
                *its_receipt.lock().unwrap() = charged.receipt();
            }
            limiter
                .acquire(&limit, &key, 1, Duration::MAX)
                .await
                .unwrap()
        });
    }
    tokio::time::sleep(MS).await;
    store.asked();
    let receipt = receipt.lock().unwrap().unwrap();
    limiter
        .refund(&limit, &Key::from(7_u32), 1, receipt)
        .await
        .unwrap();
    assert!(waiters.join_next().await.unwrap().unwrap().allowed());
    assert_eq!(store.asked(), 2, "the refund, and one waiter");
}

#[tokio::test(start_paused = true)]
async fn crossing_groups_do_not_deadlock() {
    let limiter = RateLimiter::in_memory();
    let limit = ten_a_second(1);
    let mut waiters = JoinSet::new();
    for number in 0..20 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        waiters.spawn(async move {
            let keys = [Key::new("a"), Key::new("b")];
            let (one, other) = (&keys[number % 2], &keys[1 - number % 2]);
            let group = [
                Check::new(&limit, one).with_cost(1),
                Check::new(&limit, other),
            ];
            limiter
                .acquire_all(&group, Duration::from_secs(60))
                .await
                .unwrap()
        });
    }
    assert!(waiters.join_all().await.iter().all(Decision::allowed));
}

#[tokio::test(start_paused = true)]
async fn denied_group_reports_the_deciding_limit_and_its_budget() {
    let limiter = RateLimiter::in_memory();
    let queue = Limit::leaky_bucket("queue", Quota::per_second(1)).unwrap();
    let queue = Limit::leaky_bucket(queue.name(), queue.quota().burst(5)).unwrap();
    let wide = Limit::gcra("wide", Quota::per_second(100)).unwrap();
    let key = Key::new("k");
    drop(limiter.check_n(&queue, &key, 3).await.unwrap());
    let group = [
        Check::new(&wide, &key).with_cost(1),
        Check::new(&queue, &key),
    ];
    let decision = limiter.acquire_all(&group, 1_000 * MS).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.retry_after(), Some(2_000 * MS));
    assert_eq!(
        (decision.remaining(), decision.reset_after()),
        (2, 3_000 * MS)
    );
    assert!(decision.verdicts().contains(decision.deciding()));
    assert_eq!(limiter.peek(&wide, &key, 0).await.unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn limit_with_the_longest_delay_denies_a_group_that_would_be_late() {
    let limiter = RateLimiter::in_memory();
    let queue = Limit::leaky_bucket("queue", Quota::per_second(1).burst(50)).unwrap();
    let tight = Limit::gcra("tight", Quota::per_second(1)).unwrap();
    let key = Key::new("k");
    drop(limiter.check_n(&queue, &key, 10).await.unwrap());
    let group = [Check::new(&tight, &key), Check::new(&queue, &key)];
    let decision = limiter.acquire_all(&group, 1_000 * MS).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.limit().name(), "queue");
    assert_eq!(decision.retry_after(), Some(9_000 * MS));
    assert_eq!(decision.verdicts()[1], *decision.deciding());
    assert!(decision.receipts().all(|receipt| receipt.is_none()));
}

#[tokio::test]
async fn operation_that_permits_do_not_have_names_what_to_do_instead() {
    let limiter = RateLimiter::in_memory();
    let exports = Limit::concurrency("exports", 1).unwrap();
    let acme = Key::new("acme");
    let lasts = std::time::Duration::from_secs(60);
    let errors = [
        (
            limiter.check(&exports, &acme).await.map(drop),
            "acquire_permit",
        ),
        (
            limiter.peek(&exports, &acme, 1).await.map(drop),
            "held_permits",
        ),
        (
            limiter.reset(&exports, &acme).await,
            "when they are dropped",
        ),
        (
            limiter.block(&exports, &acme, lasts).await,
            "block the key under a rate limit",
        ),
    ];
    for (answer, advice) in errors {
        let error = answer.unwrap_err();
        assert!(error.is_misuse());
        let error = error.to_string();
        assert!(
            error.contains("`exports` is a concurrency limit: ") && error.contains(advice),
            "{error}"
        );
    }
}
