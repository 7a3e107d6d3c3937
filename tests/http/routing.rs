//! The layer on routers, routes, methods and nested routers, and on requests that outlive their
//! response head.

#![cfg(feature = "axum")]

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, WebSocketUpgrade};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate::key::{Extension, Global, KeyExtractor, PeerIp, Route};
use tollgate::{Key, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{from_peer, number, plain, request, send, status};

fn limit(name: &str, units: u64, key: impl KeyExtractor) -> RateLimitLayer {
    let quota = Quota::per_hour(units);
    RateLimitLayer::fixed_window(RateLimiter::in_memory(), name, quota, key).unwrap()
}

async fn hello() -> &'static str {
    "hello"
}

fn of(method: &str, path: &str) -> Request {
    request(method, path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn router_layer_charges_unknown_paths_and_route_layer_does_not() {
    let routes = || Router::new().route("/", get(hello));
    let whole = routes().layer(limit("whole", 1, Global));
    assert_eq!(status(&whole, plain("/unknown")).await, 404);
    assert_eq!(status(&whole, plain("/")).await, 429);
    let matched = routes().route_layer(limit("matched", 1, Global));
    assert_eq!(status(&matched, plain("/unknown")).await, 404);
    assert_eq!(status(&matched, plain("/")).await, 200);
    assert_eq!(status(&matched, plain("/")).await, 429);
    // Both charge another method of a known path.
    for app in [
        routes().layer(limit("method", 1, Global)),
        routes().route_layer(limit("method", 1, Global)),
    ] {
        assert_eq!(status(&app, of("DELETE", "/")).await, 405);
        assert_eq!(status(&app, plain("/")).await, 429);
    }
}

#[tokio::test]
async fn layer_covers_the_routes_before_it() {
    let app = Router::new()
        .route("/limited", get(hello))
        .layer(limit("api", 1, Global))
        .route("/health", get(hello));
    assert_eq!(status(&app, plain("/limited")).await, 200);
    assert_eq!(status(&app, plain("/limited")).await, 429);
    for _ in 0..3 {
        assert_eq!(status(&app, plain("/health")).await, 200);
    }
}

#[tokio::test]
async fn routes_and_methods_have_limits_of_their_own() {
    let app = Router::new()
        .route(
            "/search",
            get(hello).route_layer(limit("search", 1, Global)),
        )
        .route(
            "/orders",
            get(hello)
                .route_layer(limit("list", 2, Global))
                .merge(post(hello).route_layer(limit("place", 1, Global))),
        );
    assert_eq!(status(&app, plain("/search")).await, 200);
    assert_eq!(status(&app, plain("/search")).await, 429);
    assert_eq!(status(&app, of("POST", "/orders")).await, 200);
    assert_eq!(status(&app, of("POST", "/orders")).await, 429);
    assert_eq!(status(&app, of("GET", "/orders")).await, 200);
    // The handler of GET answers HEAD.
    assert_eq!(status(&app, of("HEAD", "/orders")).await, 200);
    assert_eq!(status(&app, of("GET", "/orders")).await, 429);
    // No handler, and so no `route_layer`.
    assert_eq!(status(&app, of("DELETE", "/orders")).await, 405);
    // `layer` is around the 405, too.
    let app = Router::new().route("/", get(hello).layer(limit("get", 1, Global)));
    assert_eq!(status(&app, of("DELETE", "/")).await, 405);
    assert_eq!(status(&app, of("GET", "/")).await, 429);
}

#[tokio::test]
async fn one_layer_counts_each_route_and_method_by_its_template() {
    let app = Router::new()
        .route("/users/{id}", get(hello).post(hello))
        .route("/teams/{id}", get(hello))
        .route_layer(limit("route", 1, Route));
    assert_eq!(status(&app, plain("/users/1")).await, 200);
    assert_eq!(status(&app, plain("/users/2")).await, 429);
    assert_eq!(status(&app, of("POST", "/users/1")).await, 200);
    assert_eq!(status(&app, plain("/teams/1")).await, 200);
}

#[tokio::test]
async fn layer_of_a_nested_router_covers_its_paths_only() {
    let api = Router::new()
        .route("/items/{id}", get(hello))
        .route_layer(limit("api", 1, Route));
    let app = Router::new().nest("/api", api).route("/", get(hello));
    assert_eq!(status(&app, plain("/api/items/1")).await, 200);
    assert_eq!(status(&app, plain("/api/items/2")).await, 429);
    for _ in 0..3 {
        assert_eq!(status(&app, plain("/")).await, 200);
        assert_eq!(status(&app, plain("/api/unknown")).await, 404);
    }
}

#[tokio::test]
async fn fallback_is_limited_by_a_layer_of_its_own_or_of_the_router() {
    let fallback = get(|| async { (StatusCode::NOT_FOUND, "nothing") });
    let own = Router::new()
        .route("/", get(hello))
        .fallback_service(fallback.clone().layer(limit("unknown", 1, PeerIp)));
    for expected in [404, 429] {
        let mut unknown = from_peer("192.0.2.1");
        *unknown.uri_mut() = "/unknown".parse().unwrap();
        assert_eq!(status(&own, unknown).await, expected);
        assert_eq!(status(&own, from_peer("192.0.2.1")).await, 200);
    }
    let both = Router::new()
        .route("/", get(hello))
        .fallback(fallback)
        .layer(limit("all", 1, Global));
    assert_eq!(status(&both, plain("/unknown")).await, 404);
    assert_eq!(status(&both, plain("/")).await, 429);
}

async fn events() -> impl IntoResponse {
    let events =
        (0..50).map(|number| Ok::<_, Infallible>(Event::default().data(number.to_string())));
    Sse::new(tokio_stream::iter(events))
}

#[tokio::test]
async fn event_stream_is_counted_once() {
    let app = Router::new()
        .route("/", get(events))
        .layer(limit("streams", 2, Global));
    let stream = send(&app, plain("/")).await;
    assert_eq!(number(stream.headers(), "x-ratelimit-remaining"), 1);
    let text = stream.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text.windows(5).filter(|it| it == b"data:").count(), 50);
    assert_eq!(
        number(
            send(&app, plain("/")).await.headers(),
            "x-ratelimit-remaining"
        ),
        0
    );
    assert_eq!(status(&app, plain("/")).await, 429);
}

async fn socket(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|mut socket| async move {
        while let Some(Ok(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                return;
            }
        }
    })
}

/// The answer to the handshake, and what the server echoes.
async fn handshake(server: SocketAddr, frames: usize) -> (String, usize) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let mut echoed = 0;
    for _ in 0..frames {
        // A masked text frame of one byte, with a mask of zeros, and its echo without a mask.
        stream
            .write_all(&[0x81, 0x81, 0, 0, 0, 0, b'a'])
            .await
            .unwrap();
        let mut echo = [0; 3];
        stream.read_exact(&mut echo).await.unwrap();
        echoed += usize::from(echo == [0x81, 1, b'a']);
    }
    (String::from_utf8(head).unwrap(), echoed)
}

#[tokio::test]
async fn websocket_is_counted_once_at_its_upgrade() {
    let app = Router::new()
        .route("/", get(socket))
        .layer(limit("sockets", 1, Global));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let (head, echoed) = handshake(server, 20).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(!head.to_lowercase().contains("x-ratelimit"), "{head}");
    assert_eq!(echoed, 20);
    let (denied, _) = handshake(server, 0).await;
    assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
}

#[derive(Clone)]
struct Login(String);

/// Reads the name from the body of a login, once, up to 4 KiB, and passes the body on.
async fn read_login(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(bytes) = to_bytes(body, 4_096).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let form: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
    let Some(name) = form.as_ref().and_then(|form| form.get("name")?.as_str()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // As the login normalizes it.
    parts.extensions.insert(Login(name.trim().to_lowercase()));
    next.run(Request::from_parts(parts, Body::from(bytes)))
        .await
}

#[tokio::test]
async fn login_is_limited_by_a_field_of_its_body() {
    let by_name = Extension::new(|login: &Login| Key::new(&login.0));
    let echo = post(|body: String| async move { body }).route_layer(limit("login", 1, by_name));
    let login = Router::new().route("/login", echo.route_layer(middleware::from_fn(read_login)));
    let app = Router::new().route("/", get(hello)).merge(login);
    let sent = |path: &str, body: &str| {
        request("POST", path)
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    let login = |body: &str| sent("/login", body);
    let alice = r#"{"name":"alice","password":"1"}"#;
    let response = send(&app, login(alice)).await;
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, alice, "the handler sees the whole body");
    assert_eq!(
        status(&app, login(r#"{"name":" ALICE ","password":"2"}"#)).await,
        429
    );
    assert_eq!(status(&app, login(r#"{"name":"bob"}"#)).await, 200);
    for unnamed in ["garbage", "{}", r#"{"name":1}"#] {
        assert_eq!(status(&app, login(unnamed)).await, 400);
    }
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(5_000));
    assert_eq!(status(&app, login(&large)).await, 413);
    // Other requests are neither buffered nor limited.
    for _ in 0..3 {
        assert_eq!(status(&app, sent("/unknown", &large)).await, 404);
        assert_eq!(status(&app, plain("/login")).await, 405);
    }
}

#[tokio::test]
async fn layer_of_a_route_inside_a_layer_of_the_router_counts_both() {
    let app = Router::new()
        .route("/search", get(hello).layer(limit("search", 1, Global)))
        .route("/", get(hello))
        .layer(limit("all", 3, Global));
    let remaining = |headers: &HeaderMap| number(headers, "x-ratelimit-remaining");
    assert_eq!(remaining(send(&app, plain("/search")).await.headers()), 0);
    assert_eq!(status(&app, plain("/search")).await, 429);
    // The outer layer has charged the denied request, too.
    assert_eq!(remaining(send(&app, plain("/")).await.headers()), 0);
    assert_eq!(status(&app, plain("/")).await, 429);
}

#[tokio::test]
async fn skipped_path_is_the_whole_path_in_a_nested_router() {
    let layer = limit("api", 1, Global)
        .skip(|parts| tollgate::layer::original_path(parts) == "/api/health");
    let inner = Router::new()
        .route("/health", get(|| async {}))
        .route("/search", get(|| async {}))
        .layer(layer);
    let app = Router::new().nest("/api", inner);
    for (path, expected) in [
        ("/api/health", 200),
        ("/api/search", 200),
        ("/api/search", 429),
        ("/api/health", 200),
    ] {
        assert_eq!(status(&app, plain(path)).await, expected, "{path}");
    }
}
