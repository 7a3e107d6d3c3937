//! Limits in shadow mode decide and report, and never deny.

#![cfg(feature = "axum")]

use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::Request;
use tollgate::key::{Global, Header};
use tollgate::layer::{IetfDraft, OnStoreFailure};
use tollgate::store::{Group, Operation};
use tollgate::{
    Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter,
};

use crate::support::budget::every_algorithm;
use crate::support::log::Log;
#[cfg(feature = "metrics")]
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{app, number, plain, request, send, status};
use crate::support::scripted::Scripted;

fn two_an_hour(name: &str) -> Limit {
    Limit::fixed_window(name, Quota::per_hour(2)).unwrap()
}

fn of(user: &str) -> Request<Body> {
    request("GET", "/")
        .header("user", user)
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn limit_in_shadow_mode_decides_and_allows() {
    let limiter = RateLimiter::in_memory();
    for limit in every_algorithm(2, 3_600_000_000) {
        let (shadow, key) = (limit.clone().with_shadow_mode(), Key::new("k"));
        for would_deny in [false, false, true, true] {
            let decision = limiter.check(&shadow, &key).await.unwrap();
            assert!(decision.allowed(), "{limit}");
            assert!(decision.delay().is_zero() && decision.retry_after().is_none());
            let verdict = decision.deciding();
            assert_eq!(
                (verdict.is_shadow(), verdict.would_deny()),
                (true, would_deny)
            );
            assert_eq!(verdict.would_retry_after().is_some(), would_deny);
            assert_eq!(decision.shadow_denials().count(), usize::from(would_deny));
            assert_eq!(
                decision.receipt().is_some(),
                !would_deny,
                "a denial consumes nothing"
            );
        }
        let enforced = limiter.check(&limit, &key).await.unwrap();
        assert!(
            !enforced.allowed(),
            "{limit}: it counted as if it were enforced"
        );
    }
}

#[tokio::test]
async fn cost_above_the_capacity_is_allowed_in_shadow_mode() {
    let limiter = RateLimiter::in_memory();
    let decision = limiter
        .check_n(&two_an_hour("a").with_shadow_mode(), &Key::new("k"), 3)
        .await
        .unwrap();
    assert!(decision.allowed() && !decision.exceeds_capacity());
    assert!(decision.deciding().would_deny());
}

#[tokio::test]
async fn shadow_limit_does_not_keep_a_group_from_being_charged() {
    let limiter = RateLimiter::in_memory();
    let (shadow, enforced) = (two_an_hour("new").with_shadow_mode(), two_an_hour("old"));
    let group = || {
        let shadow = Check::new(&shadow, "k").with_cost(2);
        Group::new([shadow, Check::new(&enforced, "k")]).unwrap()
    };
    let mut answers = Vec::new();
    for _ in 0..3 {
        let decision = limiter.check_all(group()).await.unwrap();
        assert_eq!(
            decision.limit().name(),
            "old",
            "a shadow limit does not decide"
        );
        let charged: Vec<_> = decision
            .receipts()
            .map(|receipt| receipt.map_or(0, |it| it.cost()))
            .collect();
        answers.push((
            decision.allowed(),
            decision.shadow_denials().count(),
            charged,
        ));
    }
    assert_eq!(
        answers,
        [
            (true, 0, vec![2, 1]),
            (true, 1, vec![0, 1]),
            (false, 1, vec![0, 0])
        ]
    );
    let left = async |limit: &Limit| {
        limiter
            .peek(limit, &Key::new("k"), 0)
            .await
            .unwrap()
            .remaining()
    };
    assert_eq!((left(&shadow).await, left(&enforced).await), (0, 0));
}

#[tokio::test]
async fn denied_group_does_not_charge_a_shadow_limit() {
    let limiter = RateLimiter::in_memory();
    let (shadow, enforced) = (two_an_hour("new").with_shadow_mode(), two_an_hour("old"));
    let group = [
        Check::new(&shadow, "k"),
        Check::new(&enforced, "k").with_cost(3),
    ];
    assert!(!limiter.check_all(&group).await.unwrap().allowed());
    assert_eq!(
        limiter
            .peek(&shadow, &Key::new("k"), 0)
            .await
            .unwrap()
            .remaining(),
        2
    );
}

#[tokio::test]
async fn limit_is_enforced_for_a_stable_share_of_keys() {
    let limiter = RateLimiter::in_memory();
    let mut enforced_before = Vec::new();
    for percent in [10, 40, 90] {
        let limit = two_an_hour("api").with_shadow_percent(100 - percent);
        let limit = limit.unwrap();
        let mut enforced = Vec::new();
        for number in 0..1_000_u64 {
            let key = Key::from(number);
            limiter.reset(&limit, &key).await.unwrap();
            let over = limiter.check_n(&limit, &key, 3).await.unwrap();
            assert_eq!(over.allowed(), !limit.enforces(&key));
            if !over.allowed() {
                enforced.push(number);
            }
        }
        assert!(
            enforced.len().abs_diff(usize::from(percent) * 10) < 50,
            "{}",
            enforced.len()
        );
        assert!(
            enforced_before
                .iter()
                .all(|number| enforced.contains(number))
        );
        enforced_before = enforced;
    }
    let error = two_an_hour("api")
        .with_shadow_percent(101)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "limit `api`: the share in shadow mode is 101 percent; use 0 to 100"
    );
}

#[tokio::test]
async fn layer_in_shadow_mode_forwards_and_sends_no_headers() {
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&limiter, two_an_hour("api"), Global).unwrap();
    let app = app(layer.ietf_headers(IetfDraft::Draft11).shadow_mode());
    let (log, _guard) = Log::start();
    for _ in 0..5 {
        let response = send(&app, plain("/")).await;
        assert_eq!(response.status(), 200);
        let reported = response
            .headers()
            .keys()
            .find(|name| name.as_str().contains("ratelimit"));
        assert_eq!(reported, None);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "one a second: {lines:?}");
    assert!(lines[0].contains("limit in shadow mode would have denied the request"));
    assert!(lines[0].contains("limit=\"api\"") && lines[0].contains("retry_after_ms=3"));
}

#[tokio::test]
async fn layer_reports_the_enforced_limit_of_a_group() {
    let limiter = RateLimiter::in_memory();
    let wide = Limit::fixed_window("wide", Quota::per_hour(10)).unwrap();
    let handler = |Extension(decision): Extension<Decision>| async move {
        decision.shadow_denials().count().to_string()
    };
    let layer = RateLimitLayer::new(&limiter, two_an_hour("tight").with_shadow_mode(), Global)
        .unwrap()
        .limit(wide, Global)
        .unwrap()
        .ietf_headers(IetfDraft::Draft11)
        .insert_decision();
    let app = Router::new().route("/", any(handler)).layer(layer);
    for left in (5..10).rev() {
        let response = send(&app, plain("/")).await;
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left);
        assert_eq!(
            response.headers()["ratelimit-policy"],
            "\"wide\";q=10;w=3600"
        );
    }
}

#[tokio::test]
async fn layer_is_enforced_for_a_share_of_its_keys() {
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::new(&limiter, two_an_hour("api"), Header::new("user").unwrap())
        .unwrap()
        .shadow_percent(50)
        .unwrap();
    let app = app(layer);
    let limit = two_an_hour("api").with_shadow_percent(50).unwrap();
    for number in 0..40 {
        let user = format!("user-{number}");
        let mut last = 0;
        for _ in 0..3 {
            last = status(&app, of(&user)).await;
        }
        let expected = if limit.enforces(&Key::new(&user)) {
            429
        } else {
            200
        };
        assert_eq!(last, expected, "{user}");
    }
    assert_eq!(
        status(&app, plain("/")).await,
        200,
        "without a key, nothing is enforced"
    );
}

#[tokio::test]
async fn no_failure_denies_in_shadow_mode() {
    let failures: [fn() -> Error; 4] = [
        || Error::unreachable("away"),
        Error::timeout,
        || Error::store("broken"),
        || Error::misuse("it cannot decide that"),
    ];
    for failure in failures {
        for policy in [OnStoreFailure::FailClosed, OnStoreFailure::local(1)] {
            let limiter = RateLimiter::new(Scripted::failing(failure));
            let layer = RateLimitLayer::new(&limiter, two_an_hour("api"), Global).unwrap();
            let app = app(layer.on_store_failure(policy).unwrap().shadow_mode());
            for _ in 0..4 {
                assert_eq!(
                    status(&app, plain("/")).await,
                    200,
                    "{:?} {policy:?}",
                    failure()
                );
            }
        }
    }
}

#[tokio::test]
async fn full_store_does_not_deny_in_shadow_mode() {
    let limiter = RateLimiter::new(MemoryStore::builder().max_keys(1).build());
    let limit = Limit::fixed_window("api", Quota::per_hour(1)).unwrap();
    drop(limiter.check(&limit, &Key::new("first")).await.unwrap());
    let layer = RateLimitLayer::new(&limiter, limit, Header::new("user").unwrap())
        .unwrap()
        .shadow_mode();
    assert_eq!(status(&app(layer), of("second")).await, 200);
}

#[cfg(feature = "serde")]
#[test]
fn configuration_has_shadow_mode() {
    let read = |fields: &str| -> Result<Limit, _> {
        let start = r#"{"name":"api","algorithm":"gcra","quota":"5/1m""#;
        serde_json::from_str(&format!("{start}{fields}}}"))
    };
    assert_eq!(read("").unwrap().shadow_percent(), 0);
    assert_eq!(
        read(r#","shadow_percent":100"#).unwrap().shadow_percent(),
        100
    );
    assert_eq!(
        read(r#","shadow_percent":75,"max_debt":7"#)
            .unwrap()
            .shadow_percent(),
        75
    );
    for (fields, reason) in [
        (
            r#","shadow_percent":101"#,
            "the share in shadow mode is 101 percent; use 0 to 100",
        ),
        (r#","shadow_percent":-1"#, "invalid value"),
        (r#","shadow":true"#, "unknown field `shadow`"),
    ] {
        let error = read(fields).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let limit = read(r#","shadow_percent":75,"max_debt":7"#).unwrap();
    let written = serde_json::to_string(&limit).unwrap();
    assert_eq!(serde_json::from_str::<Limit>(&written).unwrap(), limit);
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn counter_has_the_outcome_of_each_limit() {
    let recorded = Recorded::start();
    let layer = RateLimitLayer::new(
        RateLimiter::in_memory(),
        two_an_hour("new").with_shadow_mode(),
        Global,
    )
    .unwrap()
    .limit(
        Limit::fixed_window("old", Quota::per_hour(3)).unwrap(),
        Global,
    )
    .unwrap();
    let app = app(layer);
    for expected in [200, 200, 200, 429] {
        assert_eq!(status(&app, plain("/")).await, expected);
    }
    let expected = [
        ("new allowed store", 2),
        ("new shadow_denied store", 2),
        ("old allowed store", 3),
        ("old denied store", 1),
    ];
    assert_eq!(recorded.decisions(), counted(expected));
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use crate::support::RedisServer;

    #[tokio::test]
    async fn identical_groups_in_one_batch_are_charged_past_a_shadow_denial() {
        let server = RedisServer::start();
        let limiter = RateLimiter::new(server.store().build().unwrap());
        let shadow = two_an_hour("new").with_shadow_mode();
        let enforced = Limit::fixed_window("old", Quota::per_hour(5)).unwrap();
        let group = Group::new([Check::new(&shadow, "k"), Check::new(&enforced, "k")]).unwrap();
        let all: Vec<_> = (0..8)
            .map(|_| limiter.apply(Operation::Charge(group.clone())))
            .collect();
        let mut answers = Vec::new();
        for answer in all {
            let decision = answer.await.unwrap();
            answers.push((decision.allowed(), decision.shadow_denials().count()));
        }
        let expected = [
            (true, 0),
            (true, 0),
            (true, 1),
            (true, 1),
            (true, 1),
            (false, 1),
            (false, 1),
            (false, 1),
        ];
        assert_eq!(answers, expected);
    }
}

#[tokio::test]
async fn verdict_of_a_shadow_limit_has_the_delay_that_it_would_have_caused() {
    let limiter = RateLimiter::new(MemoryStore::with_clock(tollgate::clock::ManualClock::new()));
    let limit = Limit::leaky_bucket("slow", Quota::per_second(2))
        .unwrap()
        .with_shadow_mode();
    drop(limiter.check(&limit, &Key::new("alice")).await.unwrap());
    let second = limiter.check(&limit, &Key::new("alice")).await.unwrap();
    assert_eq!(second.delay(), std::time::Duration::ZERO);
    assert_eq!(
        second.verdicts()[0].delay(),
        std::time::Duration::from_millis(500)
    );
}
