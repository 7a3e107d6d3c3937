//! What is logged when the limiter acts, or cannot.

#![cfg(all(feature = "axum", feature = "redis"))]

mod support;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use redis::Commands;
use support::RedisServer;
use tollgate::{Global, Header, Key, Limit, Quota, RateLimitLayer, RateLimiter};
use tower::ServiceExt;
use tracing::subscriber::DefaultGuard;

/// Everything that is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines of this crate since the last call.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap();
        text.lines().filter(|line| line.contains(" tollgate: ")).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn send(app: &Router) -> u16 {
    let request = Request::new(Body::empty());
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_refusal_is_told_for_debugging_only() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::gcra(RateLimiter::in_memory(), "api", Quota::per_minute(1));
    let app = Router::new().route("/", get(|| async {})).layer(layer.key(Global).unwrap());
    assert_eq!(send(&app).await, 200);
    assert!(log.lines().is_empty());
    assert_eq!(send(&app).await, 429);
    let lines = log.lines();
    assert!(
        lines.len() == 1 && lines[0].contains("DEBUG") && lines[0].contains("refused"),
        "{lines:?}"
    );
    assert!(lines[0].contains(r#"limits="api""#), "{lines:?}");
}

#[tokio::test]
async fn a_request_without_a_key_is_a_warning() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::gcra(RateLimiter::in_memory(), "api", Quota::per_minute(1));
    let layer = layer.key(Header::new("x-user").unwrap()).unwrap();
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    assert_eq!(send(&app).await, 400);
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains(" WARN "), "{lines:?}");
    assert!(lines[0].contains("`x-user` is missing"), "{lines:?}");
}

#[tokio::test]
async fn a_request_that_could_not_be_decided_is_an_error_that_says_what_became_of_it() {
    let (log, _guard) = Log::start();
    let mut server = RedisServer::start();
    let limiter = RateLimiter::redis(&server.url()).await.unwrap();
    server.kill();
    let layer = RateLimitLayer::gcra(limiter, "api", Quota::per_minute(1)).key(Global).unwrap();
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    log.lines();
    assert_eq!(send(&app).await, 200);
    let lines = log.lines();
    let error = lines.iter().find(|line| line.contains("ERROR")).expect("there is an event");
    assert!(error.contains("forwarded=true") && error.contains(r#"limits="api""#), "{error}");
}

#[tokio::test]
async fn a_value_that_could_not_be_read_is_a_warning_that_names_its_key() {
    let (log, _guard) = Log::start();
    let server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().connect().await.unwrap());
    let limits = [
        Limit::gcra("api", Quota::per_minute(5)).unwrap(),
        Limit::sliding_log("log", Quota::per_minute(5)).unwrap(),
    ];
    for limit in limits {
        let key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        let () = server.connection().set(&key, "garbage").unwrap();
        log.lines();
        limiter.check(&limit, &Key::new("alice")).await.unwrap();
        let lines = log.lines();
        assert!(
            lines.len() == 1 && lines[0].contains(" WARN ") && lines[0].contains(&key),
            "{lines:?}"
        );
        limiter.check(&limit, &Key::new("alice")).await.unwrap();
        assert!(log.lines().is_empty(), "it healed");
    }
}
