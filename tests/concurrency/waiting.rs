//! Waiting for permits in layers: bounds, deadlines, and the order of several limits.

#![cfg(all(feature = "axum", feature = "redis", feature = "json"))]

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::key::Global;
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{app, send, status};
use crate::support::tenants::{exports, of, tenant};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn one_deadline_bounds_the_wait_for_permits_and_units() {
    let limiter = RateLimiter::in_memory();
    let rate = Limit::fixed_window("rate", Quota::new(1, 6 * SECOND)).unwrap();
    let layer = RateLimitLayer::new(&limiter, rate, tenant())
        .unwrap()
        .limit(exports(1), tenant())
        .unwrap();
    let app = app(layer.wait_up_to(5 * SECOND).unwrap());
    let first = send(&app, of("acme")).await;
    let freed = tokio::spawn(async move {
        sleep(3 * SECOND).await;
        drop(first);
    });
    let started = Instant::now();
    // A permit after three seconds, and a unit after six.
    assert_eq!(status(&app, of("acme")).await, 429);
    assert!(started.elapsed() <= 5 * SECOND, "{:?}", started.elapsed());
    freed.await.unwrap();
    sleep(4 * SECOND).await;
    assert_eq!(status(&app, of("acme")).await, 200);
}

#[tokio::test(start_paused = true)]
async fn waiters_for_permits_are_bounded_over_all_keys() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = app(layer.wait_up_to(5 * SECOND).unwrap().max_waiters(1));
    let held = [send(&app, of("acme")).await, send(&app, of("globex")).await];
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { status(&app, of("acme")).await }
    });
    sleep(SECOND).await;
    let started = Instant::now();
    assert_eq!(status(&app, of("globex")).await, 429);
    assert_eq!(started.elapsed(), Duration::ZERO, "another request waits");
    drop(held);
    assert_eq!(waiting.await.unwrap(), 200);
}

#[tokio::test(start_paused = true)]
async fn client_that_disconnected_does_not_count_as_a_waiter() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let layer = layer.wait_up_to(5 * SECOND).unwrap();
    let app = app(layer.max_waiters_per_key(100));
    let held = send(&app, of("acme")).await;
    let mut waiting = JoinSet::new();
    for _ in 0..100 {
        let app = app.clone();
        waiting.spawn(async move { status(&app, of("acme")).await });
    }
    sleep(SECOND).await;
    assert_eq!(status(&app, of("acme")).await, 429, "the queue is full");
    waiting.shutdown().await;
    let started = Instant::now();
    assert_eq!(status(&app, of("acme")).await, 429);
    assert_eq!(started.elapsed(), 5 * SECOND, "it waits");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiters_for_permits_of_a_key_are_bounded() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = app(layer.wait_up_to(5 * SECOND).unwrap().max_waiters_per_key(2));
    let held = send(&app, of("acme")).await;
    let started = Instant::now();
    let mut waiting = JoinSet::new();
    for _ in 0..5 {
        let app = app.clone();
        waiting.spawn(async move { status(&app, of("acme")).await });
    }
    for _ in 0..3 {
        assert_eq!(waiting.join_next().await.unwrap().unwrap(), 429);
        assert_eq!(started.elapsed(), Duration::ZERO, "two wait already");
    }
    let other = send(&app, of("globex")).await;
    assert_eq!(other.status(), 200);
    drop(held);
    let served = [waiting.join_next().await, waiting.join_next().await];
    assert!(
        served
            .into_iter()
            .all(|status| status.unwrap().unwrap() == 200)
    );
}

#[tokio::test(start_paused = true)]
async fn client_that_waits_for_its_own_limit_holds_no_permit_that_all_share() {
    let permits = RateLimiter::in_memory();
    let all = Limit::concurrency("all", 4).unwrap();
    let layer = RateLimitLayer::new(&permits, all.clone(), Global)
        .unwrap()
        .limit(exports(1), tenant())
        .unwrap();
    let app = app(layer.wait_up_to(5 * SECOND).unwrap());
    let held = send(&app, of("acme")).await;
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let app = app.clone();
        waiting.spawn(async move { status(&app, of("acme")).await });
    }
    sleep(SECOND).await;
    assert_eq!(permits.held_permits(&all, Key::global()), 1);
    let started = Instant::now();
    assert_eq!(status(&app, of("globex")).await, 200);
    assert_eq!(started.elapsed(), Duration::ZERO);
    drop(held);
    assert!(
        waiting
            .join_all()
            .await
            .into_iter()
            .all(|status| status == 200)
    );
}

#[tokio::test(start_paused = true)]
async fn layers_in_different_orders_do_not_wait_for_each_other() {
    let permits = RateLimiter::in_memory();
    let limit = |name: &str| Limit::concurrency(name, 1).unwrap();
    let layer = |names: [&str; 2]| {
        let layer = RateLimitLayer::new(&permits, limit(names[0]), Global).unwrap();
        let layer = layer.limit(limit(names[1]), Global).unwrap();
        layer.wait_up_to(60 * SECOND).unwrap()
    };
    let apps = [app(layer(["a", "b"])), app(layer(["b", "a"]))];
    let held = send(&apps[0], of("acme")).await;
    let mut served = JoinSet::new();
    for number in 0..40 {
        let app = apps[number % 2].clone();
        served.spawn(async move { status(&app, of("acme")).await });
    }
    sleep(SECOND).await;
    let started = Instant::now();
    drop(held);
    assert!(
        served
            .join_all()
            .await
            .into_iter()
            .all(|status| status == 200)
    );
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
}
