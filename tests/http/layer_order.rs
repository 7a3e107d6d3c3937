//! The order of the layer and others: each statement of the guide's page about it.

#![cfg(feature = "axum")]

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http_body_util::BodyExt;
use tollgate::clock::ManualClock;
use tollgate::key::{Extension, Global, KeyExtractor, PeerIp};
use tollgate::{Decision, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::timeout::TimeoutLayer;

use crate::support::requests::{from_peer, plain, request, send, status};

fn limit(units: u64, key: impl KeyExtractor) -> RateLimitLayer {
    let quota = Quota::per_hour(units);
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    RateLimitLayer::fixed_window(limiter, "api", quota, key).unwrap()
}

async fn hello() -> &'static str {
    "hello"
}

async fn reject(_: Request, _: Next) -> Response {
    StatusCode::UNAUTHORIZED.into_response()
}

#[tokio::test]
async fn outside_of_authentication_failed_attempts_count() {
    let app = Router::new()
        .route("/", get(hello))
        .layer(middleware::from_fn(reject))
        .layer(limit(2, PeerIp));
    for expected in [401, 401, 429] {
        assert_eq!(status(&app, from_peer("192.0.2.1")).await, expected);
    }
}

#[tokio::test]
async fn inside_of_authentication_failed_attempts_do_not_count() {
    let app = Router::new()
        .route("/", get(hello))
        .layer(limit(2, PeerIp))
        .layer(middleware::from_fn(reject));
    for _ in 0..5 {
        assert_eq!(status(&app, from_peer("192.0.2.1")).await, 401);
    }
}

#[tokio::test]
async fn key_of_a_user_exists_inside_of_authentication_alone() {
    #[derive(Clone)]
    struct User(&'static str);
    let by_user = || Extension::new(|user: &User| user.0.to_owned());
    let authenticate = |mut request: Request, next: Next| async {
        request.extensions_mut().insert(User("alice"));
        next.run(request).await
    };
    let routes = || Router::new().route("/", get(hello));
    let inside = routes()
        .layer(limit(1, by_user()))
        .layer(middleware::from_fn(authenticate));
    assert_eq!(status(&inside, plain("/")).await, 200);
    assert_eq!(status(&inside, plain("/")).await, 429);
    let outside = routes()
        .layer(middleware::from_fn(authenticate))
        .layer(limit(1, by_user()));
    assert_eq!(status(&outside, plain("/")).await, 400);
}

#[tokio::test]
async fn layer_outside_sees_denials_and_their_decision() {
    let seen = Arc::new(AtomicU16::new(0));
    let trace = {
        let seen = Arc::clone(&seen);
        move |request: Request, next: Next| {
            let seen = Arc::clone(&seen);
            async move {
                let response = next.run(request).await;
                let is_denied = response
                    .extensions()
                    .get::<Decision>()
                    .is_some_and(|it| !it.allowed());
                seen.store(
                    if is_denied {
                        response.status().as_u16()
                    } else {
                        0
                    },
                    Ordering::Relaxed,
                );
                response
            }
        }
    };
    let app = Router::new()
        .route("/", get(hello))
        .layer(limit(1, Global))
        .layer(middleware::from_fn(trace));
    send(&app, plain("/")).await;
    assert_eq!(seen.load(Ordering::Relaxed), 0);
    send(&app, plain("/")).await;
    assert_eq!(seen.load(Ordering::Relaxed), 429);
}

/// A leaky bucket that delays the second request by a minute, and its store.
fn delaying() -> (RateLimitLayer, RateLimiter) {
    let limiter = RateLimiter::in_memory();
    (
        RateLimitLayer::new(&limiter, queue(), Global).unwrap(),
        limiter,
    )
}

fn queue() -> Limit {
    Limit::leaky_bucket("queue", Quota::per_minute(1).burst(5)).unwrap()
}

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(5))
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_includes_the_delay_and_inside_it_does_not() {
    let handled = Arc::new(AtomicU32::new(0));
    let handler = {
        let handled = Arc::clone(&handled);
        get(move || {
            handled.fetch_add(1, Ordering::Relaxed);
            async { "hello" }
        })
    };
    let (layer, limiter) = delaying();
    let outside = Router::new()
        .route("/", handler.clone())
        .layer(layer)
        .layer(timeout());
    assert_eq!(status(&outside, plain("/")).await, 200);
    assert_eq!(status(&outside, plain("/")).await, 408);
    assert_eq!(handled.load(Ordering::Relaxed), 1, "it was not forwarded");
    let budget = limiter.peek(&queue(), &Key::global(), 0).await.unwrap();
    assert_eq!(budget.remaining(), 3, "its unit stays charged");
    let inside = Router::new()
        .route("/", handler)
        .layer(timeout())
        .layer(delaying().0);
    assert_eq!(status(&inside, plain("/")).await, 200);
    assert_eq!(status(&inside, plain("/")).await, 200);
}

#[tokio::test]
async fn load_shedding_outside_keeps_requests_from_being_charged() {
    let overloaded = |_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE };
    // A router makes a service of each route: they share one place.
    let shed = || {
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(overloaded))
            .load_shed()
            .layer(GlobalConcurrencyLimitLayer::new(1))
    };
    let forever = get(|| async { std::future::pending::<()>().await });
    for (is_outside, expected) in [(true, "2"), (false, "1")] {
        let layer = limit(4, Global);
        let routes = Router::new()
            .route("/forever", forever.clone())
            .route("/", get(hello));
        let app = if is_outside {
            routes.layer(layer).layer(shed())
        } else {
            routes.layer(shed()).layer(layer)
        };
        let busy = tokio::spawn({
            let app = app.clone();
            async move { send(&app, plain("/forever")).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(
            status(&app, plain("/")).await,
            503,
            "the only place is taken"
        );
        busy.abort();
        assert!(busy.await.unwrap_err().is_cancelled());
        let response = send(&app, plain("/")).await;
        assert_eq!(
            response.headers()["x-ratelimit-remaining"],
            expected,
            "outside: {is_outside}"
        );
    }
}

/// A router hides whether its services are ready. A `ServiceBuilder` does not.
#[tokio::test(start_paused = true)]
async fn in_a_service_builder_load_shedding_inside_keeps_denials_from_waiting_for_a_place() {
    let hello = |_: Request| async { Ok::<_, BoxError>(Response::new(Body::from("hello"))) };
    for sheds in [true, false] {
        let places = GlobalConcurrencyLimitLayer::new(1);
        let mut busy = ServiceBuilder::new()
            .layer(places.clone())
            .service(service_fn(hello));
        let _place = busy.ready().await.unwrap().call(plain("/"));
        let answer = async {
            let layer = limit(1, Global).cost(|_| 2);
            if sheds {
                let service = ServiceBuilder::new().layer(layer).load_shed().layer(places);
                service.service_fn(hello).oneshot(plain("/")).await
            } else {
                let service = ServiceBuilder::new().layer(layer).layer(places);
                service.service_fn(hello).oneshot(plain("/")).await
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), answer).await {
            Ok(answer) => assert!(sheds && answer.unwrap().status() == 422),
            Err(_waited) => assert!(!sheds),
        }
    }
}

#[tokio::test]
async fn compression_may_be_on_either_side() {
    let long = || get(|| async { "hello ".repeat(100) });
    let routes = || Router::new().route("/", long());
    for app in [
        routes()
            .layer(limit(1, Global))
            .layer(CompressionLayer::new()),
        routes()
            .layer(CompressionLayer::new())
            .layer(limit(1, Global)),
    ] {
        let compressed = || {
            request("GET", "/")
                .header("accept-encoding", "gzip")
                .body(Body::empty())
                .unwrap()
        };
        let allowed = send(&app, compressed()).await;
        assert_eq!(allowed.headers()["content-encoding"], "gzip");
        assert_eq!(allowed.headers()["x-ratelimit-remaining"], "0");
        let denied = send(&app, compressed()).await;
        assert_eq!(denied.headers()["retry-after"], "3600");
        let is_compressed = denied.headers().contains_key("content-encoding");
        let body = denied.into_body().collect().await.unwrap().to_bytes();
        let mut text = String::new();
        if is_compressed {
            flate2::read::GzDecoder::new(&body[..])
                .read_to_string(&mut text)
                .unwrap();
        } else {
            text = String::from_utf8(body.to_vec()).unwrap();
        }
        assert_eq!(text, "rate limit `api` exceeded: try again in 3600 s\n");
    }
}

/// A builder's first layer is the outermost one.
#[tokio::test]
async fn service_builder_takes_the_layer() {
    let app = Router::new().route("/", get(hello)).layer(
        ServiceBuilder::new()
            .layer(middleware::from_fn(reject))
            .layer(limit(1, Global)),
    );
    for _ in 0..3 {
        assert_eq!(status(&app, plain("/")).await, 401);
    }
    let app = Router::new().route("/", get(hello)).layer(
        ServiceBuilder::new()
            .layer(limit(1, Global))
            .layer(middleware::from_fn(reject)),
    );
    assert_eq!(status(&app, plain("/")).await, 401);
    assert_eq!(status(&app, plain("/")).await, 429);
}
