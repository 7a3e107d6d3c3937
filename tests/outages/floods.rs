//! Limits and bounds under a flood of requests, with stalled runtimes and with cancelled callers.
#![cfg(all(feature = "axum", feature = "redis"))]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tollgate::key::Extension;
use tollgate::layer::OnStoreFailure;
use tollgate::store::{Operation, Store};
use tollgate::{Check, Key, Limit, Quota, RateLimitLayer, RateLimiter};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::support::RedisServer;

/// The number of a request's client.
#[derive(Clone, Copy)]
struct Client(u64);

/// The responses to a flood.
#[derive(Debug, Default)]
struct Outcome {
    forwarded: AtomicU64,
    denied: AtomicU64,
    unavailable: AtomicU64,
}

/// Sends `rounds` requests from each of `tasks` tasks at once, on behalf of `clients` clients.
async fn flood(layer: &RateLimitLayer, tasks: u64, clients: u64, rounds: u64) -> Outcome {
    flood_after(layer, tasks, clients, rounds, || ()).await
}

/// The same, with `begin` called when all tasks have sent their first request.
async fn flood_after(
    layer: &RateLimitLayer,
    tasks: u64,
    clients: u64,
    rounds: u64,
    begin: impl FnOnce(),
) -> Outcome {
    let outcome = Arc::new(Outcome::default());
    let sent = Arc::new(AtomicU64::new(0));
    let mut flood = JoinSet::new();
    for task in 0..tasks {
        let (layer, outcome, sent) = (layer.clone(), Arc::clone(&outcome), Arc::clone(&sent));
        flood.spawn(async move {
            let service =
                ServiceBuilder::new()
                    .layer(layer)
                    .service(service_fn(async |_: Request<Body>| {
                        Ok::<_, std::convert::Infallible>(Response::new(()))
                    }));
            for _ in 0..rounds {
                let mut request = Request::new(Body::empty());
                request.extensions_mut().insert(Client(task % clients));
                let response = service.clone().oneshot(request);
                sent.fetch_add(1, Ordering::Relaxed);
                let response = response.await.unwrap();
                let count = match response.status() {
                    StatusCode::OK => &outcome.forwarded,
                    StatusCode::TOO_MANY_REQUESTS => &outcome.denied,
                    StatusCode::SERVICE_UNAVAILABLE => &outcome.unavailable,
                    other => panic!("{other}"),
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while sent.load(Ordering::Relaxed) < tasks {
        tokio::task::yield_now().await;
    }
    begin();
    while flood.join_next().await.is_some() {}
    Arc::into_inner(outcome).unwrap()
}

fn layer(limiter: &RateLimiter, limit: &str) -> RateLimitLayer {
    let by_client = Extension::new(|client: &Client| Key::from(client.0));
    RateLimitLayer::fixed_window(limiter, limit, Quota::per_hour(1), by_client).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_allows_no_more_than_the_limit() {
    let server = RedisServer::start();
    for (deny_for, clients) in [(Duration::ZERO, 1), (Duration::from_secs(1), 200)] {
        let store = server.store().deny_for(deny_for).connect().await.unwrap();
        let layer = layer(&RateLimiter::new(store), &format!("of {clients}"));
        // The server answers when every task has sent a request: more than the queue holds.
        server.pause(true);
        let outcome = flood_after(&layer, 20_000, clients, 3, || server.pause(false)).await;
        assert!(
            outcome.unavailable.load(Ordering::Relaxed) > 0,
            "{outcome:?}"
        );
        assert_eq!(
            outcome.forwarded.load(Ordering::Relaxed),
            clients,
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn overload_is_answered_with_503_by_default() {
    let server = RedisServer::start();
    let store = server
        .store()
        .deny_for(Duration::ZERO)
        .max_waiting(10)
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let rejecting = layer(&limiter, "rejecting");
    let outcome = flood(&rejecting, 100, 100, 1).await;
    assert_eq!(outcome.forwarded.load(Ordering::Relaxed), 10, "{outcome:?}");
    assert_eq!(
        outcome.unavailable.load(Ordering::Relaxed),
        90,
        "{outcome:?}"
    );

    let forwarding = layer(&limiter, "forwarding").fail_open_when_overloaded();
    let outcome = flood(&forwarding, 100, 100, 1).await;
    assert_eq!(
        outcome.forwarded.load(Ordering::Relaxed),
        100,
        "{outcome:?}"
    );
}

#[tokio::test]
async fn denial_stands_while_the_store_hangs() {
    denial_stands(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn denial_that_is_never_answered_from_memory_stands_while_the_store_hangs() {
    denial_stands(Duration::ZERO).await;
}

async fn denial_stands(deny_for: Duration) {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(50);
    let store = server.store().deadline(deadline).deny_for(deny_for);
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    for policy in [OnStoreFailure::FailOpen, OnStoreFailure::FailClosed] {
        let layer = layer(&limiter, "api").on_store_failure(policy).unwrap();
        flood(&layer, 10, 10, 3).await;
        server.pause(true);
        let outcome = flood(&layer, 10, 10, 2).await;
        assert_eq!(
            outcome.denied.load(Ordering::Relaxed),
            20,
            "{policy:?}: {outcome:?}"
        );
        let outcome = flood(&layer, 11, 11, 1).await;
        assert_eq!(
            outcome.denied.load(Ordering::Relaxed),
            10,
            "{policy:?}: {outcome:?}"
        );
        server.pause(false);
        // Until the store has recovered.
        while limiter.peek(&daily(), &Key::new("k"), 1).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

fn daily() -> Limit {
    Limit::fixed_window("daily", Quota::per_day(1_000_000)).unwrap()
}

#[tokio::test]
async fn late_denial_is_cached() {
    let server = RedisServer::start();
    // Long enough to keep the connection: a late answer has the same time again.
    let deadline = Duration::from_millis(1_500);
    let store = server.store().deadline(deadline).connect().await.unwrap();
    let (limit, key) = (
        Limit::fixed_window("api", Quota::per_hour(1)).unwrap(),
        Key::new("k"),
    );
    let check = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    assert!(check().await.unwrap().allowed());
    server.pause(true);
    // The caller is dropped before the denial arrives.
    let dropped = tokio::time::timeout(Duration::from_millis(5), check()).await;
    assert!(dropped.is_err());
    server.pause(false);
    let other = Key::new("other");
    assert!(
        store
            .apply(Operation::Charge(Check::new(&limit, &other).into()))
            .await
            .unwrap()
            .allowed()
    );
    server.pause(true);
    assert!(!check().await.unwrap().allowed(), "the cache answers");
    server.pause(false);
}

#[test]
fn check_times_out_while_the_sending_runtime_is_stalled() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (stalled, other) = (runtime(), runtime());
    let deadline = Duration::from_millis(100);
    let store = server.store().deadline(deadline).build().unwrap();
    let (limit, key) = (daily(), Key::new("k"));
    let answers = {
        let _inside = stalled.enter();
        [1, 2].map(|cost| {
            store.apply(Operation::Charge(
                Check::new(&limit, &key).with_cost(cost).into(),
            ))
        })
    };
    // The second is queued with a task of the stalled runtime.
    let [_first, second] = answers;
    let started = Instant::now();
    let error = other.block_on(second).unwrap_err();
    assert!(error.is_timeout() && !error.may_have_charged(), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "it does not hang"
    );
}

#[test]
fn stalled_runtime_does_not_block_other_runtimes() {
    // A small queue, too: it is then full of checks behind the stalled ones.
    for max_waiting in [1_000, 22] {
        let server = RedisServer::start();
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
        };
        let (working, idle) = (runtime(), runtime());
        let deadline = Duration::from_millis(100);
        let store = server.store().deadline(deadline).deny_for(Duration::ZERO);
        let store = working
            .block_on(store.max_waiting(max_waiting).connect())
            .unwrap();
        let limiter = RateLimiter::new(store);
        let check = |number: u64| {
            let limiter = limiter.clone();
            async move { limiter.check(&daily(), &Key::from(number)).await }
        };
        // They are sent, and no runtime polls the tasks that wait for their answers.
        idle.block_on(async {
            (0..20).for_each(|number| drop(tokio::spawn(check(number))));
            tokio::task::yield_now().await;
        });
        let started = Instant::now();
        // The first one may find the pace over, and leave beside the stalled calls.
        working.block_on(async {
            while let Err(error) = check(1).await {
                assert!(started.elapsed() < Duration::from_secs(20), "{error}");
                tokio::task::yield_now().await;
            }
            for number in 0..60 {
                drop(check(number).await.unwrap());
            }
        });
    }
}

#[tokio::test]
async fn cancelled_checks_count_towards_the_queue_bound() {
    let server = RedisServer::start();
    let deadline = Duration::from_secs(10);
    let store = server
        .store()
        .deadline(deadline)
        .deny_for(Duration::ZERO)
        .max_waiting(100);
    let store = store.connect().await.unwrap();
    let (limit, key) = (daily(), Key::new("k"));
    let check = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    assert!(check().await.unwrap().allowed());
    let tasks = tokio::runtime::Handle::current().metrics();
    server.pause(true);
    let mut overloaded = 0;
    for number in 0..20_000 {
        // Polled once, then dropped: half of them before a task of the store could send them.
        let mut answer = Box::pin(check());
        let polled = answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        overloaded += u64::from(polled.is_ready());
        if number % 2 == 0 {
            drop(answer);
            tokio::task::yield_now().await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    assert!(overloaded > 19_000, "{overloaded} were rejected");
    assert!(
        tasks.num_alive_tasks() < 10,
        "{} tasks",
        tasks.num_alive_tasks()
    );
    server.pause(false);
    let used = loop {
        if let Ok(decision) = store
            .apply(Operation::Peek(
                Check::new(&limit, &key).with_cost(0).into(),
            ))
            .await
        {
            break 1_000_000 - decision.remaining();
        }
        tokio::task::yield_now().await;
    };
    assert!(used <= 101, "{used} units were charged");
}

#[tokio::test]
async fn answer_polled_only_once_does_not_keep_its_place() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(100);
    let store = server
        .store()
        .deadline(deadline)
        .deny_for(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let (limit, key) = (daily(), Key::new("k"));
    let check = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    let tasks = tokio::runtime::Handle::current().metrics();
    // The first check also starts the task that notes quotas.
    drop(check().await.unwrap());
    let before = tasks.num_alive_tasks();
    let mut polled_once = Box::pin(check());
    let polled = polled_once
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    // Its caller does not free the place, so a task sends this check.
    drop(check().await.unwrap());
    tokio::time::sleep(deadline * 4).await;
    drop(check().await.unwrap());
    assert_eq!(
        tasks.num_alive_tasks(),
        before,
        "the lane is idle: no task was needed"
    );
    assert!(polled_once.await.unwrap().allowed());
}
