//! Edges of requests in flight: the end of a program, expired leases, outages, names, and the messages for clients and
//! operators.

#![cfg(all(feature = "axum", feature = "redis", feature = "json"))]

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::decision::Source;
use tollgate::key::Global;
use tollgate::layer::{BodyFormat, ChosenLimits, InFlight, OnMissingKey, OnStoreFailure};
use tollgate::store::Answer;
use tollgate::{Check, Error, Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::log::Log;
#[cfg(feature = "metrics")]
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{app, number, send, status};
use crate::support::scripted::Scripted;
use crate::support::tenants::{exports, of, tenant};

const SECOND: Duration = Duration::from_secs(1);

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn program_that_flushes_last_leaves_no_permit_behind() {
    let server = RedisServer::start();
    let (limit, acme) = (exports(1), Key::new("acme"));
    for number in 0..20 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let limiter = RateLimiter::redis(&server.url(), "tollgate").await.unwrap();
            let permit = limiter
                .acquire_permit(&limit, &acme, Duration::ZERO)
                .await
                .unwrap();
            assert!(
                permit.is_some(),
                "program {number} waits for the lease of the last one"
            );
            drop(permit);
            limiter.flush().await;
            assert_eq!(limiter.keys_with_permits(), 0);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn flush_ends_although_the_store_is_away_and_permits_are_held() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let held = limiter
        .try_acquire_permit(&exports(2), &Key::new("acme"))
        .await
        .unwrap();
    let given_back = limiter
        .try_acquire_permit(&exports(2), &Key::new("acme"))
        .await
        .unwrap();
    assert!(held.is_some() && given_back.is_some());
    store.switch_off(true);
    drop(given_back);
    let started = Instant::now();
    limiter.flush().await;
    assert_eq!(started.elapsed(), SECOND);
    store.switch_off(false);
    limiter.flush().await;
    assert_eq!(limiter.held_permits(&exports(2), Key::new("acme")), 1);
    RateLimiter::in_memory().flush().await;
}

#[test]
fn permit_that_was_dropped_outside_of_a_runtime_is_flushed_in_the_next_one() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    // The connection is a task of this one.
    let keeps = runtime().unwrap();
    let (limiter, other) = keeps.block_on(async {
        let url = server.url();
        let on = async || RateLimiter::redis(&url, "tollgate").await.unwrap();
        (on().await, on().await)
    });
    let acquire = |limiter: &RateLimiter| {
        let (limiter, limit) = (limiter.clone(), exports(1));
        async move {
            limiter
                .try_acquire_permit(&limit, &Key::new("acme"))
                .await
                .unwrap()
        }
    };
    let first = runtime().unwrap();
    let held = first.block_on(acquire(&limiter));
    drop(first);
    drop(held);
    let next = runtime().unwrap();
    next.block_on(limiter.flush());
    assert!(next.block_on(acquire(&other)).is_some());
}

#[tokio::test(start_paused = true)]
async fn callers_learn_of_an_outage_together() {
    let store = Scripted::new(|_, _, _| {
        Answer::later(async {
            sleep(SECOND / 2).await;
            Err(Error::unreachable("it is away"))
        })
    });
    let limiter = RateLimiter::new(store);
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for number in 0..4 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            sleep(Duration::from_millis(number * 100)).await;
            limiter
                .try_acquire_permit(&exports(1), &Key::new("acme"))
                .await
                .unwrap()
                .is_some()
        });
    }
    assert!(
        callers.join_all().await.into_iter().all(|granted| granted),
        "it fails open"
    );
    assert_eq!(started.elapsed(), SECOND / 2, "none waits for another call");
}

#[tokio::test(start_paused = true)]
async fn call_that_never_ends_is_given_up_and_a_late_answer_changes_nothing() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let source = async |user: u64| {
        let permit = limiter
            .try_acquire_permit(&exports(1), &Key::from(user))
            .await
            .unwrap()
            .unwrap();
        permit.source()
    };
    store.does(|_, _, _| Answer::later(pending()));
    for user in 0..8 {
        assert_eq!(source(user).await, Source::FailOpen);
    }
    store.switch_off(false);
    // A third of a lease, and a look.
    sleep(4 * SECOND).await;
    for user in 0..8 {
        assert_eq!(source(user).await, Source::Store);
    }
    limiter.flush().await;
    assert_eq!(limiter.keys_with_permits(), 0);
}

#[tokio::test(start_paused = true)]
async fn number_of_one_caller_is_not_that_of_another() {
    let store = Scripted::asked_late(SECOND / 10, |_| true);
    for numbers in [[1, 10], [10, 1]] {
        let limiter = RateLimiter::new(store.clone());
        let acme = Key::from(u64::from(numbers[0]));
        let held = limiter
            .try_acquire_permit(&exports(1), &acme)
            .await
            .unwrap();
        let [first, second] = numbers.map(exports);
        let both = tokio::join!(
            limiter.try_acquire_permit(&first, &acme),
            limiter.try_acquire_permit(&second, &acme)
        );
        let granted = [both.0.unwrap().is_some(), both.1.unwrap().is_some()];
        assert_eq!(granted, numbers.map(|number| number == 10), "one is held");
        drop(held);
    }
}

#[tokio::test]
async fn two_permits_of_one_key_for_one_request_are_a_mistake() {
    let permits = RateLimiter::in_memory();
    let choose = |_: &http::request::Parts| Check::new(&exports(5), "acme").into();
    let layer = RateLimitLayer::from_fn(&permits, choose).unwrap();
    let layer = layer.limit(exports(5), tenant()).unwrap();
    let (log, _guard) = Log::start();
    let app = app(layer);
    assert_eq!(status(&app, of("globex")).await, 200);
    assert_eq!(status(&app, of("acme")).await, 500);
    let lines = log.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("two permits of one key under the limit `exports`")),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn permit_of_an_outage_is_renewed_when_the_store_hears_of_it() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let acquire = async || {
        limiter
            .try_acquire_permit(&exports(2), &Key::new("acme"))
            .await
            .unwrap()
            .unwrap()
    };
    let before = acquire().await;
    store.switch_off(true);
    sleep(Duration::from_millis(10)).await;
    let during = acquire().await;
    assert_eq!((before.is_renewed(), during.is_renewed()), (true, false));
    store.switch_off(false);
    sleep(SECOND).await;
    assert!(before.is_renewed() && during.is_renewed());
}

#[tokio::test(start_paused = true)]
async fn permit_that_was_not_renewed_for_a_lease_says_so() {
    let (log, _guard) = Log::start();
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let permit = limiter
        .try_acquire_permit(&exports(1), &Key::new("acme"))
        .await
        .unwrap()
        .unwrap();
    sleep(60 * SECOND).await;
    assert!(permit.is_renewed(), "three times in each lease");
    assert!(!log.lines().iter().any(|line| line.contains("not renewed")));
    store.switch_off(true);
    sleep(6 * SECOND).await;
    assert!(permit.is_renewed(), "the lease of ten seconds is not over");
    sleep(5 * SECOND).await;
    assert!(!permit.is_renewed());
    let lines = log.lines();
    let lost: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("not renewed"))
        .collect();
    assert!(
        (1..=3).contains(&lost.len()) && lost[0].contains("limit=\"exports\" held=1"),
        "{lost:?}"
    );
    store.switch_off(false);
    sleep(SECOND).await;
    assert!(permit.is_renewed());
    let embedded = RateLimiter::in_memory();
    let permit = embedded
        .try_acquire_permit(&exports(1), &Key::new("acme"))
        .await
        .unwrap()
        .unwrap();
    sleep(3600 * SECOND).await;
    assert!(permit.is_renewed(), "nobody else can get it");
}

#[tokio::test(start_paused = true)]
async fn permit_says_who_granted_it_and_an_error_keeps_its_kind() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let key = Key::new("acme");
    let source = async |limit: &Limit| {
        limiter
            .try_acquire_permit(limit, &key)
            .await
            .map(|permit| permit.unwrap().source())
    };
    let local = OnStoreFailure::Local { replicas: 2 };
    let local = Limit::concurrency("local", 2)
        .unwrap()
        .with_on_store_failure(local)
        .unwrap();
    let closed = Limit::concurrency("closed", 2).unwrap();
    let closed = closed
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    assert_eq!(source(&exports(1)).await.unwrap(), Source::Store);
    store.switch_off(true);
    assert_eq!(source(&exports(1)).await.unwrap(), Source::FailOpen);
    assert_eq!(source(&local).await.unwrap(), Source::Local);
    let error = source(&closed).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(
        error.to_string(),
        "the rate limit store is unreachable: it is away"
    );
}

#[tokio::test]
async fn open_circuit_is_known_to_those_who_want_permits() {
    let mut server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().connect().await.unwrap());
    let closed = exports(1)
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let layer = RateLimitLayer::new(&limiter, closed.clone(), tenant()).unwrap();
    server.kill();
    let opened = timeout(20 * SECOND, async {
        loop {
            let error = limiter
                .try_acquire_permit(&closed, &Key::new("acme"))
                .await
                .unwrap_err();
            if error.is_circuit_open() {
                return error;
            }
        }
    });
    let error = opened.await.expect("the circuit opens");
    assert!(error.probe_after().is_some());
    assert!(
        error.to_string().starts_with("the circuit breaker is open"),
        "{error}"
    );
    assert_eq!(status(&app(layer), of("acme")).await, 503);
}

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

#[tokio::test]
async fn mistake_of_the_application_is_500_and_shadow_mode_rejects_nothing() {
    let store = Scripted::default();
    store.switch_off(true);
    let layer = |permits: RateLimiter| {
        let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
        layer.on_store_failure(OnStoreFailure::FailClosed).unwrap()
    };
    let misused = Scripted::failing(|| Error::misuse("it is not set up"));
    let misused = layer(RateLimiter::new(misused));
    let away = layer(RateLimiter::new(store));
    let (log, _guard) = Log::start();
    assert_eq!(status(&app(misused.clone()), of("acme")).await, 500);
    assert!(
        log.lines()
            .iter()
            .any(|line| line.contains("misconfigured"))
    );
    assert_eq!(status(&app(away.clone()), of("acme")).await, 503);
    assert_eq!(
        status(&app(misused.enforce(0).unwrap()), of("acme")).await,
        200
    );
    assert_eq!(
        status(&app(away.enforce(0).unwrap()), of("acme")).await,
        200
    );
}

#[tokio::test]
async fn problem_details_name_the_limit_and_rates_have_no_headers() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = app(layer.body_format(BodyFormat::ProblemDetails));
    let held = send(&app, of("acme")).await;
    let denied = send(&app, of("acme")).await;
    assert!(
        denied
            .headers()
            .keys()
            .all(|name| !name.as_str().contains("ratelimit"))
    );
    let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["exports"]));
    assert!(
        problem["type"]
            .as_str()
            .unwrap()
            .ends_with("#quota-exceeded")
    );
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

#[tokio::test(start_paused = true)]
async fn shadow_mode_is_reported_once_a_second_at_info() {
    let (log, _guard) = Log::start();
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(
        &permits,
        exports(1).with_enforced_percent(0).unwrap(),
        tenant(),
    )
    .unwrap();
    let app = app(layer);
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(send(&app, of("acme")).await);
    }
    sleep(SECOND).await;
    held.push(send(&app, of("acme")).await);
    assert!(held.iter().all(|response| response.status() == 200));
    let lines: Vec<_> = log
        .lines()
        .into_iter()
        .filter(|line| line.contains("would have denied"))
        .collect();
    let [first, second] = &*lines else {
        panic!("{lines:?}")
    };
    assert!(first.contains("INFO") && first.contains("limit=\"exports\" at_once=1 unreported=0"));
    assert!(second.contains("unreported=3"), "{second}");
}

#[tokio::test(start_paused = true)]
async fn message_has_the_share_that_is_in_force() {
    let store = Scripted::default();
    let permits = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::new(&permits, exports(3), tenant()).unwrap();
    let app = app(layer
        .on_store_failure(OnStoreFailure::Local { replicas: 3 })
        .unwrap());
    let mut held = vec![send(&app, of("acme")).await];
    held.extend([send(&app, of("acme")).await, send(&app, of("acme")).await]);
    let denied = text(send(&app, of("acme")).await).await;
    assert_eq!(
        denied,
        "the limit `exports` of 3 requests at once is reached\n"
    );
    store.switch_off(true);
    held.clear();
    held.push(send(&app, of("acme")).await);
    let denied = text(send(&app, of("acme")).await).await;
    assert_eq!(
        denied,
        "the limit `exports` of 1 request at once is reached\n"
    );
}

#[tokio::test]
async fn retry_after_is_what_the_limit_advises() {
    let permits = RateLimiter::in_memory();
    let slow = exports(1).with_retry_after(30 * SECOND).unwrap();
    let app = app(RateLimitLayer::new(&permits, slow, tenant()).unwrap());
    let held = send(&app, of("acme")).await;
    let denied = send(&app, of("acme")).await;
    assert_eq!(
        (
            denied.status().as_u16(),
            number(denied.headers(), "retry-after")
        ),
        (429, 30)
    );
    drop(held);
    for wait in [Duration::ZERO, Duration::from_millis(999), 3601 * SECOND] {
        let error = exports(1).with_retry_after(wait).unwrap_err().to_string();
        assert!(
            error.contains("`exports`") && error.contains("use 1s to 3600s"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn request_without_a_key_names_its_concurrency_limit() {
    let (log, _guard) = Log::start();
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let named = layer.clone().respond_with(|rejection, response| {
        assert_eq!(rejection.limit().map(Limit::name), Some("exports"));
        assert_eq!(
            rejection.limit().map(|limit| limit.quota().limit()),
            Some(1)
        );
        response
    });
    let anonymous = || Request::get("/").body(Body::empty()).unwrap();
    let response = send(&app(named), anonymous()).await;
    assert_eq!(response.status(), 400);
    assert_eq!(
        text(response).await,
        "no key for the limit `exports`: the header `x-tenant` is missing\n"
    );
    assert!(
        log.lines()
            .iter()
            .any(|line| line.contains("limit=\"exports\""))
    );
    let skipping = layer.on_missing_key(OnMissingKey::SkipLimit).unwrap();
    assert_eq!(status(&app(skipping), anonymous()).await, 200);
}

#[test]
fn name_is_of_one_number_in_a_limiter() {
    let permits = RateLimiter::in_memory();
    let layer =
        |permits: &RateLimiter, limit| RateLimitLayer::new(permits, exports(limit), tenant());
    drop((layer(&permits, 2).unwrap(), layer(&permits, 2).unwrap()));
    let error = layer(&permits, 5).unwrap_err().to_string();
    assert!(
        error.contains("`exports`")
            && error.contains("registered for 2 at once, and this limit is 5 at once")
            && error.contains("share what they count; use another name, or choose the limit"),
        "{error}"
    );
    assert!(permits.register(&exports(5)).is_err() && permits.register(&exports(2)).is_ok());
    layer(&RateLimiter::in_memory(), 5).unwrap();
}

#[tokio::test]
async fn closure_chooses_the_limit_of_each_request() {
    let permits = RateLimiter::in_memory();
    let (free, pro) = (exports(1), exports(2));
    let layer = RateLimitLayer::from_fn(&permits, move |request| {
        let Some(tenant) = request.headers.get("x-tenant") else {
            return ChosenLimits::Unlimited;
        };
        let limit = if tenant == "acme" { &pro } else { &free };
        Check::new(limit, Key::new(tenant)).into()
    })
    .unwrap();
    let app = app(layer);
    let held = [send(&app, of("acme")).await, send(&app, of("globex")).await];
    assert_eq!(status(&app, of("globex")).await, 429);
    let second = send(&app, of("acme")).await;
    assert_eq!(
        (second.status().as_u16(), status(&app, of("acme")).await),
        (200, 429)
    );
    let anonymous = || Request::get("/").body(Body::empty()).unwrap();
    let unlimited = [send(&app, anonymous()).await, send(&app, anonymous()).await];
    assert!(
        unlimited
            .iter()
            .chain(&held)
            .all(|response| response.status() == 200)
    );
}

#[tokio::test]
async fn response_names_the_setting_that_a_handler_with_permits_needs() {
    let handler = |_: InFlight| async { "hello" };
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = |layer| Router::new().route("/", get(handler)).layer(layer);
    assert_eq!(
        status(&app(layer.clone().insert_permits()), of("acme")).await,
        200
    );
    let response = send(&app(layer), of("acme")).await;
    assert_eq!(response.status(), 500);
    assert!(
        text(response)
            .await
            .contains("add `insert_permits()` to the rate limit layer")
    );
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn grpc_status_names_the_limit() {
    use tonic::{Code, Status};
    use tonic_types::StatusExt;

    let permits = RateLimiter::in_memory();
    let app = app(RateLimitLayer::new(&permits, exports(1), tenant()).unwrap());
    let held = send(&app, of("acme")).await;
    let call = Request::post("/").header("x-tenant", "acme");
    let call = call
        .header("content-type", "application/grpc")
        .body(Body::empty())
        .unwrap();
    let denied = Status::from_header_map(send(&app, call).await.headers()).unwrap();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let violations = denied.get_details_quota_failure().unwrap().violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].subject, "exports");
    assert_eq!(
        violations[0].description,
        "the limit `exports` of 1 request at once is reached"
    );
    assert_eq!(
        denied.metadata().get("grpc-retry-pushback-ms").unwrap(),
        "1000"
    );
    drop(held);
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn counter_tells_an_outage_from_the_store() {
    let recorded = Recorded::start();
    let store = Scripted::default();
    let permits = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::new(&permits, exports(2), tenant()).unwrap();
    let with = |policy| app(layer.clone().on_store_failure(policy).unwrap());
    let open = with(OnStoreFailure::FailOpen);
    let local = with(OnStoreFailure::Local { replicas: 2 });
    let closed = with(OnStoreFailure::FailClosed);
    let mut held = vec![send(&open, of("acme")).await];
    store.switch_off(true);
    for app in [&open, &local, &closed] {
        held.push(send(app, of("acme")).await);
    }
    let expected = [
        ("exports allowed fail_open", 1),
        ("exports allowed store", 1),
        ("exports denied fail_closed", 1),
        ("exports denied local", 1),
    ];
    assert_eq!(recorded.decisions(), counted(expected));
    assert_eq!(
        recorded
            .of("tollgate_store_failures_total")
            .values()
            .sum::<f64>(),
        3.0
    );
}
