//! The layer as a tower service.

#![cfg(feature = "axum")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::{any, get};
use axum::{Extension as AxumExtension, Router};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tollgate::clock::ManualClock;
use tollgate::key::{Extension, Global, Header, KeyExtractor, PeerIp, PeerNetwork, Route, from_fn};
use tollgate::layer::{OnMissingKey, OnStoreFailure, RateLimit, ResetFormat};
use tollgate::store::{Answer, Op, Store};
use tollgate::{
    Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

const PER_MINUTE: Quota = Quota::per_minute(2);

fn limiter() -> RateLimiter {
    RateLimiter::new(MemoryStore::with_clock(ManualClock::new()))
}

fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path)
}

fn plain(path: &str) -> Request<Body> {
    request("GET", path).body(Body::empty()).unwrap()
}

fn from_peer(peer: &str) -> Request<Body> {
    let mut request = plain("/");
    let address = SocketAddr::new(peer.parse().unwrap(), 4711);
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

async fn status(app: &Router, request: Request<Body>) -> u16 {
    send(app, request).await.status().as_u16()
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers[name].to_str().unwrap().parse().unwrap()
}

/// An app that answers `GET /`, behind a layer.
fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", any(|| async { "hello" })).layer(layer)
}

fn global(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::fixed_window(limiter, "api", PER_MINUTE).key(Global).unwrap()
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
    assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(text(response).await, "rate limit `api` exceeded: try again in 60 s\n");
}

#[tokio::test]
async fn retry_after_is_rounded_up_and_at_least_one() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let app = app(RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(1))
        .key(Global)
        .unwrap());
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
    assert_eq!(number(response.headers(), "x-ratelimit-reset"), 1_790_000_060);

    let layer = global(&limiter).reset_format(ResetFormat::DeltaSeconds);
    let response = send(&app(layer), plain("/")).await;
    assert_eq!(number(response.headers(), "x-ratelimit-reset"), 60);
}

#[tokio::test]
async fn insert_decision_adds_it_to_request_and_response() {
    let handler = |AxumExtension(decision): AxumExtension<Decision>| async move {
        decision.remaining().to_string()
    };
    let app = Router::new().route("/", get(handler)).layer(global(&limiter()).insert_decision());
    let response = send(&app, plain("/")).await;
    assert_eq!(response.extensions().get::<Decision>().unwrap().remaining(), 1);
    assert_eq!(text(response).await, "1");
    send(&app, plain("/")).await;
    let refused = send(&app, plain("/")).await;
    assert!(!refused.extensions().get::<Decision>().unwrap().allowed());
}

#[tokio::test]
async fn respond_with_changes_the_response_to_a_denied_request() {
    let layer = global(&limiter()).respond_with(|rejection, mut answer| {
        answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
        answer.map(|_| format!(r#"{{"limit":{}}}"#, rejection.decision().unwrap().capacity()))
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
        text(response).await.contains("more than the 2 units that the limit `api` ever allows")
    );
    assert_eq!(number(send(&app, plain("/a")).await.headers(), "x-ratelimit-remaining"), 0);
}

#[tokio::test]
async fn limits_of_a_layer_are_one_group_with_a_key_each() {
    let layer = RateLimitLayer::builder(limiter())
        .limit(Limit::fixed_window("client", Quota::per_minute(2)).unwrap(), PeerIp)
        .limit(Limit::fixed_window("everyone", Quota::per_minute(3)).unwrap(), Global)
        .build()
        .unwrap();
    let app = app(layer);
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    // The client's limit refuses, so everyone's is not charged.
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 429);
    assert_eq!(status(&app, from_peer("192.0.2.2")).await, 200);
    let response = send(&app, from_peer("192.0.2.3")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(number(response.headers(), "x-ratelimit-limit"), 3);
}

#[tokio::test]
async fn layers_share_a_budget_only_by_the_same_name_and_key() {
    let limiter = limiter();
    let layer =
        |name| RateLimitLayer::fixed_window(&limiter, name, PER_MINUTE).key(Global).unwrap();
    let app = Router::new()
        .route("/a", get(|| async {}).layer(layer("shared")))
        .route("/b", get(|| async {}).layer(layer("shared")))
        .route("/c", get(|| async {}).layer(layer("own")));
    for (path, expected) in [("/a", 200), ("/b", 200), ("/a", 429), ("/b", 429), ("/c", 200)] {
        assert_eq!(status(&app, plain(path)).await, expected, "{path}");
    }
}

#[tokio::test]
async fn stacked_layers_report_the_tightest_budget() {
    let limiter = limiter();
    let layer = |name, limit| {
        RateLimitLayer::fixed_window(&limiter, name, Quota::per_minute(limit)).key(Global).unwrap()
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
    let layer = |name: &str| RateLimitLayer::gcra(&limiter, name, PER_MINUTE).key(Global).unwrap();
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
    let layer = RateLimitLayer::leaky_bucket(&limiter, "queue", Quota::per_second(10).burst(3));
    let app = app(layer.key(Global).unwrap());
    let started = Instant::now();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let app = app.clone();
        requests.spawn(async move { (status(&app, plain("/")).await, started.elapsed()) });
    }
    let mut answers = requests.join_all().await;
    answers.sort();
    let ms = Duration::from_millis;
    assert_eq!(answers, [(200, ms(0)), (200, ms(100)), (200, ms(200)), (429, ms(0))]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiting_request_never_reaches_the_handler() {
    let called = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&called);
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::leaky_bucket(&limiter, "queue", Quota::per_second(1).burst(5));
    let handler = move || async move {
        count.fetch_add(1, Ordering::SeqCst);
    };
    let app = Router::new().route("/", get(handler)).layer(layer.key(Global).unwrap());
    assert_eq!(status(&app, plain("/")).await, 200);
    let impatient =
        tokio::time::timeout(Duration::from_millis(500), status(&app, plain("/"))).await;
    assert!(impatient.is_err());
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
        assert_eq!(status(&limited, options.body(Body::empty()).unwrap()).await, expected);
    }
    assert_eq!(status(&app(global(&limiter).limit_preflight()), preflight()).await, 429);
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

#[tokio::test]
async fn missing_key_has_the_configured_outcome() {
    let layer = || {
        let key = Header::new("x-user").unwrap();
        RateLimitLayer::gcra(limiter(), "api", PER_MINUTE).key(key).unwrap()
    };
    let response = send(&app(layer()), plain("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        text(response).await,
        "no key for the rate limit `api`: the header `x-user` is missing\n"
    );
    let unauthorized = layer().on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED));
    assert_eq!(status(&app(unauthorized), plain("/")).await, 401);
    let forward = app(layer().on_missing_key(OnMissingKey::SkipLimit));
    for _ in 0..5 {
        let response = send(&forward, plain("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
    }
}

#[tokio::test]
async fn unknown_peer_is_a_400_without_internal_details() {
    let layer = RateLimitLayer::gcra(limiter(), "api", PER_MINUTE).key(PeerIp).unwrap();
    let response = send(&app(layer), plain("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        text(response).await,
        "no key for the rate limit `api`: the peer's address is unknown\n"
    );
}

/// The key of a request, as text.
fn key_of(extractor: &impl KeyExtractor, request: Request<Body>) -> Result<String, String> {
    let (parts, _) = request.into_parts();
    extractor.extract(&parts).map(|key| key.to_string()).map_err(|missing| missing.to_string())
}

#[test]
fn peer_key_is_the_ipv4_address_or_the_ipv6_network() {
    let key = |peer| key_of(&PeerIp, from_peer(peer)).unwrap();
    assert_eq!(key("192.0.2.1"), "192.0.2.1");
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"), "as a dual-stack listener shows it");
    assert_ne!(key("::ffff:192.0.2.1"), key("::ffff:192.0.2.2"));
    assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff:ffff:ffff:ffff"));
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_ne!(key("2001:db8:1234:5678::102:304"), key("1.2.3.4"));
    let wide = PeerNetwork::ipv6_prefix(48).unwrap();
    assert_eq!(
        key_of(&wide, from_peer("2001:db8:0:1::1")),
        key_of(&wide, from_peer("2001:db8:0:2::1"))
    );
    assert!(PeerNetwork::ipv6_prefix(129).is_err() && PeerNetwork::ipv6_prefix(0).is_err());
}

#[test]
fn forwarded_headers_do_not_change_a_peers_key() {
    for name in ["x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip", "x_forwarded_for"] {
        let mut spoofed = from_peer("192.0.2.1");
        spoofed.headers_mut().insert(name, "203.0.113.9".parse().unwrap());
        assert_eq!(key_of(&PeerIp, spoofed).unwrap(), "192.0.2.1");
    }
}

#[test]
fn header_key_needs_exactly_one_value_that_is_not_empty() {
    let header = Header::new("X-User").unwrap();
    let with = |values: &[&[u8]]| {
        let mut request = plain("/");
        for value in values {
            let value = http::HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append("x-user", value);
        }
        key_of(&header, request)
    };
    assert_eq!(with(&[b"alice"]).unwrap(), "alice");
    assert_eq!(with(&[b"\xff{}:"]).unwrap(), "%ff%7b%7d%3a");
    assert_eq!(with(&[]).unwrap_err(), "the header `x-user` is missing");
    assert_eq!(with(&[b""]).unwrap_err(), "the header `x-user` is empty");
    assert_eq!(with(&[b"a", b"b"]).unwrap_err(), "the header `x-user` is sent more than once");
    assert!(Header::new("x user").unwrap_err().to_string().contains("is not a header name"));
}

#[tokio::test]
async fn route_key_is_the_method_and_the_template() {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    let layer = RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(100));
    let app = Router::new()
        .route("/users/{id}", any(|| async {}))
        .route("/other", any(|| async {}))
        .route_layer(layer.key(Route).unwrap());
    let mut left = 100;
    for (method, path) in [
        ("GET", "/users/1"),
        ("GET", "/users/2?x=1"),
        ("HEAD", "/users/%61"),
        ("GET", "http://example.com/users/abs"),
    ] {
        let response = send(&app, request(method, path).body(Body::empty()).unwrap()).await;
        left -= 1;
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left, "{method} {path}");
    }
    for (method, path, left) in [
        ("POST", "/users/1", 99),
        ("FOO", "/users/1", 99),
        ("BAR", "/users/1", 98),
        ("GET", "/other", 99),
    ] {
        let response = send(&app, request(method, path).body(Body::empty()).unwrap()).await;
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left, "{method} {path}");
    }
    assert_eq!(status(&app, plain("/nowhere")).await, 404);
}

#[test]
fn joined_key_needs_both_parts_and_fallback_keys_are_distinct() {
    let user = || Header::new("x-user").unwrap();
    let mix = user().and(PeerIp);
    assert!(key_of(&mix, from_peer("192.0.2.1")).is_err());

    let either = user().or(PeerIp);
    let mut spoofed = from_peer("192.0.2.1");
    spoofed.headers_mut().insert("x-user", "192.0.2.9".parse().unwrap());
    assert_ne!(key_of(&either, spoofed), key_of(&either, from_peer("192.0.2.9")));
    assert!(key_of(&either, plain("/")).unwrap_err().contains("`x-user` is missing; the peer's"));
}

#[derive(Clone)]
struct UserId(u64);

#[test]
fn extension_extractor_is_copy_for_any_extension() {
    struct Unique(u64);
    fn copied<E: KeyExtractor + Clone + Copy>(_: E) {}
    copied(Extension::new(|unique: &Unique| Key::from(unique.0)));
}

#[test]
fn extensions_closures_and_boxed_extractors_give_keys() {
    let user = Extension::new(|user: &UserId| Key::from(user.0));
    let mut request = plain("/");
    assert_eq!(key_of(&user, plain("/")).unwrap_err(), "the request has no rate limit key");
    request.extensions_mut().insert(UserId(7));
    assert_eq!(key_of(&user, request).unwrap(), "7");

    let path = from_fn(|parts| Some(Key::new(parts.uri.path())));
    let boxed: Arc<dyn KeyExtractor> = Arc::new(path);
    assert_eq!(key_of(&boxed, plain("/a")).unwrap(), "%2fa".replace("%2f", "/"));
}

/// A store that cannot decide.
#[derive(Debug)]
struct Broken;

impl Store for Broken {
    fn apply(&self, _: Op, _: &[Check]) -> Answer {
        Answer::later(async { Err(Error::unreachable("nobody is there")) })
    }
}

#[tokio::test]
async fn store_failure_has_the_configured_outcome() {
    let layer =
        || RateLimitLayer::gcra(RateLimiter::new(Broken), "api", PER_MINUTE).key(Global).unwrap();
    let response = send(&app(layer()), plain("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("x-ratelimit-limit"));

    let refusing = app(layer().on_store_failure(OnStoreFailure::FailClosed));
    let response = send(&refusing, plain("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(response).await, "the rate limit cannot be checked at the moment\n");
}

#[test]
fn invalid_layer_is_an_error_of_the_builder() {
    let limiter = limiter();
    let layer = |name, quota| RateLimitLayer::fixed_window(&limiter, name, quota).key(Global);
    assert!(layer("api", PER_MINUTE).is_ok());
    assert!(layer("api", PER_MINUTE).is_ok(), "the same again is no mistake");
    for (name, quota, why) in [
        ("api", Quota::per_minute(3), "the name is registered for 2 per 1m"),
        ("zero", Quota::per_minute(0), "the limit is 0"),
        ("burst", Quota::per_minute(1).burst(2), "has no burst"),
        ("new\nline", PER_MINUTE, "the name does not fit into a header value"),
    ] {
        let error = layer(name, quota).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let error = RateLimitLayer::builder(&limiter).build().unwrap_err();
    assert!(error.to_string().contains("the layer has no limit"));
    let twice = Limit::fixed_window("twice", PER_MINUTE).unwrap();
    let builder =
        RateLimitLayer::builder(&limiter).limit(twice.clone(), PeerIp).limit(twice, Global);
    assert!(builder.build().unwrap_err().to_string().contains("two limits of this name"));
}

/// A service that is ready once, and must be called on the instance that was made ready.
struct Fussy {
    ready: bool,
}

impl Clone for Fussy {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<Full<bytes::Bytes>>> for Fussy {
    type Response = Response<Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<bytes::Bytes>>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        std::future::ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn called_service_is_the_one_that_was_ready() {
    let mut service = global(&limiter()).layer(Fussy { ready: false });
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
    let mut service: RateLimit<Fussy> = layer.layer(Fussy { ready: true });
    shared(&layer);
    shared(&service);
    sent(&service.call(Request::new(Full::default())));
}
