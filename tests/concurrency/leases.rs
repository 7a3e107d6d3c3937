//! Leases of permits: the end of a program, and permits that are not renewed.

#![cfg(all(feature = "axum", feature = "redis", feature = "json"))]

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::{Key, RateLimiter};

use crate::support::RedisServer;
use crate::support::log::Log;
use crate::support::scripted::Scripted;
use crate::support::tenants::exports;

const SECOND: Duration = Duration::from_secs(1);

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
