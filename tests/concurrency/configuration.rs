//! Concurrency limits from a configuration, and how they are replaced while requests are in flight.

#![cfg(all(feature = "axum", feature = "config", feature = "redis"))]

use axum::body::Body;
use axum::routing::any;
use axum::{Extension, Router};
use http::{Request, Response};
use tollgate::config::{Config, Format, LimitSet, Names};
use tollgate::key::Header;
use tollgate::layer::{InFlight, OnMissingKey, OnStoreFailure};
use tollgate::{Key, Limit, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::requests::{app, number, request, send, status};
use crate::support::scripted::Scripted;

fn config(text: &str) -> Config {
    Config::parse("limits.toml", text, Format::Toml).unwrap()
}

/// A file with the concurrency limit `exports` by user.
fn exports(limit: u32, rest: &str) -> String {
    format!(
        "[[limits]]\nname = \"exports\"\nalgorithm = \"concurrency\"\nlimit = {limit}\n\
         key = \"user\"\n{rest}\n"
    )
}

fn set(text: &str) -> LimitSet {
    let names = Names::new().key("user", Header::new("x-user").unwrap());
    LimitSet::new(config(text), names).unwrap()
}

fn layer(limits: &LimitSet, permits: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::from_config(permits, limits).unwrap()
}

fn of(user: &str, path: &str) -> Request<Body> {
    request("GET", path)
        .header("x-user", user)
        .body(Body::empty())
        .unwrap()
}

async fn export(app: &Router) -> Response<Body> {
    send(app, of("alice", "/export")).await
}

/// Responses hold their permits until they are dropped. All of these succeeded.
async fn held(app: &Router, requests: usize) -> Vec<Response<Body>> {
    let mut held = Vec::new();
    for _ in 0..requests {
        let response = export(app).await;
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    held
}

#[tokio::test]
async fn concurrency_limit_applies_to_the_requests_that_match_and_by_the_key() {
    let text = exports(
        2,
        "match = { path = \"/export\" }\nexcept = { method = \"DELETE\" }",
    );
    let app = app(layer(&set(&text), &RateLimiter::in_memory()));
    let held = held(&app, 2).await;
    let denied = export(&app).await;
    assert_eq!(
        (
            denied.status().as_u16(),
            number(denied.headers(), "retry-after")
        ),
        (429, 1)
    );
    assert_eq!(status(&app, of("alice", "/")).await, 200, "another route");
    assert_eq!(
        status(&app, of("bob", "/export")).await,
        200,
        "another user"
    );
    let delete = request("DELETE", "/export")
        .header("x-user", "alice")
        .body(Body::empty());
    assert_eq!(status(&app, delete.unwrap()).await, 200, "an exception");
    let anonymous = request("GET", "/export").body(Body::empty()).unwrap();
    assert_eq!(status(&app, anonymous).await, 400);
    drop(held);
    assert_eq!(export(&app).await.status(), 200);
}

#[tokio::test]
async fn rates_and_permits_of_a_file_are_all_or_none() {
    let rate = "[[limits]]\nname = \"rate\"\nalgorithm = \"fixed_window\"\n\
                quota = \"2/h\"\nkey = \"user\"";
    let text = exports(1, &format!("match = {{ path = \"/export\" }}\n{rate}"));
    let set = set(&text);
    let (permits, alice) = (RateLimiter::in_memory(), Key::new("alice"));
    let app = app(layer(&set, &permits));
    let first = export(&app).await;
    assert_eq!(number(first.headers(), "x-ratelimit-remaining"), 1);
    assert_eq!(export(&app).await.status(), 429, "no permit");
    let other = send(&app, of("alice", "/")).await;
    assert_eq!(
        number(other.headers(), "x-ratelimit-remaining"),
        0,
        "it was charged nothing"
    );
    drop(first);
    assert_eq!(export(&app).await.status(), 429, "no unit");
    let limit = set.limit("exports").unwrap();
    assert_eq!(
        permits.held_permits(&limit, &alice),
        0,
        "it holds no permit"
    );
    assert_eq!(
        set.limit("rate").unwrap().to_string(),
        "2 per 1h (fixed window)"
    );
}

#[tokio::test]
async fn changed_limit_counts_the_requests_that_are_in_flight() {
    let server = RedisServer::start();
    let set = set(&exports(3, ""));
    let permits = RateLimiter::new(server.store().connect().await.unwrap());
    let app = app(layer(&set, &permits));
    let mut responses = held(&app, 3).await;

    set.replace(config(&exports(1, ""))).unwrap();
    assert!(responses.pop().is_some());
    assert_eq!(
        export(&app).await.status(),
        429,
        "two are in flight, of one"
    );
    responses.clear();
    let mut one = held(&app, 1).await;
    assert_eq!(export(&app).await.status(), 429);

    set.replace(config(&exports(4, ""))).unwrap();
    one.extend(held(&app, 3).await);
    assert_eq!(
        export(&app).await.status(),
        429,
        "four are in flight, of four"
    );

    set.replace(config("limits = []")).unwrap();
    one.extend(held(&app, 10).await);
    set.replace(config(&exports(5, ""))).unwrap();
    one.extend(held(&app, 1).await);
    assert_eq!(
        export(&app).await.status(),
        429,
        "the first four hold their permits"
    );
}

#[tokio::test]
async fn plans_have_their_numbers_and_share_the_permits() {
    let plan_of = |request: &http::request::Parts| {
        Some(request.headers.get("x-plan")?.to_str().ok()?.to_owned())
    };
    let names = Names::new()
        .key("user", Header::new("x-user").unwrap())
        .plan("account", plan_of);
    let text = exports(
        1,
        "plan = \"account\"\nplans = { pro = { limit = 3 }, internal = { unlimited = true } }",
    );
    let set = LimitSet::new(config(&text), names).unwrap();
    assert!(
        set.to_string()
            .ends_with("exports  user  1 at once, and 2 plans"),
        "{set}"
    );
    let app = app(layer(&set, &RateLimiter::in_memory()));
    let as_plan = async |plan: &str| {
        let request = request("GET", "/")
            .header("x-user", "alice")
            .header("x-plan", plan);
        send(&app, request.body(Body::empty()).unwrap()).await
    };
    let mut held = Vec::new();
    for plan in ["pro", "pro", "internal", "internal", "pro"] {
        let response = as_plan(plan).await;
        assert_eq!(response.status(), 200, "{plan}");
        held.push(response);
    }
    assert_eq!(as_plan("pro").await.status(), 429, "three are in flight");
    held.pop();
    assert_eq!(
        as_plan("free").await.status(),
        429,
        "two are in flight, and one is allowed"
    );
    assert_eq!(as_plan("pro").await.status(), 200);
}

#[tokio::test]
async fn limit_in_shadow_mode_denies_nobody_and_the_layer_can_enforce_a_share() {
    let shadow = set(&exports(1, "shadow_percent = 100"));
    let permits = RateLimiter::in_memory();
    let tried = app(layer(&shadow, &permits));
    let responses = held(&tried, 3).await;
    let limit = shadow.limit("exports").unwrap();
    assert_eq!(
        (
            limit.shadow_percent(),
            permits.held_permits(&limit, "alice")
        ),
        (100, 1)
    );
    let anonymous = || request("GET", "/export").body(Body::empty()).unwrap();
    assert_eq!(
        status(&tried, anonymous()).await,
        200,
        "a limit in shadow mode forwards the request"
    );
    let enforced = app(layer(&shadow, &permits).shadow_percent(0).unwrap());
    assert_eq!(
        export(&enforced).await.status(),
        429,
        "the layer replaces what the limit says"
    );
    assert_eq!(status(&enforced, anonymous()).await, 400);
    let skipping = layer(&shadow, &permits).shadow_percent(0).unwrap();
    let skipping = app(skipping.on_missing_key(OnMissingKey::SkipLimit).unwrap());
    assert_eq!(status(&skipping, anonymous()).await, 200);
    drop(responses);
}

#[tokio::test]
async fn failure_policy_is_that_of_the_limit_or_else_the_last_of_the_layer() {
    let mut server = RedisServer::start();
    let store = server.store().connect().await.unwrap();
    let open = set(&exports(1, "on_store_failure = \"fail_open\""));
    let unset = set(&exports(1, ""));
    let with = |set: &LimitSet, policies: &[OnStoreFailure]| {
        let layer = layer(set, &RateLimiter::new(store.clone()));
        app(policies.iter().fold(layer, |layer, policy| {
            layer.on_store_failure(*policy).unwrap()
        }))
    };
    server.kill();
    let [closed, fails_open] = [OnStoreFailure::FailClosed, OnStoreFailure::FailOpen];
    assert_eq!(export(&with(&open, &[closed])).await.status(), 200);
    assert_eq!(export(&with(&unset, &[])).await.status(), 200);
    assert_eq!(
        export(&with(&unset, &[fails_open, closed])).await.status(),
        503
    );
    assert_eq!(
        export(&with(&unset, &[closed, fails_open])).await.status(),
        200
    );
}

#[tokio::test]
async fn handler_that_expects_permits_gets_them_wherever_no_limit_applies() {
    let handler = |Extension(_): Extension<InFlight>| async { "hello" };
    let set = set(&exports(1, "match = { path = \"/export\" }"));
    let layer = layer(&set, &RateLimiter::in_memory()).insert_permits();
    let app = Router::new().fallback(any(handler)).layer(layer);
    for path in ["/export", "/"] {
        assert_eq!(status(&app, of("alice", path)).await, 200, "{path}");
    }
}

#[test]
fn store_without_permits_cannot_have_concurrency_limits() {
    let without = || RateLimiter::new(Scripted::default().without_permits());
    let expected = "limits.toml:2: `limits[0].name`: limit `exports`: the store grants no permits";
    let limits = set(&exports(1, ""));
    let error = RateLimitLayer::from_config(without(), &limits)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with(expected), "{error}");

    let limits = set("limits = []");
    let layer = RateLimitLayer::from_config(without(), &limits).unwrap();
    let error = limits
        .replace(config(&exports(1, "")))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(limits.version(), 1, "the limits stay as they are");
    drop(layer);
}

#[test]
fn name_of_a_concurrency_limit_in_the_code_is_taken() {
    let permits = RateLimiter::in_memory();
    let limits = set("limits = []");
    let own = Limit::concurrency("exports", 1).unwrap();
    let layer = RateLimitLayer::from_config(&permits, &limits)
        .unwrap()
        .limit(own, Header::new("x-user").unwrap())
        .unwrap();
    let error = limits
        .replace(config(&exports(1, "")))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("limits.toml:2: `limits[0].name`: "),
        "{error}"
    );
    limits
        .replace(config(&exports(1, "").replace("exports", "imports")))
        .unwrap();
    drop(layer);
}

#[test]
fn changes_of_concurrency_limits_are_reported() {
    let (log, _guard) = crate::support::log::Log::start();
    let limits = set(&exports(1, ""));
    drop(log.lines());
    let two = exports(
        2,
        "[[limits]]\nname = \"imports\"\nalgorithm = \"concurrency\"\nlimit = 1\nkey = \"user\"",
    );
    limits.replace(config(&two)).unwrap();
    limits
        .replace(config(&exports(2, "").replace("exports", "imports")))
        .unwrap();
    let lines = log.lines();
    let replaced: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("limits replaced"))
        .collect();
    let [first, second] = &*replaced else {
        panic!("{lines:?}")
    };
    assert!(
        first.contains("added=\"imports (1 at once)\"")
            && first.contains("changed=\"exports (1 at once, now 2 at once)\""),
        "{first}"
    );
    assert!(
        second.contains("removed=\"exports (2 at once)\"")
            && second.contains("changed=\"imports (1 at once, now 2 at once)\"")
    );
    assert!(
        lines.iter().any(|line| line.contains("imports")),
        "{lines:?}"
    );
}
