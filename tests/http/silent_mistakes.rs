//! Mistakes that cost money and whose answers look right: each is an event, once, with what to do.

#![cfg(feature = "axum")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tollgate::key::Global;
use tollgate::layer::{IetfDraft, Settlement};
use tollgate::limit::OnStoreFailure;
use tollgate::{Check, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::requests::{plain, send, status};

fn layer(limiter: &RateLimiter, name: &str) -> RateLimitLayer {
    RateLimitLayer::token_bucket(limiter, name, Quota::per_hour(1_000), Global).unwrap()
}

/// The events of the log with this text.
fn events(log: &Log, text: &str) -> Vec<String> {
    let lines = log.lines().into_iter();
    lines.filter(|line| line.contains(text)).collect()
}

#[tokio::test]
async fn budget_that_two_layers_charge_is_reported_once() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::in_memory();
    let api = layer(&limiter, "api");
    let nested = Router::new()
        .route("/", get(|| async {}))
        .layer(api.clone());
    let app = Router::new().nest("/inside", nested).layer(api);
    for _ in 0..200 {
        assert_eq!(status(&app, plain("/inside")).await, 200);
    }
    let reported = events(&log, "two layers charge one budget");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("WARN") && reported[0].contains("limit=\"api\""));
    let limit = Limit::token_bucket("api", Quota::per_hour(1_000)).unwrap();
    let left = limiter
        .peek(&limit, tollgate::Key::global(), 0)
        .await
        .unwrap();
    assert_eq!(left.remaining(), 600, "each request costs 2");
}

#[tokio::test]
async fn layers_of_different_limits_or_limiters_are_not_reported() {
    let (log, _guard) = Log::start();
    let (limiter, other) = (RateLimiter::in_memory(), RateLimiter::in_memory());
    let app = Router::new()
        .route("/", get(|| async {}))
        .layer(layer(&limiter, "api"))
        .layer(layer(&limiter, "search"))
        .layer(layer(&other, "api"));
    for _ in 0..500 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
    assert_eq!(events(&log, "two layers"), [""; 0]);
}

#[tokio::test]
async fn concurrency_limit_of_one_in_two_layers_says_why_it_always_denies() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::in_memory();
    let one = RateLimitLayer::new(&limiter, Limit::concurrency("one", 1).unwrap(), Global).unwrap();
    let app = Router::new()
        .route("/", get(|| async {}))
        .layer(one.clone())
        .layer(one);
    for _ in 0..200 {
        assert_eq!(status(&app, plain("/")).await, 429);
    }
    let reported = events(&log, "two layers need a permit of one key");
    assert_eq!(reported.len(), 1, "{reported:?}");
}

/// Each request costs what the layer says, and is settled for 7.
async fn settle_requests(layer: RateLimitLayer, requests: u32) -> Vec<String> {
    let (log, _guard) = Log::start();
    let handler = |settlement: Settlement| async move { assert!(settlement.settle("tokens", 7)) };
    let app = Router::new()
        .route("/", get(handler))
        .layer(layer.insert_settlement());
    for _ in 0..requests {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
    events(&log, "limit allows every request")
}

#[tokio::test]
async fn limit_without_estimates_is_reported_after_1000_requests() {
    let layer = layer(&RateLimiter::in_memory(), "tokens").cost(|_| 0);
    let reported = settle_requests(layer, 2_500).await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].contains("WARN") && reported[0].contains("limit=\"tokens\" requests=1000"),
        "{reported:?}"
    );
}

#[tokio::test]
async fn limit_with_some_free_requests_is_not() {
    let tokens = Limit::token_bucket("tokens", Quota::per_hour(1_000_000)).unwrap();
    let number = AtomicU32::new(0);
    let cost = move |_: &_| u32::from(number.fetch_add(1, Ordering::Relaxed) == 900);
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), tokens, Global).unwrap();
    assert_eq!(settle_requests(layer.cost(cost), 2_500).await, [""; 0]);
}

#[tokio::test]
async fn mistyped_limit_of_a_settlement_is_reported_after_100_requests() {
    let (log, _guard) = Log::start();
    let app_of = |name: &'static str| {
        let layer = layer(&RateLimiter::in_memory(), "tokens").insert_settlement();
        let handler = move |settlement: Settlement| async move { drop(settlement.meter(name)) };
        Router::new().route("/", get(handler)).layer(layer)
    };
    let (mistyped, right) = (app_of("token"), app_of("tokens"));
    for number in 1..=300 {
        assert_eq!(status(&mistyped, plain("/")).await, 200);
        assert_eq!(status(&right, plain("/")).await, 200);
        let reported = events(
            &log,
            "no request was charged under the limit that is settled",
        );
        assert_eq!(
            reported.len(),
            usize::from(number == 100),
            "{number}: {reported:?}"
        );
        let is_named =
            |line: &String| line.contains("limit=\"token\"") && line.contains("charged=\"tokens\"");
        assert!(reported.iter().all(is_named), "{reported:?}");
    }
}

#[tokio::test]
async fn mistyped_name_beside_a_right_one_is_reported_too() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::in_memory();
    let tokens = Limit::token_bucket("tokens", Quota::per_hour(100_000)).unwrap();
    let both = layer(&limiter, "requests").limit(tokens, Global).unwrap();
    let together = |settlement: Settlement| async move {
        assert_eq!(settlement.settle_all([("requests", 1), ("token", 7)]), 1);
    };
    let after = |settlement: Settlement| async move {
        assert!(settlement.settle("requests", 1) && !settlement.settle("tokn", 7));
    };
    let chosen = Limit::token_bucket("chosen", Quota::per_hour(100_000)).unwrap();
    let on_response = RateLimitLayer::from_fn(&limiter, move |_| Check::new(&chosen, "all").into());
    let on_response = on_response.unwrap();
    let on_response = on_response
        .settle_on_response("chsen", |_| Some(7))
        .unwrap();
    let app = Router::new()
        .route("/together", get(together))
        .route("/after", get(after))
        .layer(both.insert_settlement())
        .merge(
            Router::new()
                .route("/response", get(|| async {}))
                .layer(on_response),
        );
    for _ in 0..150 {
        for path in ["/together", "/after", "/response"] {
            assert_eq!(status(&app, plain(path)).await, 200);
        }
    }
    let reported = events(
        &log,
        "no request was charged under the limit that is settled",
    );
    assert_eq!(reported.len(), 3, "{reported:?}");
    for part in [
        "limit=\"token\" charged=\"requests, tokens\"",
        "limit=\"tokn\" charged=\"requests, tokens\"",
        "limit=\"chsen\" charged=\"chosen\"",
    ] {
        assert!(
            reported.iter().any(|line| line.contains(part)),
            "{reported:?}"
        );
    }
}

/// The layer inside has no limit of this name, and the one outside does.
#[tokio::test]
async fn limit_that_some_requests_are_charged_under_is_not_reported() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::in_memory();
    let layer = layer(&limiter, "requests")
        .limit(
            Limit::token_bucket("tokens", Quota::per_hour(1_000)).unwrap(),
            Global,
        )
        .unwrap()
        .on_store_failure(OnStoreFailure::FailOpen)
        .unwrap()
        .insert_settlement();
    let handler = |settlement: Settlement| async move {
        assert!(settlement.settle("tokens", 1));
        assert!(!settlement.settle("tokens", 1), "it is settled");
    };
    let app = Router::new().route("/", get(handler)).layer(layer);
    for _ in 0..300 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
    assert_eq!(events(&log, "no request was charged"), [""; 0]);
}

#[tokio::test]
async fn settings_without_an_effect_are_reported_when_a_service_gets_the_layer() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::in_memory();
    let secret = [7; 16];
    let serve = |layer: RateLimitLayer| {
        let routes = Router::<()>::new().route("/", get(|| async {}));
        drop(routes.route("/other", get(|| async {})).layer(layer));
        events(&log, "has no effect")
    };
    let bare = || layer(&limiter, "api");
    let reported = serve(
        bare()
            .max_waiters(7)
            .insert_permits()
            .partition_key(secret)
            .unwrap(),
    );
    assert_eq!(reported.len(), 3, "{reported:?}");
    for (setting, needs) in [
        ("max_waiters", "wait_up_to"),
        ("insert_permits", "a concurrency limit"),
        ("partition_key", "ietf_headers(IetfDraft::Draft11)"),
    ] {
        let is_it = |line: &&String| {
            line.contains(&format!("setting=\"{setting}\""))
                && line.contains(&format!("needs=\"{needs}\""))
        };
        assert_eq!(reported.iter().filter(is_it).count(), 1, "{reported:?}");
    }
    let whole = bare()
        .max_waiters(7)
        .wait_up_to(std::time::Duration::from_secs(1))
        .unwrap()
        .partition_key(secret)
        .unwrap()
        .ietf_headers(IetfDraft::Draft11)
        .limit(Limit::concurrency("one", 1).unwrap(), Global)
        .unwrap()
        .insert_permits();
    assert_eq!(serve(whole), [""; 0]);
}

#[cfg(feature = "config")]
mod configuration {
    use tollgate::config::{Config, Format, LimitSet, Names};

    use super::*;

    fn set(text: &str) -> LimitSet {
        let names = Names::new().plan("account", |request| {
            let plan = request.headers.get("x-plan")?.to_str().ok()?;
            Some(plan.to_owned())
        });
        LimitSet::new(
            Config::parse("limits.toml", text, Format::Toml).unwrap(),
            names,
        )
        .unwrap()
    }

    fn app(text: &str) -> Router {
        let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &set(text)).unwrap();
        Router::new()
            .route("/search", get(|| async {}))
            .layer(layer)
    }

    fn of_plan(plan: &str) -> http::Request<axum::body::Body> {
        let mut request = plain("/search");
        request
            .headers_mut()
            .insert("x-plan", plan.parse().unwrap());
        request
    }

    const API: &str = "[[limits]]\nname = \"api\"\nalgorithm = \"token_bucket\"\n\
                       quota = \"1000000/min\"\nkey = \"global\"\n";

    #[tokio::test]
    async fn plan_that_the_limit_does_not_have_is_reported_once_for_each_plan() {
        let (log, _guard) = Log::start();
        let app = app(&format!(
            "{API}plan = \"account\"\nplans = {{ pro = {{ quota = \"2000000/min\" }} }}"
        ));
        for plan in ["pro", "Pro", "Pro", "enterprise", "Pro"] {
            assert_eq!(status(&app, of_plan(plan)).await, 200, "{plan}");
        }
        let reported = events(&log, "request has a plan that the limit does not have");
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert!(reported[0].contains("plan=\"Pro\"") && reported[0].contains("known=\"pro\""));
        for number in 0..100 {
            assert_eq!(
                status(&app, of_plan(&format!("hostile-{number}"))).await,
                200
            );
        }
        assert_eq!(
            events(&log, "request has a plan").len(),
            14,
            "sixteen in all"
        );
    }

    #[tokio::test]
    async fn unknown_plan_can_be_denied() {
        let app = app(&format!(
            "{API}plan = \"account\"\nunknown_plan = \"deny\"\n\
             plans = {{ pro = {{ quota = \"2000000/min\" }} }}"
        ));
        assert_eq!(status(&app, of_plan("pro")).await, 200);
        assert_eq!(status(&app, plain("/search")).await, 200, "without a plan");
        let denied = send(&app, of_plan("Pro")).await;
        assert_eq!(denied.status(), 403);
    }

    #[tokio::test]
    async fn limit_that_applies_to_no_request_is_reported_after_10_000_and_an_hour() {
        let (log, _guard) = Log::start();
        let mistyped = API.replace("api", "mistyped");
        let rare = API.replace("api", "rare");
        let app = app(&format!(
            "{API}\n{mistyped}match = {{ path = \"/serach\" }}\n\
             {rare}match = {{ path = \"/rare\" }}"
        ));
        let search = async || {
            for _ in 0..10_300 {
                assert_eq!(status(&app, plain("/search")).await, 200);
            }
        };
        search().await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(3_590)).await;
        search().await;
        let reported = || events(&log, "limit has applied to no request");
        assert_eq!(reported(), [""; 0]);
        assert_eq!(status(&app, plain("/rare")).await, 404);
        tokio::time::advance(Duration::from_secs(20)).await;
        search().await;
        let reported = reported();
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains("limit=\"mistyped\""), "{reported:?}");
    }

    #[tokio::test]
    async fn plan_that_no_request_has_is_reported_after_10_000() {
        let (log, _guard) = Log::start();
        let plans = "plan = \"account\"\nplans = { pro = { quota = \"2000000/min\" } }";
        let app = app(&format!("{API}{plans}"));
        for _ in 0..10_050 {
            assert_eq!(status(&app, plain("/search")).await, 200);
        }
        let reported = events(&log, "no request had a plan");
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(
            reported[0].contains("limit=\"api\" plan=\"account\""),
            "{reported:?}"
        );
    }

    #[tokio::test]
    async fn plan_that_one_request_has_is_not() {
        let (log, _guard) = Log::start();
        let plans = "plan = \"account\"\nplans = { pro = { quota = \"2000000/min\" } }";
        // Few requests reach the other limit, and those without a plan are all of its requests.
        let rare = API.replace("api", "rare");
        let app = app(&format!(
            "{API}{plans}\n{rare}{plans}\nmatch = {{ path = \"/rare\" }}"
        ));
        assert_eq!(status(&app, of_plan("pro")).await, 200);
        for _ in 0..10_050 {
            assert_eq!(status(&app, plain("/search")).await, 200);
        }
        assert_eq!(events(&log, "no request had a plan"), [""; 0]);
    }

    #[test]
    fn limit_that_excepts_all_it_matches_is_an_error() {
        let text =
            format!("{API}match = {{ path = \"/search\" }}\nexcept = {{ path = \"/search\" }}");
        let config = Config::parse("limits.toml", &text, Format::Toml);
        let error = config
            .and_then(|config| LimitSet::new(config, Names::new()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`limits[0].except`: it has all of `match`"),
            "{error}"
        );
        let text = format!("{API}unknown_plan = \"deny\"");
        let config = Config::parse("limits.toml", &text, Format::Toml);
        let error = config
            .and_then(|config| LimitSet::new(config, Names::new()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`limits[0].unknown_plan`: `plans` is missing"),
            "{error}"
        );
    }
}
