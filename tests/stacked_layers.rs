//! Layers in layers, and services that set the fields themselves: whichever number a client obeys, no layer
//! that its request reached denies the next one.

#![cfg(feature = "axum")]

mod support;

use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::key::Global;
use tollgate::layer::{IetfDraft, ReportOn};
use tollgate::{Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use self::support::fields::{START, any_draft, limiter, values, waits};
use self::support::limits::any_limits;
use self::support::requests::{number, plain, request, send};

/// The outer layer's quota: a second for each request, one at once.
const EACH_SECOND: Quota = Quota::per_minute(60).burst(1);

fn outer(limiter: &RateLimiter, quota: Quota) -> RateLimitLayer {
    RateLimitLayer::token_bucket(limiter, "outer", quota).key(Global).unwrap()
}

async fn body(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// A service that answers 503 with these `Retry-After`.
fn unavailable(retry_after: &'static [&str]) -> Router {
    Router::new().fallback(move || async move {
        let mut response = StatusCode::SERVICE_UNAVAILABLE.into_response();
        for value in retry_after {
            response.headers_mut().append("retry-after", HeaderValue::from_static(value));
        }
        response
    })
}

#[tokio::test(start_paused = true)]
async fn inner_denial_waits_for_the_outer_layer_in_all_its_numbers() {
    // The outer layer has a token an hour. The inner one would allow the request after a second.
    for (tokens, seconds) in [(1, 3_600), (2, 1)] {
        let (limiter, _clock) = limiter();
        let inner = RateLimitLayer::token_bucket(&limiter, "inner", EACH_SECOND).key(Global);
        let inner = inner.unwrap().ietf_headers(IetfDraft::Draft11);
        let outer = outer(&limiter, Quota::per_hour(1).burst(tokens)).report_on(ReportOn::Never);
        let inner_limit = Limit::token_bucket("inner", EACH_SECOND).unwrap();
        limiter.check(&inner_limit, &Key::global()).await.unwrap();
        let app = Router::new().fallback(|| async {}).layer(inner).layer(outer);
        let denied = send(&app, plain("/")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        let headers = denied.headers();
        assert_eq!(number(headers, "retry-after"), seconds);
        assert_eq!(number(headers, "x-ratelimit-reset"), START + seconds);
        assert_eq!(values(headers, &["ratelimit"]), [format!("\"inner\";r=0;t={seconds}")]);
        let text = body(denied).await;
        assert_eq!(text, format!("rate limit `inner` exceeded: try again in {seconds} s\n"));
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
        (&["0", "7"], &["60"]),
        (&["7", "3600"], &["7", "3600"]),
        (&["Sun, 06 Nov 1994 08:49:37 GMT"], &["60"]),
        (in_an_hour, in_an_hour),
        // Unreadable, so it stays.
        (&["soon"], &["soon"]),
        (&["-1"], &["-1"]),
        (&["1", "soon"], &["1", "soon"]),
        (&["99999999999999999999999"], &["99999999999999999999999"]),
        (&[], &[]),
    ] {
        for report_on in [ReportOn::AllResponses, ReportOn::Never] {
            let (limiter, _clock) = limiter();
            let layer = outer(&limiter, Quota::per_minute(1)).report_on(report_on);
            let app = unavailable(theirs).layer(layer);
            let response = send(&app, plain("/")).await;
            assert_eq!(values(response.headers(), &["retry-after"]), ours, "{theirs:?}");
        }
    }
    // A budget with units left says nothing of when to come.
    let (limiter, _clock) = limiter();
    let app = unavailable(&["1"]).layer(outer(&limiter, Quota::per_minute(2)));
    assert_eq!(number(send(&app, plain("/")).await.headers(), "retry-after"), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_when_the_next_request_fits_and_not_when_the_budget_is_full() {
    let (limiter, _clock) = limiter();
    for (limit, seconds) in [
        (Limit::token_bucket("tokens", Quota::per_minute(30)).unwrap(), 20),
        (Limit::leaky_bucket_meter("level", Quota::per_minute(30)).unwrap(), 20),
        (Limit::gcra("schedule", Quota::per_minute(30)).unwrap(), 20),
        (Limit::fixed_window("window", Quota::per_minute(30)).unwrap(), 60),
    ] {
        let layer = RateLimitLayer::of(&limiter, limit).key(Global).unwrap();
        let layer = layer.cost(|_| 10).ietf_headers(IetfDraft::Draft11);
        let app = unavailable(&["1"]).layer(layer);
        let mut retry_after = Vec::new();
        for _ in 0..3 {
            let response = send(&app, plain("/")).await;
            retry_after.push(number(response.headers(), "retry-after"));
            if retry_after.len() == 3 {
                // The draft: `Retry-After` is not earlier than the reset.
                let t = format!(";r=0;t={seconds}");
                assert!(values(response.headers(), &["ratelimit"])[0].ends_with(&t));
            }
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
            let layer = RateLimitLayer::of(&limiter, limit).key(Global).unwrap();
            layer.cost(move |_| cost).ietf_headers(draft)
        };
        let (requests, tokens) = (layer("requests", 60, 1), layer("tokens", 1_000, 800));
        let [inside, outside] =
            if tokens_are_inside { [tokens, requests] } else { [requests, tokens] };
        let app = Router::new().fallback(|| async {}).layer(inside).layer(outside);
        let response = send(&app, plain("/")).await;
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 200);
        let of_draft = values(response.headers(), &["ratelimit-remaining", "ratelimit"]);
        assert!(["200", "limit=1000, remaining=200, reset=60"].contains(&of_draft[0].as_str()));
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
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A layer that denies hides those inside of it: they were not asked.
    #[test]
    fn no_number_of_stacked_layers_is_too_early(
        layers in any_layers(),
        draft in any_draft(),
        steps in prop::collection::vec((0u64..3_000_000, prop::option::of(0u64..10)), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clock = ManualClock::new();
            // Of limits with equal names, each layer has its own.
            let limiters: Vec<_> =
                layers.iter().map(|_| RateLimiter::new(MemoryStore::with_clock(clock.clone()))).collect();
            let mut app = Router::new().fallback(|request: Request<Body>| async move {
                match request.headers().get("x-retry-after") {
                    Some(value) => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", value.clone())]).into_response(),
                    None => StatusCode::OK.into_response(),
                }
            });
            for (number, ((limits, cost), limiter)) in layers.iter().zip(&limiters).enumerate() {
                let (cost, builder) = (*cost, RateLimitLayer::builder(limiter));
                let builder = limits.iter().fold(builder, |it, limit| it.limit(limit.clone(), Global));
                let layer = builder.build().unwrap().cost(move |_| cost).ietf_headers(draft);
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
                let innermost_asked = if headers.contains_key(DENIED_BY) { number(&headers, DENIED_BY) } else { 0 };
                for (name, wait) in waits(&headers, now) {
                    // A service may ask for no wait at all, where the budgets need none.
                    clock.set(now + wait);
                    let layers = layers.iter().zip(&limiters).skip(innermost_asked as usize);
                    for ((limits, cost), limiter) in layers {
                        for limit in limits {
                            let later = limiter.peek(limit, &Key::global(), *cost).await.unwrap();
                            prop_assert!(later.allowed(), "{limit}: {name} after {wait:?}: {headers:?}");
                        }
                    }
                    clock.set(now);
                }
            }
            Ok(())
        })?;
    }
}
