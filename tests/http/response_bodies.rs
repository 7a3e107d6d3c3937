//! The bodies of rejected requests: text, JSON, problem details, by `Accept`, and none for `HEAD`.

#![cfg(all(feature = "axum", feature = "json"))]

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tollgate::clock::ManualClock;
use tollgate::key::{Global, Header, KeyExtractor, MissingKey};
use tollgate::layer::{BodyFormat, OnStoreFailure};
use tollgate::{Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{app, plain, request, send};
use crate::support::scripted::Scripted;

const ONCE: Quota = Quota::per_minute(1);

/// A layer whose only unit is used up.
async fn exhausted(format: BodyFormat) -> Router {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    let app = app(RateLimitLayer::fixed_window(limiter, "api", ONCE, Global)
        .unwrap()
        .body_format(format));
    assert_eq!(send(&app, plain("/")).await.status(), StatusCode::OK);
    app
}

async fn answer(app: &Router, request: Request<Body>) -> (u16, HeaderMap, String) {
    let (parts, body) = send(app, request).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        parts.status.as_u16(),
        parts.headers,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

async fn value(app: &Router, content_type: &str) -> Value {
    let (status, headers, body) = answer(app, plain("/")).await;
    assert_eq!(headers["content-type"], content_type);
    let value: Value = serde_json::from_str(&body).unwrap();
    if let Some(member) = value.get("status") {
        assert_eq!(*member, json!(status));
    }
    value
}

fn accepting(accept: &[&str]) -> Request<Body> {
    let mut request = plain("/");
    for line in accept {
        request
            .headers_mut()
            .append("accept", line.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn denial_is_a_line_of_text_a_json_object_or_problem_details() {
    let text = exhausted(BodyFormat::Text).await;
    let (status, headers, body) = answer(&text, plain("/")).await;
    assert_eq!(
        (status, &*body),
        (429, "rate limit `api` exceeded: try again in 60 s\n")
    );
    assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
    assert!(!headers.contains_key("vary"));
    let message = "rate limit `api` exceeded: try again in 60 s";
    assert_eq!(
        value(&exhausted(BodyFormat::Json).await, "application/json").await,
        json!({"error": "rate_limited", "message": message, "limit": "api", "retry_after": 60})
    );
    assert_eq!(
        value(
            &exhausted(BodyFormat::ProblemDetails).await,
            "application/problem+json"
        )
        .await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": message,
            "violated-policies": ["api"],
        })
    );
}

#[tokio::test]
async fn every_rejection_has_the_format() {
    let limiter = RateLimiter::in_memory();
    let layer = |name| RateLimitLayer::gcra(&limiter, name, ONCE, Global).unwrap();
    let user = Header::new("x-user").unwrap();
    let keyless = RateLimitLayer::gcra(&limiter, "keyless", ONCE, user).unwrap();
    let failing = |error: fn() -> Error| {
        RateLimitLayer::gcra(
            RateLimiter::new(Scripted::failing(error)),
            "api",
            ONCE,
            Global,
        )
        .unwrap()
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap()
    };
    for (layer, error, status, r#type, title) in [
        (
            layer("large").cost(|_| 2),
            "exceeds_capacity",
            422,
            "about:blank",
            "Unprocessable Entity",
        ),
        (
            layer("forbidden").forbid(|_| true),
            "forbidden",
            403,
            "about:blank",
            "Forbidden",
        ),
        (keyless, "missing_key", 400, "about:blank", "Bad Request"),
        (
            failing(|| Error::unreachable("no server")),
            "unavailable",
            503,
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Temporary Reduced Capacity",
        ),
        (
            failing(|| Error::misuse("never")),
            "internal",
            500,
            "about:blank",
            "Internal Server Error",
        ),
    ] {
        let json = value(
            &app(layer.clone().body_format(BodyFormat::Json)),
            "application/json",
        )
        .await;
        assert_eq!(json["error"], error);
        // No wait helps, but for a store that is unavailable.
        assert_eq!(json.get("retry_after").is_some(), status == 503);
        let app = app(layer.body_format(BodyFormat::ProblemDetails));
        let problem = value(&app, "application/problem+json").await;
        assert_eq!(
            (&problem["status"], &problem["type"]),
            (&json!(status), &json!(r#type))
        );
        assert_eq!(
            (&problem["title"], &problem["detail"]),
            (&json!(title), &json["message"])
        );
    }
}

#[tokio::test]
async fn violated_policies_are_all_limits_that_denied() {
    let layer = RateLimitLayer::new(
        RateLimiter::in_memory(),
        Limit::fixed_window("client", ONCE).unwrap(),
        Global,
    )
    .unwrap()
    .limit(
        Limit::fixed_window("all", Quota::per_hour(9)).unwrap(),
        Global,
    )
    .unwrap()
    .limit(
        Limit::fixed_window("day", Quota::per_day(1)).unwrap(),
        Global,
    )
    .unwrap();
    let app = app(layer.body_format(BodyFormat::ProblemDetails));
    send(&app, plain("/")).await;
    let problem = value(&app, "application/problem+json").await;
    assert_eq!(problem["violated-policies"], json!(["client", "day"]));
}

#[tokio::test]
async fn accept_header_chooses_the_format() {
    let app = exhausted(BodyFormat::ByAccept).await;
    let (text, json, problem) = (
        "text/plain; charset=utf-8",
        "application/json",
        "application/problem+json",
    );
    let long = format!("application/json,{}", "a/b,".repeat(1_000));
    for (accept, expected) in [
        (&[][..], text),
        (&["*/*"], text),
        (&["application/json"], json),
        (&["application/problem+json"], problem),
        (
            &["application/problem+json, application/json;q=0.9"],
            problem,
        ),
        (&["application/problem+json;q=0.5, application/json"], json),
        (&["text/plain;q=0.1, application/json;q=0.2"], json),
        (&["application/*"], json),
        (
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],
            text,
        ),
        (&["text/html", "application/json;q=0.3"], json),
        (&["*/*;q=0.1, text/plain;q=0"], json),
        (&["APPLICATION/JSON"], json),
        (&["application/json; charset=utf-8"], json),
        (
            &["text/plain;charset=utf-8;q=0.9, application/json;q=0.8"],
            text,
        ),
        (&[", application/json, ,"], json),
        (&["", "application/json"], json),
        (&["application/json;q=0.0000, text/plain;q=0.1"], text),
        // None of them, or none that can be read.
        (&["image/png"], text),
        (&["application/json;q=0"], text),
        (&["garbage"], text),
        (&[";;;,,,"], text),
        (&["application/json;q=\"", "text/plain"], text),
        (&[&long], text),
    ] {
        let (status, headers, body) = answer(&app, accepting(accept)).await;
        assert_eq!(status, 429);
        assert_eq!(headers["content-type"], expected, "{accept:?}");
        assert_eq!(headers["vary"], "accept");
        assert_eq!(
            body.starts_with('{'),
            expected != text,
            "{accept:?}: {body}"
        );
    }
}

#[tokio::test]
async fn response_to_head_has_the_length_and_no_body() {
    for format in [BodyFormat::Text, BodyFormat::ProblemDetails] {
        let app = exhausted(format).await;
        let (_, of_get, body) = answer(&app, plain("/")).await;
        let head = request("HEAD", "/").body(Body::empty()).unwrap();
        let (status, headers, nothing) = answer(&app, head).await;
        assert_eq!((status, &*nothing), (429, ""));
        assert_eq!(headers["content-length"], body.len().to_string());
        assert_eq!(headers["content-type"], of_get["content-type"]);
        assert_eq!(headers["retry-after"], of_get["retry-after"]);
    }
}

/// An extractor whose reason repeats what a client sent.
struct Echo;

impl KeyExtractor for Echo {
    fn extract(&self, _: &http::request::Parts) -> Result<Key, MissingKey> {
        Err(MissingKey::new("a\"},\\{\n<b>"))
    }
}

#[tokio::test]
async fn text_of_an_extractor_is_escaped() {
    let layer = RateLimitLayer::gcra(RateLimiter::in_memory(), "api", ONCE, Echo).unwrap();
    let json = value(
        &app(layer.body_format(BodyFormat::Json)),
        "application/json",
    )
    .await;
    assert_eq!(
        json["message"],
        "no key for the rate limit `api`: a\"},\\{\n<b>"
    );
}
