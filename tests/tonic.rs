//! A gRPC server of tonic's, over TCP.

#![cfg(feature = "tonic")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::clock::ManualClock;
use tollgate::key::{Global, KeyExtractor, PeerIp};
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::{Endpoint, Server};
use tower::{Service, ServiceExt};

/// A service whose every method answers with an empty message.
#[derive(Clone)]
struct Empty;

impl NamedService for Empty {
    const NAME: &'static str = "test.Empty";
}

impl Service<Request<Body>> for Empty {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert("content-type", "application/grpc".parse().unwrap());
        headers.insert("grpc-status", "0".parse().unwrap());
        std::future::ready(Ok(response))
    }
}

async fn serve(key: impl KeyExtractor) -> SocketAddr {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    let layer = RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(2));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer.key(key).unwrap()).add_service(Empty);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

async fn call(server: SocketAddr) -> Response<Body> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let mut channel = endpoint.connect().await.unwrap();
    let request = Request::post(format!("http://{server}/test.Empty/Call"))
        .header("content-type", "application/grpc")
        .body(Body::empty())
        .unwrap();
    channel.ready().await.unwrap().call(request).await.unwrap()
}

#[tokio::test]
async fn peers_of_a_tonic_server_are_known_by_their_address() {
    for server in [serve(PeerIp).await, serve(PeerIp.and(Global)).await] {
        for left in ["1", "0"] {
            let response = call(server).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()["grpc-status"], "0");
            assert_eq!(response.headers()["x-ratelimit-remaining"], left);
        }
        // A new connection of the same peer, with another port.
        assert_eq!(call(server).await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}
