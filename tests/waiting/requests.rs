//! Requests that wait for their units instead of being denied.

#![cfg(feature = "axum")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use http::request::Parts;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tollgate::key::{Global, Header};
use tollgate::layer::OnStoreFailure;
use tollgate::{Check, ConfigError, Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{app, number, plain, request, send, status};
use crate::support::scripted::Scripted;

const MS: Duration = Duration::from_millis(1);

/// Ten a second, one at once, under each algorithm that has neither a window nor a queue.
fn ten_a_second() -> Limit {
    Limit::token_bucket("api", Quota::per_second(10).burst(1)).unwrap()
}

fn waiting(limiter: &RateLimiter, limit: Limit, max_wait: Duration) -> RateLimitLayer {
    RateLimitLayer::new(limiter, limit, Global)
        .unwrap()
        .wait_up_to(max_wait)
        .unwrap()
}

/// Sends a request in a task of its own, and lets it come to its wait.
async fn start(app: &Router, request: Request<Body>) -> JoinHandle<(u16, Duration)> {
    let (app, started) = (app.clone(), Instant::now());
    let task = tokio::spawn(async move { (status(&app, request).await, started.elapsed()) });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    task
}

fn of(user: &str) -> Request<Body> {
    request("GET", "/")
        .header("user", user)
        .body(Body::empty())
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn request_waits_exactly_until_its_units_are_available() {
    let quota = Quota::per_second(1);
    for limit in [
        Limit::token_bucket("api", quota),
        Limit::gcra("api", quota),
        Limit::leaky_bucket("api", quota),
        Limit::leaky_bucket_meter("api", quota),
        Limit::fixed_window("api", quota),
        Limit::sliding_log("api", quota),
    ] {
        let limit = limit.unwrap();
        let app = app(waiting(
            &RateLimiter::in_memory(),
            limit.clone(),
            5_000 * MS,
        ));
        let started = Instant::now();
        for second in 0..4 {
            let response = send(&app, plain("/")).await;
            assert_eq!(response.status(), 200, "{limit}");
            assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 0);
            assert_eq!(started.elapsed(), Duration::from_secs(second), "{limit}");
        }
    }
}

/// The check's own wait reserves its units at the first charge, before the layer knows that the
/// request has to wait.
#[tokio::test(start_paused = true)]
async fn request_whose_check_waits_by_itself_waits_for_as_long_as_the_layer_allows() {
    let limit = Limit::token_bucket("api", Quota::per_second(1).burst(1)).unwrap();
    let layer = RateLimitLayer::from_fn(RateLimiter::in_memory(), move |_: &Parts| {
        Check::new(&limit, Key::new("k"))
            .with_max_wait(60_000 * MS)
            .into()
    });
    let app = app(layer.unwrap().wait_up_to(2_500 * MS).unwrap());
    let tasks = JoinSet::from_iter((0..4).map(|_| {
        let (app, started) = (app.clone(), Instant::now());
        async move {
            (
                status(&app, plain("/")).await,
                started.elapsed().as_millis(),
            )
        }
    }));
    let mut answers = tasks.join_all().await;
    answers.sort_unstable();
    assert_eq!(answers, [(200, 0), (200, 1_000), (200, 2_000), (429, 0)]);
}

#[tokio::test(start_paused = true)]
async fn longer_wait_is_denied_at_once() {
    let limit = Limit::token_bucket("api", Quota::per_minute(1)).unwrap();
    let app = app(waiting(&RateLimiter::in_memory(), limit, 30_000 * MS));
    assert_eq!(status(&app, plain("/")).await, 200);
    let started = Instant::now();
    let response = send(&app, plain("/")).await;
    assert_eq!(
        (response.status().as_u16(), started.elapsed()),
        (429, Duration::ZERO)
    );
    assert_eq!(number(response.headers(), "retry-after"), 60);
    sleep(30_000 * MS).await;
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(started.elapsed(), 60_000 * MS);
}

#[tokio::test(start_paused = true)]
async fn requests_are_served_in_the_order_of_their_arrival() {
    for limit in [
        ten_a_second(),
        Limit::sliding_log("api", Quota::per_second(1)).unwrap(),
    ] {
        let turn =
            limit.quota().period().fixed().unwrap() / u32::try_from(limit.quota().limit()).unwrap();
        let app = app(waiting(&RateLimiter::in_memory(), limit, 60_000 * MS));
        let mut requests = Vec::new();
        for _ in 0..20 {
            requests.push(start(&app, plain("/")).await);
        }
        for (number, request) in (0..).zip(requests) {
            assert_eq!(request.await.unwrap(), (200, turn * number));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_bounded_in_all() {
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&limiter, ten_a_second(), Header::new("user").unwrap())
        .unwrap()
        .wait_up_to(60_000 * MS)
        .unwrap()
        .max_waiters(3);
    let app = app(layer);
    let mut waiting = Vec::new();
    for user in ["a", "b", "c", "d"] {
        assert_eq!(status(&app, of(user)).await, 200);
    }
    for user in ["a", "b", "c"] {
        waiting.push(start(&app, of(user)).await);
    }
    let started = Instant::now();
    let response = send(&app, of("d")).await;
    assert_eq!(
        (response.status().as_u16(), started.elapsed()),
        (429, Duration::ZERO)
    );
    assert_eq!(number(response.headers(), "retry-after"), 1);
    assert_eq!(
        status(&app, of("e")).await,
        200,
        "a request that need not wait has no place"
    );
    for request in waiting {
        assert_eq!(request.await.unwrap().0, 200);
    }
    assert_eq!(status(&app, of("d")).await, 200);
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_do_not_take_the_places_of_waiters() {
    let limiter = RateLimiter::new(Scripted::answering(10 * MS));
    let layer = RateLimitLayer::new(&limiter, ten_a_second(), Header::new("user").unwrap())
        .unwrap()
        .wait_up_to(60_000 * MS)
        .unwrap()
        .max_waiters(1);
    let app = app(layer);
    assert_eq!(status(&app, of("waits")).await, 200);
    let mut others = Vec::new();
    for user in ["a", "b", "c"] {
        others.push(start(&app, of(user)).await);
    }
    assert_eq!(start(&app, of("waits")).await.await.unwrap().0, 200);
    for other in others {
        assert_eq!(other.await.unwrap(), (200, 10 * MS));
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_bounded_for_each_key() {
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&limiter, ten_a_second(), Header::new("user").unwrap())
        .unwrap()
        .wait_up_to(60_000 * MS)
        .unwrap()
        .max_waiters_per_key(2);
    let app = app(layer);
    for user in ["greedy", "modest"] {
        assert_eq!(status(&app, of(user)).await, 200);
    }
    let waiting = [
        start(&app, of("greedy")).await,
        start(&app, of("greedy")).await,
    ];
    let started = Instant::now();
    assert_eq!(status(&app, of("greedy")).await, 429);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(
        start(&app, of("modest")).await.await.unwrap(),
        (200, 100 * MS)
    );
    for request in waiting {
        assert_eq!(request.await.unwrap().0, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn flood_beyond_the_bounds_is_denied_at_once() {
    let app = app(waiting(
        &RateLimiter::in_memory(),
        ten_a_second(),
        3_000 * MS,
    ));
    let mut requests = JoinSet::new();
    for _ in 0..10_000 {
        let app = app.clone();
        let started = Instant::now();
        requests.spawn(async move { (status(&app, plain("/")).await, started.elapsed()) });
    }
    let answers = requests.join_all().await;
    let at_once = answers
        .iter()
        .filter(|(_, waited)| waited.is_zero())
        .count();
    let allowed = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(allowed, 31);
    assert_eq!(
        at_once,
        10_000 - 30,
        "one is allowed, and those that cannot be in time are denied"
    );
    assert!(answers.iter().all(|(_, waited)| *waited <= 3_000 * MS));
}

#[tokio::test(start_paused = true)]
async fn request_that_cannot_be_in_time_behind_others_is_denied_at_once() {
    let app = app(waiting(
        &RateLimiter::in_memory(),
        ten_a_second(),
        2_000 * MS,
    ));
    let mut requests = Vec::new();
    for _ in 0..30 {
        requests.push(start(&app, plain("/")).await);
    }
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.unwrap());
    }
    for (number, answer) in answers[..21].iter().enumerate() {
        assert_eq!(*answer, (200, 100 * MS * u32::try_from(number).unwrap()));
    }
    assert_eq!(answers[21..], [(429, Duration::ZERO); 9]);
}

#[tokio::test(start_paused = true)]
async fn outage_that_begins_during_a_wait_is_not_waited_for() {
    for (limit, last) in [
        (ten_a_second(), 200 * MS),
        (
            Limit::sliding_log("api", Quota::per_second(1)).unwrap(),
            1_000 * MS,
        ),
    ] {
        let store = Scripted::default();
        let layer = waiting(&RateLimiter::new(store.clone()), limit, 60_000 * MS);
        let app = app(layer.on_store_failure(OnStoreFailure::FailClosed).unwrap());
        assert_eq!(status(&app, plain("/")).await, 200);
        let waiters = [start(&app, plain("/")).await, start(&app, plain("/")).await];
        store.switch_off(true);
        for waiter in waiters {
            let (status, waited) = waiter.await.unwrap();
            assert!(waited <= last, "{waited:?}");
            assert!([200, 503].contains(&status));
        }
        assert_eq!(status(&app, plain("/")).await, 503);
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_disconnects_gives_up_its_place() {
    let app = app(waiting(
        &RateLimiter::in_memory(),
        ten_a_second(),
        60_000 * MS,
    ));
    assert_eq!(status(&app, plain("/")).await, 200);
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(start(&app, plain("/")).await);
    }
    sleep(30 * MS).await;
    for gone in [0, 2, 4] {
        waiting[gone].abort();
    }
    let mut times = Vec::new();
    for request in waiting {
        times.extend(request.await.ok());
    }
    assert_eq!(times, [(200, 100 * MS), (200, 200 * MS), (200, 300 * MS)]);
}

#[tokio::test(start_paused = true)]
async fn waiting_request_does_not_hold_the_inner_service() {
    let (limiter, ready) = (RateLimiter::in_memory(), Arc::new(AtomicU32::new(0)));
    // One request at a time.
    let calls = Arc::clone(&ready);
    let inner = tower::service_fn(move |_: Request<Body>| {
        let calls = Arc::clone(&calls);
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
        }
    });
    let layer = RateLimitLayer::new(&limiter, ten_a_second(), Header::new("user").unwrap())
        .unwrap()
        .wait_up_to(60_000 * MS)
        .unwrap();
    let service = tower::ServiceBuilder::new()
        .layer(layer)
        .concurrency_limit(1)
        .service(inner);
    let call = |user: &str| tower::ServiceExt::oneshot(service.clone(), of(user));
    call("slow").await.unwrap();
    let waits = tokio::spawn(call("slow"));
    tokio::task::yield_now().await;
    let started = Instant::now();
    call("other").await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    waits.await.unwrap().unwrap();
    assert_eq!(ready.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn several_limits_wait_as_a_group() {
    let limiter = RateLimiter::in_memory();
    let slow = Limit::token_bucket("slow", Quota::per_second(1)).unwrap();
    let layer = RateLimitLayer::new(&limiter, ten_a_second(), Global)
        .unwrap()
        .limit(slow, Header::new("user").unwrap())
        .unwrap();
    let app = app(layer.wait_up_to(5_000 * MS).unwrap());
    let started = Instant::now();
    for (user, at) in [("a", 0), ("b", 100), ("a", 1_000), ("a", 2_000)] {
        assert_eq!(status(&app, of(user)).await, 200);
        assert_eq!(started.elapsed(), at * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn client_over_its_own_limit_does_not_stall_others_that_share_a_budget() {
    let limiter = RateLimiter::in_memory();
    let all = Limit::token_bucket("all", Quota::per_second(1_000)).unwrap();
    let own = Limit::token_bucket("user", Quota::per_second(1)).unwrap();
    let layer = RateLimitLayer::new(&limiter, all, Global)
        .unwrap()
        .limit(own, Header::new("user").unwrap())
        .unwrap();
    let app = app(layer.wait_up_to(5_000 * MS).unwrap());
    assert_eq!(status(&app, of("greedy")).await, 200);
    let greedy = [
        start(&app, of("greedy")).await,
        start(&app, of("greedy")).await,
    ];
    for number in 0..200 {
        let other = start(&app, of(&format!("user-{number}"))).await;
        assert_eq!(other.await.unwrap(), (200, Duration::ZERO));
    }
    for (second, waiter) in (1..).zip(greedy) {
        assert_eq!(waiter.await.unwrap(), (200, second * 1_000 * MS));
    }
}

#[tokio::test(start_paused = true)]
async fn group_denied_by_one_limit_after_another_asks_only_when_its_units_are_available() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let fast = Limit::token_bucket("fast", Quota::per_second(1)).unwrap();
    let slow = Limit::token_bucket("slow", Quota::new(1, 5_000 * MS)).unwrap();
    let key = tollgate::Key::new("k");
    drop(limiter.check(&fast, &key).await.unwrap());
    let layer = RateLimitLayer::new(&limiter, fast, Header::new("user").unwrap())
        .unwrap()
        .limit(slow.clone(), Header::new("user").unwrap())
        .unwrap();
    let app = app(layer.wait_up_to(60_000 * MS).unwrap());
    store.asked();
    let waits = start(&app, of("k")).await;
    // Meanwhile the slow budget is used up, too.
    drop(limiter.check(&slow, &key).await.unwrap());
    assert_eq!(waits.await.unwrap(), (200, 5_000 * MS));
    assert_eq!(
        store.asked(),
        4,
        "the check in between, and at 0, 1 and 5 s"
    );
}

#[tokio::test(start_paused = true)]
async fn request_that_no_wait_changes_does_not_queue() {
    let limiter = RateLimiter::in_memory();
    let waiting_app = app(waiting(&limiter, ten_a_second(), 60_000 * MS));
    assert_eq!(status(&waiting_app, plain("/")).await, 200);
    let _waiter = start(&waiting_app, plain("/")).await;
    let layer = || waiting(&limiter, ten_a_second(), 60_000 * MS);
    let (free, large, shadow) = (
        layer().cost(|_| 0),
        layer().cost(|_| 2),
        layer().shadow_mode(),
    );
    let started = Instant::now();
    for (layer, expected) in [(free, 200), (large, 422), (shadow, 200)] {
        assert_eq!(status(&app(layer), plain("/")).await, expected);
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_store_is_not_waited_for() {
    let expected = [
        (OnStoreFailure::FailOpen, 200),
        (OnStoreFailure::FailClosed, 503),
    ];
    for (policy, expected) in expected {
        let store = Scripted::default();
        let layer = waiting(
            &RateLimiter::new(store.clone()),
            ten_a_second(),
            60_000 * MS,
        );
        let app = app(layer.on_store_failure(policy).unwrap());
        store.switch_off(true);
        let started = Instant::now();
        assert_eq!(status(&app, plain("/")).await, expected);
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn cost_above_the_capacity_does_not_wait() {
    let layer = waiting(&RateLimiter::in_memory(), ten_a_second(), 60_000 * MS).cost(|_| 2);
    let started = Instant::now();
    assert_eq!(status(&app(layer), plain("/")).await, 422);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[test]
fn wait_is_more_than_zero_and_at_most_an_hour() {
    let layer = || RateLimitLayer::new(RateLimiter::in_memory(), ten_a_second(), Global);
    for (seconds, expected) in [(0, "0ns"), (3_601, "3601s")] {
        let error: ConfigError = layer()
            .unwrap()
            .wait_up_to(Duration::from_secs(seconds))
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(
        layer()
            .unwrap()
            .wait_up_to(Duration::from_secs(3_600))
            .is_ok()
    );
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use crate::support::RedisServer;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn three_replicas_together_keep_the_rate() {
        let server = RedisServer::start();
        let limit = Limit::token_bucket("provider", Quota::per_second(50).burst(1)).unwrap();
        let replicas: Vec<_> = (0..3)
            .map(|_| {
                let limiter = RateLimiter::new(server.store().build().unwrap());
                app(waiting(&limiter, limit.clone(), 10_000 * MS))
            })
            .collect();
        let started = std::time::Instant::now();
        let mut requests = JoinSet::new();
        for number in 0..60 {
            let app = replicas[number % 3].clone();
            requests.spawn(async move {
                assert_eq!(status(&app, plain("/")).await, 200);
                (number % 3, started.elapsed())
            });
        }
        let mut ended = requests.join_all().await;
        ended.sort_by_key(|(_, at)| *at);
        // The turns of 60 requests are 20 ms apart. A busy machine may be late, and never early.
        assert!(ended[59].1 >= 1_180 * MS, "{:?}", ended[59]);
        // Of the first half, each replica has about a third.
        for replica in 0..3 {
            let served = ended[..30].iter().filter(|(of, _)| *of == replica).count();
            assert!((7..=13).contains(&served), "{served} of replica {replica}");
        }
    }
}
