//! Overrides: exceptions for single keys, which every check of a limiter sees.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::time::{Duration, SystemTime};

use http::StatusCode;
use tollgate::clock::ManualClock;
use tollgate::decision::Source;
use tollgate::key::Header;
use tollgate::limit::OnStoreFailure;
use tollgate::overrides::{Override, Overrides};
use tollgate::store::{Change, Operation, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::budget::every_algorithm;
use crate::support::limits::limits;
use crate::support::log::Log;
#[cfg(feature = "metrics")]
use crate::support::recorded::{Recorded, counted};
use crate::support::requests::{app, number, request, send};

const START: Duration = Duration::from_secs(1_790_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn limiter(store: impl Store, overrides: &Overrides) -> RateLimiter {
    let builder = RateLimiter::builder(store).overrides(overrides);
    builder.build().unwrap()
}

/// Overrides by a clock, and a limiter in memory that has them.
fn in_memory() -> (ManualClock, Overrides, RateLimiter) {
    let clock = ManualClock::new();
    clock.set(START);
    let overrides = Overrides::with_clock(clock.clone());
    let limiter = limiter(MemoryStore::with_clock(clock.clone()), &overrides);
    (clock, overrides, limiter)
}

fn at(time: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + time
}

fn api(units: u64) -> Limit {
    Limit::fixed_window("api", Quota::per_minute(units)).unwrap()
}

#[tokio::test]
async fn raised_quota_keeps_what_was_used_under_every_algorithm_and_on_both_stores() {
    let server = RedisServer::start();
    for limit in every_algorithm(10, 60_000_000) {
        let clock = ManualClock::new();
        clock.set(START);
        let redis = server.store().clock(clock.clone()).connect().await.unwrap();
        for is_memory in [true, false] {
            let overrides = Overrides::with_clock(clock.clone());
            let limiter = match is_memory {
                true => limiter(MemoryStore::with_clock(clock.clone()), &overrides),
                false => limiter(redis.clone(), &overrides),
            };
            let left = async |key| limiter.check(&limit, key).await.unwrap().remaining();
            for _ in 0..10 {
                left("acme").await;
            }
            let denied = limiter.check(&limit, "acme").await.unwrap();
            assert!(!denied.allowed(), "{limit}");
            let raised = Override::quota(limit.name(), "acme", Quota::per_minute(100));
            overrides.set(raised).await.unwrap();
            let decision = limiter.check(&limit, "acme").await.unwrap();
            assert_eq!(decision.capacity(), 100, "{limit}");
            assert_eq!(decision.remaining(), 89, "{limit}: 11 are used");
            assert!(decision.deciding().is_overridden());
            assert_eq!(left("bob").await, 9, "{limit}: others have the limit");

            // A lower quota than was used denies, and is no debt for ever.
            let lowered = Override::quota(limit.name(), "acme", Quota::per_minute(5));
            overrides.set(lowered).await.unwrap();
            assert!(!limiter.check(&limit, "acme").await.unwrap().allowed());
            assert!(overrides.remove(limit.name(), "acme").await.unwrap());
            assert!(!overrides.remove(limit.name(), "acme").await.unwrap());
            let decision = limiter.check(&limit, "acme").await.unwrap();
            assert_eq!(
                (decision.capacity(), decision.remaining()),
                (10, 0),
                "{limit}"
            );
            assert!(!decision.deciding().is_overridden());
        }
    }
}

#[tokio::test]
async fn override_ends_at_its_time_and_not_before() {
    let (clock, overrides, limiter) = in_memory();
    let until = at(START + MINUTE);
    let raised = Override::quota("api", "acme", Quota::per_minute(50)).until(until);
    overrides.set(raised.clone()).await.unwrap();
    let capacity = async || limiter.peek(&api(10), "acme", 0).await.unwrap().capacity();
    clock.set(START + MINUTE - Duration::from_micros(1));
    assert_eq!(capacity().await, 50);
    assert_eq!(overrides.get("api", "acme"), Some(raised.clone()));
    clock.set(START + MINUTE);
    assert_eq!(capacity().await, 10);
    assert_eq!(overrides.get("api", "acme"), None);
    assert_eq!(overrides.list().await.unwrap(), []);
    let error = overrides.set(raised).await.unwrap_err();
    assert!(error.is_misuse() && error.to_string().contains("has ended already"));
}

#[tokio::test]
async fn unlimited_key_is_charged_nothing_and_decided_without_the_store() {
    let (_, overrides, limiter) = in_memory();
    let limit = api(2);
    assert!(limiter.check(&limit, "acme").await.unwrap().allowed());
    overrides
        .set(Override::unlimited("api", "acme"))
        .await
        .unwrap();
    for _ in 0..5 {
        let decision = limiter.check(&limit, "acme").await.unwrap();
        assert!(decision.allowed() && decision.deciding().is_unlimited());
        assert_eq!(decision.source(), Source::Override);
        assert_eq!(decision.receipt(), None);
    }
    assert!(overrides.remove("api", "acme").await.unwrap());
    let decision = limiter.check(&limit, "acme").await.unwrap();
    assert!(
        decision.allowed() && decision.remaining() == 0,
        "one was used before"
    );
}

#[tokio::test]
async fn denied_key_is_denied_until_the_override_ends() {
    let (_, overrides, limiter) = in_memory();
    let limit = api(10);
    let denied = Override::denied("api", "acme", "suspended");
    overrides
        .set(denied.clone().until(at(START + 5 * MINUTE)))
        .await
        .unwrap();
    let decision = limiter.check(&limit, "acme").await.unwrap();
    assert!(!decision.allowed() && decision.is_blocked());
    assert_eq!(decision.retry_after(), Some(5 * MINUTE));
    assert_eq!(decision.source(), Source::Override);
    assert!(
        limiter.check_n(&limit, "acme", 0).await.unwrap().allowed(),
        "cost 0"
    );
    overrides.set(denied).await.unwrap();
    let decision = limiter.check(&limit, "acme").await.unwrap();
    let a_year = Duration::from_secs(366 * 24 * 60 * 60);
    assert_eq!(decision.retry_after(), Some(a_year));
    // In shadow mode, nothing is denied.
    let shadow = limit.with_shadow_mode();
    assert!(limiter.check(&shadow, "acme").await.unwrap().allowed());
}

#[tokio::test]
async fn group_with_overrides_is_charged_whole_or_not_at_all() {
    let (_, overrides, limiter) = in_memory();
    let limits = ["one", "two", "three"];
    let limits = limits.map(|name| Limit::gcra(name, Quota::per_minute(10)).unwrap());
    let checks = || limits.each_ref().map(|limit| Check::new(limit, "acme"));
    let left = async || {
        let usage = limiter.usage(checks()).await.unwrap();
        usage
            .iter()
            .map(|it| (it.limit.clone(), it.remaining))
            .collect::<Vec<_>>()
    };
    overrides
        .set(Override::unlimited("two", "acme"))
        .await
        .unwrap();
    overrides
        .set(Override::quota("three", "acme", Quota::per_minute(20)))
        .await
        .unwrap();
    let decision = limiter.check_all(checks()).await.unwrap();
    let verdicts = decision.verdicts();
    let names: Vec<_> = verdicts.iter().map(|it| it.limit().name()).collect();
    assert_eq!(names, ["one", "two", "three"]);
    assert!(verdicts[1].is_unlimited());
    assert_eq!((verdicts[0].remaining(), verdicts[2].remaining()), (9, 19));
    assert_eq!(decision.limit().name(), "one");
    assert!(
        decision
            .receipts()
            .map(|it| it.is_some())
            .eq([true, false, true])
    );

    overrides
        .set(Override::denied("two", "acme", "suspended"))
        .await
        .unwrap();
    let decision = limiter.check_all(checks()).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.limit().name(), "two");
    let expected = [("one", 9), ("two", 0), ("three", 19)];
    let expected = expected.map(|(name, left)| (name.to_owned(), left));
    assert_eq!(left().await, expected, "nothing was charged");
}

#[tokio::test]
async fn usage_says_which_limits_are_overridden() {
    let (_, overrides, limiter) = in_memory();
    let raised = Override::quota("api", "acme", Quota::per_minute(40));
    overrides.set(raised).await.unwrap();
    drop(limiter.check_n(&api(10), "acme", 30).await.unwrap());
    let usage = |key: &'static str| limiter.usage(Check::new(&api(10), key));
    let acme = &usage("acme").await.unwrap()[0];
    assert_eq!((acme.capacity, acme.used, acme.overridden), (40, 30, true));
    let bob = &usage("bob").await.unwrap()[0];
    assert_eq!((bob.capacity, bob.used, bob.overridden), (10, 0, false));
    overrides
        .set(Override::denied("api", "acme", "suspended"))
        .await
        .unwrap();
    let acme = &usage("acme").await.unwrap()[0];
    assert_eq!((acme.remaining, acme.overridden), (0, true));
    assert!(acme.blocked_for.is_some());
    overrides
        .set(Override::unlimited("api", "acme"))
        .await
        .unwrap();
    assert_eq!(usage("acme").await.unwrap(), [], "nothing limits it");
}

/// Each way to ask, with its answer for a key whose quota is 3.
#[tokio::test(start_paused = true)]
async fn every_way_to_ask_passes_the_gate() {
    let overrides = Overrides::new();
    let limiter = limiter(MemoryStore::new(), &overrides);
    for limit in limits() {
        overrides
            .set(Override::quota(limit.name(), "acme", Quota::per_minute(3)))
            .await
            .unwrap();
        let check = || Check::new(&limit, "acme");
        let capacities = [
            limiter.check(&limit, "acme").await.unwrap().capacity(),
            limiter.peek(&limit, "acme", 0).await.unwrap().capacity(),
            limiter.check_all([check()]).await.unwrap().capacity(),
            limiter.usage(check()).await.unwrap()[0].capacity,
            limiter
                .apply(Operation::Charge(check().into()))
                .await
                .unwrap()
                .capacity(),
            limiter
                .apply(Operation::Peek(check().into()))
                .await
                .unwrap()
                .capacity(),
            limiter
                .apply(Operation::Change(check().into(), Change::Reset))
                .await
                .unwrap()
                .capacity(),
            limiter
                .acquire(&limit, "acme", 2, MINUTE)
                .await
                .unwrap()
                .capacity(),
            limiter
                .acquire_all([check()], MINUTE)
                .await
                .unwrap()
                .capacity(),
        ];
        assert_eq!(capacities, [3; 9], "{limit}");
        // 5 units are more than it can ever have.
        let too_many = limiter.acquire(&limit, "acme", 5, MINUTE).await.unwrap();
        assert!(too_many.exceeds_capacity(), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_waits_for_the_units_of_its_override() {
    let overrides = Overrides::new();
    let limiter = limiter(MemoryStore::new(), &overrides);
    let limit = Limit::token_bucket("api", Quota::per_minute(1)).unwrap();
    overrides
        .set(Override::quota("api", "acme", Quota::per_second(1)))
        .await
        .unwrap();
    let began = tokio::time::Instant::now();
    for _ in 0..4 {
        let decision = limiter.acquire(&limit, "acme", 1, MINUTE).await.unwrap();
        assert!(decision.allowed());
    }
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    overrides
        .set(Override::denied("api", "acme", "suspended"))
        .await
        .unwrap();
    let decision = limiter.acquire(&limit, "acme", 1, MINUTE).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(3), "no wait helps");
}

#[tokio::test]
async fn refund_under_an_override_gives_back_what_was_charged_under_it() {
    let (_, overrides, limiter) = in_memory();
    let limit = Limit::token_bucket("api", Quota::per_minute(10)).unwrap();
    overrides
        .set(Override::quota("api", "acme", Quota::per_minute(100)))
        .await
        .unwrap();
    let decision = limiter.check_n(&limit, "acme", 60).await.unwrap();
    let receipt = decision.receipt().unwrap();
    limiter.settle(&limit, "acme", 20, receipt).await.unwrap();
    assert_eq!(
        limiter.peek(&limit, "acme", 0).await.unwrap().remaining(),
        80
    );
}

#[tokio::test]
async fn permits_follow_overrides() {
    let overrides = Overrides::new();
    let limiter = limiter(MemoryStore::new(), &overrides);
    let exports = Limit::concurrency("exports", 1).unwrap();
    let acquire =
        async |key: &'static str| limiter.try_acquire_permit(&exports, key).await.unwrap();
    overrides
        .set(Override::permits("exports", "acme", 3))
        .await
        .unwrap();
    let held = [
        acquire("acme").await,
        acquire("acme").await,
        acquire("acme").await,
    ];
    assert!(held.iter().all(Option::is_some));
    assert!(acquire("acme").await.is_none());
    let bob = acquire("bob").await;
    assert!(bob.is_some() && acquire("bob").await.is_none());

    overrides
        .set(Override::unlimited("exports", "acme"))
        .await
        .unwrap();
    let more = acquire("acme").await.unwrap();
    assert_eq!(more.source(), Source::Override);
    assert!(more.is_renewed());
    drop(more);
    overrides
        .set(Override::denied("exports", "acme", "suspended"))
        .await
        .unwrap();
    assert!(acquire("acme").await.is_none());
    let waited = limiter
        .acquire_permit(&exports, "acme", MINUTE)
        .await
        .unwrap();
    assert!(waited.is_none());
    // The permits of before count.
    assert!(overrides.remove("exports", "acme").await.unwrap());
    assert!(acquire("acme").await.is_none());
    drop(held);
    assert!(acquire("acme").await.is_some());
}

#[tokio::test]
async fn layer_answers_by_the_override_of_its_client() {
    let (_, overrides, limiter) = in_memory();
    let key = || Header::new("x-tenant").unwrap();
    let tenant = async |app: &axum::Router, tenant: &str| {
        let request = request("GET", "/").header("x-tenant", tenant);
        send(app, request.body(axum::body::Body::empty()).unwrap()).await
    };
    let one = RateLimitLayer::new(&limiter, api(2), key()).unwrap();
    // With a second limit, a layer decides a group.
    let day = Limit::fixed_window("day", Quota::per_day(1_000)).unwrap();
    let two = RateLimitLayer::new(&limiter, day.clone(), key()).unwrap();
    let two = two.limit(api(2), key()).unwrap();
    overrides
        .set(Override::quota("api", "acme", Quota::per_minute(20)))
        .await
        .unwrap();
    overrides
        .set(Override::unlimited("api", "free"))
        .await
        .unwrap();
    let text = "your account is suspended";
    overrides
        .set(Override::denied("api", "mallory", text))
        .await
        .unwrap();
    for (number_of, app) in [(0, app(one)), (1, app(two))] {
        let response = tenant(&app, "acme").await;
        let headers = response.headers();
        assert_eq!(number(headers, "x-ratelimit-limit"), 20);
        assert_eq!(number(headers, "x-ratelimit-remaining"), 19 - number_of);
        for _ in 0..5 {
            let response = tenant(&app, "free").await;
            assert_eq!(response.status(), 200);
            let headers = response.headers();
            let is_reported = headers
                .get("x-ratelimit-limit")
                .map(|it| it.to_str().unwrap());
            // The other limit still counts.
            assert_eq!(is_reported, (number_of > 0).then_some("1000"));
        }
        let response = tenant(&app, "mallory").await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), 1_000);
        let body = String::from_utf8(body.await.unwrap().to_vec()).unwrap();
        assert!(body.contains(text), "{body}");
    }
    let usage = limiter.peek(&day, "mallory", 0).await.unwrap();
    assert_eq!(usage.remaining(), 1_000, "nothing was charged");
}

#[tokio::test]
async fn override_that_a_limit_cannot_have_leaves_it_as_it_is_and_is_reported_once() {
    let (log, _guard) = Log::start();
    let (_, overrides, limiter) = in_memory();
    let exports = Limit::concurrency("exports", 1).unwrap();
    overrides
        .set(Override::quota("exports", "acme", Quota::per_minute(5)))
        .await
        .unwrap();
    overrides
        .set(Override::permits("api", "acme", 5))
        .await
        .unwrap();
    for _ in 0..3 {
        let decision = limiter.check(&api(10), "acme").await.unwrap();
        assert_eq!(decision.capacity(), 10);
        assert!(
            limiter
                .try_acquire_permit(&exports, "acme")
                .await
                .unwrap()
                .is_some()
        );
    }
    let lines: Vec<_> = log
        .lines()
        .into_iter()
        .filter(|line| line.contains("override without effect"))
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("has permits, and no quota"))
    );
}

#[tokio::test]
async fn number_of_overrides_is_bounded_and_those_that_ended_make_room() {
    let (clock, overrides, limiter) = in_memory();
    let week = at(START + 7 * 24 * 60 * MINUTE);
    for number in 0..100_000_u64 {
        let raised = Override::quota("api", number, Quota::per_minute(100));
        let raised = match number {
            0 => raised.until(at(START + MINUTE)),
            _ => raised.until(week),
        };
        overrides.set(raised).await.unwrap();
    }
    let one_more = Override::unlimited("api", "acme");
    let error = overrides.set(one_more.clone()).await.unwrap_err();
    assert!(
        error.is_misuse() && error.to_string().contains("100000 overrides"),
        "{error}"
    );
    // One of them can be replaced.
    overrides
        .set(Override::unlimited("api", 7_u64))
        .await
        .unwrap();
    clock.set(START + MINUTE);
    overrides.set(one_more).await.unwrap();
    assert_eq!(overrides.list().await.unwrap().len(), 100_000);
    let capacity = async |key: Key| limiter.peek(&api(10), key, 0).await.unwrap().capacity();
    assert_eq!(capacity(Key::from(99_999_u64)).await, 100);
    assert_eq!(capacity(Key::from(0_u64)).await, 10);
    assert_eq!(capacity(Key::from(100_000_u64)).await, 10);
}

#[tokio::test]
async fn hostile_key_and_reason_change_no_other_override() {
    let (_, overrides, limiter) = in_memory();
    let hostile = Key::new("acme api\"}{*");
    overrides
        .set(Override::unlimited("api", &hostile).with_reason("\"}; DROP {*} é"))
        .await
        .unwrap();
    for key in ["acme", "acme api", "*"] {
        let decision = limiter.check(&api(10), key).await.unwrap();
        assert!(!decision.deciding().is_overridden(), "{key}");
    }
    let decision = limiter.check(&api(10), &hostile).await.unwrap();
    assert!(decision.deciding().is_unlimited());
    for reason in ["a\nb".to_owned(), "x".repeat(201), String::new()] {
        let wrong = Override::unlimited("api", "acme").with_reason(reason);
        let error = overrides.set(wrong).await.unwrap_err();
        assert!(error.is_misuse() && error.to_string().contains("the reason has"));
    }
}

#[tokio::test]
async fn key_near_its_overridden_limit_is_warned_of() {
    let (_, overrides, limiter) = in_memory();
    let limit = api(10).with_warn_at_percent(80).unwrap();
    overrides
        .set(Override::quota("api", "acme", Quota::per_minute(100)))
        .await
        .unwrap();
    let is_near = async |cost| {
        let decision = limiter.check_n(&limit, "acme", cost).await.unwrap();
        decision.is_near_limit()
    };
    assert!(!is_near(79).await);
    assert!(is_near(1).await);
}

#[tokio::test]
async fn local_share_in_an_outage_is_the_share_of_the_override() {
    let mut server = RedisServer::start();
    let overrides = Overrides::new();
    let limiter = limiter(server.store().connect().await.unwrap(), &overrides);
    let policy = OnStoreFailure::local(4);
    let limit = api(8).with_on_store_failure(policy).unwrap();
    overrides
        .set(Override::quota("api", "acme", Quota::per_minute(80)))
        .await
        .unwrap();
    server.kill();
    let decision = async |key: &'static str| limiter.check(&limit, key).await.unwrap();
    let acme = decision("acme").await;
    assert_eq!((acme.source(), acme.capacity()), (Source::Local, 20));
    assert_eq!(decision("bob").await.capacity(), 2);
}

#[tokio::test]
async fn asynchronous_limit_allows_at_most_the_quota_of_the_override() {
    let server = RedisServer::start();
    let overrides = Overrides::new();
    let limit = Limit::fixed_window("api", Quota::per_hour(100)).unwrap();
    let limit = limit.asynchronous().unwrap();
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let store = server.store().connect().await.unwrap();
        replicas.push(limiter(store, &overrides));
    }
    let allowed = async |key: &'static str, checks: usize| {
        let mut allowed = 0;
        for number in 0..checks {
            let limiter = &replicas[number % 2];
            let decision = limiter.check(&limit, key).await.unwrap();
            allowed += usize::from(decision.allowed());
        }
        allowed
    };
    let raise = |key, units| Override::quota("api", key, Quota::per_hour(units));
    overrides.set(raise("raised", 500)).await.unwrap();
    overrides.set(raise("lowered", 30)).await.unwrap();
    for (key, quota) in [("raised", 500), ("lowered", 30), ("other", 100)] {
        let most = allowed(key, 1_000).await;
        // A few units may be in the hands of the other replica.
        assert!(most <= quota && most * 20 >= quota * 19, "{key}: {most}");
    }
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn metrics_count_overrides_and_what_they_decide() {
    let recorded = Recorded::start();
    let (_, overrides, limiter) = in_memory();
    let key = || Header::new("x-tenant").unwrap();
    let app = app(RateLimitLayer::new(&limiter, api(10), key()).unwrap());
    for one in [
        Override::unlimited("api", "free"),
        Override::denied("api", "mallory", "suspended"),
        Override::quota("api", "acme", Quota::per_minute(50)),
    ] {
        overrides.set(one).await.unwrap();
    }
    assert_eq!(recorded.one("tollgate_overrides", ""), 3.0);
    for tenant in ["free", "mallory", "acme", "bob"] {
        let request = request("GET", "/").header("x-tenant", tenant);
        drop(send(&app, request.body(axum::body::Body::empty()).unwrap()).await);
        drop(limiter.check(&api(10), tenant).await.unwrap());
    }
    let expected = counted([
        ("api allowed override", 2),
        ("api allowed store", 4),
        ("api blocked override", 2),
    ]);
    assert_eq!(recorded.decisions(), expected);
    let unchecked = recorded.of("tollgate_unchecked_requests_total");
    assert!(unchecked.is_empty(), "{unchecked:?}");
    assert!(overrides.remove("api", "free").await.unwrap());
    assert_eq!(recorded.one("tollgate_overrides", ""), 2.0);
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn override_counts_alike_in_a_group_and_in_a_layer_of_several_limits() {
    let day = Limit::fixed_window("day", Quota::per_day(1_000)).unwrap();
    let silent = api(10).with_shadow_mode();
    let cases = [
        // Exempt under one of two limits.
        (
            "free",
            api(10),
            counted([("api allowed override", 2), ("day allowed store", 2)]),
        ),
        // Denied under one, and so not charged under the other.
        (
            "mallory",
            api(10),
            counted([("api blocked override", 2), ("day not_charged override", 2)]),
        ),
        // Denied in shadow mode.
        (
            "mallory",
            silent,
            counted([("api shadow_denied override", 2), ("day allowed store", 2)]),
        ),
    ];
    for (tenant, limit, expected) in cases {
        let recorded = Recorded::start();
        let (_, overrides, limiter) = in_memory();
        overrides
            .set(Override::unlimited("api", "free"))
            .await
            .unwrap();
        let denied = Override::denied("api", "mallory", "suspended");
        overrides.set(denied).await.unwrap();
        let key = || Header::new("x-tenant").unwrap();
        let layer = RateLimitLayer::new(&limiter, limit.clone(), key()).unwrap();
        let app = app(layer.limit(day.clone(), key()).unwrap());
        let request = request("GET", "/").header("x-tenant", tenant);
        drop(send(&app, request.body(axum::body::Body::empty()).unwrap()).await);
        let group = [Check::new(&limit, tenant), Check::new(&day, tenant)];
        drop(limiter.check_all(group).await.unwrap());
        assert_eq!(recorded.decisions(), expected, "{tenant}");
    }
}

#[tokio::test]
async fn settlement_of_an_unlimited_key_charges_nothing() {
    let (_, overrides, limiter) = in_memory();
    let limit = api(100);
    overrides
        .set(Override::unlimited("api", "acme"))
        .await
        .unwrap();
    let decision = limiter.check_n(&limit, "acme", 10).await.unwrap();
    let receipt = decision.receipt();
    limiter.settle(&limit, "acme", 70, receipt).await.unwrap();
    assert!(overrides.remove("api", "acme").await.unwrap());
    // A charge of before is settled.
    let charged = limiter.check_n(&limit, "acme", 10).await.unwrap();
    assert_eq!(charged.remaining(), 90);
    overrides
        .set(Override::unlimited("api", "acme"))
        .await
        .unwrap();
    let receipt = charged.receipt();
    limiter.settle(&limit, "acme", 4, receipt).await.unwrap();
    assert!(overrides.remove("api", "acme").await.unwrap());
    let left = limiter.peek(&limit, "acme", 0).await.unwrap();
    assert_eq!(left.remaining(), 96);
}

#[cfg(feature = "config")]
#[tokio::test]
async fn override_without_effect_does_not_hide_the_override_of_the_file() {
    use tollgate::config::{Config, Format, LimitSet, Names};

    let (_, overrides, limiter) = in_memory();
    let text = "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"10/min\"\n\
                key = \"global\"\noverrides = { acme = { quota = \"70/min\" } }\n";
    let config = Config::parse("limits.toml", text, Format::Toml).unwrap();
    let limits = LimitSet::new(config, Names::new()).unwrap();
    let layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
    overrides
        .set(Override::permits("api", "acme", 5))
        .await
        .unwrap();
    let api = limits.limit("api").unwrap();
    let capacity = limiter.peek(&api, "acme", 0).await.unwrap().capacity();
    assert_eq!(capacity, 70);
    drop(layer);
}

#[tokio::test]
async fn request_of_cost_0_passes_a_denial() {
    let (_, overrides, limiter) = in_memory();
    let key = Header::new("x-tenant").unwrap();
    let layer = RateLimitLayer::new(&limiter, api(2), key).unwrap();
    let app = app(layer.cost(|parts| u32::from(parts.uri.path() == "/costly")));
    overrides
        .set(Override::denied("api", "mallory", "suspended"))
        .await
        .unwrap();
    let get = async |path: &str| {
        let request = request("GET", path).header("x-tenant", "mallory");
        let request = request.body(axum::body::Body::empty()).unwrap();
        send(&app, request).await.status()
    };
    assert_eq!(get("/").await, StatusCode::OK);
    assert_eq!(get("/costly").await, StatusCode::FORBIDDEN);
}
