//! The layer in front of a tonic server, with tonic's client over TCP.

#![cfg(feature = "tonic")]

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::clock::ManualClock;
use tollgate::key::{Extension, Global, Key, KeyExtractor, PeerIp};
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tonic::metadata::MetadataMap;
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::HealthReporter;

/// A server that allows `calls` calls a minute to each key.
async fn serve(key: impl KeyExtractor, calls: u64) -> (SocketAddr, HealthReporter) {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(
            RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(calls), key).unwrap(),
        )
        .add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (address, reporter)
}

/// A client with a connection of its own.
async fn client(server: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn request() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

/// Without the feature `grpc`, a denial is an HTTP response with status 429 and a body of text,
/// which tonic's client cannot read as a gRPC message.
fn assert_denied(status: &Status, headers: &MetadataMap) {
    if cfg!(feature = "grpc") {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    } else {
        assert_eq!(status.code(), Code::Internal, "{status:?}");
        assert!(
            status.message().contains("429 Too Many Requests"),
            "{status:?}"
        );
    }
    assert_eq!(headers.get("retry-after").unwrap(), "60");
}

#[tokio::test]
async fn peers_of_a_tonic_server_are_identified_by_address() {
    for (server, _) in [serve(PeerIp, 2).await, serve(PeerIp.and(Global), 2).await] {
        for left in ["1", "0"] {
            let response = client(server).await.check(request()).await.unwrap();
            assert_eq!(
                response.metadata().get("x-ratelimit-remaining").unwrap(),
                left
            );
            assert_eq!(response.get_ref().status, ServingStatus::Serving as i32);
        }
        // A new connection of the same peer, with another port.
        let denied = client(server).await.check(request()).await.unwrap_err();
        assert_denied(&denied, denied.metadata());
    }
}

#[derive(Clone)]
struct User(String);

fn authenticate(mut call: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
    let name = call
        .metadata()
        .get("user")
        .and_then(|name| name.to_str().ok())
        .map(str::to_owned);
    let name = name.ok_or_else(|| Status::unauthenticated("no user"))?;
    call.extensions_mut().insert(User(name));
    Ok(call)
}

#[tokio::test]
async fn interceptor_that_is_a_layer_gives_the_limit_its_users() {
    let layer = RateLimitLayer::fixed_window(
        RateLimiter::in_memory(),
        "api",
        Quota::per_hour(1),
        Extension::new(|user: &User| Key::new(&user.0)),
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(InterceptorLayer::new(authenticate))
        .layer(layer);
    let server = { server }.add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut client = client(address).await;
    let mut call = async |user: &str| {
        let mut call = tonic::Request::new(request());
        call.metadata_mut().insert("user", user.parse().unwrap());
        client.check(call).await
    };
    call("alice").await.unwrap();
    call("bob").await.unwrap();
    let denied = call("alice").await.unwrap_err();
    assert_eq!(denied.metadata().get("x-ratelimit-remaining").unwrap(), "0");
    let unknown = client.check(request()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn denied_unary_calls_keep_the_connection_open() {
    let (server, _reporter) = serve(PeerIp, 2).await;
    let mut client = client(server).await;
    for _ in 0..2 {
        client.check(request()).await.unwrap();
    }
    for _ in 0..2 {
        let denied = client.check(request()).await.unwrap_err();
        assert_denied(&denied, denied.metadata());
    }
}

#[tokio::test]
async fn stream_is_one_check_and_outlives_its_budget() {
    let (server, reporter) = serve(PeerIp, 1).await;
    let mut client = client(server).await;
    let response = client.watch(request()).await.unwrap();
    assert_eq!(
        response.metadata().get("x-ratelimit-remaining").unwrap(),
        "0"
    );
    let mut stream = response.into_inner();
    let mut next = async || stream.message().await.unwrap().unwrap().status;
    assert_eq!(next().await, ServingStatus::Serving as i32);

    match client.watch(request()).await {
        // With a status in the headers, there is no stream.
        Err(denied) => assert_denied(&denied, denied.metadata()),
        Ok(response) => {
            let (headers, mut denied, _) = response.into_parts();
            assert_denied(&denied.message().await.unwrap_err(), &headers);
        }
    }
    reporter
        .set_service_status("", ServingStatus::NotServing)
        .await;
    assert_eq!(next().await, ServingStatus::NotServing as i32);
}
