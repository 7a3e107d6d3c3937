//! Requests to an axum router, without a server.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use http::{HeaderMap, Request, Response};
use tollgate::RateLimitLayer;
use tower::ServiceExt;

/// An application that says hello at any path, behind a layer.
pub fn app(layer: RateLimitLayer) -> Router {
    Router::new()
        .route("/", any(|| async { "hello" }))
        .fallback(|| async { "hello" })
        .layer(layer)
}

pub fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path)
}

pub fn plain(path: &str) -> Request<Body> {
    request("GET", path).body(Body::empty()).unwrap()
}

pub fn from_peer(peer: &str) -> Request<Body> {
    let mut request = plain("/");
    let address = SocketAddr::new(peer.parse().unwrap(), 4711);
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

pub async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

pub async fn status(app: &Router, request: Request<Body>) -> u16 {
    send(app, request).await.status().as_u16()
}

pub fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers[name].to_str().unwrap().parse().unwrap()
}

/// A runtime for a property test, which is not async. Its time stands still until all tasks wait.
pub fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}
