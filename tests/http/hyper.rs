//! The layer in a plain hyper server over TCP, with HTTP/1.1 and HTTP/2.

#![cfg(feature = "http")]

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tollgate::clock::ManualClock;
use tollgate::key::{Global, Header};
use tollgate::layer::RateLimit;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

/// Serves every connection in the version of HTTP that its client speaks.
async fn serve<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                builder
                    .serve_connection(TokioIo::new(stream), service)
                    .await
            });
        }
    });
    address
}

/// One connection to a server.
enum Connection {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Connection {
    async fn open(version: Version, server: SocketAddr) -> Self {
        let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
        if version == Version::HTTP_2 {
            let (sender, driver) = http2::handshake(TokioExecutor::new(), stream)
                .await
                .unwrap();
            tokio::spawn(driver);
            Self::Http2(sender)
        } else {
            let (sender, driver) = http1::handshake(stream).await.unwrap();
            tokio::spawn(driver);
            Self::Http1(sender)
        }
    }

    async fn get(&mut self, user: &str) -> hyper::Result<Response<Incoming>> {
        let request = Request::get("http://localhost/").header("x-user", user);
        let request = request.body(Empty::new()).unwrap();
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

async fn body(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn denial_keeps_the_connection_open() {
    for version in VERSIONS {
        let clock = ManualClock::new();
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
        let server = serve(
            RateLimitLayer::token_bucket(&limiter, "api", Quota::per_minute(6).burst(2), Global)
                .unwrap()
                .layer(service_fn(hello)),
        )
        .await;
        let mut connection = Connection::open(version, server).await;

        for left in ["1", "0"] {
            let response = connection.get("alice").await.unwrap();
            assert_eq!(
                (response.status(), response.version()),
                (StatusCode::OK, version)
            );
            assert_eq!(response.headers()["x-ratelimit-remaining"], left);
            assert_eq!(body(response).await, "hello");
        }
        let denied = connection.get("alice").await.unwrap();
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(denied.headers()["retry-after"], "10");
        assert_eq!(
            body(denied).await,
            "rate limit `api` exceeded: try again in 10 s\n"
        );

        clock.advance(Duration::from_secs(10));
        let allowed = connection.get("alice").await.unwrap();
        assert_eq!(allowed.status(), StatusCode::OK);
        assert_eq!(body(allowed).await, "hello");
    }
}

#[tokio::test]
async fn streams_of_one_http2_connection_share_a_budget() {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    let server = serve(
        RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(7), Global)
            .unwrap()
            .layer(service_fn(hello)),
    )
    .await;
    let Connection::Http2(sender) = Connection::open(Version::HTTP_2, server).await else {
        unreachable!("it speaks HTTP/2")
    };
    let mut streams = JoinSet::new();
    for _ in 0..20 {
        let mut stream = Connection::Http2(sender.clone());
        streams.spawn(async move { stream.get("alice").await.unwrap().status() });
    }
    let statuses = streams.join_all().await;
    let count = |status| statuses.iter().filter(|&&it| it == status).count();
    assert_eq!(
        (count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)),
        (7, 13)
    );
}

#[derive(Debug, PartialEq)]
enum Event {
    Waiting,
    Ended,
}

/// Sends `Ended` when the future of a request has completed or is dropped.
struct OnEnd(UnboundedSender<Event>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        drop(self.0.send(Event::Ended));
    }
}

/// Handles one request, and sends `Waiting` each time that its future is pending.
async fn watched<S>(
    limited: RateLimit<S>,
    request: Request<Incoming>,
    events: UnboundedSender<Event>,
) -> Result<<RateLimit<S> as Service<Request<Incoming>>>::Response, S::Error>
where
    S: Service<Request<Incoming>>,
    RateLimit<S>: Service<Request<Incoming>, Error = S::Error>,
{
    let on_end = OnEnd(events);
    let mut response = pin!(limited.oneshot(request));
    poll_fn(|cx| {
        let poll = response.as_mut().poll(cx);
        if poll.is_pending() {
            drop(on_end.0.send(Event::Waiting));
        }
        poll
    })
    .await
}

#[tokio::test]
async fn disconnected_waiting_client_never_reaches_the_service() {
    for version in VERSIONS {
        let called = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&called);
        let inner = service_fn(move |request| {
            count.fetch_add(1, Ordering::SeqCst);
            hello(request)
        });
        let limiter = RateLimiter::in_memory();
        let limited = RateLimitLayer::leaky_bucket(
            &limiter,
            "queue",
            Quota::per_hour(1).burst(5),
            Header::new("x-user").unwrap(),
        )
        .unwrap()
        .layer(inner);
        let (sender, mut events) = unbounded_channel();
        let service = service_fn(move |request| watched(limited.clone(), request, sender.clone()));
        let server = serve(service).await;

        let mut connection = Connection::open(version, server).await;
        assert_eq!(body(connection.get("alice").await.unwrap()).await, "hello");
        assert_eq!(events.recv().await, Some(Event::Ended));

        let waiting = tokio::spawn(async move { connection.get("alice").await });
        assert_eq!(events.recv().await, Some(Event::Waiting));
        waiting.abort();
        while events.recv().await == Some(Event::Waiting) {}
        assert_eq!(called.load(Ordering::SeqCst), 1);

        let mut another = Connection::open(version, server).await;
        assert_eq!(body(another.get("bob").await.unwrap()).await, "hello");
        assert_eq!(called.load(Ordering::SeqCst), 2);
    }
}
