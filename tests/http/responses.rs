//! Responses of the layer to rejected requests: each reason, each limit's own cost, custom
//! responses.

#![cfg(feature = "axum")]

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tollgate::key::{Global, Header};
use tollgate::layer::{OnStoreFailure, Reason, Rejection};
use tollgate::{Error, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::ServiceExt;

use crate::support::requests::app;
use crate::support::scripted::Scripted;

const PER_HOUR: Quota = Quota::per_hour(1);

async fn send(app: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn get(accept: &str) -> Request<Body> {
    Request::builder()
        .uri("/path")
        .header("accept", accept)
        .body(Body::empty())
        .unwrap()
}

/// A failure of the store, its reason, and its status.
type Failure = (fn() -> Error, &'static str, u16);

/// The reason, the limit, and what the request accepts.
fn describe(rejection: &Rejection<'_>, response: Response<bytes::Bytes>) -> Response<String> {
    let accept = rejection.request().headers["accept"].to_str().unwrap();
    let limit = rejection.limit().map(Limit::name);
    let body = format!(
        "{:?} {limit:?} {accept} {}",
        rejection.reason(),
        response.status()
    );
    response.map(|_| body)
}

#[tokio::test]
async fn responder_sees_the_reason_the_limit_and_the_request() {
    let limiter = RateLimiter::in_memory();
    let layer = |name| RateLimitLayer::gcra(&limiter, name, PER_HOUR, Global).unwrap();
    let denied = app(layer("denied").respond_with(describe));
    assert_eq!(send(&denied, get("text/html")).await.0, StatusCode::OK);
    let large = layer("large").cost(|_| 2).respond_with(describe);
    let user = Header::new("x-user").unwrap();
    let keyless = RateLimitLayer::gcra(&limiter, "keyless", PER_HOUR, user).unwrap();
    for (app, status, body) in [
        (
            denied,
            429,
            "RateLimited Some(\"denied\") text/html 429 Too Many Requests",
        ),
        (
            app(large),
            422,
            "ExceedsCapacity Some(\"large\") text/html 422 Unprocessable Entity",
        ),
        (
            app(keyless.respond_with(describe)),
            400,
            "MissingKey Some(\"keyless\") text/html 400 Bad Request",
        ),
    ] {
        assert_eq!(
            send(&app, get("text/html")).await,
            (status.try_into().unwrap(), body.into())
        );
    }
}

#[tokio::test]
async fn failures_of_the_store_have_a_reason_each() {
    let failures: [Failure; 4] = [
        (|| Error::unreachable("no server"), "StoreUnavailable", 503),
        (|| Error::overloaded(1), "Overloaded", 503),
        (|| Error::full("no room"), "StoreFull", 503),
        (
            || Error::misuse("it can never be decided"),
            "Misconfigured",
            500,
        ),
    ];
    for (error, reason, status) in failures {
        let layer = RateLimitLayer::gcra(
            RateLimiter::new(Scripted::failing(error)),
            "api",
            PER_HOUR,
            Global,
        )
        .unwrap()
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
        let (answered, body) = send(&app(layer.respond_with(describe)), get("*/*")).await;
        assert_eq!(answered, status);
        assert!(body.starts_with(reason), "{body}");
    }
}

#[tokio::test]
async fn invalid_group_never_fails_open() {
    let limiter = RateLimiter::new(Scripted::failing(|| {
        Error::misuse("it can never be decided")
    }));
    let layer = RateLimitLayer::gcra(limiter, "api", PER_HOUR, Global).unwrap();
    let layer = layer.on_store_failure(OnStoreFailure::FailOpen).unwrap();
    assert_eq!(
        send(&app(layer), get("*/*")).await.0,
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[tokio::test]
async fn each_limit_of_a_layer_has_its_own_cost() {
    let limiter = RateLimiter::new(MemoryStore::new());
    let requests = Limit::fixed_window("requests", Quota::per_hour(3)).unwrap();
    let tokens = Limit::fixed_window("tokens", Quota::per_hour(1_000)).unwrap();
    let layer = RateLimitLayer::new(&limiter, requests.clone(), Global)
        .unwrap()
        .limit_with_cost(tokens.clone(), Global, |_| 400)
        .unwrap()
        .respond_with(|rejection, response| {
            let decision = rejection.decision().unwrap();
            let deciding = format!("{} {:?}", decision.limit().name(), rejection.reason());
            assert_eq!(rejection.reason(), Reason::RateLimited);
            response.map(|_| deciding)
        });
    let app = app(layer);
    assert_eq!(send(&app, get("*/*")).await.0, StatusCode::OK);
    assert_eq!(send(&app, get("*/*")).await.0, StatusCode::OK);
    assert_eq!(send(&app, get("*/*")).await.1, "tokens RateLimited");
    // All or none: the denied request consumed nothing.
    let left = limiter
        .peek(&requests, &tollgate::Key::global(), 0)
        .await
        .unwrap();
    assert_eq!(left.remaining(), 1);
    let left = limiter
        .peek(&tokens, &tollgate::Key::global(), 0)
        .await
        .unwrap();
    assert_eq!((left.remaining(), left.limit().name()), (200, "tokens"));
}

#[test]
fn layer_with_more_limits_than_a_group_holds_is_an_error() {
    let limit = |number| Limit::gcra(&format!("limit {number}"), PER_HOUR).unwrap();
    let first = RateLimitLayer::new(RateLimiter::in_memory(), limit(0), Global).unwrap();
    let full = (1..255).fold(first, |layer, number| {
        layer.limit(limit(number), Global).unwrap()
    });
    let error = full.limit(limit(255), Global).unwrap_err().to_string();
    assert_eq!(error, "the layer has 256 limits; use at most 255");
}

#[tokio::test]
async fn forbidden_request_is_403_and_consumes_nothing() {
    let limiter = RateLimiter::in_memory();
    let is_forbidden = |parts: &http::request::Parts| parts.headers["accept"] == "text/html";
    let layer = RateLimitLayer::gcra(&limiter, "api", PER_HOUR, Global).unwrap();
    // A request that is skipped, too, is forbidden.
    let layer = layer.forbid(is_forbidden).skip(is_forbidden);
    let plain = app(layer.clone());
    for _ in 0..3 {
        let forbidden = (StatusCode::FORBIDDEN, "forbidden\n".to_owned());
        assert_eq!(send(&plain, get("text/html")).await, forbidden);
    }
    assert_eq!(send(&plain, get("*/*")).await.0, StatusCode::OK);
    assert_eq!(
        send(&plain, get("*/*")).await.0,
        StatusCode::TOO_MANY_REQUESTS
    );
    let described = app(layer.respond_with(describe));
    let (status, body) = send(&described, get("text/html")).await;
    assert_eq!(
        (status.as_u16(), &*body),
        (403, "Forbidden None text/html 403 Forbidden")
    );
}
