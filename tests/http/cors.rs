//! The layer inside tower-http's CORS layer, and a page in a real browser.

#![cfg(feature = "axum")]

use std::net::SocketAddr;
use std::process::Command;

use axum::Router;
use axum::body::Body;
use axum::response::Html;
use axum::routing::get;
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpListener;
use tollgate::clock::ManualClock;
use tollgate::key::Global;
use tollgate::layer::IetfDraft;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower_http::cors::{Any, CorsLayer};

use crate::support::requests::{request, send};

fn layer() -> RateLimitLayer {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    RateLimitLayer::fixed_window(limiter, "api", Quota::per_minute(1), Global).unwrap()
}

fn app(layer: RateLimitLayer) -> Router {
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .expose_headers(layer.exposed_headers());
    Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer)
        .layer(cors)
}

fn cross_origin(method: &str) -> Request<Body> {
    let request = request(method, "/").header("origin", "https://shop.example");
    let request = match method {
        "OPTIONS" => request.header("access-control-request-method", "GET"),
        _ => request,
    };
    request.body(Body::empty()).unwrap()
}

fn exposed(headers: &HeaderMap) -> Vec<String> {
    let names = headers["access-control-expose-headers"].to_str().unwrap();
    names
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect()
}

#[tokio::test]
async fn denial_has_cors_headers_and_exposes_its_own() {
    let app = app(layer());
    assert_eq!(
        send(&app, cross_origin("GET")).await.status(),
        StatusCode::OK
    );
    let denied = send(&app, cross_origin("GET")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let headers = denied.headers();
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert_eq!(headers["retry-after"], "60");
    for name in [
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ] {
        assert!(exposed(headers).contains(&name.to_owned()), "{headers:?}");
    }
}

#[tokio::test]
async fn preflight_consumes_nothing() {
    let app = app(layer());
    for _ in 0..5 {
        let preflight = send(&app, cross_origin("OPTIONS")).await;
        assert_eq!(preflight.status(), StatusCode::OK);
        assert!(!preflight.headers().contains_key("x-ratelimit-limit"));
    }
    assert_eq!(
        send(&app, cross_origin("GET")).await.status(),
        StatusCode::OK
    );
}

/// Every header that a response has is in the list.
#[tokio::test]
async fn exposed_headers_are_those_that_the_layer_sends() {
    for (layer, count) in [
        (layer(), 5),
        (layer().reset_after_header(), 6),
        (layer().ietf_headers(IetfDraft::Draft6), 9),
        (layer().ietf_headers(IetfDraft::Draft7), 7),
        (
            layer()
                .ietf_headers(IetfDraft::Draft11)
                .without_x_ratelimit(),
            3,
        ),
        (layer().report_nothing(), 1),
    ] {
        let mut names = layer.exposed_headers();
        // Those of gRPC are of gRPC's responses.
        let of_grpc = names
            .extract_if(.., |name| name.as_str().starts_with("grpc-"))
            .count();
        assert_eq!(of_grpc, if cfg!(feature = "grpc") { 4 } else { 0 });
        assert_eq!(names.len(), count, "{names:?}");
        let app = app(layer);
        send(&app, cross_origin("GET")).await;
        let denied = send(&app, cross_origin("GET")).await;
        let ours =
            |name: &str| name.contains("ratelimit") || ["retry-after", "date"].contains(&name);
        let mut sent: Vec<_> = denied
            .headers()
            .keys()
            .filter(|it| ours(it.as_str()))
            .collect();
        let mut names: Vec<_> = names.iter().collect();
        sent.sort_unstable_by_key(|it| it.as_str());
        names.sort_unstable_by_key(|it| it.as_str());
        assert_eq!(sent, names);
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A page of another origin sends two requests, and prints the headers of the second response.
fn page(api: SocketAddr) -> String {
    format!(
        "<!doctype html><body><script type=module>
           await fetch('http://{api}/');
           const denied = await fetch('http://{api}/');
           const names = ['retry-after', 'x-ratelimit-remaining', 'ratelimit', 'content-type'];
           document.body.textContent =
             [denied.status, ...names.map(name => denied.headers.get(name))].join(' | ');
         </script>"
    )
}

/// `make browser` installs Chromium.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make browser"]
async fn page_of_another_origin_reads_the_headers_of_a_denial() {
    let api = serve(app(layer().ietf_headers(IetfDraft::Draft11))).await;
    let page = page(api);
    let site = serve(Router::new().route("/", get(|| async { Html(page) }))).await;
    let profile = std::env::temp_dir().join(format!("tollgate-browser-{}", std::process::id()));
    let mut browser = Command::new("chromium");
    browser
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("http://{site}/"));
    let output = tokio::task::spawn_blocking(move || browser.output().expect("run `make browser`"));
    let output = output.await.unwrap();
    let _ = std::fs::remove_dir_all(&profile);
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = r#"429 | 60 | 0 | "api";r=0;t=60 | text/plain; charset=utf-8"#;
    assert!(
        dom.contains(seen),
        "{dom}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
