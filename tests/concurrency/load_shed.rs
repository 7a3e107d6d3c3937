//! A server that sheds load: the requests in flight of all clients together, in one process.

#![cfg(all(feature = "axum", feature = "json"))]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tollgate::RateLimitLayer;
use tollgate::layer::{BodyFormat, Reason};

use crate::support::log::Log;
#[cfg(feature = "metrics")]
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{app, number, plain, send, status};

fn shed() -> RateLimitLayer {
    RateLimitLayer::load_shed("server", 2).unwrap()
}

#[tokio::test]
async fn request_above_the_number_is_answered_503_at_once_until_a_body_has_ended() {
    let app = app(shed().body_format(BodyFormat::Json));
    let (first, _second) = (send(&app, plain("/")).await, send(&app, plain("/")).await);
    let shed = send(&app, plain("/")).await;
    assert_eq!(shed.status(), 503);
    assert_eq!(number(shed.headers(), "retry-after"), 1);
    assert!(
        !shed.headers().contains_key("x-ratelimit-limit"),
        "no budget was charged"
    );
    let body = shed.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"], "load_shed");
    assert_eq!(body["message"], "the server is busy: try again in 1 s");
    drop(first);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn service_has_its_own_body_for_shed_requests_and_exempts_health_checks() {
    let layer = shed()
        .skip(|request| request.uri.path() == "/health")
        .respond_with(|rejection, response| {
            assert_eq!(rejection.reason(), Reason::LoadShed);
            assert_eq!(rejection.limit().unwrap().name(), "server");
            response.map(|_text| "come back later")
        });
    let app = app(layer);
    let _held = [send(&app, plain("/")).await, send(&app, plain("/")).await];
    let shed = send(&app, plain("/")).await;
    assert_eq!(shed.status(), 503);
    let body = shed.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "come back later");
    assert_eq!(status(&app, plain("/health")).await, 200);
}

#[tokio::test]
async fn a_layer_counts_for_all_routers_that_have_it_and_another_one_for_itself() {
    let layer = shed();
    let one = Router::new()
        .route("/", get(|| async {}))
        .layer(layer.clone());
    let same = Router::new().route("/", get(|| async {})).layer(layer);
    let other = Router::new().route("/", get(|| async {})).layer(shed());
    let _held = [send(&one, plain("/")).await, send(&same, plain("/")).await];
    assert_eq!(status(&one, plain("/")).await, 503);
    assert_eq!(status(&same, plain("/")).await, 503);
    assert_eq!(status(&other, plain("/")).await, 200);
}

#[test]
fn wait_is_an_error_because_load_is_shed_at_once() {
    let error = shed().wait_up_to(Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("never waits"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flood_has_as_many_requests_in_flight_as_the_number() {
    let (open, gate) = watch::channel(false);
    let places = Arc::new(Semaphore::new(8));
    let handler = move || {
        let (places, mut gate) = (Arc::clone(&places), gate.clone());
        async move {
            let _place = places.try_acquire().expect("at most 8 are in flight");
            assert!(gate.wait_for(|is_open| *is_open).await.is_ok());
        }
    };
    let layer = RateLimitLayer::load_shed("server", 8).unwrap();
    let app = Router::new().route("/", get(handler)).layer(layer);
    for _ in 0..2 {
        open.send_replace(false);
        let mut flood = JoinSet::from_iter((0..2_000).map(|_| {
            let app = app.clone();
            async move { status(&app, plain("/")).await }
        }));
        for _ in 0..1_992 {
            assert_eq!(flood.join_next().await.unwrap().unwrap(), 503);
        }
        open.send_replace(true);
        assert_eq!(flood.join_all().await, [200; 8]);
    }
}

#[test]
fn number_of_zero_is_an_error() {
    let error = RateLimitLayer::load_shed("server", 0).unwrap_err();
    assert!(error.to_string().contains("`server`"), "{error}");
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn shed_call_of_grpc_is_unavailable() {
    use axum::body::Body;
    use http::Request;

    let app = app(shed());
    let call = || {
        Request::post("/")
            .header("content-type", "application/grpc")
            .body(Body::empty())
            .unwrap()
    };
    let _held = [send(&app, call()).await, send(&app, call()).await];
    let shed = send(&app, call()).await;
    assert_eq!(shed.headers()["grpc-status"], "14");
    assert_eq!(shed.headers()["grpc-retry-pushback-ms"], "1000");
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn shed_requests_have_an_outcome_of_their_own_that_exists_before_the_first() {
    let recorded = Recorded::start();
    let app = app(shed());
    assert!(
        recorded.text().contains(r#"outcome="shed""#),
        "{}",
        recorded.text()
    );
    let _held = [send(&app, plain("/")).await, send(&app, plain("/")).await];
    assert_eq!(status(&app, plain("/")).await, 503);
    let expected = [("server allowed store", 2), ("server shed store", 1)];
    assert_eq!(recorded.decisions(), counted(expected));
}

#[test]
fn other_limits_beside_it_are_an_error() {
    use tollgate::key::Global;
    use tollgate::{Limit, Quota};

    let rate = Limit::gcra("api", Quota::per_second(10)).unwrap();
    let error = shed().limit(rate, Global).unwrap_err();
    assert!(
        error.to_string().contains("a layer of their own"),
        "{error}"
    );
}

#[tokio::test]
async fn shed_requests_are_an_event_a_second() {
    let (log, _guard) = Log::start();
    let app = app(shed());
    let _held = [send(&app, plain("/")).await, send(&app, plain("/")).await];
    for _ in 0..10 {
        assert_eq!(status(&app, plain("/")).await, 503);
    }
    let lines = log.lines();
    let shed: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("load shed"))
        .collect();
    assert_eq!(shed.len(), 1, "{lines:?}");
    assert!(shed[0].contains("limit=\"server\" at_once=2"), "{shed:?}");
}
