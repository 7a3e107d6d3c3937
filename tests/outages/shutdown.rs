//! The end of a service, and the worst of an outage: what is in flight is answered, and nothing is
//! left behind.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::fs;
use std::time::Duration;

use axum::Router;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use tollgate::key::Header;
use tollgate::limit::OnStoreFailure;
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};

use crate::support::requests::{request, send};
use crate::support::{RedisServer, free_port};

/// Waits until so many tasks are left.
async fn ends(tasks: usize) {
    let all = async {
        while Handle::current().metrics().num_alive_tasks() > tasks {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), all)
        .await
        .expect("the tasks end");
}

#[tokio::test]
async fn limiter_that_is_dropped_with_checks_in_flight_loses_no_charge_and_no_task() {
    let server = RedisServer::start();
    let tasks = Handle::current().metrics().num_alive_tasks();
    let limit = Limit::fixed_window("api", Quota::per_hour(1_000_000)).unwrap();
    let limiter = RateLimiter::new(server.store().connect().await.unwrap());
    let mut checks = JoinSet::new();
    for number in 0..5_000_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move {
            let key = Key::from(number % 10);
            limiter.check(&limit, &key).await.unwrap().allowed()
        });
    }
    drop(limiter);
    let allowed = checks.join_all().await;
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 5_000);
    ends(tasks).await;

    let limiter = server.limiter().await;
    for key in 0..10_u64 {
        let left = limiter
            .peek(&limit, &Key::from(key), 0)
            .await
            .unwrap()
            .remaining();
        assert_eq!(left, 1_000_000 - 500);
    }
}

#[tokio::test]
async fn limiter_that_is_dropped_during_an_outage_leaves_no_task() {
    let mut server = RedisServer::start();
    let tasks = Handle::current().metrics().num_alive_tasks();
    let limit = Limit::gcra("api", Quota::per_second(10)).unwrap();
    let limit = limit
        .with_on_store_failure(OnStoreFailure::local(2))
        .unwrap();
    let limiter = RateLimiter::new(server.store().connect().await.unwrap());
    server.kill();
    // The breaker opens, and its task probes.
    for _ in 0..20 {
        drop(limiter.check(&limit, &Key::new("alice")).await.unwrap());
    }
    drop(limiter);
    ends(tasks).await;
}

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_at_once_while_redis_is_down_are_all_answered() {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    for (policy, expected) in [
        (OnStoreFailure::FailOpen, [200, 200]),
        (OnStoreFailure::local(2), [200, 429]),
        (OnStoreFailure::FailClosed, [503, 503]),
    ] {
        let store = RedisStore::builder("tollgate")
            .url(&url)
            .deadline(Duration::from_secs(20));
        let limiter = RateLimiter::new(store.build().unwrap());
        let layer = RateLimitLayer::fixed_window(
            limiter,
            "api",
            Quota::per_hour(4),
            Header::new("x-user").unwrap(),
        )
        .unwrap();
        let layer = layer.on_store_failure(policy).unwrap();
        let app = Router::new().fallback(|| async {}).layer(layer);
        let flood = async || {
            let mut requests = JoinSet::new();
            for number in 0..10_000 {
                let app = app.clone();
                let request = request("GET", "/").header("x-user", number % 1_000);
                let request = request.body(axum::body::Body::empty()).unwrap();
                requests.spawn(async move { send(&app, request).await.status().as_u16() });
            }
            requests.join_all().await
        };
        let statuses = flood().await;
        assert_eq!(statuses.len(), 10_000);
        assert!(
            statuses.iter().all(|status| expected.contains(status)),
            "{policy:?}"
        );
        if policy == OnStoreFailure::local(2) {
            // A share of 2 for each of a thousand users.
            assert_eq!(
                statuses.iter().filter(|status| **status == 200).count(),
                2_000
            );
        }
        // What the first flood needed is used again by the others.
        let before = if cfg!(target_os = "linux") {
            resident()
        } else {
            0
        };
        for _ in 0..5 {
            flood().await;
        }
        let after = if cfg!(target_os = "linux") {
            resident()
        } else {
            0
        };
        assert!(
            after < before + 64 * 1024 * 1024,
            "{policy:?}: {before} to {after} bytes"
        );
    }
}
