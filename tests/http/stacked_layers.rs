//! Layers in layers, and services that set the fields themselves: whichever number a client obeys,
//! no layer that its request reached denies the next one.

#![cfg(feature = "axum")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::key::Global;
use tollgate::layer::IetfDraft;
use tollgate::{Decision, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::fields::{START, any_draft, limiter, values, waits};
use crate::support::limits::any_limits;
use crate::support::requests::{number, paused_runtime, plain, request, send};

/// The outer layer's quota: a second for each request, one at once.
const EACH_SECOND: Quota = Quota::per_minute(60).burst(1);

fn outer(limiter: &RateLimiter, quota: Quota) -> RateLimitLayer {
    RateLimitLayer::token_bucket(limiter, "outer", quota, Global).unwrap()
}

async fn body(response: Response<Body>) -> String {
    String::from_utf8(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec(),
    )
    .unwrap()
}

/// A service that answers 503 with these `Retry-After`.
fn unavailable(retry_after: &'static [&str]) -> Router {
    Router::new().fallback(move || async move {
        let mut response = StatusCode::SERVICE_UNAVAILABLE.into_response();
        for value in retry_after {
            response
                .headers_mut()
                .append("retry-after", HeaderValue::from_static(value));
        }
        response
    })
}

#[tokio::test(start_paused = true)]
async fn inner_denial_waits_for_the_outer_layer_in_all_its_numbers() {
    // The outer layer has a token an hour. The inner one would allow the request after a second.
    for (tokens, seconds) in [(1, 3_600), (2, 1)] {
        let (limiter, _clock) = limiter();
        let inner = RateLimitLayer::token_bucket(&limiter, "inner", EACH_SECOND, Global);
        let inner = inner.unwrap().ietf_headers(IetfDraft::Draft11);
        let outer = outer(&limiter, Quota::per_hour(1).burst(tokens)).report_nothing();
        let inner_limit = Limit::token_bucket("inner", EACH_SECOND).unwrap();
        drop(limiter.check(&inner_limit, &Key::global()).await.unwrap());
        let app = Router::new()
            .fallback(|| async {})
            .layer(inner)
            .layer(outer);
        let denied = send(&app, plain("/")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        let headers = denied.headers();
        assert_eq!(number(headers, "retry-after"), seconds);
        assert_eq!(number(headers, "x-ratelimit-reset"), START + seconds);
        assert_eq!(
            values(headers, &["ratelimit"]),
            [format!("\"inner\";r=0;t={seconds}")]
        );
        let text = body(denied).await;
        assert_eq!(
            text,
            format!("rate limit `inner` exceeded: try again in {seconds} s\n")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_the_service_is_lengthened_and_never_shortened() {
    let in_an_hour = SystemTime::now() + Duration::from_secs(3_600);
    let in_an_hour: &'static [&str] = vec![&*httpdate::fmt_http_date(in_an_hour).leak()].leak();
    for (theirs, ours) in [
        (&["1"][..], &["60"][..]),
        (&["59"], &["60"]),
        (&["60"], &["60"]),
        (&["3600"], &["3600"]),
        (&["2.5"], &["60"]),
        (&["60.5"], &["60.5"]),
        (&["0", "7"], &["60"]),
        (&["7", "3600"], &["7", "3600"]),
        (&["Sun, 06 Nov 1994 08:49:37 GMT"], &["60"]),
        (in_an_hour, in_an_hour),
        (&["99999999999999999999999"], &["99999999999999999999999"]),
        // Unreadable lines do not count.
        (&["1", "soon"], &["60"]),
        (&["soon"], &["soon"]),
        (&["-1"], &["-1"]),
        (&["+1"], &["+1"]),
        (&["1."], &["1."]),
        (&[], &[]),
    ] {
        let (limiter, _clock) = limiter();
        let app = unavailable(theirs).layer(outer(&limiter, Quota::per_minute(1)));
        let response = send(&app, plain("/")).await;
        assert_eq!(
            values(response.headers(), &["retry-after"]),
            ours,
            "{theirs:?}"
        );
    }
    // The layer reports nothing on such a response.
    for silence in [
        RateLimitLayer::report_denials_only,
        RateLimitLayer::report_nothing,
    ] {
        let (limiter, _clock) = limiter();
        let layer = silence(outer(&limiter, Quota::per_minute(1)));
        let response = send(&unavailable(&["1"]).layer(layer), plain("/")).await;
        assert_eq!(number(response.headers(), "retry-after"), 1);
    }
    // It says when to look for a result, and not when to send the request again.
    let accepted = || async { (StatusCode::ACCEPTED, [("retry-after", "2")]) };
    let layer = outer(&limiter().0, Quota::per_minute(1)).ietf_headers(IetfDraft::Draft11);
    let response = send(&Router::new().fallback(accepted).layer(layer), plain("/")).await;
    assert_eq!(number(response.headers(), "retry-after"), 2);
    // There are no units in two seconds.
    assert_eq!(
        values(response.headers(), &["ratelimit"]),
        ["\"outer\";r=0"]
    );
    // A budget with units left says nothing of when to come.
    let (limiter, _clock) = limiter();
    let app = unavailable(&["1"]).layer(outer(&limiter, Quota::per_minute(2)));
    assert_eq!(
        number(send(&app, plain("/")).await.headers(), "retry-after"),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_when_the_next_request_fits_and_not_when_the_budget_is_full() {
    let (limiter, _clock) = limiter();
    for (limit, seconds) in [
        (
            Limit::token_bucket("tokens", Quota::per_minute(30)).unwrap(),
            20,
        ),
        (
            Limit::leaky_bucket_meter("level", Quota::per_minute(30)).unwrap(),
            20,
        ),
        (Limit::gcra("schedule", Quota::per_minute(30)).unwrap(), 20),
        (
            Limit::fixed_window("window", Quota::per_minute(30)).unwrap(),
            60,
        ),
        // It is not known, and may be much sooner than the reset.
        (
            Limit::sliding_window("sliding", Quota::per_minute(30)).unwrap(),
            1,
        ),
        (Limit::sliding_log("log", Quota::per_minute(30)).unwrap(), 1),
    ] {
        let layer = RateLimitLayer::new(&limiter, limit, Global).unwrap();
        let layer = layer.cost(|_| 10).ietf_headers(IetfDraft::Draft11);
        let app = unavailable(&["1"]).layer(layer);
        let mut retry_after = Vec::new();
        for _ in 0..3 {
            let response = send(&app, plain("/")).await;
            retry_after.push(number(response.headers(), "retry-after"));
            // The draft: the reset is not later than `Retry-After`.
            let t = match retry_after.len() {
                3 if seconds > 1 => format!(";r=0;t={seconds}"),
                left => format!(";r={}", 30 - 10 * left),
            };
            let reported = &values(response.headers(), &["ratelimit"])[0];
            assert!(reported.ends_with(&t), "{reported}");
        }
        assert_eq!(retry_after, [1, 1, seconds]);
    }
}

#[tokio::test(start_paused = true)]
async fn used_up_budget_is_reported_even_if_another_has_fewer_units() {
    // 800 tokens a request, 200 left: not enough. 59 requests are.
    for (tokens_are_inside, draft) in [
        (true, IetfDraft::Draft6),
        (false, IetfDraft::Draft6),
        (true, IetfDraft::Draft7),
        (false, IetfDraft::Draft7),
    ] {
        let (limiter, _clock) = limiter();
        let layer = |name, limit, cost| {
            let limit = Limit::fixed_window(name, Quota::per_minute(limit)).unwrap();
            let layer = RateLimitLayer::new(&limiter, limit, Global).unwrap();
            layer.cost(move |_| cost).ietf_headers(draft)
        };
        let (requests, tokens) = (layer("requests", 60, 1), layer("tokens", 1_000, 800));
        let [inside, outside] = if tokens_are_inside {
            [tokens, requests]
        } else {
            [requests, tokens]
        };
        let app = Router::new()
            .fallback(|| async {})
            .layer(inside)
            .layer(outside);
        let response = send(&app, plain("/")).await;
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 200);
        let of_draft = values(response.headers(), &["ratelimit-remaining", "ratelimit"]);
        assert!(["200", "limit=1000, remaining=200, reset=60"].contains(&of_draft[0].as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn resets_within_a_second_are_told_apart_by_their_decimals() {
    for (inside, outside) in [(10_100, 10_900), (10_900, 10_100)] {
        let (limiter, _clock) = limiter();
        let layer = |name, millis| {
            let quota = Quota::new(1, Duration::from_millis(millis));
            let layer = RateLimitLayer::fixed_window(&limiter, name, quota, Global).unwrap();
            layer.reset_after_header()
        };
        let app = Router::new()
            .fallback(|| async {})
            .layer(layer("inside", inside));
        let response = send(&app.layer(layer("outside", outside)), plain("/")).await;
        assert_eq!(response.headers()["x-ratelimit-reset-after"], "10.900");
        assert_eq!(number(response.headers(), "x-ratelimit-reset"), START + 11);
    }
    // A layer without decimals that replaces the fields removes those of the other.
    let (limiter, _clock) = limiter();
    let inside = RateLimitLayer::fixed_window(&limiter, "inside", Quota::per_minute(9), Global)
        .unwrap()
        .reset_after_header();
    let app = Router::new().fallback(|| async {}).layer(inside);
    let response = send(&app.layer(outer(&limiter, Quota::per_hour(1))), plain("/")).await;
    assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 0);
    assert!(!response.headers().contains_key("x-ratelimit-reset-after"));
}

#[tokio::test(start_paused = true)]
async fn jitter_is_added_to_the_longest_wait() {
    let (limiter, _clock) = limiter();
    let inner = RateLimitLayer::token_bucket(&limiter, "inner", EACH_SECOND, Global).unwrap();
    let inner = inner.retry_after_jitter(Duration::from_secs(20)).unwrap();
    let app = Router::new().fallback(|| async {}).layer(inner);
    send(&app, plain("/")).await;
    let app = app.layer(outer(&limiter, Quota::per_hour(60).burst(1)));
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        // The outer budget is used up by the first request.
        limiter
            .reset(
                &Limit::token_bucket("outer", Quota::per_hour(60).burst(1)).unwrap(),
                &Key::global(),
            )
            .await
            .unwrap();
        let denied = send(&app, plain("/")).await;
        let seconds = number(denied.headers(), "retry-after");
        assert!((60..=80).contains(&seconds), "{seconds}");
        seen.insert(seconds);
    }
    assert!(seen.len() > 10, "{seen:?}");
}

/// An outgoing layer: it reports nothing, and the response is the provider's.
#[tokio::test(start_paused = true)]
async fn fields_of_another_are_not_taken_for_those_of_a_layer_that_reports_nothing() {
    let (limiter, _clock) = limiter();
    let outgoing = RateLimitLayer::token_bucket(&limiter, "outgoing", Quota::per_minute(1), Global)
        .unwrap()
        .report_nothing();
    let provider = || async { [("x-ratelimit-remaining", "4999")] };
    let app = Router::new().fallback(provider).layer(outgoing);
    let response = send(
        &app.layer(outer(&limiter, Quota::per_minute(10))),
        plain("/"),
    )
    .await;
    assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 9);
}

#[tokio::test(start_paused = true)]
async fn decision_in_the_extensions_is_the_strictest_and_that_of_the_headers() {
    let handler = |decision: Extension<Decision>| async move { decision.limit().name().to_owned() };
    // Limit and cost of each layer, from the outer one, and whose decision it is.
    for (outside, inside, strictest) in [
        ((10, 1), (5, 1), "inner"),
        ((5, 1), (10, 1), "outer"),
        // Of equals, the outer one.
        ((5, 1), (5, 1), "outer"),
        // 200 tokens are left, which is not enough for another request.
        ((60, 1), (1_000, 800), "inner"),
        ((1_000, 800), (60, 1), "outer"),
    ] {
        let (limiter, _clock) = limiter();
        let layer = |name, (limit, cost)| {
            RateLimitLayer::fixed_window(&limiter, name, Quota::per_minute(limit), Global)
                .unwrap()
                .cost(move |_| cost)
                .insert_decision()
        };
        let app = Router::new()
            .route("/", get(handler))
            .layer(layer("inner", inside));
        let response = send(&app.layer(layer("outer", outside)), plain("/")).await;
        let decision = response.extensions().get::<Decision>().unwrap().clone();
        assert_eq!(decision.limit().name(), strictest);
        assert_eq!(
            number(response.headers(), "x-ratelimit-remaining"),
            decision.remaining()
        );
        assert_eq!(body(response).await, strictest);
    }
}

/// The number of the layer that denied, from the innermost.
const DENIED_BY: &str = "denied-by";

/// A layer's limits, and what each request costs under them.
type Stacked = (Vec<Limit>, u32);

/// Two or three layers, from the innermost. Limits of different layers have different names.
fn any_layers() -> impl Strategy<Value = Vec<Stacked>> {
    prop::collection::vec((any_limits(), 1u32..4), 2..4)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A layer that denies hides those inside of it: they were not asked.
    #[test]
    fn no_number_of_stacked_layers_is_too_early(
        layers in any_layers(),
        draft in any_draft(),
        steps in prop::collection::vec((0u64..3_000_000, prop::option::of(0u64..10)), 1..25),
    ) {
        let runtime = paused_runtime();
        runtime.block_on(async {
            let clock = ManualClock::new();
            // Of limits with equal names, each layer has its own.
            let limiter = |_| RateLimiter::new(MemoryStore::with_clock(clock.clone()));
            let limiters: Vec<_> = layers.iter().map(limiter).collect();
            let mut app = Router::new().fallback(|request: Request<Body>| async move {
                match request.headers().get("x-retry-after") {
                    Some(value) => {
                        let retry_after = [("retry-after", value.clone())];
                        (StatusCode::SERVICE_UNAVAILABLE, retry_after).into_response()
                    }
                    None => StatusCode::OK.into_response(),
                }
            });
            for (number, ((limits, cost), limiter)) in layers.iter().zip(&limiters).enumerate() {
                let cost = *cost;
                let first = RateLimitLayer::new(limiter, limits[0].clone(), Global).unwrap();
                let layer = limits[1..].iter().fold(first, |layer, limit| {
                    layer.limit(limit.clone(), Global).unwrap()
                });
                let layer = layer.cost(move |_| cost).ietf_headers(draft);
                app = app.layer(layer.respond_with(move |_, mut response| {
                    response.headers_mut().insert(DENIED_BY, number.into());
                    response
                }));
            }
            let mut now = Duration::from_micros(START * 1_000_000 + 123_457);
            for (pause, retry_after) in steps {
                now += Duration::from_micros(pause);
                clock.set(now);
                let mut next = request("GET", "/");
                if let Some(seconds) = retry_after {
                    next = next.header("x-retry-after", seconds);
                }
                let response = send(&app, next.body(Body::empty()).unwrap()).await;
                let (status, headers) = (response.status(), response.headers().clone());
                if status == StatusCode::UNPROCESSABLE_ENTITY {
                    continue;
                }
                let innermost_asked = if headers.contains_key(DENIED_BY) {
                    number(&headers, DENIED_BY)
                } else {
                    0
                };
                for (name, wait) in waits(&headers, now) {
                    // A service may ask for no wait at all, where the budgets need none.
                    clock.set(now + wait);
                    let layers = layers.iter().zip(&limiters).enumerate();
                    let asked = layers.skip(innermost_asked as usize);
                    for (layer, ((limits, cost), limiter)) in asked {
                        // Another layer or the service says when to come, and does not know it of
                        // these.
                        let is_unknown = |limit: &&Limit| ["s", "l"].contains(&limit.kind())
                            && match status {
                                StatusCode::TOO_MANY_REQUESTS => layer as u64 != innermost_asked,
                                _ => name == "retry-after",
                            };
                        for limit in limits.iter().filter(|limit| !is_unknown(limit)) {
                            let later = limiter.peek(limit, &Key::global(), *cost).await.unwrap();
                            prop_assert!(
                                later.allowed(),
                                "{limit}: {name} after {wait:?}: {headers:?}"
                            );
                        }
                    }
                    clock.set(now);
                }
            }
            Ok(())
        })?;
    }
}
