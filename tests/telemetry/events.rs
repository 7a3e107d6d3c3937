//! Log events: denials, requests without a key, unavailable stores and unreadable values.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::time::Duration;

use crate::support::RedisServer;
use crate::support::log::Log;
use crate::support::scripted::Scripted;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use redis::Commands;
use tokio::time::advance;
use tollgate::key::{Global, Header};
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter};
use tower::ServiceExt;

async fn send(app: &Router) -> u16 {
    let request = Request::new(Body::empty());
    app.clone()
        .oneshot(request)
        .await
        .unwrap()
        .status()
        .as_u16()
}

#[tokio::test]
async fn denial_is_a_debug_event() {
    let (log, _guard) = Log::start();
    let app = Router::new().route("/", get(|| async {})).layer(
        RateLimitLayer::gcra(
            RateLimiter::in_memory(),
            "api",
            Quota::per_minute(1),
            Global,
        )
        .unwrap(),
    );
    assert_eq!(send(&app).await, 200);
    assert!(log.lines().is_empty());
    assert_eq!(send(&app).await, 429);
    let lines = log.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("DEBUG") && lines[0].contains("denied"),
        "{lines:?}"
    );
    assert!(lines[0].contains(r#"limit="api""#), "{lines:?}");
}

#[tokio::test]
async fn cost_above_the_capacity_is_a_warning_once_a_second() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::gcra(&limiter, "api", Quota::per_minute(2), Global).unwrap();
    let app = Router::new()
        .route("/", get(|| async {}))
        .layer(layer.cost(|_| 5));
    assert_eq!(send(&app).await, 422);
    assert_eq!(send(&app).await, 422);
    let limit = Limit::gcra("api", Quota::per_minute(2)).unwrap();
    let direct = limiter.check_n(&limit, "alice", 3).await.unwrap();
    assert!(direct.exceeds_capacity());
    let lines = log.lines();
    let warnings: Vec<_> = lines
        .iter()
        .filter(|line| line.contains(" WARN "))
        .collect();
    let [warning] = &warnings[..] else {
        panic!("{lines:?}")
    };
    assert!(
        warning.contains("cost exceeds the capacity") && warning.contains("capacity=2"),
        "{warning}"
    );
}

#[tokio::test]
async fn request_without_a_key_is_a_warning() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::gcra(
        RateLimiter::in_memory(),
        "api",
        Quota::per_minute(1),
        Header::new("x-user").unwrap(),
    )
    .unwrap();
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    assert_eq!(send(&app).await, 400);
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains(" WARN "), "{lines:?}");
    assert!(lines[0].contains("`x-user` is missing"), "{lines:?}");
}

#[tokio::test]
async fn unavailable_store_is_an_error_event_with_its_outcome() {
    let (log, _guard) = Log::start();
    let mut server = RedisServer::start();
    let limiter = RateLimiter::redis(&server.url(), "tollgate").await.unwrap();
    server.kill();
    let layer = RateLimitLayer::gcra(limiter, "api", Quota::per_minute(1), Global).unwrap();
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    log.lines();
    assert_eq!(send(&app).await, 200);
    let lines = log.lines();
    let error = lines
        .iter()
        .find(|line| line.contains("ERROR"))
        .expect("there is an event");
    assert!(
        error.contains("rate limit store unavailable")
            && error.contains(r#"outcome="fail_open""#)
            && error.contains(r#"limits="api""#),
        "{error}"
    );
}

#[tokio::test]
async fn unreadable_value_is_a_warning_that_names_its_key() {
    let (log, _guard) = Log::start();
    let server = RedisServer::start();
    let limits = [
        Limit::gcra("api", Quota::per_minute(5)).unwrap(),
        Limit::sliding_log("log", Quota::per_minute(5)).unwrap(),
    ];
    for limit in limits {
        // One store would not log a second event within a second.
        let limiter = RateLimiter::new(server.store().connect().await.unwrap());
        let key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        let () = server.connection().set(&key, "garbage").unwrap();
        log.lines();
        drop(limiter.check(&limit, &Key::new("alice")).await.unwrap());
        let lines = log.lines();
        assert!(
            lines.len() == 1 && lines[0].contains(" WARN ") && lines[0].contains(&key),
            "{lines:?}"
        );
        drop(limiter.check(&limit, &Key::new("alice")).await.unwrap());
        assert!(log.lines().is_empty(), "the value was replaced");
    }
}

#[tokio::test(start_paused = true)]
async fn unreported_failures_are_counted_at_the_end_of_their_outage() {
    let (log, _guard) = Log::start();
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::gcra(limiter, "api", Quota::per_second(100), Global).unwrap();
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    for _ in 0..2 {
        store.switch_off(true);
        for _ in 0..10 {
            assert_eq!(send(&app).await, 200);
        }
        let lines = log.lines();
        assert!(
            lines.len() == 1 && lines[0].contains("unreported=0"),
            "{lines:?}"
        );
        store.switch_off(false);
        advance(Duration::from_secs(1)).await;
        assert_eq!(send(&app).await, 200);
        let lines = log.lines();
        assert!(
            lines.len() == 1 && lines[0].contains("unreported=9"),
            "{lines:?}"
        );
        assert_eq!(send(&app).await, 200);
        assert!(log.lines().is_empty());
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreported_requests_without_a_key_are_counted_after_a_second() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::gcra(
        RateLimiter::in_memory(),
        "api",
        Quota::per_second(100),
        Header::new("x-user").unwrap(),
    )
    .unwrap();
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    for _ in 0..5 {
        assert_eq!(send(&app).await, 400);
    }
    assert_eq!(log.lines().len(), 1);
    advance(Duration::from_secs(1)).await;
    let request = Request::get("/")
        .header("x-user", "alice")
        .body(Body::empty())
        .unwrap();
    assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 200);
    let lines = log.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("unreported=4"),
        "{lines:?}"
    );
}
