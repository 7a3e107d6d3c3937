//! The layer as a tower service: responses, headers, delays, exemptions, failures and
//! configuration.

#![cfg(feature = "axum")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tollgate::clock::ManualClock;
use tollgate::key::{Global, Header, PeerIp};
use tollgate::layer::{OnMissingKey, OnStoreFailure, RateLimit};
use tollgate::{Decision, Error, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::support::requests::{app, from_peer, number, plain, request, send, status};
use crate::support::scripted::Scripted;

const PER_MINUTE: Quota = Quota::per_minute(2);

fn limiter() -> RateLimiter {
    RateLimiter::new(MemoryStore::with_clock(ManualClock::new()))
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// An app that answers `GET /`, behind a layer.
fn global(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::fixed_window(limiter, "api", PER_MINUTE, Global).unwrap()
}

#[tokio::test]
async fn responses_have_headers_and_an_empty_budget_is_429() {
    let app = app(global(&limiter()));
    for left in [1, 0] {
        let response = send(&app, plain("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(number(response.headers(), "x-ratelimit-limit"), 2);
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left);
        assert!(!response.headers().contains_key("retry-after"));
        assert_eq!(text(response).await, "hello");
    }
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(number(response.headers(), "retry-after"), 60);
    assert_eq!(number(response.headers(), "x-ratelimit-limit"), 2);
    assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 0);
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; charset=utf-8"
    );
    assert_eq!(
        text(response).await,
        "rate limit `api` exceeded: try again in 60 s\n"
    );
}

#[tokio::test]
async fn retry_after_is_rounded_up_and_at_least_one() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let app =
        app(RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(1), Global).unwrap());
    send(&app, plain("/")).await;
    for (elapsed_us, retry_after) in [(1, 60), (58_999_999, 2), (59_000_000, 1), (59_999_999, 1)] {
        clock.set(Duration::from_micros(elapsed_us));
        let response = send(&app, plain("/")).await;
        assert_eq!(number(response.headers(), "retry-after"), retry_after);
    }
    clock.set(Duration::from_secs(60));
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn reset_header_is_epoch_seconds_or_delta_seconds() {
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock));
    let response = send(&app(global(&limiter)), plain("/")).await;
    assert_eq!(
        number(response.headers(), "x-ratelimit-reset"),
        1_790_000_060
    );

    let layer = global(&limiter).reset_in_delta_seconds();
    let response = send(&app(layer), plain("/")).await;
    assert_eq!(number(response.headers(), "x-ratelimit-reset"), 60);
}

#[tokio::test]
async fn decision_as_an_argument_says_which_setting_is_missing() {
    let handler = async |decision: Decision| decision.remaining().to_string();
    let app = Router::new()
        .route("/", get(handler))
        .layer(global(&limiter()));
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let text = text(response).await;
    assert!(text.contains("add `insert_decision()`"), "{text}");
}

#[tokio::test]
async fn insert_decision_adds_it_to_request_and_response() {
    let handler = async |decision: Decision| decision.remaining().to_string();
    let app = Router::new()
        .route("/", get(handler))
        .layer(global(&limiter()).insert_decision());
    let response = send(&app, plain("/")).await;
    assert_eq!(
        response.extensions().get::<Decision>().unwrap().remaining(),
        1
    );
    assert_eq!(text(response).await, "1");
    send(&app, plain("/")).await;
    let denied = send(&app, plain("/")).await;
    assert!(!denied.extensions().get::<Decision>().unwrap().allowed());
}

#[tokio::test]
async fn respond_with_changes_the_response_to_a_denied_request() {
    let layer = global(&limiter()).respond_with(|rejection, mut answer| {
        answer
            .headers_mut()
            .insert("content-type", "application/json".parse().unwrap());
        answer.map(|_| {
            format!(
                r#"{{"limit":{}}}"#,
                rejection.decision().unwrap().capacity()
            )
        })
    });
    let app = app(layer);
    send(&app, plain("/")).await;
    send(&app, plain("/")).await;
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(number(response.headers(), "retry-after"), 60);
    assert_eq!(text(response).await, r#"{"limit":2}"#);
}

#[tokio::test]
async fn cost_that_exceeds_the_capacity_is_422_without_retry_after() {
    let layer = global(&limiter()).cost(|parts| parts.uri.path().len() as u32);
    let app = Router::new().fallback(|| async { "hello" }).layer(layer);
    let response = send(&app, plain("/expensive")).await;
    assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(!response.headers().contains_key("retry-after"));
    assert!(
        text(response)
            .await
            .contains("more than the 2 units that the limit `api` ever allows")
    );
    assert_eq!(
        number(
            send(&app, plain("/a")).await.headers(),
            "x-ratelimit-remaining"
        ),
        0
    );
}

#[tokio::test]
async fn limits_of_a_layer_are_one_group_with_a_key_each() {
    let layer = RateLimitLayer::new(
        limiter(),
        Limit::fixed_window("client", Quota::per_minute(2)).unwrap(),
        PeerIp,
    )
    .unwrap()
    .limit(
        Limit::fixed_window("everyone", Quota::per_minute(3)).unwrap(),
        Global,
    )
    .unwrap();
    let app = app(layer);
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    // The client's limit denies, so the other one is not charged.
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 429);
    assert_eq!(status(&app, from_peer("192.0.2.2")).await, 200);
    let response = send(&app, from_peer("192.0.2.3")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(number(response.headers(), "x-ratelimit-limit"), 3);
}

#[tokio::test]
async fn layers_share_a_budget_only_by_the_same_name_and_key() {
    let limiter = limiter();
    let layer = |name| RateLimitLayer::fixed_window(&limiter, name, PER_MINUTE, Global).unwrap();
    let app = Router::new()
        .route("/a", get(|| async {}).layer(layer("shared")))
        .route("/b", get(|| async {}).layer(layer("shared")))
        .route("/c", get(|| async {}).layer(layer("own")));
    for (path, expected) in [
        ("/a", 200),
        ("/b", 200),
        ("/a", 429),
        ("/b", 429),
        ("/c", 200),
    ] {
        assert_eq!(status(&app, plain(path)).await, expected, "{path}");
    }
}

#[tokio::test]
async fn stacked_layers_report_the_tightest_budget() {
    let limiter = limiter();
    let layer = |name, limit| {
        RateLimitLayer::fixed_window(&limiter, name, Quota::per_minute(limit), Global).unwrap()
    };
    let app = app(layer("inner", 2)).layer(layer("outer", 10));
    let response = send(&app, plain("/")).await;
    assert_eq!(number(response.headers(), "x-ratelimit-limit"), 2);
    send(&app, plain("/")).await;
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(number(response.headers(), "x-ratelimit-limit"), 2);
    assert!(!response.extensions().get::<Decision>().unwrap().allowed());
}

#[tokio::test]
async fn layer_works_wherever_axum_takes_one() {
    let limiter = limiter();
    let layer = |name: &str| RateLimitLayer::gcra(&limiter, name, PER_MINUTE, Global).unwrap();
    let app = Router::new()
        .route("/method", get(|| async {}).layer(layer("method")))
        .route("/route", get(|| async {}))
        .route_layer(layer("route"))
        .layer(ServiceBuilder::new().layer(layer("builder")));
    assert_eq!(status(&app, plain("/method")).await, 200);
    assert_eq!(status(&app, plain("/nowhere")).await, 404);
}

#[tokio::test(start_paused = true)]
async fn leaky_bucket_delays_requests() {
    let limiter = RateLimiter::in_memory();
    let app = app(RateLimitLayer::leaky_bucket(
        &limiter,
        "queue",
        Quota::per_second(10).burst(3),
        Global,
    )
    .unwrap());
    let started = Instant::now();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let app = app.clone();
        requests.spawn(async move { (status(&app, plain("/")).await, started.elapsed()) });
    }
    let mut answers = requests.join_all().await;
    answers.sort();
    let ms = Duration::from_millis;
    assert_eq!(
        answers,
        [(200, ms(0)), (200, ms(100)), (200, ms(200)), (429, ms(0))]
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiting_request_never_reaches_the_handler() {
    let called = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&called);
    let limiter = RateLimiter::in_memory();
    let handler = move || async move {
        count.fetch_add(1, Ordering::SeqCst);
    };
    let app = Router::new().route("/", get(handler)).layer(
        RateLimitLayer::leaky_bucket(&limiter, "queue", Quota::per_second(1).burst(5), Global)
            .unwrap(),
    );
    assert_eq!(status(&app, plain("/")).await, 200);
    let cancelled =
        tokio::time::timeout(Duration::from_millis(500), status(&app, plain("/"))).await;
    assert!(cancelled.is_err());
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn only_cors_preflight_requests_are_exempt() {
    let preflight = || {
        request("OPTIONS", "/")
            .header("origin", "https://example.com")
            .header("access-control-request-method", "PUT")
            .body(Body::empty())
            .unwrap()
    };
    let limiter = limiter();
    let limited = app(global(&limiter));
    for _ in 0..5 {
        let response = send(&limited, preflight()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
    }
    for expected in [200, 200, 429] {
        let options = request("OPTIONS", "/").header("origin", "https://example.com");
        assert_eq!(
            status(&limited, options.body(Body::empty()).unwrap()).await,
            expected
        );
    }
    assert_eq!(
        status(&app(global(&limiter).limit_preflight()), preflight()).await,
        429
    );
}

#[tokio::test]
async fn skip_exempts_matching_requests() {
    let layer = global(&limiter()).skip(|parts| parts.uri.path() == "/health");
    let app = Router::new().fallback(|| async {}).layer(layer);
    for _ in 0..5 {
        assert_eq!(status(&app, plain("/health")).await, 200);
    }
    for expected in [200, 200, 429] {
        assert_eq!(status(&app, plain("/healthy")).await, expected);
    }
}

/// Otherwise a client that is known by the first value would be unlimited.
#[tokio::test]
async fn header_that_is_empty_or_sent_twice_is_rejected_even_if_a_missing_one_is_skipped() {
    let key = Header::new("x-user").unwrap();
    let layer = RateLimitLayer::gcra(limiter(), "api", PER_MINUTE, key).unwrap();
    let app = app(layer.on_missing_key(OnMissingKey::SkipLimit).unwrap());
    for (values, expected) in [
        (&[][..], 200),
        (&["alice", "alice"], 400),
        (&["alice", ""], 400),
        (&[""], 400),
    ] {
        let mut request = plain("/");
        for value in values {
            request
                .headers_mut()
                .append("x-user", value.parse().unwrap());
        }
        assert_eq!(status(&app, request).await, expected, "{values:?}");
    }
}

#[tokio::test]
async fn missing_key_has_the_configured_outcome() {
    let layer = || {
        let key = Header::new("x-user").unwrap();
        RateLimitLayer::gcra(limiter(), "api", PER_MINUTE, key).unwrap()
    };
    let response = send(&app(layer()), plain("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(
        text(response).await,
        "no key for the rate limit `api`: the header `x-user` is missing\n"
    );
    for status in [100, 101, 200, 204, 302, 399, 600, 999] {
        let outcome = OnMissingKey::Reject(status.try_into().unwrap());
        let error = layer().on_missing_key(outcome).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("`OnMissingKey::Reject` has the status {status}; use 400 to 599")
        );
    }
    let unauthorized = layer()
        .on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED))
        .unwrap();
    assert_eq!(status(&app(unauthorized), plain("/")).await, 401);
    let forward = app(layer().on_missing_key(OnMissingKey::SkipLimit).unwrap());
    for _ in 0..5 {
        let response = send(&forward, plain("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
    }
}

#[tokio::test]
async fn unknown_peer_is_a_400_without_internal_details() {
    let layer = RateLimitLayer::gcra(limiter(), "api", PER_MINUTE, PeerIp).unwrap();
    let response = send(&app(layer), plain("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        text(response).await,
        "no key for the rate limit `api`: the peer's address is unknown\n"
    );
}

/// A store that is always unavailable.
fn broken() -> Scripted {
    Scripted::failing(|| Error::unreachable("no server"))
}

#[tokio::test]
async fn store_failure_has_the_configured_outcome() {
    let layer =
        || RateLimitLayer::gcra(RateLimiter::new(broken()), "api", PER_MINUTE, Global).unwrap();
    let response = send(&app(layer()), plain("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("x-ratelimit-limit"));

    let fail_closed = app(layer()
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap());
    let response = send(&fail_closed, plain("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(number(response.headers(), "retry-after"), 1);
    assert_eq!(
        text(response).await,
        "the rate limit cannot be checked at the moment: try again in 1 s\n"
    );
}

#[test]
fn invalid_layer_is_an_error_of_the_builder() {
    let limiter = limiter();
    let layer = |name, quota| RateLimitLayer::fixed_window(&limiter, name, quota, Global);
    assert!(layer("api", PER_MINUTE).is_ok());
    assert!(
        layer("api", PER_MINUTE).is_ok(),
        "the same limit may be registered again"
    );
    for (name, quota, why) in [
        (
            "api",
            Quota::per_minute(3),
            "the name is registered for 2 per 1m",
        ),
        ("zero", Quota::per_minute(0), "the limit is 0"),
        ("burst", Quota::per_minute(1).burst(2), "has no burst"),
        (
            "new\nline",
            PER_MINUTE,
            "the name does not fit into a header value",
        ),
    ] {
        let error = layer(name, quota).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let twice = Limit::fixed_window("twice", PER_MINUTE).unwrap();
    let layer = RateLimitLayer::new(&limiter, twice.clone(), PeerIp).unwrap();
    assert!(
        layer
            .limit(twice, Global)
            .unwrap_err()
            .to_string()
            .contains("two limits of this name")
    );
}

/// A service that is ready once, and must be called on the instance that was made ready.
struct Strict {
    ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<Full<bytes::Bytes>>> for Strict {
    type Response = Response<Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<bytes::Bytes>>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        std::future::ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn called_service_is_the_one_that_was_ready() {
    let mut service = global(&limiter()).layer(Strict { ready: false });
    for expected in [200, 200, 429, 429] {
        let service = service.ready().await.unwrap();
        let request = Request::new(Full::default());
        assert_eq!(service.call(request).await.unwrap().status(), expected);
    }
}

#[test]
fn layer_and_service_are_clone_send_and_sync() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send>(_: &T) {}
    let layer = global(&limiter());
    let mut service: RateLimit<Strict> = layer.layer(Strict { ready: true });
    shared(&layer);
    shared(&service);
    sent(&service.call(Request::new(Full::default())));
}

#[tokio::test]
async fn layer_has_all_limits_of_a_list_under_one_key() {
    let limits = [("second", 5), ("day", 3)]
        .map(|(name, units)| Limit::fixed_window(name, Quota::per_day(units)).unwrap());
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::from_limits(&limiter, limits.to_vec(), Global).unwrap();
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer);
    for expected in [200, 200, 200, 429] {
        assert_eq!(status(&app, plain("/")).await, expected);
    }
    let left = limiter
        .peek(&limits[0], &tollgate::Key::global(), 0)
        .await
        .unwrap();
    assert_eq!(left.remaining(), 2, "the denied request charged nothing");

    let error = RateLimitLayer::from_limits(&limiter, [], Global).unwrap_err();
    assert!(
        error.to_string().contains("the layer has no limits"),
        "{error}"
    );
}

#[test]
fn layer_takes_what_the_constructors_of_a_limit_return() {
    let limiter = RateLimiter::in_memory();
    let too_many = Limit::concurrency("exports", 0);
    let error = RateLimitLayer::new(&limiter, too_many, Global).unwrap_err();
    assert!(
        error.to_string().starts_with("limit `exports`: "),
        "{error}"
    );
    let layer = RateLimitLayer::new(&limiter, Limit::gcra("api", Quota::per_second(5)), Global);
    let daily = Limit::fixed_window("daily", Quota::per_day(0));
    let error = layer.unwrap().limit(daily, Global).unwrap_err();
    assert!(error.to_string().starts_with("limit `daily`: "), "{error}");
}
