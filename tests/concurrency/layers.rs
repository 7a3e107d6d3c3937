//! Concurrency limits in a layer: permits last until the response body ends, and join rates, all or
//! none.

#![cfg(all(feature = "axum", feature = "redis", feature = "json"))]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::routing::get;
use axum::{Extension, Router};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tollgate::layer::{BodyFormat, InFlight, OnMissingKey, OnStoreFailure};
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
#[cfg(feature = "metrics")]
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{number, send, status};
use crate::support::tenants::{exports, of, tenant};

const SECOND: Duration = Duration::from_secs(1);

/// A body of the frames that a channel brings.
struct Streamed(mpsc::Receiver<&'static str>);

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |text: &'static str| Ok(Frame::data(Bytes::from(text)));
        self.0.poll_recv(cx).map(|text| text.map(frame))
    }
}

/// Routes whose response is streamed by the sender that each request puts here.
fn streaming(layer: RateLimitLayer) -> (Router, Arc<Mutex<Vec<mpsc::Sender<&'static str>>>>) {
    let senders = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&senders);
    let handler = move || async move {
        let (sender, frames) = mpsc::channel(4);
        kept.lock().unwrap().push(sender);
        Body::new(Streamed(frames))
    };
    (Router::new().route("/", get(handler)).layer(layer), senders)
}

#[tokio::test]
async fn permit_lasts_until_the_streamed_body_ends_or_is_dropped() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let (app, senders) = streaming(layer);
    let key = Key::new("acme");
    let response = send(&app, of("acme")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(status(&app, of("acme")).await, 429);
    assert_eq!(status(&app, of("globex")).await, 200);
    let sender = senders.lock().unwrap().remove(0);
    sender.send("event").await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(
        permits.held_permits(&exports(1), &key),
        1,
        "the stream goes on"
    );
    drop(sender);
    assert!(body.frame().await.is_none());
    assert_eq!(
        permits.held_permits(&exports(1), &key),
        0,
        "it ended, though the body is not dropped"
    );

    let response = send(&app, of("acme")).await;
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(
        permits.held_permits(&exports(1), &key),
        0,
        "a client that disconnects drops the body"
    );
}

#[tokio::test]
async fn request_without_a_permit_is_answered_429_and_charges_no_rate() {
    let limiter = RateLimiter::in_memory();
    let permits = &limiter;
    let rate = Limit::fixed_window("rate", Quota::per_hour(2)).unwrap();
    let layer = RateLimitLayer::new(&limiter, rate.clone(), tenant())
        .unwrap()
        .limit(exports(1), tenant())
        .unwrap()
        .body_format(BodyFormat::Json);
    let (app, _senders) = streaming(layer);
    let first = send(&app, of("acme")).await;
    assert_eq!(
        (
            first.status().as_u16(),
            number(first.headers(), "x-ratelimit-remaining")
        ),
        (200, 1)
    );
    let denied = send(&app, of("acme")).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(number(denied.headers(), "retry-after"), 1);
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&body["error"], &body["limit"]),
        (&"too_many_in_flight".into(), &"exports".into())
    );
    let left = limiter.peek(&rate, &Key::new("acme"), 0).await.unwrap();
    assert_eq!(
        left.remaining(),
        1,
        "a request without a permit is not charged"
    );

    drop(first);
    drop(send(&app, of("acme")).await);
    assert_eq!(status(&app, of("acme")).await, 429, "the rate is used up");
    assert_eq!(
        permits.held_permits(&exports(1), Key::new("acme")),
        0,
        "and the permit was given back"
    );
}

#[tokio::test]
async fn handler_that_keeps_the_permits_holds_them_after_the_response() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let tasks: Arc<Mutex<Vec<InFlight>>> = Arc::default();
    let kept = Arc::clone(&tasks);
    let handler = move |Extension(in_flight): Extension<InFlight>| async move {
        // As the task of an upgraded connection does.
        kept.lock().unwrap().push(in_flight);
        http::StatusCode::SWITCHING_PROTOCOLS
    };
    let app = Router::new()
        .route("/", get(handler))
        .layer(layer.insert_permits());
    assert_eq!(status(&app, of("acme")).await, 101);
    assert_eq!(status(&app, of("acme")).await, 429);
    tasks.lock().unwrap().clear();
    assert_eq!(status(&app, of("acme")).await, 101);
}

#[tokio::test]
async fn permits_of_stacked_layers_are_inserted_together_and_an_exempt_request_has_none() {
    let (outer, inner) = (RateLimiter::in_memory(), RateLimiter::in_memory());
    let layer = |permits: &RateLimiter| {
        let layer = RateLimitLayer::new(permits, exports(5), tenant()).unwrap();
        layer
            .skip(|request| request.uri.path() == "/free")
            .insert_permits()
    };
    let tasks: Arc<Mutex<Vec<InFlight>>> = Arc::default();
    let kept = Arc::clone(&tasks);
    let handler = move |Extension(in_flight): Extension<InFlight>| async move {
        kept.lock().unwrap().push(in_flight);
    };
    let app = Router::new()
        .route("/", get(handler.clone()))
        .route("/free", get(handler))
        .layer(layer(&inner))
        .layer(layer(&outer));
    assert_eq!(status(&app, of("acme")).await, 200);
    let held =
        || [&outer, &inner].map(|permits| permits.held_permits(&exports(5), Key::new("acme")));
    assert_eq!(held(), [1, 1]);
    tasks.lock().unwrap().clear();
    assert_eq!(held(), [0, 0]);
    let free = Request::get("/free")
        .header("x-tenant", "acme")
        .body(Body::empty())
        .unwrap();
    assert_eq!(status(&app, free).await, 200);
    assert_eq!(held(), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_its_permit_and_a_client_that_leaves_gives_up_its_place() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let (app, _senders) = streaming(layer.wait_up_to(10 * SECOND).unwrap());
    let first = send(&app, of("acme")).await;
    assert_eq!(status(&app, of("acme")).await, 429, "after its wait");
    let gone = timeout(SECOND, send(&app, of("acme"))).await;
    assert!(gone.is_err());
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { send(&app, of("acme")).await }
    });
    sleep(SECOND).await;
    drop(first);
    let second = waiting.await.unwrap();
    assert_eq!(second.status(), 200);
    drop(second);
    assert_eq!(permits.held_permits(&exports(1), Key::new("acme")), 0);
}

#[tokio::test]
async fn failed_and_panicking_and_cancelled_requests_give_their_permits_back() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let key = Key::new("acme");
    let app = Router::new()
        .route("/", get(|| async { std::future::pending::<()>().await }))
        .route(
            "/panic",
            get(|| async {
                if true {
                    panic!("as asked")
                }
            }),
        )
        .route(
            "/fail",
            get(|| async { http::StatusCode::INTERNAL_SERVER_ERROR }),
        )
        .layer(layer);
    assert!(
        timeout(Duration::from_millis(5), send(&app, of("acme")))
            .await
            .is_err()
    );
    assert_eq!(permits.held_permits(&exports(1), &key), 0);
    let at = |path: &str| {
        Request::get(path.to_owned())
            .header("x-tenant", "acme")
            .body(Body::empty())
            .unwrap()
    };
    let panicking = tokio::spawn({
        let (app, request) = (app.clone(), at("/panic"));
        async move { send(&app, request).await }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!(permits.held_permits(&exports(1), &key), 0);
    assert_eq!(status(&app, at("/fail")).await, 500);
    assert_eq!(permits.held_permits(&exports(1), &key), 0);
}

#[tokio::test]
async fn skipped_requests_have_no_permit_and_missing_keys_are_rejected() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = |layer: RateLimitLayer| streaming(layer).0;
    let skipping = app(layer.clone().skip(|request| request.uri.path() == "/"));
    let (first, second) = (
        send(&skipping, of("acme")).await,
        send(&skipping, of("acme")).await,
    );
    assert_eq!(
        [first.status(), second.status()].map(|it| it.as_u16()),
        [200, 200]
    );
    let plain = || Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(status(&app(layer.clone()), plain()).await, 400);
    let skipping = app(layer
        .clone()
        .on_missing_key(OnMissingKey::SkipLimit)
        .unwrap());
    assert_eq!(status(&skipping, plain()).await, 200);
    let shadow = app(layer.shadow_mode());
    let held: Vec<Response<Body>> = vec![
        send(&shadow, of("acme")).await,
        send(&shadow, of("acme")).await,
    ];
    assert!(
        held.iter().all(|response| response.status() == 200),
        "it would deny the second"
    );
}

#[tokio::test]
async fn layers_on_one_redis_share_permits_and_fail_as_configured() {
    let mut server = RedisServer::start();
    let on = async || RateLimiter::new(server.store().connect().await.unwrap());
    let (here, there) = (on().await, on().await);
    let layer = |permits: &RateLimiter| RateLimitLayer::new(permits, exports(1), tenant()).unwrap();
    let closed = layer(&here)
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let ((here, _s1), (there, _s2), (closed, _s3)) = (
        streaming(layer(&here)),
        streaming(layer(&there)),
        streaming(closed),
    );
    let held = send(&here, of("acme")).await;
    assert_eq!(held.status(), 200);
    assert_eq!(status(&there, of("acme")).await, 429);
    server.kill();
    assert_eq!(status(&here, of("acme")).await, 200, "it fails open");
    let failed = send(&closed, of("acme")).await;
    assert_eq!(failed.status(), 503);
    assert!(number(failed.headers(), "retry-after") >= 1);
}

#[tokio::test]
async fn websocket_holds_its_permit_until_it_closes_and_a_client_that_disconnects_gives_it_back() {
    use axum::extract::ws::{Message, WebSocketUpgrade};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let echo = |upgrade: WebSocketUpgrade, Extension(in_flight): Extension<InFlight>| async move {
        upgrade.on_upgrade(move |mut socket| async move {
            let _in_flight = in_flight;
            while let Some(Ok(Message::Text(text))) = socket.recv().await {
                drop(socket.send(Message::Text(text)).await);
            }
        })
    };
    let app = Router::new()
        .route("/", get(echo))
        .layer(layer.insert_permits());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let connect = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "GET / HTTP/1.1\r\nHost: localhost\r\nx-tenant: acme\r\n\
            Connection: upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        (stream, String::from_utf8(head.to_vec()).unwrap())
    };
    let (first, status) = connect().await;
    assert_eq!(status, "HTTP/1.1 101");
    assert_eq!(connect().await.1, "HTTP/1.1 429", "the connection is open");
    drop(first);
    let again = timeout(20 * SECOND, async {
        while connect().await.1 != "HTTP/1.1 101" {}
    });
    again.await.expect("the permit is given back");
    server.abort();
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn permits_are_counted_by_outcome_and_while_they_are_held() {
    let recorded = Recorded::start();
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let (app, _senders) = streaming(layer);
    let held = send(&app, of("acme")).await;
    assert_eq!(status(&app, of("acme")).await, 429);
    assert_eq!(recorded.one("tollgate_permits_held", "exports"), 1.0);
    drop(held);
    assert_eq!(recorded.one("tollgate_permits_held", "exports"), 0.0);
    let expected = [("exports allowed store", 1), ("exports denied store", 1)];
    assert_eq!(recorded.decisions(), counted(expected));
}

#[test]
fn two_concurrency_limits_of_one_name_are_an_error() {
    let limiter = RateLimiter::in_memory();
    let built = RateLimitLayer::new(limiter, exports(1), tenant())
        .unwrap()
        .limit(exports(2), tenant());
    let error = built.unwrap_err().to_string();
    assert!(
        error.contains("`exports`") && error.contains("could not tell apart"),
        "{error}"
    );
}
