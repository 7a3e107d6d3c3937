//! Waiting where it meets groups, resets, outages, other quotas and odd orders of events.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use tokio::time::{Instant, sleep};
use tollgate::key::Global;
use tollgate::layer::OnStoreFailure;
use tollgate::store::{Change, Operation};
use tollgate::{Check, Decision, Error, Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::budget::{Budget, SECOND, START, quota};
use crate::support::requests::{plain, request, status};
use crate::support::scripted::{Scripted, decide, late};

const MS: Duration = Duration::from_millis(1);

fn ten() -> Limit {
    Limit::token_bucket("limit", Quota::per_second(10).burst(1)).unwrap()
}

fn go(l: &RateLimiter, m: &Limit, max: Duration) -> tokio::task::JoinHandle<(bool, Duration)> {
    let (l, m, s) = (l.clone(), m.clone(), Instant::now());
    tokio::spawn(async move {
        (
            l.acquire(&m, &Key::new("k"), 1, max)
                .await
                .unwrap()
                .allowed(),
            s.elapsed(),
        )
    })
}

#[tokio::test(start_paused = true)]
async fn reset_voids_units_that_a_waiter_left() {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten(), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let mut first = Box::pin(limiter.acquire(&limit, &key, 1, 10_000 * MS));
    assert!(tokio::time::timeout(10 * MS, &mut first).await.is_err());
    let second = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { l.acquire(&m, &k, 1, 10_000 * MS).await.unwrap() })
    };
    sleep(10 * MS).await;
    drop(first);
    limiter.reset(&limit, &key).await.unwrap();
    assert!(second.await.unwrap().allowed());
    assert_eq!(
        limiter.peek(&limit, &key, 0).await.unwrap().remaining(),
        0,
        "charged once"
    );
}

#[tokio::test(start_paused = true)]
async fn group_behind_a_reservation_gets_its_units() {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten(), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let started = Instant::now();
    let first = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { l.acquire(&m, &k, 1, 10_000 * MS).await.unwrap() })
    };
    tokio::task::yield_now().await;
    let other = Limit::fixed_window("day", Quota::per_day(100)).unwrap();
    let group = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move {
            l.acquire_all([Check::new(&m, &k), Check::new(&other, &k)], 10_000 * MS)
                .await
                .unwrap()
        })
    };
    tokio::task::yield_now().await;
    sleep(50 * MS).await;
    first.abort();
    assert!(group.await.unwrap().allowed());
    assert_eq!(started.elapsed(), 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn stale_units_are_not_used_beside_a_full_budget() {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten(), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let go = || {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move {
            let s = Instant::now();
            drop(l.acquire(&m, &k, 1, 100_000 * MS).await.unwrap());
            s.elapsed()
        })
    };
    let first = go();
    tokio::task::yield_now().await;
    // A group that waits long for another limit.
    let other = Limit::fixed_window("other", Quota::new(1, Duration::from_secs(10))).unwrap();
    drop(limiter.check(&other, &key).await.unwrap());
    let group = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move {
            l.acquire_all([Check::new(&m, &k), Check::new(&other, &k)], 100_000 * MS)
                .await
                .unwrap()
        })
    };
    tokio::task::yield_now().await;
    let third = go();
    tokio::task::yield_now().await;
    sleep(50 * MS).await;
    first.abort();
    assert!(group.await.unwrap().allowed());
    assert_eq!(
        third.await.unwrap(),
        100 * MS,
        "the group waits for its other limit alone"
    );
}

#[tokio::test(start_paused = true)]
async fn group_of_two_kinds_under_one_name_does_not_wait_for_itself() {
    let limiter = RateLimiter::in_memory();
    let (a, b) = (
        Limit::token_bucket("api", Quota::per_second(10)).unwrap(),
        Limit::fixed_window("api", Quota::per_day(100)).unwrap(),
    );
    let started = Instant::now();
    let d = limiter
        .acquire_all([Check::new(&a, "k"), Check::new(&b, "k")], 5_000 * MS)
        .await
        .unwrap();
    assert!(d.allowed());
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn max_waiters_bounds_a_leaky_bucket_as_a_queue() {
    let limit = Limit::leaky_bucket("q", Quota::per_second(1).burst(1_000)).unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, Global)
        .unwrap()
        .wait_up_to(3_000_000 * MS)
        .unwrap()
        .max_waiters(3);
    let app = Router::new().route("/", any(|| async { "x" })).layer(layer);
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let app = app.clone();
        all.spawn(async move { status(&app, plain("/")).await });
    }
    let denied = all
        .join_all()
        .await
        .into_iter()
        .filter(|s| *s == 429)
        .count();
    assert_eq!(denied, 96);
}

#[tokio::test(start_paused = true)]
async fn queued_request_is_not_held_by_an_outage() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::new(
        &limiter,
        Limit::token_bucket("api", Quota::per_second(1).burst(1)).unwrap(),
        Global,
    )
    .unwrap()
    .on_store_failure(OnStoreFailure::FailClosed)
    .unwrap()
    .wait_up_to(60_000 * MS)
    .unwrap();
    let app = Router::new().route("/", any(|| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
    let go = || {
        let app = app.clone();
        let s = Instant::now();
        tokio::spawn(async move { (status(&app, plain("/")).await, s.elapsed()) })
    };
    let (one, two) = (go(), go());
    sleep(10 * MS).await;
    store.switch_off(true);
    assert_eq!(one.await.unwrap().0, 200);
    assert_eq!(
        two.await.unwrap(),
        (503, 1_000 * MS),
        "as for a request that comes now"
    );
}

#[tokio::test(start_paused = true)]
async fn request_that_fits_is_forwarded_however_much_slower_than_the_wait_the_store_is() {
    for max_wait in [MS, 10 * MS] {
        for limit in [
            Limit::token_bucket("api", Quota::per_hour(5)).unwrap(),
            Limit::sliding_window("api", Quota::per_hour(5)).unwrap(),
        ] {
            let limiter = RateLimiter::new(Scripted::asked_late(20 * MS, |_| true));
            let layer = RateLimitLayer::new(limiter, limit, Global).unwrap();
            let layer = layer.wait_up_to(max_wait).unwrap();
            let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
            let started = Instant::now();
            for _ in 0..5 {
                assert_eq!(status(&app, plain("/")).await, 200);
            }
            assert_eq!(status(&app, plain("/")).await, 429);
            assert_eq!(started.elapsed(), 6 * 20 * MS);
        }
    }
}

#[test]
fn two_refunds_before_a_turn_share_its_spare_units() {
    let mut b = Budget::new(Limit::token_bucket("api", quota(1, SECOND).burst(2)).unwrap());
    let first = b.charge(START, 1).receipt().unwrap();
    let second = b.charge(START, 1).receipt().unwrap();
    assert_eq!(
        b.reserve(START, 1, 10 * SECOND).delay(),
        Duration::from_secs(1)
    );
    drop(b.reserve(START, 1, 10 * SECOND));
    // At its turn a check of one unit leaves room for one.
    drop(b.refund(START, 1, first));
    drop(b.refund(START, 1, second));
    assert_eq!(
        b.reserve(START, 1, 10 * SECOND).delay(),
        Duration::from_secs(2)
    );
}

#[tokio::test]
async fn redis_keeps_the_turns_of_reserved_units() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().build().unwrap());
    let limit = Limit::token_bucket("api", Quota::per_minute(1).burst(2)).unwrap();
    let key = Key::new("k");
    let first = limiter
        .check(&limit, &key)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    let second = limiter
        .check(&limit, &key)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    let reserve = async || {
        let check = Check::new(&limit, &key).with_max_wait(Duration::from_secs(3_600));
        limiter
            .apply(Operation::Charge(check.into()))
            .await
            .unwrap()
            .delay()
            .as_secs_f64()
            / 60.0
    };
    reserve().await;
    reserve().await;
    limiter.refund(&limit, &key, 1, first).await.unwrap();
    limiter.refund(&limit, &key, 1, second).await.unwrap();
    let delay = reserve().await;
    assert!((1.9..=2.0).contains(&delay), "{delay} minutes");
}

#[tokio::test(start_paused = true)]
async fn next_waiter_does_not_take_a_turn_after_its_deadline() {
    let limiter = RateLimiter::in_memory();
    let slow = Limit::token_bucket("slow", Quota::per_second(1).burst(1)).unwrap();
    drop(limiter.check(&slow, &Key::new("k")).await.unwrap());
    let first = go(&limiter, &slow, 10_000 * MS);
    tokio::task::yield_now().await;
    let second = go(&limiter, &slow, 500 * MS);
    sleep(100 * MS).await;
    first.abort();
    let (allowed, after) = second.await.unwrap();
    assert!(!allowed && after <= 500 * MS, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn next_waiter_under_another_quota_reserves_its_own() {
    let limiter = RateLimiter::in_memory();
    let (slow, fast) = (
        Limit::token_bucket("a", Quota::per_second(1).burst(1)).unwrap(),
        Limit::token_bucket("a", Quota::per_second(10).burst(1)).unwrap(),
    );
    drop(limiter.check(&slow, &Key::new("k")).await.unwrap());
    let first = go(&limiter, &slow, 10_000 * MS);
    tokio::task::yield_now().await;
    let second = go(&limiter, &fast, 10_000 * MS);
    sleep(50 * MS).await;
    first.abort();
    let (allowed, after) = second.await.unwrap();
    assert!(allowed && after < 900 * MS, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn reset_ends_the_wait_of_every_waiter() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::token_bucket("limit", Quota::per_second(10).burst(2)).unwrap();
    let key = Key::new("k");
    drop(limiter.check_n(&limit, &key, 2).await.unwrap());
    let waiters = [(); 3].map(|()| go(&limiter, &limit, 10_000 * MS));
    sleep(20 * MS).await;
    limiter.reset(&limit, &key).await.unwrap();
    let mut times = Vec::new();
    for w in waiters {
        times.push(w.await.unwrap());
    }
    assert_eq!(times, [(true, 20 * MS), (true, 20 * MS), (true, 120 * MS)]);
}

#[tokio::test(start_paused = true)]
async fn waiter_that_leaves_after_a_reset_hands_over_no_units() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::token_bucket("limit", Quota::per_second(1).burst(5)).unwrap();
    let key = Key::new("k");
    drop(limiter.check_n(&limit, &key, 5).await.unwrap());
    let [first, second, third] = [(); 3].map(|()| go(&limiter, &limit, 15_000 * MS));
    sleep(20 * MS).await;
    limiter.reset(&limit, &key).await.unwrap();
    // It holds units that the reset has given back, and has not run since.
    first.abort();
    assert_eq!(second.await.unwrap(), (true, 20 * MS));
    assert_eq!(third.await.unwrap(), (true, 20 * MS));
    let left = limiter.peek(&limit, &key, 0).await.unwrap().remaining();
    assert_eq!(left, 3, "each was charged");
}

#[tokio::test(start_paused = true)]
async fn refund_does_not_void_a_reservation() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::token_bucket("limit", Quota::per_second(10).burst(2)).unwrap();
    let key = Key::new("k");
    let receipt = limiter
        .check_n(&limit, &key, 2)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    let waiter = go(&limiter, &limit, 10_000 * MS);
    sleep(20 * MS).await;
    limiter.refund(&limit, &key, 0, receipt).await.unwrap();
    assert_eq!(waiter.await.unwrap(), (true, 100 * MS));
    assert_eq!(
        limiter.peek(&limit, &key, 2).await.unwrap().retry_after(),
        Some(200 * MS)
    );
}

#[tokio::test(start_paused = true)]
async fn cheap_request_does_not_pass_an_expensive_one_that_waits() {
    let limit = Limit::sliding_log("api", Quota::new(2, Duration::from_secs(1))).unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, Global)
        .unwrap()
        .cost(|r| r.headers["cost"].to_str().unwrap().parse().unwrap())
        .wait_up_to(10_000 * MS)
        .unwrap();
    let app = Router::new().route("/", any(|| async { "x" })).layer(layer);
    let of = |cost: u32| {
        request("GET", "/")
            .header("cost", cost)
            .body(Body::empty())
            .unwrap()
    };
    let s = Instant::now();
    assert_eq!(status(&app, of(1)).await, 200);
    let big = {
        let (app, r) = (app.clone(), of(2));
        tokio::spawn(async move {
            status(&app, r).await;
            s.elapsed()
        })
    };
    sleep(10 * MS).await;
    let small = {
        let (app, r) = (app.clone(), of(1));
        tokio::spawn(async move {
            status(&app, r).await;
            s.elapsed()
        })
    };
    assert_eq!(
        (big.await.unwrap(), small.await.unwrap()),
        (1_000 * MS, 2_000 * MS)
    );
}

#[tokio::test(start_paused = true)]
async fn group_that_can_never_be_allowed_does_not_queue_behind_waiters() {
    let (limiter, key) = (RateLimiter::in_memory(), Key::new("k"));
    let log = Limit::sliding_log("log", Quota::per_second(5)).unwrap();
    let small = Limit::sliding_log("small", Quota::per_second(5)).unwrap();
    drop(limiter.check_n(&log, &key, 5).await.unwrap());
    let waiter = go(&limiter, &log, 10_000 * MS);
    sleep(10 * MS).await;
    let start = Instant::now();
    let group = vec![
        Check::new(&log, &key),
        Check::new(&small, &key).with_cost(100),
    ];
    let denied = limiter.acquire_all(group, 10_000 * MS).await.unwrap();
    assert!(
        denied.exceeds_capacity() && start.elapsed().is_zero(),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(waiter.await.unwrap(), (true, 1_000 * MS));
}

#[tokio::test(start_paused = true)]
async fn given_up_units_return_to_a_store_that_answers_later() {
    let limiter = RateLimiter::new(Scripted::asked_late(5 * MS, |operation| {
        matches!(operation, Operation::Change(_, Change::Settle { .. }))
    }));
    drop(limiter.check(&ten(), &Key::new("k")).await.unwrap());
    let waiter = go(&limiter, &ten(), 10_000 * MS);
    sleep(20 * MS).await;
    waiter.abort();
    sleep(10 * MS).await;
    assert_eq!(
        limiter
            .peek(&ten(), &Key::new("k"), 1)
            .await
            .unwrap()
            .retry_after(),
        Some(70 * MS)
    );
}

#[test]
fn reservation_before_the_last_keeps_its_share_after_a_small_charge() {
    let mut b = Budget::new(Limit::token_bucket("api", quota(1, SECOND).burst(4)).unwrap());
    drop(b.charge(START, 4));
    let big = b.reserve(START, 4, 10 * SECOND).receipt().unwrap();
    drop(b.reserve(START, 1, 10 * SECOND));
    // The turns are at 4 and 5 s. Three of the four units are not behind the later turn.
    drop(b.refund(START, 4, big));
    assert_eq!(
        b.reserve(START, 1, 20 * SECOND).delay(),
        Duration::from_secs(3)
    );
}

#[tokio::test(start_paused = true)]
async fn acquire_asks_again_after_a_limit_failed_closed() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let limit = ten()
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    store.switch_off(true);
    let waiter = go(&limiter, &limit, 10_000 * MS);
    sleep(2_500 * MS).await;
    store.switch_off(false);
    assert_eq!(waiter.await.unwrap(), (true, 3_000 * MS));
    store.switch_off(true);
    assert_eq!(
        go(&limiter, &limit, 500 * MS).await.unwrap(),
        (false, Duration::ZERO)
    );
}

type Waiting = std::pin::Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

/// Drops a future when it is woken.
struct DropsWhenWoken<T: Send>(std::sync::Mutex<Option<T>>);

impl<T: Send + 'static> std::task::Wake for DropsWhenWoken<T> {
    fn wake(self: std::sync::Arc<Self>) {
        let dropped = self.0.lock().unwrap().take();
        drop(dropped);
    }
}

#[test]
fn waker_may_drop_another_waiter_at_once() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let limiter = RateLimiter::in_memory();
            let limit = Limit::fixed_window("limit", Quota::per_hour(1)).unwrap();
            let receipt = limiter.check(&limit, "k").await.unwrap().receipt().unwrap();
            let waiting = || -> Waiting {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                Box::pin(async move { limiter.acquire(&limit, "k", 1, 7_200_000 * MS).await })
            };
            let (mut first, mut second) = (waiting(), waiting());
            let polled = |waiter: &mut Waiting, waker: &std::task::Waker| {
                let mut cx = std::task::Context::from_waker(waker);
                waiter.as_mut().poll(&mut cx).is_pending()
            };
            assert!(polled(&mut first, std::task::Waker::noop()));
            assert!(polled(&mut second, std::task::Waker::noop()));
            let drops = DropsWhenWoken(std::sync::Mutex::new(Some(second)));
            let waker = std::sync::Arc::new(drops).into();
            assert!(polled(&mut first, &waker));
            limiter.refund(&limit, "k", 1, receipt).await.unwrap();
            assert!(!polled(&mut first, std::task::Waker::noop()));
        });
        done.send(()).unwrap();
    });
    let finished = is_done.recv_timeout(20_000 * MS);
    assert!(
        finished.is_ok(),
        "the waker waits for a lock of its own thread"
    );
}

/// A store whose charges are decided at once, and answered after 100 ms. Other operations are
/// answered at once.
fn answering_charges_late() -> Scripted {
    Scripted::new(|memory, operation| {
        let is_charge = matches!(operation, Operation::Charge(_));
        let answer = decide(memory, operation);
        match is_charge {
            true => late(100 * MS, answer),
            false => answer,
        }
    })
}

#[tokio::test(start_paused = true)]
async fn refund_that_comes_before_a_denial_wakes_the_denied_caller() {
    for limit in [
        Limit::fixed_window("limit", Quota::per_hour(5)).unwrap(),
        Limit::sliding_log("limit", Quota::per_hour(5)).unwrap(),
    ] {
        let limiter = RateLimiter::new(answering_charges_late());
        let key = Key::new("k");
        let charged = limiter.check_n(&limit, &key, 5).await.unwrap();
        let waiter = go(&limiter, &limit, 7_200_000 * MS);
        sleep(50 * MS).await;
        let receipt = charged.receipt().unwrap();
        limiter.refund(&limit, &key, 1, receipt).await.unwrap();
        assert_eq!(waiter.await.unwrap(), (true, 200 * MS), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn refund_serves_waiters_that_are_denied_already_and_still_queue() {
    let limiter = RateLimiter::new(answering_charges_late());
    let limit = Limit::fixed_window("limit", Quota::per_hour(5)).unwrap();
    let key = Key::new("k");
    let charged = limiter.check_n(&limit, &key, 5).await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| go(&limiter, &limit, 7_200_000 * MS))
        .collect();
    sleep(1_000 * MS).await;
    let receipt = charged.receipt().unwrap();
    limiter.refund(&limit, &key, 3, receipt).await.unwrap();
    for waiter in waiters {
        let (allowed, after) = waiter.await.unwrap();
        assert!(allowed && after < 2_000 * MS, "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refund_that_comes_before_a_denial_wakes_a_group_for_its_other_limit() {
    let limiter = RateLimiter::new(answering_charges_late());
    let key = Key::new("k");
    let first = Limit::fixed_window("first", Quota::per_minute(5)).unwrap();
    let second = Limit::fixed_window("second", Quota::per_hour(5)).unwrap();
    let charged = limiter.check_n(&second, &key, 5).await.unwrap();
    drop(limiter.check_n(&first, &key, 5).await.unwrap());
    let group = [Check::new(&first, &key), Check::new(&second, &key)];
    let started = Instant::now();
    let acquired = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire_all(group, 7_200_000 * MS).await.unwrap() })
    };
    // Both limits deny it. The units of the second come back before it has a place.
    sleep(50 * MS).await;
    let receipt = charged.receipt().unwrap();
    limiter.refund(&second, &key, 1, receipt).await.unwrap();
    assert!(acquired.await.unwrap().allowed());
    assert!(started.elapsed() <= 61_000 * MS, "{:?}", started.elapsed());
}
