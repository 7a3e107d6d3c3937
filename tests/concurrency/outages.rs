//! Permits while the store is unavailable.

#![cfg(all(feature = "axum", feature = "redis", feature = "json"))]

use std::future::pending;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::decision::Source;
use tollgate::layer::OnStoreFailure;
use tollgate::store::Answer;
use tollgate::{Error, Key, Limit, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
#[cfg(feature = "metrics")]
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{app, send, status};
use crate::support::scripted::Scripted;
use crate::support::tenants::{exports, of, tenant};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn callers_learn_of_an_outage_together() {
    let store = Scripted::new(|_, _| {
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
    store.does(|_, _| Answer::later(pending()));
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
    let local = OnStoreFailure::local(2);
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

#[cfg(feature = "metrics")]
#[tokio::test]
async fn counter_tells_an_outage_from_the_store() {
    let recorded = Recorded::start();
    let store = Scripted::default();
    let permits = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::new(&permits, exports(2), tenant()).unwrap();
    let with = |policy| app(layer.clone().on_store_failure(policy).unwrap());
    let open = with(OnStoreFailure::FailOpen);
    let local = with(OnStoreFailure::local(2));
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
