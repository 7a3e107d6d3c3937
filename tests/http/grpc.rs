//! Rejected gRPC calls have a gRPC status: with tonic's client over TCP, and as bare HTTP.

#![cfg(feature = "grpc")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::scripted::Scripted;
use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::clock::ManualClock;
use tollgate::key::{Global, GrpcMetadata, GrpcMethod, KeyExtractor, PeerIp};
use tollgate::layer::{OnMissingKey, OnStoreFailure};
use tollgate::{Error, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tonic::Code;
use tonic::metadata::MetadataValue;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tonic_web::GrpcWebLayer;
use tower::{ServiceBuilder, ServiceExt};

const ONCE: Quota = Quota::per_minute(1);

async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

async fn client(server: SocketAddr) -> HealthClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn call() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    RateLimitLayer::fixed_window(limiter, "api", ONCE, key).unwrap()
}

#[tokio::test]
async fn denial_says_when_to_retry_and_which_limit_denied() {
    let mut client = client(serve(layer(PeerIp)).await).await;
    client.check(call()).await.unwrap();
    let denied = client.check(call()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(
        denied.message(),
        "rate limit `api` exceeded: try again in 60 s"
    );
    let retry = denied.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(60)));
    let violations = denied.get_details_quota_failure().unwrap().violations;
    assert_eq!((violations.len(), &*violations[0].subject), (1, "api"));
    assert_eq!(violations[0].description, "rate limit `api` exceeded");
    let metadata = denied.metadata();
    assert_eq!(metadata.get("grpc-retry-pushback-ms").unwrap(), "60000");
    assert_eq!(metadata.get("retry-after").unwrap(), "60");
    assert_eq!(metadata.get("x-ratelimit-remaining").unwrap(), "0");
}

#[tokio::test]
async fn denied_stream_has_the_status_and_the_connection_stays_open() {
    let mut client = client(serve(layer(PeerIp)).await).await;
    let mut stream = client.watch(call()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    for _ in 0..3 {
        assert_eq!(
            client.watch(call()).await.unwrap_err().code(),
            Code::ResourceExhausted
        );
    }
}

#[tokio::test]
async fn every_rejection_has_a_code() {
    let failing = |error: fn() -> Error| {
        RateLimitLayer::gcra(
            RateLimiter::new(Scripted::failing(error)),
            "api",
            ONCE,
            Global,
        )
        .unwrap()
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap()
    };
    let keyless = || layer(GrpcMetadata::new("x-user").unwrap());
    for (layer, code, pushback) in [
        (
            layer(Global).cost(|_| 2),
            Code::ResourceExhausted,
            Some("-1"),
        ),
        (layer(Global).forbid(|_| true), Code::PermissionDenied, None),
        (keyless(), Code::InvalidArgument, None),
        (
            keyless()
                .on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED))
                .unwrap(),
            Code::Unauthenticated,
            None,
        ),
        (
            failing(|| Error::unreachable("no server")),
            Code::Unavailable,
            Some("1000"),
        ),
        (
            failing(|| Error::overloaded(1)),
            Code::Unavailable,
            Some("1000"),
        ),
        (failing(|| Error::full("no room")), Code::Unavailable, None),
        (failing(|| Error::misuse("never")), Code::Internal, None),
    ] {
        let status = client(serve(layer).await)
            .await
            .check(call())
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        let stated = status
            .metadata()
            .get("grpc-retry-pushback-ms")
            .map(|it| it.to_str().unwrap());
        assert_eq!(stated, pushback, "{status:?}");
    }
}

#[tokio::test]
async fn keys_of_calls_are_those_of_tonics_client() {
    let by_method = GrpcMethod::among(["grpc.health.v1.Health/Check"]).unwrap();
    let mut named = client(serve(layer(by_method)).await).await;
    named.check(call()).await.unwrap();
    assert_eq!(
        named.check(call()).await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    // It has the key of all other methods.
    assert!(named.watch(call()).await.is_ok());

    for name in ["x-user", "token-bin"] {
        let mut client = client(serve(layer(GrpcMetadata::new(name).unwrap())).await).await;
        let by = |user: &'static str| {
            let mut request = tonic::Request::new(call());
            if name.ends_with("-bin") {
                let value = MetadataValue::from_bytes(user.as_bytes());
                request.metadata_mut().insert_bin(name, value);
            } else {
                request
                    .metadata_mut()
                    .insert(name, MetadataValue::from_static(user));
            }
            request
        };
        client.check(by("alice")).await.unwrap();
        assert_eq!(
            client.check(by("alice")).await.unwrap_err().code(),
            Code::ResourceExhausted
        );
        client.check(by("bob")).await.unwrap();
        let keyless = client.check(call()).await.unwrap_err();
        assert_eq!(keyless.code(), Code::InvalidArgument);
        assert!(
            keyless
                .message()
                .contains(&format!("the header `{name}` is missing"))
        );
    }
}

/// Details that are larger than what a client reads of headers are an error of the connection.
#[tokio::test]
async fn denial_by_many_limits_is_a_status_that_clients_read() {
    let limiter = RateLimiter::in_memory();
    let limit = |number| Limit::fixed_window(&format!("{number:0>63}"), ONCE).unwrap();
    let first = RateLimitLayer::new(&limiter, limit(0), Global).unwrap();
    let layer = (1..255).fold(first, |layer, number| {
        layer.limit(limit(number), Global).unwrap()
    });
    let mut client = client(serve(layer).await).await;
    client.check(call()).await.unwrap();
    let denied = client.check(call()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted, "{denied:?}");
    assert_eq!(
        denied.get_details_quota_failure().unwrap().violations.len(),
        16
    );
}

#[tokio::test]
async fn service_without_grpc_answers_its_content_type_with_an_http_status() {
    let app = Router::new()
        .fallback(|| async {})
        .layer(layer(Global).without_grpc_status());
    assert_eq!(
        post(&app, "application/grpc").await.status(),
        StatusCode::OK
    );
    let denied = post(&app, "application/grpc").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!denied.headers().contains_key("grpc-status"));
}

async fn post(app: &Router, content_type: &str) -> Response<Body> {
    let request = Request::post("/shop.Orders/Place").header("content-type", content_type);
    app.clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await
        .unwrap()
}

#[tokio::test]
async fn content_type_of_the_request_decides_the_kind_of_response() {
    let app = Router::new()
        .fallback(|| async { "hello" })
        .layer(layer(Global));
    assert_eq!(
        post(&app, "application/grpc").await.status(),
        StatusCode::OK
    );
    for (asked, answered) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("Application/gRPC+json; charset=utf-8", "application/grpc"),
        ("application/grpc-web", "application/grpc-web+proto"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        (
            "application/grpc-web-text",
            "application/grpc-web-text+proto",
        ),
    ] {
        let response = post(&app, asked).await;
        assert_eq!(response.status(), StatusCode::OK, "{asked}");
        let headers = response.headers();
        assert_eq!(headers["content-type"], answered, "{asked}");
        assert_eq!(headers["grpc-status"], "8");
        assert!(
            headers["grpc-message"]
                .to_str()
                .unwrap()
                .contains("try%20again"),
            "{headers:?}"
        );
        assert_eq!(headers["retry-after"], "60");
        assert_eq!(headers["cache-control"], "no-store");
        assert!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .is_empty()
        );
    }
    // Only a POST is a call: a cache must not keep a rejected GET as an empty 200.
    for method in ["GET", "HEAD", "PUT"] {
        let request = Request::builder().method(method).uri("/app.js");
        let request = request
            .header("content-type", "application/grpc")
            .body(Body::empty());
        let response = app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{method}");
    }
    for other in [
        "application/grpcfoo",
        "application/json",
        "text/plain; a=application/grpc",
    ] {
        let response = post(&app, other).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{other}");
        assert!(!response.headers().contains_key("grpc-status"));
    }
}

#[tokio::test]
async fn named_methods_have_keys_of_their_own_and_others_share_one() {
    let methods = GrpcMethod::among(["shop.Orders/Place", "/shop.Orders/List"]).unwrap();
    let key = |path: &str| {
        let parts = Request::post(path).body(()).unwrap().into_parts().0;
        methods.extract(&parts).unwrap().to_string()
    };
    assert_eq!(key("/shop.Orders/Place"), "shop.Orders/Place");
    assert_eq!(key("http://host/shop.Orders/List"), "shop.Orders/List");
    for other in [
        "/shop.Orders/place",
        "/shop.Orders/Place/",
        "//shop.Orders/Place",
        "/x/1",
        "/",
    ] {
        assert_eq!(key(other), "OTHER", "{other}");
    }
    for invalid in ["", "Place", "//shop.Orders/Place", "a/b/c", "a/"] {
        let error = GrpcMethod::among([invalid]).unwrap_err().to_string();
        assert!(
            error.ends_with("is not a gRPC method; use `package.Service/Method`"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn binary_metadata_has_one_key_in_all_spellings() {
    let key = |name: &str, values: &[&str]| {
        let mut request = Request::post("/");
        for value in values {
            request = request.header(name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let key = GrpcMetadata::new(name).unwrap().extract(&parts);
        key.map(|key| key.to_string())
            .map_err(|missing| missing.to_string())
    };
    assert_eq!(key("token-bin", &["YWxpY2U"]).unwrap(), "alice");
    assert_eq!(key("token-bin", &["YWxpY2U="]).unwrap(), "alice");
    assert_eq!(key("x-user", &["alice"]).unwrap(), "alice");
    for (values, problem) in [
        (&[][..], "missing"),
        (&[""], "empty or malformed"),
        (&["!"], "empty or malformed"),
        (&["YWxpY2U", "YWxpY2U"], "more than once"),
    ] {
        let error = key("token-bin", values).unwrap_err();
        assert!(
            error.contains("`token-bin`") && error.contains(problem),
            "{error}"
        );
    }
    assert_eq!(key("Token-Bin", &["YWxpY2U"]).unwrap(), "alice");
    for invalid in ["", "a b", "caf\u{e9}", "caf\u{e9}-bin"] {
        assert!(GrpcMetadata::new(invalid).is_err(), "{invalid}");
    }
}

/// A response to a real client: its time, and when it says to retry.
type Answer = (Instant, Option<Duration>);

/// Runs a program from `target/clients` against a server that allows one call in two seconds, over
/// gRPC and gRPC-Web. Returns the responses.
async fn answers_to(program: &str, script: &str) -> Vec<Answer> {
    let limit = Limit::fixed_window("api", Quota::new(1, Duration::from_secs(2))).unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, PeerIp).unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&answers);
    let layers = ServiceBuilder::new()
        .map_response(move |response: Response<_>| {
            let pushback = response.headers().get("grpc-retry-pushback-ms");
            let pushback = pushback.map(|it| it.to_str().unwrap().parse().unwrap());
            recorded
                .lock()
                .unwrap()
                .push((Instant::now(), pushback.map(Duration::from_millis)));
            response
        })
        .layer(layer)
        .layer(GrpcWebLayer::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (_, service) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .accept_http1(true)
        .layer(layers.into_inner())
        .add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let installed = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/target/clients"));
    let mut command = Command::new(installed.join(program));
    command.arg(installed.join(script)).arg(&port);
    let output = tokio::task::spawn_blocking(move || command.output().expect("run `make clients`"));
    let output = output.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    print!("{text}");
    std::mem::take(&mut answers.lock().unwrap())
}

fn assert_not_too_early(client: &str, denied: (Instant, Duration), allowed_at: Instant) {
    let (denied_at, pushback) = denied;
    let waited = allowed_at - denied_at;
    println!("{client}: pushback {pushback:?}, retried after {waited:.2?}");
    // A timer of a client may fire some milliseconds early.
    assert!(
        waited + Duration::from_millis(20) >= pushback,
        "{pushback:?}, {waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs grpcio: make clients"]
async fn grpcio_retries_after_the_pushback() {
    let answers = answers_to("bin/python", "grpcio_client.py").await;
    let [
        (_, None),
        (_, Some(_)),
        (denied_at, Some(pushback)),
        (allowed_at, None),
    ] = answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_not_too_early("grpcio", (denied_at, pushback), allowed_at);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs connect-web: make clients"]
async fn grpc_web_client_reads_the_status_and_when_to_retry() {
    let answers = answers_to("npm/node_modules/.bin/node", "npm/grpc_web.mjs").await;
    let [(_, None), (denied_at, Some(pushback)), (allowed_at, None)] = answers[..] else {
        panic!("{answers:?}")
    };
    assert_not_too_early("connect-web", (denied_at, pushback), allowed_at);
}
