//! The keys that are denied most often.

#![cfg(feature = "axum")]

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use tokio::time::sleep;
use tollgate::denied_keys::{DeniedKeys, DeniedSummary};
use tollgate::key::{Global, Header};
use tollgate::layer::{IetfDraft, OnStoreFailure};
use tollgate::store::Store;
use tollgate::{Check, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::requests::{request, send, status};
use crate::support::scripted::Scripted;

const MINUTE: Duration = Duration::from_secs(60);

fn one_an_hour(name: &str) -> Limit {
    Limit::fixed_window(name, Quota::per_hour(1)).unwrap()
}

/// A limiter that counts, and where.
fn counting() -> (RateLimiter, DeniedKeys) {
    let denied = DeniedKeys::new();
    (counting_in(MemoryStore::new(), &denied), denied)
}

fn counting_in(store: impl Store, denied: &DeniedKeys) -> RateLimiter {
    let limiter = RateLimiter::builder(store).count_denied_keys(denied);
    limiter.build().unwrap()
}

fn found(summary: &DeniedSummary) -> Vec<(&str, &str, u64)> {
    summary
        .keys()
        .iter()
        .map(|it| (it.limit_name(), it.key(), it.denials()))
        .collect()
}

/// Checks a key until it is denied so often.
async fn deny(limiter: &RateLimiter, limit: &Limit, key: &str, times: u32) {
    for _ in 0..=times {
        drop(limiter.check(limit, &Key::new(key)).await.unwrap());
    }
}

#[tokio::test]
async fn keys_come_in_the_order_of_their_denials() {
    let (limiter, denied) = counting();
    deny(&limiter, &one_an_hour("login"), "alice", 2).await;
    deny(&limiter, &one_an_hour("login"), "mallory", 7).await;
    deny(&limiter, &one_an_hour("search"), "alice", 3).await;
    let summary = denied.current();
    assert_eq!(summary.denials(), 12);
    let expected = [
        ("login", "mallory", 7),
        ("search", "alice", 3),
        ("login", "alice", 2),
    ];
    assert_eq!(found(&summary), expected);
    assert!(
        summary.keys().iter().all(|key| key.overcount() == 0),
        "few keys are counted exactly"
    );
}

#[tokio::test]
async fn requests_of_all_layers_of_the_limiter_count() {
    let (limiter, denied) = counting();
    let user = || Header::new("x-user").unwrap();
    let first = RateLimitLayer::new(&limiter, one_an_hour("first"), user()).unwrap();
    let second = RateLimitLayer::new(&limiter, one_an_hour("second"), user()).unwrap();
    for layer in [first, second] {
        let app = Router::new()
            .route("/", any(|| async { "hello" }))
            .layer(layer);
        for expected in [200, 429, 429] {
            let of = request("GET", "/").header("x-user", "mallory");
            assert_eq!(
                status(&app, of.body(Body::empty()).unwrap()).await,
                expected
            );
        }
    }
    assert_eq!(
        found(&denied.current()),
        [("first", "mallory", 2), ("second", "mallory", 2)]
    );
}

#[tokio::test]
async fn only_the_limits_that_deny_and_are_enforced_count() {
    let (limiter, denied) = counting();
    let (wide, tight) = (
        Limit::gcra("wide", Quota::per_hour(9)).unwrap(),
        one_an_hour("tight"),
    );
    let shadow = one_an_hour("shadow").with_shadow_mode();
    for _ in 0..3 {
        let checks = [&wide, &tight, &shadow].map(|limit| Check::new(limit, "alice"));
        drop(limiter.check_all(checks).await.unwrap());
    }
    assert_eq!(found(&denied.current()), [("tight", "alice", 2)]);
}

#[tokio::test]
async fn requests_that_fail_closed_are_no_denials() {
    let denied = DeniedKeys::new();
    let away = Scripted::failing(|| Error::unreachable("away"));
    let limiter = counting_in(away, &denied);
    let limit = one_an_hour("api")
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    assert!(
        !limiter
            .check(&limit, &Key::global())
            .await
            .unwrap()
            .allowed()
    );
    assert_eq!(denied.current().denials(), 0);
}

#[tokio::test]
async fn keys_without_a_permit_count() {
    let denied = DeniedKeys::new();
    let limiter = counting_in(MemoryStore::new(), &denied);
    let exports = Limit::concurrency("exports", 1).unwrap();
    let _held = limiter
        .try_acquire_permit(&exports, &Key::new("acme"))
        .await
        .unwrap();
    assert!(
        limiter
            .try_acquire_permit(&exports, &Key::new("acme"))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(found(&denied.current()), [("exports", "acme", 1)]);
}

#[tokio::test(start_paused = true)]
async fn event_a_minute_names_the_first_ten_and_begins_another_period() {
    let (log, _guard) = Log::start();
    let (limiter, denied) = counting();
    let limit = one_an_hour("login");
    for number in 1..=12 {
        deny(&limiter, &limit, &format!("user{number}"), number).await;
    }
    log.lines();
    sleep(MINUTE - Duration::from_secs(1)).await;
    assert!(log.lines().is_empty());
    sleep(Duration::from_secs(2)).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let expected = "INFO tollgate: most denied keys period_ms=60000 denials=78 \
        keys=\"login user12: 12, login user11: 11,";
    assert!(
        lines[0].contains(expected) && lines[0].contains("login user3: 3\""),
        "{lines:?}"
    );
    assert_eq!(denied.previous().denials(), 78);
    assert_eq!(denied.previous().period(), MINUTE);
    assert_eq!(denied.previous().keys().len(), 12);
    assert_eq!(denied.current().denials(), 0);

    sleep(10 * MINUTE).await;
    assert!(log.lines().is_empty(), "nothing was denied");
    deny(&limiter, &limit, "mallory", 1).await;
    sleep(MINUTE + Duration::from_secs(1)).await;
    let lines: Vec<_> = log
        .lines()
        .into_iter()
        .filter(|line| line.contains("most denied"))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains("login mallory: 1"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn hashed_keys_are_those_of_partition_keys() {
    let secret = b"sixteen random bytes";
    let denied = DeniedKeys::hashed(secret).unwrap();
    let limiter = counting_in(MemoryStore::new(), &denied);
    let layer = RateLimitLayer::new(&limiter, one_an_hour("api"), Global)
        .unwrap()
        .ietf_headers(IetfDraft::Draft11)
        .partition_key(secret)
        .unwrap();
    let app = Router::new()
        .route("/", any(|| async { "hello" }))
        .layer(layer);
    let send = async || {
        let plain = request("GET", "/").body(Body::empty()).unwrap();
        send(&app, plain).await.headers()["ratelimit"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    let (first, _) = (send().await, send().await);
    let summary = denied.current();
    let digest = summary.keys()[0].key();
    assert_eq!(digest.len(), 32);
    let bytes: Vec<u8> = (0..16)
        .map(|byte| u8::from_str_radix(&digest[2 * byte..2 * byte + 2], 16).unwrap())
        .collect();
    let partition = format!(
        ";pk={}",
        sfv::ItemSerializer::new().bare_item(&*bytes).finish()
    );
    assert!(first.contains(&partition), "{first} has {partition}");
}

#[test]
fn short_secret_is_an_error() {
    let error = DeniedKeys::hashed(b"short").unwrap_err().to_string();
    assert_eq!(
        error,
        "the secret of `DeniedKeys::hashed` has 5 bytes; use at least 16 random bytes"
    );
}

#[tokio::test]
async fn flood_of_new_keys_needs_bounded_memory_and_hides_no_heavy_one() {
    let (limiter, denied) = counting();
    let nothing = Limit::gcra("api", Quota::per_hour(1)).unwrap();
    for number in 0..50_000_u64 {
        // A cost above the capacity is denied at once.
        drop(
            limiter
                .check_n(&nothing, &Key::from(number), 2)
                .await
                .unwrap(),
        );
        if number % 20 == 0 {
            drop(
                limiter
                    .check_n(&nothing, &Key::new("mallory"), 2)
                    .await
                    .unwrap(),
            );
        }
    }
    let summary = denied.current();
    assert_eq!(summary.denials(), 52_500);
    assert_eq!(summary.keys().len(), 1_024);
    let first = &summary.keys()[0];
    assert_eq!(first.key(), "mallory");
    // 2,500 times. A part of the denials is a sample.
    assert!((2_250..2_750).contains(&first.denials()), "{first:?}");
}
