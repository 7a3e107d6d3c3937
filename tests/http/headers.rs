//! The headers that report budgets: families, revisions, several limits, and what is never sent.

#![cfg(feature = "axum")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::key::{Global, Header};
use tollgate::layer::{IetfDraft, OnMissingKey};
use tollgate::store::{Answer, Store};
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::fields::{START, any_draft, limiter, values, waits};
use crate::support::limits::any_limits;
use crate::support::requests::{app, number, paused_runtime, plain, request, send};
use crate::support::scripted::Scripted;

fn minute(limit: u64) -> Quota {
    Quota::per_minute(limit)
}

fn window(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::fixed_window(limiter, "api", minute(2), Global).unwrap()
}

async fn headers(app: &Router) -> HeaderMap {
    send(app, plain("/")).await.headers().clone()
}

#[tokio::test(start_paused = true)]
async fn each_draft_has_its_own_fields() {
    let fields = [
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "ratelimit",
        "ratelimit-policy",
    ];
    for (draft, allowed, denied) in [
        (
            IetfDraft::Draft6,
            &["2", "1", "60", "2;w=60"][..],
            &["2", "0", "50", "2;w=60"][..],
        ),
        (
            IetfDraft::Draft7,
            &["limit=2, remaining=1, reset=60", "2;w=60"],
            &["limit=2, remaining=0, reset=50", "2;w=60"],
        ),
        (
            IetfDraft::Draft11,
            &["\"api\";r=1;t=60", "\"api\";q=2;w=60"],
            &["\"api\";r=0;t=50", "\"api\";q=2;w=60"],
        ),
    ] {
        let (limiter, clock) = limiter();
        let app = app(window(&limiter).ietf_headers(draft).without_x_ratelimit());
        assert_eq!(values(&headers(&app).await, &fields), allowed, "{draft:?}");
        clock.advance(Duration::from_millis(10_500));
        headers(&app).await;
        let response = headers(&app).await;
        assert_eq!(values(&response, &fields), denied, "{draft:?}");
        assert_eq!(number(&response, "retry-after"), 50);
        assert!(
            !response
                .keys()
                .any(|name| name.as_str().starts_with("x-ratelimit"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn every_policy_is_listed_and_the_deciding_limit_is_in_single_values() {
    for (draft, expected) in [
        (IetfDraft::Draft6, &["5", "4", "5;w=60, 100;w=3600"][..]),
        (
            IetfDraft::Draft7,
            &["limit=5, remaining=4, reset=60", "5;w=60, 100;w=3600"],
        ),
        (
            IetfDraft::Draft11,
            &[
                "\"client\";r=4;t=60, \"all\";r=99;t=3600",
                "\"client\";q=5;w=60, \"all\";q=100;w=3600",
            ],
        ),
    ] {
        let (limiter, _clock) = limiter();
        let layer = RateLimitLayer::new(
            &limiter,
            Limit::fixed_window("client", minute(5)).unwrap(),
            Global,
        )
        .unwrap()
        .limit(
            Limit::fixed_window("all", Quota::per_hour(100)).unwrap(),
            Global,
        )
        .unwrap()
        .ietf_headers(draft);
        let app = app(layer);
        let first = headers(&app).await;
        let names = [
            "ratelimit-limit",
            "ratelimit-remaining",
            "ratelimit",
            "ratelimit-policy",
        ];
        assert_eq!(values(&first, &names), expected);
        assert_eq!(
            values(&first, &["x-ratelimit-limit", "x-ratelimit-remaining"]),
            ["5", "4"]
        );
        for _ in 0..4 {
            headers(&app).await;
        }
        // A denial reports the limit that denied. Its reset is `Retry-After`.
        let denied = headers(&app).await;
        if draft == IetfDraft::Draft11 {
            assert_eq!(values(&denied, &["ratelimit"]), ["\"client\";r=0;t=60"]);
            assert_eq!(values(&denied, &["ratelimit-policy"]), expected[1..]);
        }
    }
}

/// Capacity and window say the rate: a bucket of 20 that refills 10 a second is replenished in 2 s.
#[tokio::test(start_paused = true)]
async fn policy_of_a_bucket_is_its_capacity_in_the_time_that_replenishes_it() {
    for (quota, policy) in [
        (Quota::per_second(10).burst(20), "\"api\";q=20;w=2"),
        (Quota::per_second(10), "\"api\";q=10;w=1"),
        (Quota::per_second(10).burst(15), "\"api\";q=15;w=2"),
        // Below a second, there is no number for it.
        (Quota::per_second(10).burst(5), "\"api\";q=5"),
        (Quota::per_day(1_000), "\"api\";q=1000;w=86400"),
    ] {
        let layer = RateLimitLayer::token_bucket(limiter().0, "api", quota, Global).unwrap();
        let app = app(layer.ietf_headers(IetfDraft::Draft11));
        assert_eq!(
            values(&headers(&app).await, &["ratelimit-policy"]),
            [policy]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_strings_that_every_parser_reads() {
    let (limiter, _clock) = limiter();
    for name in [
        "api",
        "a;b=c, d",
        "x=\t".trim_end(),
        "~!@#$%^&*()[]{}<>?/'`",
        "10-in-1min",
    ] {
        let layer = RateLimitLayer::fixed_window(&limiter, name, minute(2), Global).unwrap();
        let response = headers(&app(layer.ietf_headers(IetfDraft::Draft11))).await;
        for field in ["ratelimit", "ratelimit-policy"] {
            let list: List = Parser::new(response[field].as_bytes()).parse().unwrap();
            let [ListEntry::Item(item)] = &list[..] else {
                panic!("{list:?}")
            };
            assert!(
                matches!(&item.bare_item, BareItem::String(text) if text.as_str() == name),
                "{item:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reset_is_epoch_or_delta_and_reset_after_has_decimals() {
    let (limiter, clock) = limiter();
    let layer = window(&limiter).reset_after_header();
    let epoch = app(layer.clone());
    let delta = app(layer.reset_in_delta_seconds());
    headers(&epoch).await;
    clock.advance(Duration::from_micros(30_700_001));
    let response = headers(&epoch).await;
    assert_eq!(number(&response, "x-ratelimit-reset"), START + 60);
    // The embedded store's clock is set by hand, and tokio's clock runs on.
    let reset_after = response["x-ratelimit-reset-after"].to_str().unwrap();
    assert!(
        reset_after.starts_with("29.") && reset_after.len() == 6,
        "{reset_after}"
    );
    assert_eq!(number(&headers(&delta).await, "x-ratelimit-reset"), 30);
}

#[tokio::test(start_paused = true)]
async fn denial_has_no_store_and_the_date_of_its_decision() {
    let (limiter, clock) = limiter();
    let app = app(window(&limiter));
    for _ in 0..2 {
        let allowed = headers(&app).await;
        assert!(!allowed.contains_key("cache-control") && !allowed.contains_key("date"));
    }
    clock.advance(Duration::from_millis(10_900));
    let denied = headers(&app).await;
    assert_eq!(denied["cache-control"], "no-store");
    let date = httpdate::parse_http_date(denied["date"].to_str().unwrap()).unwrap();
    let date = date
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert_eq!(date, START + 10);
    assert!(number(&denied, "x-ratelimit-reset") - date >= number(&denied, "retry-after"));
}

#[tokio::test(start_paused = true)]
async fn budgets_are_reported_on_the_responses_of_the_setting() {
    type Setting = fn(RateLimitLayer) -> RateLimitLayer;
    let settings: [(&str, Setting, bool, bool); 3] = [
        ("default", |layer| layer, true, true),
        ("denials", RateLimitLayer::report_denials_only, false, true),
        ("nothing", RateLimitLayer::report_nothing, false, false),
    ];
    for (setting, set, on_allowed, on_denied) in settings {
        let (limiter, _clock) = limiter();
        let app = app(set(window(&limiter).ietf_headers(IetfDraft::Draft11)));
        let has_fields = |headers: &HeaderMap| {
            let fields = ["x-ratelimit-limit", "ratelimit", "ratelimit-policy"];
            let count = fields
                .iter()
                .filter(|name| headers.contains_key(**name))
                .count();
            assert!(count == 0 || count == 3, "{headers:?}");
            count > 0
        };
        for _ in 0..2 {
            assert_eq!(has_fields(&headers(&app).await), on_allowed, "{setting}");
        }
        let denied = headers(&app).await;
        assert_eq!(has_fields(&denied), on_denied, "{setting}");
        assert_eq!(number(&denied, "retry-after"), 60);
    }
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_representation_have_no_fields() {
    async fn answer(request: Request<Body>) -> impl IntoResponse {
        request.uri().path()[1..]
            .parse::<u16>()
            .map_or(StatusCode::OK, |it| it.try_into().unwrap())
    }
    let (limiter, _clock) = limiter();
    let layer = RateLimitLayer::fixed_window(&limiter, "api", minute(100), Global).unwrap();
    let app = Router::new()
        .fallback(answer)
        .layer(layer.ietf_headers(IetfDraft::Draft11));
    let count = |response: &Response<Body>| {
        response
            .headers()
            .keys()
            .filter(|name| name.as_str().contains("ratelimit"))
            .count()
    };
    for (method, path, fields) in [
        (Method::GET, "/200", 5),
        (Method::GET, "/404", 5),
        (Method::GET, "/500", 5),
        (Method::HEAD, "/200", 5),
        (Method::GET, "/304", 0),
        (Method::GET, "/101", 0),
        (Method::CONNECT, "/200", 0),
    ] {
        let request = request(method.as_str(), path).body(Body::empty()).unwrap();
        assert_eq!(count(&send(&app, request).await), fields, "{method} {path}");
    }
}

#[tokio::test]
async fn response_that_caches_keep_for_others_reports_no_budget() {
    for (cache_control, is_reported) in [
        (&["public, max-age=60"][..], false),
        (&["max-age=60", "S-MaxAge = 5"], false),
        (&["Public"], false),
        (&["max-age=60"], true),
        (&["private, max-age=60"], true),
        (&["public, no-store"], true),
        (&["community=\"public\""], true),
        (&["\u{e9}"], true),
        (&[], true),
    ] {
        let answer = move || async move {
            let mut response = StatusCode::OK.into_response();
            for value in cache_control {
                let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
                response.headers_mut().append("cache-control", value);
            }
            response
        };
        let layer = window(&RateLimiter::in_memory()).ietf_headers(IetfDraft::Draft11);
        let app = Router::new().route("/", get(answer)).layer(layer);
        let headers = headers(&app).await;
        for name in ["x-ratelimit-remaining", "ratelimit"] {
            assert_eq!(
                headers.contains_key(name),
                is_reported,
                "{cache_control:?}: {name}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stricter_fields_of_the_service_stay() {
    for (draft, name, stricter, looser) in [
        (None, "x-ratelimit-remaining", "0", "5"),
        (Some(IetfDraft::Draft6), "ratelimit-remaining", "0", "5"),
        (
            Some(IetfDraft::Draft7),
            "ratelimit",
            "limit=9, remaining=0, reset=7",
            "limit=9, remaining=5;x=1, reset=7",
        ),
    ] {
        for (of_service, stays) in [(stricter, true), (looser, false), ("unknown", true)] {
            let (limiter, _clock) = limiter();
            let layer = match draft {
                Some(draft) => window(&limiter).without_x_ratelimit().ietf_headers(draft),
                None => window(&limiter),
            };
            let service = move || async move { [(name, of_service)] };
            let app = Router::new().fallback(service).layer(layer);
            let response = headers(&app).await;
            assert_eq!(response[name] == of_service, stays, "{name}: {of_service}");
            assert_eq!(response.get_all(name).iter().count(), 1);
        }
    }
    // Of several lines, the strictest counts. Of equals, the later reset.
    for (remaining, reset, stays) in [
        (&["9", "0"][..], "9", true),
        (&["1"], "1790000061", true),
        (&["1"], "1790000059", false),
    ] {
        let (limiter, _clock) = limiter();
        let service = move || async move {
            let mut response = [("x-ratelimit-reset", reset)].into_response();
            for value in remaining {
                let value = value.parse().unwrap();
                response
                    .headers_mut()
                    .append("x-ratelimit-remaining", value);
            }
            response
        };
        let app = Router::new().fallback(service).layer(window(&limiter));
        let response = headers(&app).await;
        assert_eq!(
            response["x-ratelimit-reset"] == reset,
            stays,
            "{remaining:?} {reset}"
        );
    }
    // Lists are joined.
    let (limiter, _clock) = limiter();
    let service = || async {
        [
            ("ratelimit", "\"tenant\";r=7"),
            ("ratelimit-policy", "\"tenant\";q=9"),
        ]
    };
    let layer = window(&limiter).ietf_headers(IetfDraft::Draft11);
    let response = headers(&Router::new().fallback(service).layer(layer)).await;
    assert_eq!(
        values(&response, &["ratelimit"]),
        ["\"tenant\";r=7, \"api\";r=1;t=60"]
    );
    assert_eq!(
        values(&response, &["ratelimit-policy"]),
        ["\"tenant\";q=9, \"api\";q=2;w=60"]
    );
    // A list of another revision, or a malformed one, would be lost with ours in it.
    for theirs in [
        "limit=9, remaining=0, reset=7",
        "garbage(",
        "\"a\";r=5(",
        "\"a\";r=5, ",
    ] {
        let service = move || async move { [("ratelimit", theirs)] };
        let layer = window(&RateLimiter::in_memory()).ietf_headers(IetfDraft::Draft11);
        let response = headers(&Router::new().fallback(service).layer(layer)).await;
        assert_eq!(values(&response, &["ratelimit"]), [theirs]);
    }
    // An empty line is an empty list.
    let layer = window(&RateLimiter::in_memory()).ietf_headers(IetfDraft::Draft11);
    let app = Router::new()
        .fallback(|| async { [("ratelimit", "")] })
        .layer(layer);
    assert_eq!(
        values(&headers(&app).await, &["ratelimit"]),
        ["\"api\";r=1;t=60"]
    );
}

#[tokio::test(start_paused = true)]
async fn stacked_layers_list_the_policies_of_both() {
    let (limiter, _clock) = limiter();
    let layer = |name, limit| {
        let layer = RateLimitLayer::fixed_window(&limiter, name, minute(limit), Global).unwrap();
        layer.ietf_headers(IetfDraft::Draft11)
    };
    let app = app(layer("inner", 5)).layer(layer("outer", 9));
    let response = headers(&app).await;
    assert_eq!(
        values(&response, &["ratelimit"]),
        ["\"inner\";r=4;t=60, \"outer\";r=8;t=60"]
    );
    assert_eq!(values(&response, &["x-ratelimit-limit"]), ["5"]);
}

#[tokio::test(start_paused = true)]
async fn partition_key_identifies_the_budget_and_hides_the_key() {
    let by = |secret: &str| {
        let (limiter, _clock) = limiter();
        let user = Header::new("x-user").unwrap();
        let layer = RateLimitLayer::fixed_window(limiter, "api", minute(9), user).unwrap();
        app(layer
            .ietf_headers(IetfDraft::Draft11)
            .partition_key(secret)
            .unwrap())
    };
    let one = by("0123456789abcdef");
    let two = by("0123456789abcdeg");
    let mut of = Vec::new();
    for (app, user) in [
        (&one, "192.0.2.1"),
        (&one, "192.0.2.1"),
        (&one, "192.0.2.2"),
        (&two, "192.0.2.1"),
    ] {
        let mut request = plain("/");
        request
            .headers_mut()
            .insert("x-user", user.parse().unwrap());
        let response = send(app, request).await;
        let text = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        let list: List = Parser::new(&text).parse().unwrap();
        let [ListEntry::Item(item)] = &list[..] else {
            panic!("{list:?}")
        };
        let Some(BareItem::ByteSequence(key)) = item.params.get("pk") else {
            panic!("{item:?}")
        };
        assert_eq!(key.len(), 16);
        let policy = response.headers()["ratelimit-policy"].to_str().unwrap();
        assert_eq!(policy.split(";pk=").nth(1), text.split(";pk=").nth(1));
        of.push(key.clone());
    }
    assert_eq!(of[0], of[1]);
    assert!(of[0] != of[2] && of[0] != of[3]);
    // HMAC-SHA256("0123456789abcdef", "api" 0x00 "192.0.2.1"), as any other implementation has it.
    let hex: String = of[0].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "c64e23cb2071b0b2fdd2a562ed2a0b2a");
    let error = window(&limiter().0)
        .partition_key("secret")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the secret of `partition_key` has 6 bytes; use at least 16 random bytes"
    );
}

#[tokio::test(start_paused = true)]
async fn jitter_lengthens_retry_after_and_all_numbers_agree() {
    let mut seen = BTreeSet::new();
    let (limiter, _clock) = limiter();
    let layer = window(&limiter).ietf_headers(IetfDraft::Draft11);
    let layer = layer.reset_in_delta_seconds();
    let app = app(layer.retry_after_jitter(Duration::from_secs(20)).unwrap());
    for _ in 0..2 {
        headers(&app).await;
    }
    for _ in 0..200 {
        let denied = send(&app, plain("/")).await;
        let seconds = number(denied.headers(), "retry-after");
        assert!((60..=80).contains(&seconds), "{seconds}");
        assert_eq!(
            values(denied.headers(), &["ratelimit"]),
            [format!("\"api\";r=0;t={seconds}")]
        );
        assert_eq!(number(denied.headers(), "x-ratelimit-reset"), seconds);
        let text = denied.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            text,
            format!("rate limit `api` exceeded: try again in {seconds} s\n")
        );
        seen.insert(seconds);
    }
    assert!(seen.len() > 15, "{seen:?}");
    let longest = Duration::from_secs(86_400);
    assert!(
        window(&RateLimiter::in_memory())
            .retry_after_jitter(longest)
            .is_ok()
    );
    let error = window(&limiter)
        .retry_after_jitter(longest * 2)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "`retry_after_jitter` is 172800s; use at most a day");
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_decision_report_no_budget() {
    let (limiter, _clock) = limiter();
    let user = Header::new("x-user").unwrap();
    let layer = RateLimitLayer::fixed_window(limiter, "api", minute(9), user).unwrap();
    let layer = layer.ietf_headers(IetfDraft::Draft11);
    for app in [
        app(layer.clone()),
        app(layer.on_missing_key(OnMissingKey::SkipLimit).unwrap()),
    ] {
        let response = headers(&app).await;
        assert!(
            !response
                .keys()
                .any(|name| name.as_str().contains("ratelimit")),
            "{response:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A layer that needs only a few numbers of a decision does not make the whole of it.
    #[test]
    fn responses_are_the_same_whether_the_whole_decision_is_needed_or_not(
        limits in any_limits(),
        is_queue in any::<bool>(),
        in_seconds in any::<bool>(),
        steps in prop::collection::vec((0u64..3_000_000, 0u32..4, 0usize..4), 1..40),
    ) {
        let runtime = paused_runtime();
        runtime.block_on(async {
            let limit = match is_queue {
                true => Limit::leaky_bucket("queue", limits[0].quota()).unwrap(),
                false => limits[0].clone(),
            };
            let cost = |parts: &http::request::Parts| number(&parts.headers, "x-cost") as u32;
            let layer = |limiter: &RateLimiter| {
                let key = Header::new("x-user").unwrap();
                let layer = RateLimitLayer::new(limiter, limit.clone(), key).unwrap().cost(cost);
                if in_seconds { layer.reset_in_delta_seconds() } else { layer }
            };
            let (numbers, numbers_clock) = limiter();
            let (whole, whole_clock) = limiter();
            let numbers = app(layer(&numbers));
            let whole = app(layer(&whole).insert_decision());
            let mut now = Duration::from_micros(START * 1_000_000 + 123_457);
            for (pause, cost, user) in steps {
                now += Duration::from_micros(pause);
                numbers_clock.set(now);
                whole_clock.set(now);
                let of_user = || {
                    let request = request("GET", "/").header("x-cost", cost).header("x-user", user);
                    request.body(Body::empty()).unwrap()
                };
                let expected = send(&whole, of_user()).await;
                let response = send(&numbers, of_user()).await;
                prop_assert_eq!(response.status(), expected.status());
                prop_assert_eq!(response.headers(), expected.headers());
            }
            Ok(())
        })?;
    }

    /// Whichever number a client obeys, its next request is allowed.
    #[test]
    fn no_number_is_too_early_and_none_contradicts_another(
        limits in any_limits(),
        draft in any_draft(),
        jitter in 0u64..4,
        steps in prop::collection::vec((0u64..3_000_000, 1u32..4), 1..25),
    ) {
        // The headers leave out the time since the decision, which this clock does not see.
        let runtime = paused_runtime();
        runtime.block_on(async {
            let (limiter, clock) = limiter();
            let cost = |parts: &http::request::Parts| number(&parts.headers, "x-cost") as u32;
            let first = RateLimitLayer::new(&limiter, limits[0].clone(), Global).unwrap();
            let layer = limits[1..].iter().fold(first, |layer, limit| {
                layer.limit(limit.clone(), Global).unwrap()
            });
            let jitter = Duration::from_secs(jitter);
            let layer = layer.cost(cost).ietf_headers(draft).retry_after_jitter(jitter).unwrap();
            let app = app(layer);
            let mut now = Duration::from_micros(START * 1_000_000 + 123_457);
            for (pause, cost) in steps {
                now += Duration::from_micros(pause);
                clock.set(now);
                let request = request("GET", "/").header("x-cost", cost);
                let request = request.body(Body::empty()).unwrap();
                let response = send(&app, request).await;
                let (status, headers) = (response.status(), response.headers());
                if status == StatusCode::UNPROCESSABLE_ENTITY {
                    prop_assert!(!headers.contains_key("retry-after"));
                    continue;
                }
                let capacity = number(headers, "x-ratelimit-limit");
                let left = number(headers, "x-ratelimit-remaining");
                prop_assert!(left <= capacity);
                for (name, wait) in waits(headers, now) {
                    clock.set(now + wait);
                    for limit in &limits {
                        let later = limiter.peek(limit, &Key::global(), cost).await.unwrap();
                        prop_assert!(
                            later.allowed(),
                            "{limit}: {name} after {wait:?}: {headers:?}"
                        );
                    }
                    clock.set(now);
                }
                let reported = match draft {
                    IetfDraft::Draft6 => vec![number(headers, "ratelimit-remaining").to_string()],
                    _ => {
                        let text = headers["ratelimit"].to_str().unwrap();
                        let parts = text.split([';', ',']).map(str::trim);
                        let left = parts.filter_map(|part| {
                            part.strip_prefix("r=").or(part.strip_prefix("remaining="))
                        });
                        left.map(str::to_owned).collect()
                    }
                };
                prop_assert!(reported.contains(&left.to_string()), "{headers:?}");
                if status == StatusCode::TOO_MANY_REQUESTS {
                    let retry_after = number(headers, "retry-after");
                    prop_assert!(retry_after >= 1);
                    let resets: Vec<_> = waits(headers, now).into_iter().skip(1).collect();
                    for (name, wait) in resets {
                        let is_epoch = name == "x-ratelimit-reset";
                        prop_assert!(if is_epoch {
                            wait >= Duration::from_secs(retry_after)
                        } else {
                            wait == Duration::from_secs(retry_after)
                        }, "{name}: {wait:?} and {retry_after} s");
                    }
                }
            }
            Ok(())
        })?;
    }
}

/// A store that does not say when it decided, or says it in a wrong unit.
fn timeless(at: Duration) -> Scripted {
    Scripted::new(move |memory, operation| {
        let answer = memory.apply(operation);
        Answer::later(async move { Ok(answer.await?.made_at(at)) })
    })
}

#[tokio::test(start_paused = true)]
async fn time_of_a_store_that_makes_no_sense_is_harmless() {
    for at in [0, 1, u64::MAX / 2, u64::MAX].map(Duration::from_micros) {
        let app = app(window(&RateLimiter::new(timeless(at))));
        for _ in 0..3 {
            let response = headers(&app).await;
            assert_eq!(number(&response, "x-ratelimit-limit"), 2);
            if at.is_zero() {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
                assert!((now - 1..now + 120).contains(&number(&response, "x-ratelimit-reset")));
            }
        }
    }
}

/// A denial that is repeated without asking the store keeps that the time is unknown.
#[cfg(all(feature = "redis", feature = "test-util"))]
#[tokio::test(start_paused = true)]
async fn time_that_a_store_does_not_say_stays_unknown_in_a_deny_cache() {
    let store = tollgate::store::WithDenyCache::new(timeless(Duration::ZERO));
    let app = app(window(&RateLimiter::new(store)));
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    for _ in 0..6 {
        assert!(number(&headers(&app).await, "x-ratelimit-reset") >= now);
    }
}

#[tokio::test(start_paused = true)]
async fn numbers_have_at_most_fifteen_digits_in_ietf_fields() {
    let (limiter, _clock) = limiter();
    let huge = Quota::new(4_000_000_000_000_000, Duration::from_secs(60));
    let layer = RateLimitLayer::fixed_window(&limiter, "api", huge, Global).unwrap();
    let response = headers(&app(layer.ietf_headers(IetfDraft::Draft6))).await;
    assert_eq!(values(&response, &["ratelimit-limit"]), ["999999999999999"]);
    assert_eq!(
        values(&response, &["ratelimit-policy"]),
        ["999999999999999;w=60"]
    );
}

#[tokio::test(start_paused = true)]
async fn request_that_can_never_pass_has_no_reset() {
    for draft in [IetfDraft::Draft6, IetfDraft::Draft7, IetfDraft::Draft11] {
        let (limiter, _clock) = limiter();
        let layer = window(&limiter)
            .cost(|_| 3)
            .ietf_headers(draft)
            .reset_after_header();
        let response = headers(&app(layer)).await;
        for name in [
            "retry-after",
            "ratelimit-reset",
            "x-ratelimit-reset",
            "x-ratelimit-reset-after",
        ] {
            assert!(!response.contains_key(name), "{response:?}");
        }
        assert_eq!(
            values(&response, &["x-ratelimit-limit", "x-ratelimit-remaining"]),
            ["2", "2"]
        );
        let reported = values(&response, &["ratelimit"]);
        assert!(reported.iter().all(|it| !it.contains("t=")), "{reported:?}");
        assert_eq!(values(&response, &["ratelimit-policy"]).len(), 1);
    }
}
