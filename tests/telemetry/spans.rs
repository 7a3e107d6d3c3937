//! The spans of checks and of calls to Redis, as OpenTelemetry exports them.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::time::Duration;

use axum::Router;
use axum::routing::any;
use opentelemetry::trace::{SpanId, SpanKind, Status, TracerProvider};
use opentelemetry::{Key as Name, Value};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::task::JoinSet;
use tollgate::key::Global;
use tollgate::layer::OnStoreFailure;
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter};
use tower_http::trace::TraceLayer;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::prelude::*;

use crate::support::RedisServer;
use crate::support::log::subscribe_everywhere;
use crate::support::requests::{plain, status};

/// The spans of one thread.
struct Traced {
    exporter: InMemorySpanExporter,
    _provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Traced {
    /// Traces what this thread does, down to a level.
    fn start_at(level: LevelFilter) -> Self {
        subscribe_everywhere();
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(level));
        let guard = subscriber.set_default();
        Self {
            exporter,
            _provider: provider,
            _guard: guard,
        }
    }

    fn start() -> Self {
        Self::start_at(LevelFilter::DEBUG)
    }

    /// The finished spans with this name.
    fn spans(&self, name: &str) -> Vec<SpanData> {
        let spans = self.exporter.get_finished_spans().unwrap();
        spans.into_iter().filter(|span| span.name == name).collect()
    }

    fn only(&self, name: &str) -> SpanData {
        let mut spans = self.spans(name);
        assert_eq!(spans.len(), 1, "{spans:?}");
        spans.remove(0)
    }
}

fn field<'a>(span: &'a SpanData, name: &'static str) -> Option<&'a Value> {
    let found = span
        .attributes
        .iter()
        .find(|it| it.key == Name::from_static_str(name));
    found.map(|it| &it.value)
}

fn text(span: &SpanData, name: &'static str) -> String {
    field(span, name)
        .map(|value| value.as_str().into_owned())
        .unwrap_or_default()
}

fn id(span: &SpanData) -> SpanId {
    span.span_context.span_id()
}

fn api(limit: u64) -> Limit {
    Limit::fixed_window("api", Quota::per_hour(limit)).unwrap()
}

#[tokio::test]
async fn check_of_a_request_is_a_child_of_its_trace_and_has_the_decision() {
    let traced = Traced::start();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), api(1), Global).unwrap();
    let app = Router::new()
        .route("/", any(|| async { "hello" }))
        .layer(layer)
        .layer(TraceLayer::new_for_http());
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(status(&app, plain("/")).await, 429);
    let (requests, checks) = (traced.spans("request"), traced.spans("rate_limit"));
    assert_eq!(requests.len(), 2);
    for (request, check) in requests.iter().zip(&checks) {
        assert_eq!(check.parent_span_id, id(request));
        assert_eq!(check.span_kind, SpanKind::Internal);
        assert_eq!(text(check, "limit"), "api");
        assert_eq!(text(check, "source"), "store");
        assert_eq!(field(check, "remaining"), Some(&Value::I64(0)));
    }
    let allowed = checks.iter().map(|check| field(check, "allowed").unwrap());
    assert_eq!(
        allowed.collect::<Vec<_>>(),
        [&Value::Bool(true), &Value::Bool(false)]
    );
    assert_eq!(field(&checks[0], "retry_after_ms"), None);
    assert!(matches!(
        field(&checks[1], "retry_after_ms"),
        Some(Value::I64(3_000_000..))
    ));
}

#[tokio::test]
async fn check_ends_before_the_handler_begins() {
    let traced = Traced::start();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), api(9), Global).unwrap();
    let handler = || async {
        let _span = tracing::debug_span!("handler").entered();
    };
    let app = Router::new().route("/", any(handler)).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
    let handler = traced.only("handler");
    assert!(traced.only("rate_limit").end_time <= handler.start_time);
    assert_eq!(handler.parent_span_id, SpanId::INVALID);
}

#[tokio::test]
async fn lone_call_to_redis_is_a_child_of_its_check_in_the_terms_of_open_telemetry() {
    let traced = Traced::start();
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    drop(limiter.check(&api(9), &Key::new("alice")).await.unwrap());
    let call = traced.only("EVALSHA");
    assert_eq!(call.parent_span_id, id(&traced.only("rate_limit")));
    assert_eq!(call.span_kind, SpanKind::Client);
    assert_eq!(call.status, Status::Unset);
    assert_eq!(text(&call, "db.system.name"), "redis");
    assert_eq!(text(&call, "db.operation.name"), "EVALSHA");
    assert_eq!(text(&call, "server.address"), "127.0.0.1");
    assert_eq!(
        field(&call, "server.port"),
        Some(&Value::I64(server.port().into()))
    );
    assert_eq!(field(&call, "checks"), Some(&Value::I64(1)));
    assert_eq!(field(&call, "error.type"), None);
}

#[tokio::test]
async fn checks_of_one_call_link_to_it() {
    let traced = Traced::start();
    let server = RedisServer::start();
    let (limiter, limit) = (server.limiter().await, api(1_000));
    let mut checks = JoinSet::new();
    for key in 0..100_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move { limiter.check(&limit, &Key::from(key)).await.unwrap() });
    }
    checks.join_all().await;
    let (calls, checks) = (traced.spans("EVALSHA"), traced.spans("rate_limit"));
    assert_eq!(checks.len(), 100);
    let mut carried = 0;
    for call in &calls {
        let links = |check: &&SpanData| {
            check
                .links
                .iter()
                .any(|link| link.span_context.span_id() == id(call))
        };
        let linked = checks.iter().filter(links).count();
        let children = checks
            .iter()
            .filter(|check| id(check) == call.parent_span_id)
            .count();
        let number = field(call, "checks").unwrap().clone();
        assert_eq!(Value::I64((linked + children) as i64), number);
        carried += linked + children;
    }
    assert_eq!(carried, 100);
    assert!(calls.len() < 20, "{} calls", calls.len());
}

#[tokio::test]
async fn call_that_fails_has_the_error_and_its_check_the_outcome() {
    let traced = Traced::start();
    let server = RedisServer::start();
    let store = server
        .store()
        .deadline(Duration::from_millis(50))
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let limit = api(9)
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    server.pause(true);
    assert!(
        limiter
            .check(&limit, &Key::global())
            .await
            .unwrap()
            .allowed()
    );
    let check = traced.only("rate_limit");
    assert_eq!(text(&check, "source"), "fail_open");
    server.pause(false);
    while traced.spans("EVALSHA").is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(limiter.check(&api(9), &Key::global()).await.is_ok());
    let config = |value: &str| {
        let mut connection = server.connection();
        let set = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", value])
            .exec(&mut connection);
        set.unwrap();
    };
    config("1");
    assert!(limiter.check(&api(9), &Key::new("bob")).await.is_err());
    let failed: Vec<_> = traced
        .spans("EVALSHA")
        .into_iter()
        .filter(|call| call.status != Status::Unset && !text(call, "error.type").is_empty())
        .collect();
    let out_of_memory = failed.last().expect("a call failed");
    assert_eq!(out_of_memory.status, Status::error(""));
    assert_eq!(text(out_of_memory, "db.response.status_code"), "OOM");
    assert_eq!(text(out_of_memory, "error.type"), "OOM");
    let check = traced.spans("rate_limit").pop().unwrap();
    assert!(text(&check, "error").contains("OOM"), "{check:?}");
}

#[tokio::test]
async fn permit_has_a_span_with_its_outcome() {
    let traced = Traced::start();
    let limiter = RateLimiter::in_memory();
    let exports = Limit::concurrency("exports", 1).unwrap();
    let layer = RateLimitLayer::new(&limiter, exports.clone(), Global).unwrap();
    let app = Router::new()
        .route("/", any(|| async { "hello" }))
        .layer(layer);
    let _held = limiter
        .try_acquire_permit(&exports, &Key::global())
        .await
        .unwrap();
    assert_eq!(status(&app, plain("/")).await, 429);
    let spans = traced.spans("rate_limit");
    let allowed: Vec<_> = spans
        .iter()
        .map(|span| field(span, "allowed").unwrap())
        .collect();
    assert_eq!(allowed, [&Value::Bool(true), &Value::Bool(false)]);
    assert!(spans.iter().all(|span| text(span, "limit") == "exports"));
}

#[tokio::test]
async fn subscriber_that_asks_for_less_gets_no_span() {
    let traced = Traced::start_at(LevelFilter::INFO);
    let server = RedisServer::start();
    drop(
        server
            .limiter()
            .await
            .check(&api(9), &Key::new("alice"))
            .await
            .unwrap(),
    );
    assert!(traced.exporter.get_finished_spans().unwrap().is_empty());
}
