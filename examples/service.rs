//! A service as one would write it: a limit for each user, one for a costly route, one for
//! everyone, and refusals in JSON.
//!
//! ```sh
//! cargo run --example service
//! curl -i http://127.0.0.1:3000/search -H 'authorization: alice'
//! ```
//!
//! `REDIS_URL` names the Redis that replicas share, `PORT` another port.

use std::env;
use std::error::Error;
use std::net::SocketAddr;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::{HeaderValue, header};
use tokio::net::TcpListener;
use tollgate::key::{Global, KeyExtractor, PeerIp};
use tollgate::{Decision, Key, Limit, Quota, RateLimitLayer, RateLimiter};

#[derive(Clone)]
struct UserId(String);

/// Stands for real authentication: whoever says a name is believed.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = request.headers().get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    if let Some(user) = user.map(|user| UserId(user.to_owned())) {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// What the handler sees of the limit. There is no decision if the store could not decide.
async fn search(decision: Option<Extension<Decision>>) -> String {
    match decision {
        Some(Extension(decision)) => format!("found it, {} more searches\n", decision.remaining()),
        None => "found it\n".to_owned(),
    }
}

fn in_json(
    decision: &Decision,
    mut answer: http::Response<bytes::Bytes>,
) -> http::Response<String> {
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer.map(|_| {
        let seconds = decision.retry_after().map(|wait| wait.as_secs_f64());
        serde_json::json!({ "error": "rate limited", "retry_after_seconds": seconds }).to_string()
    })
}

fn app(limiter: &RateLimiter) -> Result<Router, Box<dyn Error>> {
    // Whoever is not logged in counts by address.
    let user = tollgate::key::Extension::new(|user: &UserId| Key::new(&user.0)).or(PeerIp);

    // Both are charged, or none is.
    let every_request = RateLimitLayer::builder(limiter)
        .limit(Limit::token_bucket("user", Quota::per_second(5).burst(10))?, user)
        .limit(Limit::sliding_window("everyone", Quota::per_minute(10_000))?, Global)
        .build()?
        .skip(|parts| parts.uri.path() == "/health")
        .on_refused(in_json);
    // A route's own limit is a layer on its method router.
    let exports = RateLimitLayer::fixed_window(limiter, "exports", Quota::per_hour(2))
        .key(Global)?
        .on_refused(in_json);

    Ok(Router::new()
        .route("/health", get(|| async { "fine\n" }))
        .route("/search", get(search))
        .route("/export", post(|| async { "exported\n" }).layer(exports))
        .layer(every_request)
        // The layer added last is the outermost: users are known before they are counted.
        .layer(from_fn(authenticate)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url).await?,
        _ => RateLimiter::in_memory(),
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app(&limiter)?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
