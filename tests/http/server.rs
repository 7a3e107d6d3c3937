//! axum servers over TCP: peers, and replicas on one Redis.

#![cfg(feature = "axum")]

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate::clock::ManualClock;
use tollgate::key::PeerIp;
use tollgate::layer::OnStoreFailure;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// One request on a connection of its own, as text.
async fn get_root(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

fn app(limiter: &RateLimiter) -> Router {
    let layer = RateLimitLayer::token_bucket(limiter, "api", Quota::per_minute(6).burst(3), PeerIp)
        .unwrap()
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer)
}

#[tokio::test]
async fn peer_is_denied_after_its_burst_until_retry_after() {
    let clock = ManualClock::new();
    let address = serve(app(&RateLimiter::new(MemoryStore::with_clock(
        clock.clone(),
    ))))
    .await;
    for left in ["2", "1", "0"] {
        let response = get_root(address).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(
            response.contains(&format!("x-ratelimit-remaining: {left}\r\n")),
            "{response}"
        );
    }
    let denied = get_root(address).await;
    assert!(
        denied.starts_with("HTTP/1.1 429 Too Many Requests\r\n"),
        "{denied}"
    );
    assert!(denied.contains("retry-after: 10\r\n"), "{denied}");
    assert!(
        denied.ends_with("rate limit `api` exceeded: try again in 10 s\n"),
        "{denied}"
    );
    clock.advance(Duration::from_secs(10));
    assert!(get_root(address).await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn replicas_share_one_burst_and_fail_closed_without_redis() {
    let mut redis = crate::support::RedisServer::start();
    let mut replicas = Vec::new();
    for _ in 0..3 {
        // Every request asks Redis.
        let store = redis.store().deny_for(Duration::ZERO);
        replicas.push(serve(app(&RateLimiter::new(store.connect().await.unwrap()))).await);
    }
    let mut allowed = 0;
    for turn in 0..10 {
        let response = get_root(replicas[turn % 2]).await;
        allowed += usize::from(response.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    assert_eq!(allowed, 3);

    redis.kill();
    // A denial stands. A replica that has seen none fails closed.
    for (replica, status) in replicas.into_iter().zip(["429", "429", "503"]) {
        let response = get_root(replica).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{response}"
        );
    }
}
