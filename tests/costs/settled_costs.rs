//! A layer settles the costs of requests: by the handler, by the response, or not at all.

#![cfg(feature = "axum")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::routing::any;
use axum::{Extension, Router};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep};
use tollgate::clock::ManualClock;
use tollgate::key::Global;
use tollgate::layer::{ChosenLimits, OnStoreFailure, Settlement};
use tollgate::store::{Answer, Change, Operation, Store};
use tollgate::{Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::requests::{plain, request, send, status};
use crate::support::scripted::{self, Scripted, ask_after};

const MS: Duration = Duration::from_millis(1);

fn tokens() -> Limit {
    Limit::fixed_window("tokens", Quota::per_hour(1_000)).unwrap()
}

/// A layer that charges an estimate of 100 tokens.
fn layer(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter, tokens(), Global)
        .unwrap()
        .cost(|_| 100)
        .insert_settlement()
}

async fn used(limiter: &RateLimiter) -> u64 {
    1_000
        - limiter
            .peek(&tokens(), &Key::global(), 0)
            .await
            .unwrap()
            .remaining()
}

fn limiter() -> RateLimiter {
    RateLimiter::new(MemoryStore::with_clock(ManualClock::new()))
}

/// An app whose handler does something with the settlement.
fn app(layer: RateLimitLayer, act: impl Fn(Settlement) + Clone + Send + Sync + 'static) -> Router {
    let handler = move |settlement: Settlement| async move {
        act(settlement);
        "an answer"
    };
    Router::new().route("/", any(handler)).layer(layer)
}

#[tokio::test]
async fn response_names_the_setting_that_a_handler_with_a_settlement_needs() {
    let layer = RateLimitLayer::new(limiter(), tokens(), Global).unwrap();
    let response = send(&app(layer, |_| ()), plain("/")).await;
    assert_eq!(response.status(), 500);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(text.contains("add `insert_settlement()`"), "{text}");
}

#[tokio::test]
async fn mistyped_name_of_a_limit_is_an_event_and_settles_nothing() {
    let (log, _guard) = Log::start();
    let limiter = limiter();
    let app = app(layer(&limiter), |settlement| {
        assert!(!settlement.settle("tokenz", 30));
        assert!(settlement.settle("tokens", 0));
        assert!(!settlement.settle("tokens", 30), "it is settled");
    });
    for _ in 0..150 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
    let lines = log.lines();
    let uncharged: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("no request was charged under the limit"))
        .collect();
    assert_eq!(uncharged.len(), 1, "{lines:?}");
    assert!(
        uncharged[0].contains(r#"limit="tokenz" charged="tokens""#),
        "{uncharged:?}"
    );
}

#[tokio::test]
async fn handler_states_the_real_cost() {
    for (cost, expected) in [(30, 30), (100, 100), (0, 0), (700, 700)] {
        let limiter = limiter();
        let app = app(layer(&limiter), move |settlement| {
            assert_eq!(settlement.charged("tokens"), Some(100));
            assert!(settlement.settle("tokens", cost));
            assert_eq!(settlement.charged("tokens"), None);
        });
        assert_eq!(status(&app, plain("/")).await, 200);
        assert_eq!(used(&limiter).await, expected);
    }
}

#[tokio::test]
async fn debt_delays_the_next_request() {
    let limiter = limiter();
    let app = app(layer(&limiter), |settlement| {
        let _settled = settlement.settle("tokens", 2_500);
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(status(&app, plain("/")).await, 429);
}

#[tokio::test]
async fn charge_is_settled_at_most_once() {
    let limiter = limiter();
    let app = app(layer(&limiter), |settlement| {
        let other = settlement.clone();
        assert!(settlement.settle("tokens", 40));
        assert!(
            !other.settle("tokens", 0),
            "a clone settles the same charge"
        );
        assert_eq!(other.refund(), 0);
        assert!(!settlement.settle("requests", 1), "there is no such charge");
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 40);
}

#[tokio::test]
async fn estimate_stands_if_nothing_is_settled() {
    let limiter = limiter();
    let app = app(layer(&limiter), drop);
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 100);
}

#[tokio::test]
async fn estimate_stands_if_the_handler_panics() {
    let limiter = limiter();
    let app = app(layer(&limiter), |_settlement| panic!("the handler panics"));
    let answer = tokio::spawn(async move { status(&app, plain("/")).await }).await;
    assert!(answer.unwrap_err().is_panic());
    assert_eq!(used(&limiter).await, 100);
}

#[tokio::test(start_paused = true)]
async fn estimate_stands_if_the_client_disconnects() {
    let limiter = limiter();
    let handler = |Extension(settlement): Extension<Settlement>| async move {
        sleep(100 * MS).await;
        let _settled = settlement.settle("tokens", 1);
    };
    let app = Router::new()
        .route("/", any(handler))
        .layer(layer(&limiter));
    let answer = tokio::time::timeout(10 * MS, status(&app, plain("/"))).await;
    assert!(answer.is_err());
    sleep(1_000 * MS).await;
    assert_eq!(used(&limiter).await, 100);
}

/// A response body that counts what it sends, and settles at its end or when it is dropped.
struct Counted {
    left: u32,
    sent: u32,
    settlement: Settlement,
}

#[tokio::test]
async fn meter_settles_what_was_added_when_it_is_dropped() {
    let limiter = limiter();
    let app = app(layer(&limiter), |settlement| {
        let mut meter = settlement.meter("tokens");
        meter.add(30);
        meter.add(5);
        assert_eq!(
            (meter.cost(), settlement.charged("tokens")),
            (35, Some(100))
        );
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 35);
}

impl Counted {
    const fn new(tokens: u32, settlement: Settlement) -> Self {
        Self {
            left: tokens,
            sent: 0,
            settlement,
        }
    }

    fn settle(&self) {
        let _settled = self.settlement.settle("tokens", self.sent);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.settle();
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return std::task::Poll::Ready(None);
        }
        self.left -= 1;
        self.sent += 1;
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(
            b"token ",
        )))))
    }
}

#[tokio::test]
async fn streaming_body_settles_what_it_sent() {
    let limiter = limiter();
    let handler = |Extension(settlement): Extension<Settlement>| async move {
        Body::new(Counted::new(250, settlement))
    };
    let app = Router::new()
        .route("/", any(handler))
        .layer(layer(&limiter));
    let response = send(&app, plain("/")).await;
    assert_eq!(used(&limiter).await, 100, "not before the end");
    response.into_body().collect().await.unwrap();
    assert_eq!(used(&limiter).await, 250);
    // A client that reads only the start.
    let mut body = send(&app, plain("/")).await.into_body();
    for _ in 0..7 {
        body.frame().await.unwrap().unwrap();
    }
    drop(body);
    assert_eq!(used(&limiter).await, 257);
}

/// A client that resets its HTTP/2 stream, or drops its HTTP/1 connection, in the middle of a
/// response.
#[tokio::test]
async fn client_that_resets_a_stream_is_charged_what_was_sent() {
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;

    let (limiter, (settled, settlements)) = (limiter(), std::sync::mpsc::channel());
    let unlimited = Limit::fixed_window("tokens", Quota::per_hour(1_000_000_000)).unwrap();
    let layer = RateLimitLayer::new(&limiter, unlimited.clone(), Global).unwrap();
    let handler = move |Extension(settlement): Extension<Settlement>| {
        let settled = settled.clone();
        async move {
            Body::new(Reported {
                counted: Counted::new(5_000_000, settlement),
                settled,
            })
        }
    };
    let app = Router::new()
        .route("/", any(handler))
        .layer(layer.insert_settlement());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let mut expected = 0;
    for http2 in [true, false] {
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .build_http();
        let request = http::Request::get(&url).body(Body::empty()).unwrap();
        let mut body = client.request(request).await.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        drop((body, client));
        let sent = loop {
            match settlements.try_recv() {
                Ok(sent) => break sent,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        expected += u64::from(sent);
        let left = limiter
            .peek(&unlimited, &Key::global(), 0)
            .await
            .unwrap()
            .remaining();
        assert_eq!(1_000_000_000 - left, expected, "over HTTP/2: {http2}");
        assert!(
            0 < sent && sent < 5_000_000,
            "{sent} of the tokens were sent"
        );
    }
    server.abort();
}

/// Says how much was sent, after that is settled.
struct Reported {
    counted: Counted,
    settled: std::sync::mpsc::Sender<u32>,
}

impl Drop for Reported {
    fn drop(&mut self) {
        self.counted.settle();
        self.settled.send(self.counted.sent).unwrap();
    }
}

impl http_body::Body for Reported {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        std::pin::Pin::new(&mut self.counted).poll_frame(cx)
    }
}

#[tokio::test]
async fn free_responses_are_refunded() {
    let limiter = limiter();
    let handler = |request: http::Request<Body>| async move {
        let status = request.headers()["status"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        StatusCode::from_u16(status).unwrap()
    };
    let free = |response: &http::response::Parts| {
        response.status.is_server_error() || response.status == StatusCode::NOT_MODIFIED
    };
    let layer = RateLimitLayer::new(&limiter, tokens(), Global)
        .unwrap()
        .refund_when(free);
    let app = Router::new().route("/", any(handler)).layer(layer);
    let with = |status: u16| {
        request("GET", "/")
            .header("status", status)
            .body(Body::empty())
            .unwrap()
    };
    for (answer, expected) in [(200, 1), (503, 1), (304, 1), (404, 2), (500, 2), (200, 3)] {
        assert_eq!(status(&app, with(answer)).await, answer);
        assert_eq!(used(&limiter).await, expected, "after {answer}");
    }
}

#[test]
fn cost_of_a_limit_that_the_layer_does_not_have_is_a_configuration_error() {
    let error = layer(&limiter())
        .settle_on_response("token", |_| Some(1))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`settle_on_response` names the limit `token`, and the layer has: tokens; use one of them"
    );
    // What a closure will choose is not known.
    let chosen = RateLimitLayer::from_fn(limiter(), |_| ChosenLimits::Unlimited).unwrap();
    assert!(chosen.settle_on_response("token", |_| Some(1)).is_ok());
}

#[tokio::test]
async fn cost_is_settled_by_the_response() {
    let limiter = limiter();
    let cost = |response: &http::response::Parts| {
        response.headers.get("x-cost")?.to_str().ok()?.parse().ok()
    };
    let layer = layer(&limiter).settle_on_response("tokens", cost).unwrap();
    let handler = |request: http::Request<Body>| async move {
        let cost = request.headers()["wanted"].clone();
        ([("x-cost", cost)], "an answer")
    };
    let app = Router::new().route("/", any(handler)).layer(layer);
    for (cost, expected) in [("30", 30), ("250", 280), ("-1", 380), ("many", 480)] {
        let request = request("GET", "/")
            .header("wanted", cost)
            .body(Body::empty())
            .unwrap();
        assert_eq!(status(&app, request).await, 200);
        assert_eq!(used(&limiter).await, expected, "a cost of {cost}");
    }
}

#[tokio::test]
async fn handler_comes_before_the_response() {
    let limiter = limiter();
    let layer = layer(&limiter).refund_when(|_| true);
    let app = app(layer, |settlement| {
        let _settled = settlement.settle("tokens", 60);
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(
        used(&limiter).await,
        60,
        "what is settled is not given back"
    );
}

#[tokio::test]
async fn settlement_has_the_charges_of_all_layers() {
    let (limiter, other) = (limiter(), limiter());
    let requests = Limit::fixed_window("requests", Quota::per_hour(10)).unwrap();
    let outside = RateLimitLayer::new(&other, requests.clone(), Global)
        .unwrap()
        .cost(|_| 3)
        .insert_settlement();
    let app = app(layer(&limiter), |settlement| {
        assert_eq!(
            settlement.settle_all([("tokens", 7), ("requests", 1), ("none", 5)]),
            2
        );
    });
    assert_eq!(status(&app.layer(outside), plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 7);
    let left = other
        .peek(&requests, &Key::global(), 0)
        .await
        .unwrap()
        .remaining();
    assert_eq!(left, 9);
}

#[tokio::test]
async fn layers_that_share_a_budget_are_settled_each() {
    let limiter = limiter();
    let app = app(layer(&limiter), |settlement| {
        assert_eq!(settlement.refund(), 2);
    });
    let app = app.layer(layer(&limiter));
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 0);
}

#[tokio::test]
async fn thread_without_a_runtime_can_settle() {
    let limiter = limiter();
    let app = app(layer(&limiter), |settlement| {
        let settles = move || settlement.settle("tokens", 5);
        assert!(std::thread::spawn(settles).join().unwrap());
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 5);
}

/// The names of the limits that were settled.
type SettledLimits = Arc<Mutex<Vec<String>>>;

/// A store that settles late or fails, and notes what it is asked.
fn late(fails: fn() -> Option<Error>) -> (RateLimiter, SettledLimits) {
    let settled = SettledLimits::default();
    let noted = Arc::clone(&settled);
    let store = Scripted::new(move |memory, operation| {
        let Operation::Change(budget, Change::Settle { .. }) = &operation else {
            return memory.apply(operation);
        };
        noted.lock().unwrap().push(budget.limit().name().to_owned());
        match fails() {
            Some(error) => scripted::late(2_000 * MS, Answer::ready(Err(error))),
            None => ask_after(2_000 * MS, memory, operation),
        }
    });
    (RateLimiter::new(store), settled)
}

#[tokio::test(start_paused = true)]
async fn settlement_does_not_delay_the_response() {
    let (limiter, settlements) = late(|| None);
    let requests = Limit::fixed_window("requests", Quota::per_hour(10)).unwrap();
    let layer = RateLimitLayer::new(&limiter, requests, Global)
        .unwrap()
        .limit_with_cost(tokens(), Global, |_| 100)
        .unwrap()
        .insert_settlement();
    let app = app(layer, |settlement| {
        let _settled = settlement.settle_all([("requests", 1), ("tokens", 40)]);
    });
    let started = Instant::now();
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(*settlements.lock().unwrap(), ["requests", "tokens"]);
    sleep(2_001 * MS).await;
    assert_eq!(used(&limiter).await, 40);
}

#[tokio::test(start_paused = true)]
async fn settlement_that_fails_is_not_repeated_and_is_reported() {
    let lost: fn() -> Option<Error> = || Some(Error::timeout());
    for (fails, event) in [
        (lost, "cost may not be settled"),
        (|| Some(Error::unreachable("away")), "cost not settled"),
    ] {
        let (log, _guard) = crate::support::log::Log::start();
        let (limiter, settlements) = late(fails);
        let app = app(layer(&limiter), |settlement| {
            let _settled = settlement.settle("tokens", 40);
        });
        assert_eq!(status(&app, plain("/")).await, 200);
        sleep(60_000 * MS).await;
        assert_eq!(settlements.lock().unwrap().len(), 1);
        assert_eq!(used(&limiter).await, 100, "the estimate stands");
        let lines = log.lines();
        assert!(lines.iter().any(|line| line.contains(event)), "{lines:?}");
    }
}

#[tokio::test]
async fn request_that_failed_open_charged_nothing_that_could_be_settled() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let fail_open = layer(&limiter)
        .on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    let app = app(fail_open, |settlement| {
        assert_eq!(settlement.refund(), 0);
    });
    store.switch_off(true);
    assert_eq!(status(&app, plain("/")).await, 200);
    store.switch_off(false);
    assert_eq!(store.used(&tokens(), &Key::global()).await, 0);
}

#[tokio::test]
async fn request_that_is_not_limited_has_a_settlement_without_charges() {
    let limiter = limiter();
    let chosen = |_: &http::request::Parts| tollgate::layer::ChosenLimits::Unlimited;
    let unlimited = RateLimitLayer::from_fn(&limiter, chosen)
        .unwrap()
        .insert_settlement();
    for layer in [layer(&limiter).skip(|_| true), unlimited] {
        let app = app(layer, |settlement| {
            assert!(!settlement.settle("tokens", 5));
        });
        assert_eq!(status(&app, plain("/")).await, 200);
    }
    assert_eq!(used(&limiter).await, 0);
}

#[tokio::test]
async fn request_without_an_estimate_is_charged_afterwards() {
    let limiter = limiter();
    let layer = layer(&limiter).cost(|_| 0);
    let app = app(layer, |settlement| {
        assert!(settlement.settle("tokens", 120));
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(used(&limiter).await, 120);
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use crate::support::RedisServer;

    /// Settles until the store has it: a settlement is sent in the background.
    async fn eventually(limiter: &RateLimiter, expected: u64) {
        for _ in 0..1_000 {
            if used(limiter).await == expected {
                return;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(used(limiter).await, expected);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_hundred_requests_at_once_are_settled_to_the_unit() {
        let server = RedisServer::start();
        let limiter = RateLimiter::new(server.store().build().unwrap());
        let limit = Limit::token_bucket("tokens", Quota::per_day(1_000_000)).unwrap();
        let layer = RateLimitLayer::new(&limiter, limit.clone(), Global)
            .unwrap()
            .cost(|_| 100);
        let app = app(layer.insert_settlement(), |settlement| {
            let _settled = settlement.settle("tokens", 60);
        });
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let app = app.clone();
            requests.spawn(async move { status(&app, plain("/")).await });
        }
        assert!(
            requests
                .join_all()
                .await
                .into_iter()
                .all(|status| status == 200)
        );
        let left = async || {
            limiter
                .peek(&limit, &Key::global(), 0)
                .await
                .unwrap()
                .remaining()
        };
        for _ in 0..1_000 {
            if left().await >= 988_000 {
                break;
            }
            tokio::task::yield_now().await;
        }
        // What refills meanwhile is less than a hundred.
        let left = left().await;
        assert!((988_000..988_100).contains(&left), "{left}");
    }

    #[tokio::test]
    async fn server_that_was_away_in_between_charges_the_estimate_once() {
        let server = RedisServer::start();
        let limiter = RateLimiter::new(server.store().build().unwrap());
        let app = app(layer(&limiter), |settlement| {
            let _settled = settlement.settle("tokens", 30);
        });
        assert_eq!(status(&app, plain("/")).await, 200);
        eventually(&limiter, 30).await;
        let away = RedisServer::start();
        let store = away.store().deadline(500 * MS).build().unwrap();
        let limiter = RateLimiter::new(store);
        let (sender, receiver) = std::sync::mpsc::channel();
        let layer = layer(&limiter);
        let handler = move |Extension(settlement): Extension<Settlement>| {
            let sender = sender.clone();
            async move { sender.send(settlement).unwrap() }
        };
        let app = Router::new().route("/", any(handler)).layer(layer);
        assert_eq!(status(&app, plain("/")).await, 200);
        let settlement = receiver.recv().unwrap();
        let calls = away.calls("evalsha");
        away.pause(true);
        assert!(settlement.settle("tokens", 30));
        assert!(!settlement.settle("tokens", 30));
        // The settlement was sent, or given up, before the next check is decided.
        let paused = limiter.peek(&tokens(), &Key::global(), 0).await;
        assert!(paused.unwrap_err().is_timeout());
        away.pause(false);
        let settled = async || {
            while limiter.peek(&tokens(), &Key::global(), 0).await.is_err() {
                tokio::task::yield_now().await;
            }
            used(&limiter).await
        };
        assert_eq!(
            settled().await,
            30,
            "{} calls",
            away.calls("evalsha") - calls
        );
    }
}

#[tokio::test(start_paused = true)]
async fn flush_waits_for_settlements_in_flight_and_for_five_seconds_at_most() {
    // Settlements take a second.
    let memory = MemoryStore::with_clock(ManualClock::new());
    let store = Scripted::on(memory, |memory, operation| {
        let settles = matches!(operation, Operation::Change(_, Change::Settle { .. }));
        let answer = memory.apply(operation);
        match settles {
            true => scripted::late(Duration::from_secs(1), answer),
            false => answer,
        }
    });
    let limiter = RateLimiter::new(store);
    limiter.flush().await;
    let app = app(layer(&limiter), |settlement| {
        let _settled = settlement.settle("tokens", 700);
    });
    let began = Instant::now();
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(began.elapsed(), Duration::ZERO);
    limiter.flush().await;
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert_eq!(used(&limiter).await, 700);

    // The answer never comes.
    let waiting = limiter.peek(&tokens(), &Key::global(), 0).await.unwrap();
    assert!(waiting.allowed());
    let stuck = RateLimiter::new(stuck_settlements());
    let app = self::app(layer(&stuck), |settlement| {
        let _settled = settlement.settle("tokens", 700);
    });
    assert_eq!(status(&app, plain("/")).await, 200);
    let began = Instant::now();
    stuck.flush().await;
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

/// A store whose settlements are never answered.
fn stuck_settlements() -> Scripted {
    Scripted::new(|memory, operation| match operation {
        Operation::Change(_, Change::Settle { .. }) => Answer::later(std::future::pending()),
        _ => memory.apply(operation),
    })
}

#[test]
fn flush_outside_of_a_runtime_does_nothing() {
    let limiter = limiter();
    let mut flushing = std::pin::pin!(limiter.flush());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(flushing.as_mut().poll(&mut cx).is_ready());
}

#[tokio::test(start_paused = true)]
async fn limiter_that_is_dropped_with_settlements_in_flight_says_how_many() {
    let (limiter, (log, _guard)) = (RateLimiter::new(stuck_settlements()), Log::start());
    let app = app(layer(&limiter), |settlement| {
        let _settled = settlement.settle("tokens", 700);
    });
    for _ in 0..3 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
    drop((app, limiter));
    let lines = log.lines();
    let line = lines
        .iter()
        .find(|line| line.contains("limiter dropped"))
        .expect("it is reported");
    assert!(
        line.contains("settlements=3") && line.contains("RateLimiter::flush"),
        "{line}"
    );
}
