//! The metrics, as Prometheus gets them.

#![cfg(all(
    feature = "metrics",
    feature = "axum",
    feature = "redis",
    feature = "test-util"
))]

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::request::Parts;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tollgate::decision::Source;
use tollgate::key::{Global, Header, KeyExtractor};
use tollgate::layer::{ChosenLimits, Lookup, LookupResult, OnStoreFailure};
use tollgate::limit::BlockPolicy;
use tollgate::store::{Answer, BreakerSettings, CircuitBreaker, WithDenyCache};
use tollgate::{Check, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::fake_redis::{FakeRedis, greeting};
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{app, number, plain, request, send, status};
use crate::support::scripted::Scripted;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn an_hour(name: &str, limit: u64) -> Limit {
    Limit::fixed_window(name, Quota::per_hour(limit)).unwrap()
}

/// Calls `is` until it is true, for at most 20 seconds.
async fn until(mut is: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is().await {
            sleep(MS).await;
        }
    };
    timeout(20 * SECOND, waiting)
        .await
        .expect("it takes less than 20 seconds");
}

#[tokio::test]
async fn each_limit_of_a_group_has_its_outcome() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let (wide, tight) = (an_hour("wide", 9), an_hour("tight", 1));
    let group = || [Check::new(&wide, "alice"), Check::new(&tight, "alice")];
    drop(limiter.check_all(group()).await.unwrap());
    drop(limiter.check_all(group()).await.unwrap());
    let expected = [
        ("tight allowed store", 1),
        ("tight denied store", 1),
        ("wide allowed store", 1),
        ("wide not_charged store", 1),
    ];
    assert_eq!(recorded.decisions(), counted(expected));
}

#[tokio::test(start_paused = true)]
async fn only_charges_count_as_decisions_and_each_caller_once() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let (limit, alice) = (
        Limit::gcra("api", Quota::per_second(1)).unwrap(),
        Key::new("alice"),
    );
    let first = limiter.check(&limit, &alice).await.unwrap();
    drop(limiter.peek(&limit, &alice, 1).await.unwrap());
    // The store is asked twice: for the wait, and when the units are there.
    assert!(
        limiter
            .acquire(&limit, &alice, 1, 5 * SECOND)
            .await
            .unwrap()
            .allowed()
    );
    limiter
        .refund(&limit, &alice, 1, first.receipt().unwrap())
        .await
        .unwrap();
    limiter.reset(&limit, &alice).await.unwrap();
    assert_eq!(recorded.decisions(), counted([("api allowed store", 2)]));
}

/// Without them, `rate()` and alerts do not see the first denial and the first outage of a process.
#[tokio::test]
async fn counters_of_alerts_exist_before_they_count() {
    let recorded = Recorded::start();
    let limit = an_hour("api", 2);
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, Global).unwrap();
    let text = recorded.text();
    for series in [
        r#"tollgate_decisions_total{limit="api",outcome="allowed",source="fail_open"} 0"#,
        r#"tollgate_decisions_total{limit="api",outcome="denied",source="fail_closed"} 0"#,
        r#"tollgate_decisions_total{limit="api",outcome="allowed",source="local"} 0"#,
        r#"tollgate_decisions_total{limit="api",outcome="denied",source="store"} 0"#,
        r#"tollgate_store_failures_total{cause="timeout"} 0"#,
        r#"tollgate_unchecked_requests_total{reason="missing_key",outcome="rejected"} 0"#,
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
    drop(layer);

    // A recorder that is installed later gets them with the first decision.
    drop(recorded);
    let later = Recorded::start();
    let limiter = RateLimiter::in_memory();
    drop(
        limiter
            .check(&an_hour("late", 2), &Key::new("alice"))
            .await
            .unwrap(),
    );
    let denied = r#"tollgate_decisions_total{limit="late",outcome="denied",source="store"} 0"#;
    assert!(later.text().contains(denied), "{}", later.text());
}

#[tokio::test]
async fn every_source_is_a_label() {
    let recorded = Recorded::start();
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let with = |name: &str, policy| an_hour(name, 2).with_on_store_failure(policy).unwrap();
    let limits = [
        with("open", OnStoreFailure::FailOpen),
        with("local", OnStoreFailure::local(2)),
        with("closed", OnStoreFailure::FailClosed),
    ];
    for _ in 0..4 {
        drop(limiter.check(&limits[0], &Key::new("alice")).await.unwrap());
    }
    store.switch_off(true);
    for limit in &limits {
        drop(limiter.check(limit, &Key::new("bob")).await.unwrap());
    }
    let expected = [
        ("closed denied fail_closed", 1),
        ("local allowed local", 1),
        ("open allowed fail_open", 1),
        ("open allowed store", 2),
        ("open denied deny_cache", 1),
        ("open denied store", 1),
    ];
    assert_eq!(recorded.decisions(), counted(expected));
    assert_eq!(recorded.one("tollgate_deny_cache_hits_total", ""), 1.0);
    assert_eq!(
        recorded.one("tollgate_store_failures_total", "unreachable"),
        3.0
    );
}

#[tokio::test]
async fn requests_that_are_decided_without_redis_are_counted_and_report_what_is_left() {
    let recorded = Recorded::start();
    let server = RedisServer::start();
    let limit = an_hour("api", 200).asynchronous().unwrap();
    // On a slow machine, no answer comes after its deadline.
    let store = server.store().deadline(20 * SECOND).connect().await;
    let limiter = RateLimiter::new(store.unwrap());
    let layer = RateLimitLayer::new(limiter, limit, Global).unwrap();
    let app = app(layer);
    for sent in 1..=200 {
        let response = send(&app, plain("/")).await;
        assert_eq!(response.status().as_u16(), 200);
        // This replica is alone, so it knows what is left.
        let left = number(response.headers(), "x-ratelimit-remaining");
        assert_eq!(left, 200 - sent);
        yield_now().await;
    }
    assert_eq!(status(&app, plain("/")).await, 429);
    let allowed = |source: &str| {
        let labels = format!("api allowed {source}");
        recorded.one("tollgate_decisions_total", &labels)
    };
    let (here, asked) = (allowed("asynchronous"), allowed("store"));
    assert_eq!(here + asked, 200.0);
    assert!(here > 100.0, "{here} of 200 were decided here");
    let charged = recorded.one("tollgate_prepaid_units_total", "charged api");
    assert!(charged >= here, "{charged} charged, {here} spent");
}

#[tokio::test]
async fn allowed_requests_near_a_limit_have_an_outcome_of_their_own() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let limit = an_hour("api", 10).with_warn_at_percent(80).unwrap();
    let layer = RateLimitLayer::new(&limiter, limit, Global).unwrap();
    let app = app(layer);
    for _ in 0..12 {
        status(&app, plain("/")).await;
    }
    let expected = [
        ("api allowed store", 7),
        ("api denied store", 2),
        ("api near_limit store", 3),
    ];
    assert_eq!(recorded.decisions(), counted(expected));
}

#[tokio::test]
async fn units_that_are_charged_later_and_the_replicas_that_share_are_counted() {
    let recorded = Recorded::start();
    let server = RedisServer::start();
    let limit = Limit::token_bucket("api", Quota::per_day(10_000))
        .and_then(|limit| limit.with_overshoot_percent(10))
        .unwrap();
    let store = server.store().deadline(20 * SECOND).connect().await;
    let limiter = RateLimiter::new(store.unwrap());
    for _ in 0..100 {
        let decision = limiter.check(&limit, &Key::global()).await.unwrap();
        assert!(decision.allowed());
        tokio::time::sleep(SECOND / 50).await;
    }
    assert_eq!(recorded.one("tollgate_replicas", "redis"), 1.0);
    limiter.flush().await;
    let here = recorded.one("tollgate_decisions_total", "api allowed asynchronous");
    assert!(here > 50.0, "{here} of 100 were decided here");
    assert_eq!(recorded.one("tollgate_paid_units_total", "api"), here);
    assert_eq!(recorded.one("tollgate_replicas", "redis"), 0.0);
}

#[tokio::test]
async fn time_for_which_units_cannot_be_charged_is_a_gauge() {
    let recorded = Recorded::start();
    let server = RedisServer::start();
    let limit = Limit::token_bucket("api", Quota::per_day(10_000))
        .and_then(|limit| limit.with_overshoot_percent(10))
        .unwrap();
    let store = server.store().deadline(SECOND).connect().await;
    let limiter = RateLimiter::new(store.unwrap());
    let is_here = async || {
        let decision = limiter.check(&limit, &Key::global()).await;
        decision.is_ok_and(|it| it.source() == Source::Asynchronous)
    };
    until(is_here).await;
    server.pause(true);
    until(async || recorded.one("tollgate_unpaid_seconds", "redis") >= 2.0).await;
    server.pause(false);
    until(async || recorded.one("tollgate_unpaid_seconds", "redis") == 0.0).await;
}

#[tokio::test]
async fn units_that_replicas_allow_above_the_limit_are_counted() {
    let recorded = Recorded::start();
    let server = RedisServer::start();
    let limit = Limit::token_bucket("api", Quota::per_day(10).burst(10_000))
        .and_then(|limit| limit.with_overshoot_percent(10))
        .unwrap();
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let store = server.store().deadline(20 * SECOND).connect().await;
        replicas.push(RateLimiter::new(store.unwrap()));
    }
    let mut allowed = 0.0;
    let mut check_at = async |replica: &RateLimiter| {
        let decision = replica.check(&limit, &Key::global()).await.unwrap();
        allowed += f64::from(u8::from(decision.allowed()));
        decision
    };
    for replica in &replicas {
        until(async || check_at(replica).await.source() == Source::Asynchronous).await;
    }
    let mut is_denied = [false; 2];
    while is_denied != [true; 2] {
        for (replica, is_denied) in replicas.iter().zip(&mut is_denied) {
            *is_denied = !check_at(replica).await.allowed();
        }
        yield_now().await;
    }
    until(async || recorded.one("tollgate_unpaid_keys", "redis") > 0.0).await;
    for replica in &replicas {
        replica.flush().await;
    }
    let above = recorded.one("tollgate_units_above_limit_total", "api");
    assert!(above > 0.0 && above <= 1_000.0, "{above}");
    assert_eq!(10_000.0 + above, allowed);
}

#[tokio::test]
async fn blocked_key_is_an_outcome_and_its_block_is_counted_once() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let policy = BlockPolicy::after(2, SECOND * 60);
    let login = an_hour("login", 1).with_block_policy(policy).unwrap();
    for _ in 0..5 {
        drop(limiter.check(&login, &Key::new("mallory")).await.unwrap());
    }
    let expected = [
        ("login allowed store", 1),
        ("login blocked store", 3),
        ("login denied store", 1),
    ];
    assert_eq!(recorded.decisions(), counted(expected));
    assert_eq!(recorded.one("tollgate_blocks_total", "login"), 1.0);
}

#[tokio::test]
async fn full_store_is_an_error_of_the_limit() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::new(MemoryStore::builder().max_keys(1).build());
    let limit = an_hour("api", 1);
    let mut failed = 0_u32;
    for key in 0..1_000_u64 {
        failed += u32::from(limiter.check(&limit, &Key::from(key)).await.is_err());
    }
    assert!(failed > 0);
    assert_eq!(
        recorded.one("tollgate_decisions_total", "api error none"),
        f64::from(failed)
    );
    assert_eq!(
        recorded.one("tollgate_store_failures_total", "full"),
        f64::from(failed)
    );
}

#[tokio::test]
async fn overload_is_an_error_that_says_what_the_layer_did() {
    for source in ["fail_open", "fail_closed"] {
        let recorded = Recorded::start();
        let limiter = RateLimiter::new(Scripted::failing(|| Error::overloaded(1)));
        let layer = RateLimitLayer::new(&limiter, an_hour("api", 1), Global).unwrap();
        let layer = match source {
            "fail_open" => layer.fail_open_when_overloaded(),
            _ => layer,
        };
        status(&app(layer), plain("/")).await;
        let labels = format!("api error {source}");
        assert_eq!(recorded.decisions(), counted([(&*labels, 1)]));
        assert_eq!(
            recorded.one("tollgate_store_failures_total", "overloaded"),
            1.0
        );
    }
}

#[tokio::test]
async fn requests_that_no_limit_is_asked_about_have_a_reason() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let user = || Header::new("x-user").unwrap();
    let keyed = RateLimitLayer::new(&limiter, an_hour("api", 1), user()).unwrap();
    let forbids = keyed.clone().forbid(|_| true);
    let rejects =
        RateLimitLayer::from_fn(&limiter, |_: &Parts| ChosenLimits::reject("no such plan"));
    for (layer, expected) in [(keyed, 400), (forbids, 403), (rejects.unwrap(), 403)] {
        assert_eq!(status(&app(layer), plain("/")).await, expected);
    }
    let unchecked = recorded.of("tollgate_unchecked_requests_total");
    let reasons: Vec<_> = unchecked.keys().map(String::as_str).collect();
    assert_eq!(
        reasons,
        [
            "rejected forbidden",
            "rejected missing_key",
            "rejected rejected"
        ]
    );
}

#[tokio::test]
async fn request_whose_usage_is_asked_is_not_counted() {
    let recorded = Recorded::start();
    let user = Header::new("x-user").unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), an_hour("api", 1), user).unwrap();
    let (without_key, _) = plain("/").into_parts();
    assert_eq!(layer.usage(&without_key).await.unwrap(), []);
    let request = request("GET", "/").header("x-user", "alice");
    let (with_key, ()) = request.body(()).unwrap().into_parts();
    assert_eq!(layer.usage(&with_key).await.unwrap()[0].remaining, 1);
    assert_eq!(recorded.of("tollgate_unchecked_requests_total").len(), 0);
}

#[tokio::test]
async fn keys_are_counted_by_the_extractor_that_found_them() {
    let recorded = Recorded::start();
    let header = |name: &str| Header::new(name).unwrap();
    let key = header("x-a").or(header("x-b")).or(Global);
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), an_hour("chain", 100), key)
        .unwrap()
        .limit(an_hour("alone", 100), Global);
    let app = app(layer.unwrap());
    for (name, times) in [("x-a", 3), ("x-b", 2), ("x-c", 1)] {
        for _ in 0..times {
            let request = request("GET", "/")
                .header(name, "1")
                .body(Body::empty())
                .unwrap();
            assert_eq!(status(&app, request).await, 200);
        }
    }
    let counted = recorded.of("tollgate_keys_total");
    let counted: Vec<_> = counted
        .iter()
        .map(|(labels, count)| format!("{labels} {count}"))
        .collect();
    assert_eq!(
        counted,
        ["first chain 3", "second chain 2", "third chain 1"]
    );
}

#[tokio::test]
async fn failed_look_ups_are_counted() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let lookup = Lookup::new(
        |_: &Parts| Some(1),
        |_| async { Err::<Option<u8>, _>(std::io::Error::other("no database")) },
    );
    let layer = RateLimitLayer::from_lookup(&limiter, lookup, |_, _, found| match found {
        LookupResult::Failed => ChosenLimits::Unlimited,
        _ => unreachable!("it fails"),
    })
    .unwrap();
    assert_eq!(status(&app(layer), plain("/")).await, 200);
    assert_eq!(recorded.one("tollgate_lookup_failures_total", ""), 1.0);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_a_gauge() {
    let recorded = Recorded::start();
    let app = app(RateLimitLayer::gcra(
        RateLimiter::in_memory(),
        "api",
        Quota::per_minute(1),
        Global,
    )
    .unwrap()
    .wait_up_to(90 * SECOND)
    .unwrap());
    assert_eq!(status(&app, plain("/")).await, 200);
    let mut waiting = JoinSet::new();
    waiting.spawn({
        let app = app.clone();
        async move { status(&app, plain("/")).await }
    });
    sleep(SECOND).await;
    assert_eq!(recorded.one("tollgate_waiting_requests", ""), 1.0);
    assert_eq!(waiting.join_next().await.unwrap().unwrap(), 200);
    assert_eq!(recorded.one("tollgate_waiting_requests", ""), 0.0);
    assert_eq!(recorded.decisions(), counted([("api allowed store", 2)]));
}

#[tokio::test]
async fn calls_to_redis_have_a_duration_and_a_number_of_checks() {
    let recorded = Recorded::start();
    let server = RedisServer::start();
    let store = server
        .store()
        .metrics_label("sessions")
        .connect()
        .await
        .unwrap();
    let (limiter, limit) = (RateLimiter::new(store), an_hour("api", 1_000));
    let mut checks = JoinSet::new();
    for key in 0..500_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move { limiter.check(&limit, &Key::from(key)).await.unwrap() });
    }
    checks.join_all().await;
    let calls = recorded.one("tollgate_store_call_duration_seconds_count", "sessions");
    assert!((1.0..100.0).contains(&calls), "{calls} calls");
    assert_eq!(
        recorded.one("tollgate_store_call_checks_count", "sessions"),
        calls
    );
    assert_eq!(
        recorded.one("tollgate_store_call_checks_sum", "sessions"),
        500.0
    );
    assert!(recorded.one("tollgate_store_call_duration_seconds_sum", "sessions") > 0.0);
    assert_eq!(
        recorded.one("tollgate_store_connections_total", "opened sessions"),
        1.0
    );
    assert_eq!(recorded.one("tollgate_queued_checks", "sessions"), 0.0);
}

#[tokio::test]
async fn hung_server_fills_the_queue_and_opens_the_breaker() {
    let recorded = Recorded::start();
    let server = RedisServer::start();
    let store = server.store().deadline(100 * MS).connect().await.unwrap();
    let limiter = RateLimiter::new(store);
    let limit = an_hour("api", 1_000)
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    drop(limiter.check(&limit, &Key::global()).await.unwrap());
    server.pause(true);
    let mut checks = JoinSet::new();
    for key in 0..50_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move { limiter.check(&limit, &Key::from(key)).await.unwrap() });
    }
    until(async || recorded.one("tollgate_queued_checks", "redis") >= 40.0).await;
    checks.join_all().await;
    assert_eq!(
        recorded.one("tollgate_decisions_total", "api allowed fail_open"),
        50.0
    );
    until(async || {
        drop(limiter.check(&limit, &Key::global()).await.unwrap());
        recorded.one("tollgate_circuit_breakers", "open redis") == 1.0
    })
    .await;
    let failures = recorded.of("tollgate_store_failures_total");
    assert!(failures["timeout"] >= 2.0, "{failures:?}");
    server.pause(false);
    until(async || {
        drop(limiter.check(&limit, &Key::global()).await.unwrap());
        recorded.one("tollgate_circuit_breaker_transitions_total", "closed redis") == 1.0
    })
    .await;
    assert_eq!(recorded.of("tollgate_circuit_breakers"), [].into());
    let transitions = recorded.of("tollgate_circuit_breaker_transitions_total");
    assert!(transitions["open redis"] >= 1.0 && transitions["half_open redis"] >= 1.0);
    assert!(recorded.of("tollgate_store_failures_total")["circuit_open"] >= 1.0);
    assert_eq!(recorded.one("tollgate_queued_checks", "redis"), 0.0);
}

#[tokio::test]
async fn lost_and_failed_connections_are_counted() {
    let recorded = Recorded::start();
    let mut server = RedisServer::start();
    let store = server
        .store()
        .without_circuit_breaker()
        .connect()
        .await
        .unwrap();
    let (limiter, limit) = (RateLimiter::new(store), an_hour("api", 1_000));
    drop(limiter.check(&limit, &Key::global()).await.unwrap());
    server.kill();
    let connections = |event: &str| {
        recorded.one(
            "tollgate_store_connections_total",
            &format!("{event} redis"),
        )
    };
    until(async || {
        assert!(limiter.check(&limit, &Key::global()).await.is_err());
        connections("failed") >= 1.0
    })
    .await;
    assert_eq!(connections("opened"), 1.0);
    let failures = recorded.of("tollgate_store_failures_total");
    assert!(failures.contains_key("unreachable"), "{failures:?}");
}

#[tokio::test]
async fn malformed_reply_is_a_failure_of_its_own() {
    let recorded = Recorded::start();
    let server = FakeRedis::start(|command, arguments| match command {
        "EVALSHA" if arguments.len() > 5 => Some(b"+what?\r\n".to_vec()),
        _ => greeting(command, arguments),
    });
    let store = tollgate::RedisStore::builder("tollgate")
        .url(server.url())
        .build()
        .unwrap();
    let (limiter, limit) = (RateLimiter::new(store), an_hour("api", 1_000));
    for _ in 0..3 {
        assert!(limiter.check(&limit, &Key::global()).await.is_err());
    }
    let failures = recorded.of("tollgate_store_failures_total");
    assert!(failures.contains_key("invalid_answer"), "{failures:?}");
    assert!(recorded.one("tollgate_decisions_total", "api error none") >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn breaker_of_any_store_is_measured_and_leaves_the_gauge_when_it_is_dropped() {
    let recorded = Recorded::start();
    let store = Scripted::default();
    let breaker = CircuitBreaker::new(store.clone(), BreakerSettings::new()).unwrap();
    let (limiter, limit) = (RateLimiter::new(breaker), an_hour("api", 1_000));
    store.switch_off(true);
    for _ in 0..10 {
        drop(limiter.check(&limit, &Key::global()).await);
    }
    let open = || {
        recorded
            .of("tollgate_circuit_breakers")
            .values()
            .sum::<f64>()
    };
    assert_eq!(open(), 1.0);
    drop(limiter);
    // The task that probes holds it for a moment.
    until(async || open() == 0.0).await;
}

#[tokio::test]
async fn permits_of_direct_callers_are_counted() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    let (limit, acme) = (Limit::concurrency("exports", 1).unwrap(), Key::new("acme"));
    let permit = limiter.try_acquire_permit(&limit, &acme).await.unwrap();
    assert!(
        limiter
            .acquire_permit(&limit, &acme, 10 * MS)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(recorded.one("tollgate_permits_held", "exports"), 1.0);
    drop(permit);
    assert_eq!(recorded.of("tollgate_permits_held"), [].into());
    let expected = [("exports allowed store", 1), ("exports denied store", 1)];
    assert_eq!(recorded.decisions(), counted(expected));
}

#[tokio::test]
async fn recorder_that_is_installed_later_gets_what_comes_then() {
    let (limiter, limit) = (RateLimiter::in_memory(), an_hour("api", 9));
    drop(limiter.check(&limit, &Key::global()).await.unwrap());
    let recorded = Recorded::start();
    drop(limiter.check(&limit, &Key::global()).await.unwrap());
    assert_eq!(recorded.decisions(), counted([("api allowed store", 1)]));
    drop(recorded);
    let another = Recorded::start();
    drop(limiter.check(&limit, &Key::global()).await.unwrap());
    drop(limiter.check(&limit, &Key::global()).await.unwrap());
    assert_eq!(another.decisions(), counted([("api allowed store", 2)]));
}

#[tokio::test]
async fn dropped_call_counts_as_no_decision() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::new(Scripted::new(|_, _| Answer::later(pending())));
    let (limit, key) = (an_hour("api", 9), Key::global());
    assert!(
        tokio::time::timeout(MS, limiter.check(&limit, &key))
            .await
            .is_err()
    );
    assert_eq!(recorded.decisions(), []);
}

#[tokio::test]
async fn no_label_has_a_key_a_path_or_an_address() {
    let recorded = Recorded::start();
    let mut server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().connect().await.unwrap());
    let policy = BlockPolicy::after(2, SECOND * 60);
    let limit = an_hour("api", 2).with_block_policy(policy).unwrap();
    let layer = RateLimitLayer::new(&limiter, limit, Header::new("x-user").unwrap()).unwrap();
    let of = |user| {
        request("GET", "/secret/path")
            .header("x-user", user)
            .body(Body::empty())
            .unwrap()
    };
    let app = Router::new()
        .route("/{*path}", any(|| async { "hello" }))
        .layer(layer);
    for _ in 0..6 {
        status(&app, of("mallory")).await;
    }
    server.kill();
    for user in ["mallory", "trudy"] {
        status(&app, of(user)).await;
    }
    let text = recorded.text();
    assert!(text.contains("tollgate_decisions_total") && text.contains("tollgate_blocks_total"));
    assert!(text.contains("tollgate_store_connections_total"));
    for secret in [
        "mallory",
        "trudy",
        "secret",
        "127.0.0.1",
        &server.port().to_string(),
    ] {
        assert!(
            !text.contains(&format!("\"{secret}")),
            "{secret} is in {text}"
        );
        assert!(
            !text.contains(&format!("{secret}\"")),
            "{secret} is in {text}"
        );
    }
}

#[tokio::test]
async fn metrics_are_described() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    drop(
        limiter
            .check(&an_hour("api", 9), &Key::global())
            .await
            .unwrap(),
    );
    let text = recorded.text();
    assert!(
        text.contains("# HELP tollgate_decisions_total Decisions, one for each limit"),
        "{text}"
    );
    assert!(
        text.contains("# TYPE tollgate_decisions_total counter"),
        "{text}"
    );
}

#[cfg(feature = "config")]
#[test]
fn new_versions_of_a_configuration_are_counted() {
    use tollgate::config::{Config, Format, LimitSet, Names};

    let recorded = Recorded::start();
    let config = |limit: &str| {
        let text = format!(
            "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"{limit}\"\nkey = \"all\"\n"
        );
        Config::parse("limits.toml", &text, Format::Toml).unwrap()
    };
    let limits = LimitSet::new(config("1/s"), Names::new().key("all", Global)).unwrap();
    let limiter = RateLimiter::in_memory();
    let _layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
    limits.replace(config("2/s")).unwrap();
    let updates = recorded.of("tollgate_configuration_updates_total");
    assert_eq!(updates, [("replaced".to_owned(), 1.0)].into());
}

#[cfg(feature = "config")]
#[tokio::test]
async fn rejected_version_of_a_configuration_is_a_gauge_until_a_valid_one_comes() {
    use tokio::sync::watch;
    use tollgate::config::{Config, Format, LimitSet, Names};

    let recorded = Recorded::start();
    let config = |key: &str| {
        let limit = "name = \"api\"\nalgorithm = \"gcra\"\nquota = \"1/s\"";
        let text = format!("[[limits]]\n{limit}\nkey = \"{key}\"\n");
        Config::parse("limits.toml", &text, Format::Toml).unwrap()
    };
    let limits = LimitSet::new(config("all"), Names::new().key("all", Global)).unwrap();
    let (sender, source) = watch::channel(config("all"));
    limits.follow(source);
    let rejected = || recorded.one("tollgate_configurations_rejected", "");
    for key in ["unknown", "missing"] {
        sender.send(config(key)).unwrap();
        let is_rejected = async {
            while limits
                .rejected()
                .is_none_or(|error| !error.to_string().contains(key))
            {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), is_rejected)
            .await
            .expect(key);
        assert_eq!(rejected(), 1.0);
    }
    sender.send(config("all")).unwrap();
    let is_valid = async {
        while limits.rejected().is_some() {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), is_valid)
        .await
        .expect("a valid version");
    assert_eq!(rejected(), 0.0);
}

#[tokio::test]
async fn settlements_that_fail_are_counted() {
    use tollgate::layer::Settlement;

    let recorded = Recorded::start();
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::new(&limiter, an_hour("tokens", 100), Global).unwrap();
    let handler = move |request: http::Request<Body>| async move {
        store.switch_off(true);
        let _settled = request
            .extensions()
            .get::<Settlement>()
            .unwrap()
            .settle("tokens", 9);
    };
    let app = Router::new()
        .route("/", any(handler))
        .layer(layer.insert_settlement());
    assert_eq!(status(&app, plain("/")).await, 200);
    until(async || recorded.one("tollgate_settlement_failures_total", "") == 1.0).await;
}
