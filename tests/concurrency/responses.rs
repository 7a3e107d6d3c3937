//! Limits of requests in flight as layers and operators see them: mistakes, responses, events and
//! names.

#![cfg(all(feature = "axum", feature = "redis", feature = "json"))]

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::sleep;
use tollgate::layer::{BodyFormat, ChosenLimits, InFlight, OnMissingKey, OnStoreFailure};
use tollgate::{Check, Error, Key, Limit, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::requests::{app, number, send, status};
use crate::support::scripted::Scripted;
use crate::support::tenants::{exports, of, tenant};

const SECOND: Duration = Duration::from_secs(1);

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn number_of_one_caller_is_not_that_of_another() {
    let store = Scripted::asked_late(SECOND / 10, |_| true);
    for numbers in [[1, 10], [10, 1]] {
        let limiter = RateLimiter::new(store.clone());
        let acme = Key::from(u64::from(numbers[0]));
        let held = limiter
            .try_acquire_permit(&exports(1), &acme)
            .await
            .unwrap();
        let [first, second] = numbers.map(exports);
        let both = tokio::join!(
            limiter.try_acquire_permit(&first, &acme),
            limiter.try_acquire_permit(&second, &acme)
        );
        let granted = [both.0.unwrap().is_some(), both.1.unwrap().is_some()];
        assert_eq!(granted, numbers.map(|number| number == 10), "one is held");
        drop(held);
    }
}

#[tokio::test]
async fn two_permits_of_one_key_for_one_request_are_a_mistake() {
    let permits = RateLimiter::in_memory();
    let choose = |_: &http::request::Parts| Check::new(&exports(5), "acme").into();
    let layer = RateLimitLayer::from_fn(&permits, choose).unwrap();
    let layer = layer.limit(exports(5), tenant()).unwrap();
    let (log, _guard) = Log::start();
    let app = app(layer);
    assert_eq!(status(&app, of("globex")).await, 200);
    assert_eq!(status(&app, of("acme")).await, 500);
    let lines = log.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("two permits of one key under the limit `exports`")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn mistake_of_the_application_is_500_and_shadow_mode_rejects_nothing() {
    let store = Scripted::default();
    store.switch_off(true);
    let layer = |permits: RateLimiter| {
        let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
        layer.on_store_failure(OnStoreFailure::FailClosed).unwrap()
    };
    let misused = Scripted::failing(|| Error::misuse("it is not set up"));
    let misused = layer(RateLimiter::new(misused));
    let away = layer(RateLimiter::new(store));
    let (log, _guard) = Log::start();
    assert_eq!(status(&app(misused.clone()), of("acme")).await, 500);
    assert!(
        log.lines()
            .iter()
            .any(|line| line.contains("misconfigured"))
    );
    assert_eq!(status(&app(away.clone()), of("acme")).await, 503);
    assert_eq!(status(&app(misused.shadow_mode()), of("acme")).await, 200);
    assert_eq!(status(&app(away.shadow_mode()), of("acme")).await, 200);
}

#[tokio::test]
async fn problem_details_name_the_limit_and_rates_have_no_headers() {
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = app(layer.body_format(BodyFormat::ProblemDetails));
    let held = send(&app, of("acme")).await;
    let denied = send(&app, of("acme")).await;
    assert!(
        denied
            .headers()
            .keys()
            .all(|name| !name.as_str().contains("ratelimit"))
    );
    let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["exports"]));
    assert!(
        problem["type"]
            .as_str()
            .unwrap()
            .ends_with("#quota-exceeded")
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_is_reported_once_a_second_at_info() {
    let (log, _guard) = Log::start();
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1).with_shadow_mode(), tenant()).unwrap();
    let app = app(layer);
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(send(&app, of("acme")).await);
    }
    sleep(SECOND).await;
    held.push(send(&app, of("acme")).await);
    assert!(held.iter().all(|response| response.status() == 200));
    let lines: Vec<_> = log
        .lines()
        .into_iter()
        .filter(|line| line.contains("would have denied"))
        .collect();
    let [first, second] = &*lines else {
        panic!("{lines:?}")
    };
    assert!(first.contains("INFO") && first.contains("limit=\"exports\" at_once=1 unreported=0"));
    assert!(second.contains("unreported=3"), "{second}");
}

#[tokio::test(start_paused = true)]
async fn message_has_the_share_that_is_in_force() {
    let store = Scripted::default();
    let permits = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::new(&permits, exports(3), tenant()).unwrap();
    let app = app(layer.on_store_failure(OnStoreFailure::local(3)).unwrap());
    let mut held = vec![send(&app, of("acme")).await];
    held.extend([send(&app, of("acme")).await, send(&app, of("acme")).await]);
    let denied = text(send(&app, of("acme")).await).await;
    assert_eq!(
        denied,
        "the limit `exports` of 3 requests at once is reached\n"
    );
    store.switch_off(true);
    held.clear();
    held.push(send(&app, of("acme")).await);
    let denied = text(send(&app, of("acme")).await).await;
    assert_eq!(
        denied,
        "the limit `exports` of 1 request at once is reached\n"
    );
}

#[tokio::test]
async fn retry_after_is_what_the_limit_advises() {
    let permits = RateLimiter::in_memory();
    let slow = exports(1).with_retry_after(30 * SECOND).unwrap();
    let app = app(RateLimitLayer::new(&permits, slow, tenant()).unwrap());
    let held = send(&app, of("acme")).await;
    let denied = send(&app, of("acme")).await;
    assert_eq!(
        (
            denied.status().as_u16(),
            number(denied.headers(), "retry-after")
        ),
        (429, 30)
    );
    drop(held);
    for wait in [Duration::ZERO, Duration::from_millis(999), 3601 * SECOND] {
        let error = exports(1).with_retry_after(wait).unwrap_err().to_string();
        assert!(
            error.contains("`exports`") && error.contains("use 1s to 3600s"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn request_without_a_key_names_its_concurrency_limit() {
    let (log, _guard) = Log::start();
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let named = layer.clone().respond_with(|rejection, response| {
        assert_eq!(rejection.limit().map(Limit::name), Some("exports"));
        assert_eq!(
            rejection.limit().map(|limit| limit.quota().limit()),
            Some(1)
        );
        response
    });
    let anonymous = || Request::get("/").body(Body::empty()).unwrap();
    let response = send(&app(named), anonymous()).await;
    assert_eq!(response.status(), 400);
    assert_eq!(
        text(response).await,
        "no key for the limit `exports`: the header `x-tenant` is missing\n"
    );
    assert!(
        log.lines()
            .iter()
            .any(|line| line.contains("limit=\"exports\""))
    );
    let skipping = layer.on_missing_key(OnMissingKey::SkipLimit).unwrap();
    assert_eq!(status(&app(skipping), anonymous()).await, 200);
}

#[test]
fn name_is_of_one_number_in_a_limiter() {
    let permits = RateLimiter::in_memory();
    let layer =
        |permits: &RateLimiter, limit| RateLimitLayer::new(permits, exports(limit), tenant());
    drop((layer(&permits, 2).unwrap(), layer(&permits, 2).unwrap()));
    let error = layer(&permits, 5).unwrap_err().to_string();
    assert!(
        error.contains("`exports`")
            && error.contains("registered for 2 at once, and this limit is 5 at once")
            && error.contains("share what they count; use another name, or choose the limit"),
        "{error}"
    );
    assert!(permits.register(&exports(5)).is_err() && permits.register(&exports(2)).is_ok());
    drop(layer(&RateLimiter::in_memory(), 5).unwrap());
}

#[tokio::test]
async fn closure_chooses_the_limit_of_each_request() {
    let permits = RateLimiter::in_memory();
    let (free, pro) = (exports(1), exports(2));
    let layer = RateLimitLayer::from_fn(&permits, move |request| {
        let Some(tenant) = request.headers.get("x-tenant") else {
            return ChosenLimits::Unlimited;
        };
        let limit = if tenant == "acme" { &pro } else { &free };
        Check::new(limit, Key::new(tenant)).into()
    })
    .unwrap();
    let app = app(layer);
    let held = [send(&app, of("acme")).await, send(&app, of("globex")).await];
    assert_eq!(status(&app, of("globex")).await, 429);
    let second = send(&app, of("acme")).await;
    assert_eq!(
        (second.status().as_u16(), status(&app, of("acme")).await),
        (200, 429)
    );
    let anonymous = || Request::get("/").body(Body::empty()).unwrap();
    let unlimited = [send(&app, anonymous()).await, send(&app, anonymous()).await];
    assert!(
        unlimited
            .iter()
            .chain(&held)
            .all(|response| response.status() == 200)
    );
}

#[tokio::test]
async fn response_names_the_setting_that_a_handler_with_permits_needs() {
    let handler = |_: InFlight| async { "hello" };
    let permits = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&permits, exports(1), tenant()).unwrap();
    let app = |layer| Router::new().route("/", get(handler)).layer(layer);
    assert_eq!(
        status(&app(layer.clone().insert_permits()), of("acme")).await,
        200
    );
    let response = send(&app(layer), of("acme")).await;
    assert_eq!(response.status(), 500);
    assert!(
        text(response)
            .await
            .contains("add `insert_permits()` to the rate limit layer")
    );
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn grpc_status_names_the_limit() {
    use tonic::{Code, Status};
    use tonic_types::StatusExt;

    let permits = RateLimiter::in_memory();
    let app = app(RateLimitLayer::new(&permits, exports(1), tenant()).unwrap());
    let held = send(&app, of("acme")).await;
    let call = Request::post("/").header("x-tenant", "acme");
    let call = call
        .header("content-type", "application/grpc")
        .body(Body::empty())
        .unwrap();
    let denied = Status::from_header_map(send(&app, call).await.headers()).unwrap();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let violations = denied.get_details_quota_failure().unwrap().violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].subject, "exports");
    assert_eq!(
        violations[0].description,
        "the limit `exports` of 1 request at once is reached"
    );
    assert_eq!(
        denied.metadata().get("grpc-retry-pushback-ms").unwrap(),
        "1000"
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_what_a_slow_store_takes_are_503_and_pass_no_limit() {
    let limiter = RateLimiter::new(Scripted::answering(SECOND / 5));
    let held = limiter
        .acquire_permit(&exports(1), "acme", SECOND)
        .await
        .unwrap();
    let layer = RateLimitLayer::new(&limiter, exports(1), tenant()).unwrap();
    let app = app(layer);
    let mut requests = tokio::task::JoinSet::new();
    for tenant in 0..20_000 {
        let app = app.clone();
        requests.spawn(async move { status(&app, of(&tenant.to_string())).await });
    }
    sleep(SECOND / 10).await;
    // Another client's flood does not open the limit of this one.
    let of_acme = status(&app, of("acme")).await;
    assert!([429, 503].contains(&of_acme), "{of_acme}");
    let statuses = requests.join_all().await;
    let count = |status: u16| statuses.iter().filter(|it| **it == status).count();
    assert_eq!(count(200) + count(503), 20_000);
    assert!(
        (4_000..=6_000).contains(&count(200)),
        "{} x 200",
        count(200)
    );
    drop(held);
}
