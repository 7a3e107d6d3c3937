//! A limit warns once of a key that has used most of its units.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::clock::ManualClock;
use tollgate::decision::Source;
use tollgate::key::Header;
use tollgate::layer::Settlement;
use tollgate::limit::OnStoreFailure;
use tollgate::overrides::{Override, Overrides};
use tollgate::store::{Answer, Budget, Change, Operation, Store};
use tollgate::{
    Check, ConfigError, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter,
};

use crate::support::RedisServer;
use crate::support::budget::every_algorithm;
use crate::support::log::Log;
use crate::support::requests::{app, request, send};
use crate::support::scripted::Scripted;

const START: Duration = Duration::from_secs(1_790_000_000);
const MINUTE: Duration = Duration::from_secs(60);

/// The calls of the application's function.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// A limiter that warns here.
    fn limiter(&self, store: impl Store) -> RateLimiter {
        let Self(warnings) = self.clone();
        RateLimiter::builder(store)
            .on_near_limit(move |key, usage| {
                let warning = format!("{key} has {} of {}", usage.remaining, usage.limit);
                warnings.lock().unwrap().push(warning);
            })
            .build()
            .unwrap()
    }
}

/// 10 in a minute, with a warning when 2 are left.
fn ten_a_minute() -> Limit {
    Limit::fixed_window("api", Quota::per_minute(10))
        .and_then(|limit| limit.with_warn_at_percent(80))
        .unwrap()
}

/// A unit each second, up to 10, with a warning when 2 are left.
fn bucket_of_ten() -> Limit {
    Limit::token_bucket("api", Quota::per_second(1).burst(10))
        .and_then(|limit| limit.with_warn_at_percent(80))
        .unwrap()
}

fn asynchronous_thousand_a_day() -> Limit {
    Limit::fixed_window("api", Quota::per_day(1_000))
        .and_then(|limit| limit.with_warn_at_percent(80)?.asynchronous())
        .unwrap()
}

/// A limiter in memory that warns, with its clock.
fn in_memory() -> (ManualClock, Warnings, RateLimiter) {
    let clock = ManualClock::new();
    clock.set(START);
    let warnings = Warnings::default();
    let limiter = warnings.limiter(MemoryStore::with_clock(clock.clone()));
    (clock, warnings, limiter)
}

async fn check(limiter: &RateLimiter, limit: &Limit, key: &str) -> bool {
    let decision = limiter.check(limit, key).await.unwrap();
    assert!(decision.allowed());
    decision.is_near_limit()
}

#[tokio::test]
async fn key_is_warned_of_once_in_each_window_under_every_algorithm_and_on_both_stores() {
    let server = RedisServer::start();
    for limit in every_algorithm(10, 60_000_000) {
        let limit = limit.with_warn_at_percent(80).unwrap();
        let clock = ManualClock::new();
        let warnings = Warnings::default();
        let redis = server.store().clock(clock.clone()).connect().await.unwrap();
        let memory = MemoryStore::with_clock(clock.clone());
        for limiter in [warnings.limiter(memory), warnings.limiter(redis)] {
            for window in 0..2 {
                clock.set(START + 3 * window * MINUTE);
                for used in 1..=10 {
                    let is_near = check(&limiter, &limit, "alice").await;
                    assert_eq!(is_near, used >= 8, "{limit}, {used} used");
                    let warning = format!("alice has 2 of {}", limit.name());
                    let expected: &[String] = if used == 8 { &[warning] } else { &[] };
                    assert_eq!(warnings.take(), expected, "{limit}, {used} used");
                }
            }
        }
    }
}

#[tokio::test]
async fn bucket_warns_again_when_it_has_been_more_than_half_full() {
    let (clock, warnings, limiter) = in_memory();
    let bucket = bucket_of_ten();
    let use_up_to = async |left: u64| {
        while limiter.check(&bucket, "alice").await.unwrap().remaining() > left {}
        warnings.take().len()
    };
    assert_eq!(use_up_to(2).await, 1);
    // It is half full at most, and near the limit again.
    clock.advance(3 * Duration::from_secs(1));
    assert_eq!(use_up_to(2).await, 0);
    // It is more than half full, which a decision sees.
    clock.advance(5 * Duration::from_secs(1));
    assert_eq!(use_up_to(2).await, 1);
    // It was, and no decision leaves it so.
    for costs in [&[5][..], &[3, 2]] {
        clock.advance(5 * Duration::from_secs(1));
        for cost in costs {
            drop(limiter.check_n(&bucket, "alice", *cost).await.unwrap());
        }
        assert_eq!(warnings.take().len(), 1, "{costs:?}");
    }
    // It stays near the limit for longer than it takes to fill.
    for _ in 0..100 {
        clock.advance(Duration::from_secs(2));
        drop(limiter.check_n(&bucket, "alice", 2).await.unwrap());
    }
    assert_eq!(warnings.take().len(), 0);
}

#[tokio::test]
async fn parallel_requests_warn_once() {
    let server = RedisServer::start();
    for limit in every_algorithm(50, 3_600_000_000) {
        let limit = limit.with_warn_at_percent(80).unwrap();
        let warnings = Warnings::default();
        let limiter = warnings.limiter(server.store().connect().await.unwrap());
        let checks: JoinSet<_> = (0..60)
            .map(|_| {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                async move { limiter.check(&limit, "alice").await.unwrap().allowed() }
            })
            .collect();
        let allowed = checks.join_all().await;
        assert_eq!(allowed.iter().filter(|it| **it).count(), 50);
        assert_eq!(warnings.take().len(), 1, "{limit}");
    }
}

#[tokio::test]
async fn window_warns_once_although_a_settlement_gives_units_back() {
    let warnings = Warnings::default();
    let limiter = warnings.limiter(MemoryStore::new());
    let limit = ten_a_minute();
    for _ in 0..5 {
        let charged = limiter.check_n(&limit, "alice", 8).await.unwrap();
        let receipt = charged.receipt().unwrap();
        limiter.settle(&limit, "alice", 0, receipt).await.unwrap();
    }
    assert_eq!(warnings.take().len(), 1);
}

#[tokio::test]
async fn settlement_that_uses_most_of_the_units_warns() {
    let server = RedisServer::start();
    for limit in every_algorithm(1_000, 60_000_000) {
        let limit = limit.with_warn_at_percent(80).unwrap();
        let warnings = Warnings::default();
        let redis = warnings.limiter(server.store().connect().await.unwrap());
        for limiter in [warnings.limiter(MemoryStore::new()), redis] {
            let charged = limiter.check(&limit, "alice").await.unwrap();
            assert_eq!(warnings.take(), [""; 0], "{limit}");
            let receipt = charged.receipt().unwrap();
            limiter.settle(&limit, "alice", 900, receipt).await.unwrap();
            let warned = warnings.take();
            assert_eq!(warned.len(), 1, "{limit}: {warned:?}");
            assert!(warned[0].starts_with("alice has 1"), "{warned:?}");
            // The next check is near the limit, and no news.
            assert!(check(&limiter, &limit, "alice").await, "{limit}");
            assert_eq!(warnings.take(), [""; 0], "{limit}");
            let shadow = limit.clone().with_shadow_mode();
            limiter.settle(&shadow, "bob", 900, None).await.unwrap();
            assert_eq!(warnings.take(), [""; 0], "{limit}");
        }
    }
}

#[tokio::test]
async fn bucket_with_high_estimates_warns_once_while_requests_come() {
    let (clock, warnings, limiter) = in_memory();
    let bucket = bucket_of_ten();
    let request = async || {
        let charged = limiter.check_n(&bucket, "alice", 8).await.unwrap();
        assert!(charged.is_near_limit());
        let receipt = charged.receipt().unwrap();
        limiter.settle(&bucket, "alice", 1, receipt).await.unwrap();
        clock.advance(Duration::from_secs(2));
        warnings.take().len()
    };
    assert_eq!(request().await, 1);
    for _ in 0..20 {
        assert_eq!(request().await, 0);
    }
    // After the time in which an empty bucket becomes half full.
    clock.advance(Duration::from_secs(3));
    assert_eq!(request().await, 1);
}

#[tokio::test]
async fn settlement_of_a_bucket_that_was_half_full_before_it_warns_again() {
    let (clock, warnings, limiter) = in_memory();
    let bucket = bucket_of_ten();
    drop(limiter.check_n(&bucket, "alice", 9).await.unwrap());
    assert_eq!(warnings.take().len(), 1);
    clock.advance(Duration::from_secs(6));
    limiter.settle(&bucket, "alice", 6, None).await.unwrap();
    assert_eq!(warnings.take(), ["alice has 1 of api"]);
    // A debt above the capacity.
    limiter.settle(&bucket, "bob", 500, None).await.unwrap();
    assert_eq!(warnings.take(), ["bob has 0 of api"]);
}

#[tokio::test]
async fn settlement_of_an_asynchronous_window_counts_the_units_that_are_here() {
    let server = RedisServer::start();
    let warnings = Warnings::default();
    let limit = asynchronous_thousand_a_day();
    let limiter = warnings.limiter(server.store().connect().await.unwrap());
    let mut used = 0;
    let mut last = None;
    while used < 500 {
        let decision = limiter.check(&limit, "alice").await.unwrap();
        used += u64::from(decision.allowed());
        last = decision.receipt();
        tokio::task::yield_now().await;
    }
    // 500 are left, of which this process has charged some ahead.
    let settle = Change::Settle {
        receipt: last.unwrap(),
        cost: 1,
    };
    let settle = Operation::Change(Budget::new(&limit, "alice"), settle);
    let settled = limiter.apply(settle).await.unwrap();
    assert_eq!(settled.remaining(), 500);
    assert_eq!(warnings.take(), [""; 0]);
    limiter.flush().await;
}

#[tokio::test]
async fn short_windows_and_a_clock_that_steps_back_warn_again() {
    let (clock, warnings, limiter) = in_memory();
    let short = Quota::new(10, Duration::from_millis(100));
    let short = Limit::fixed_window("short", short).unwrap();
    let short = short.with_warn_at_percent(80).unwrap();
    for _ in 0..5 {
        drop(limiter.check_n(&short, "alice", 9).await.unwrap());
        assert_eq!(warnings.take().len(), 1);
        clock.advance(Duration::from_millis(100));
    }
    drop(limiter.check_n(&ten_a_minute(), "alice", 9).await.unwrap());
    assert_eq!(warnings.take().len(), 1);
    // The budget is full again after the step.
    clock.set(START - 10 * MINUTE);
    drop(limiter.check_n(&ten_a_minute(), "alice", 9).await.unwrap());
    assert_eq!(warnings.take().len(), 1);
}

#[tokio::test]
async fn exempt_key_is_not_warned_of_when_an_earlier_charge_is_settled() {
    let warnings = Warnings::default();
    let Warnings(list) = warnings.clone();
    let overrides = Overrides::new();
    let limiter = RateLimiter::builder(MemoryStore::new())
        .overrides(&overrides)
        .on_near_limit(move |key, _| list.lock().unwrap().push(key.to_string()))
        .build()
        .unwrap();
    let limit = ten_a_minute();
    let charged = limiter.check(&limit, "alice").await.unwrap();
    let exempt = Override::unlimited("api", "alice");
    overrides.set(exempt).await.unwrap();
    let receipt = charged.receipt().unwrap();
    limiter.settle(&limit, "alice", 9, receipt).await.unwrap();
    assert_eq!(warnings.take(), [""; 0]);
}

#[tokio::test]
async fn function_that_panics_fails_neither_the_request_nor_the_settlement() {
    let (log, _guard) = Log::start();
    let limiter = RateLimiter::builder(MemoryStore::new())
        .on_near_limit(|_, _| panic!("the mail server is away"))
        .build()
        .unwrap();
    assert!(
        limiter
            .check_n(&ten_a_minute(), "alice", 9)
            .await
            .unwrap()
            .allowed()
    );
    limiter
        .settle(&ten_a_minute(), "bob", 9, None)
        .await
        .unwrap();
    let lines = log.lines();
    let reported = |line: &&String| line.contains("function for keys near a limit panicked");
    assert_eq!(lines.iter().filter(reported).count(), 1, "{lines:?}");
}

#[tokio::test]
async fn costs_that_a_response_settles_warn() {
    let warnings = Warnings::default();
    let limiter = warnings.limiter(MemoryStore::new());
    let key = Header::new("x-user").unwrap();
    let layer = RateLimitLayer::new(limiter, ten_a_minute(), key).unwrap();
    let handler = |settlement: axum::Extension<Settlement>| async move {
        assert!(settlement.settle("api", 9));
    };
    let app = axum::Router::new()
        .route("/", axum::routing::get(handler))
        .layer(layer.insert_settlement());
    let request = request("GET", "/").header("x-user", "alice");
    let response = send(&app, request.body(Default::default()).unwrap()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(warnings.take(), ["alice has 1 of api"]);
}

#[tokio::test]
async fn warnings_of_one_window_have_the_same_end() {
    let clock = ManualClock::new();
    clock.set(START);
    let server = RedisServer::start();
    let ends = Arc::new(Mutex::new(Vec::new()));
    let replica = async || {
        let ends = Arc::clone(&ends);
        let store = server.store().clock(clock.clone()).connect().await.unwrap();
        RateLimiter::builder(store)
            .on_near_limit(move |_, usage| ends.lock().unwrap().push(usage.reset_at))
            .build()
            .unwrap()
    };
    let [one, other] = [replica().await, replica().await];
    drop(one.check_n(&ten_a_minute(), "alice", 8).await.unwrap());
    clock.advance(Duration::from_millis(12_345));
    drop(other.check(&ten_a_minute(), "alice").await.unwrap());
    assert_eq!(*ends.lock().unwrap(), [START + MINUTE; 2]);
}

#[tokio::test]
async fn outage_and_a_block_warn_of_nobody_and_make_no_key_forgotten() {
    let warnings = Warnings::default();
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let store = Scripted::new(
        move |memory, operation| match away.load(Ordering::Relaxed) {
            true => Answer::ready(Err(Error::timeout())),
            false => memory.apply(operation),
        },
    );
    let limiter = warnings.limiter(store);
    let window = || Limit::fixed_window("api", Quota::per_day(10));
    let bucket = || Limit::token_bucket("bucket", Quota::per_day(10));
    for limit in [window(), bucket()] {
        let limit = limit.and_then(|it| it.with_warn_at_percent(80)).unwrap();
        while !check(&limiter, &limit, "alice").await {}
        assert_eq!(warnings.take().len(), 1);
        is_away.store(true, Ordering::Relaxed);
        for policy in [
            OnStoreFailure::FailOpen,
            OnStoreFailure::FailClosed,
            OnStoreFailure::local(5),
        ] {
            let limit = limit.clone().with_on_store_failure(policy).unwrap();
            for key in ["alice", "bob", "bob"] {
                let decision = limiter.check(&limit, key).await.unwrap();
                assert!(
                    !decision.is_near_limit(),
                    "{limit}, {policy:?}: {decision:?}"
                );
            }
        }
        is_away.store(false, Ordering::Relaxed);
        limiter.block(&limit, "carol", 60 * MINUTE).await.unwrap();
        let blocked = limiter.check(&limit, "carol").await.unwrap();
        assert!(blocked.is_blocked() && !blocked.is_near_limit());
        let alice = limiter.check(&limit, "alice").await.unwrap();
        assert!(alice.is_near_limit());
        assert_eq!(warnings.take(), [""; 0], "{limit}");
    }
}

#[tokio::test]
async fn each_limit_of_a_group_warns_for_itself() {
    let warnings = Warnings::default();
    let limiter = warnings.limiter(MemoryStore::new());
    let daily = Limit::fixed_window("daily", Quota::per_day(5))
        .and_then(|limit| limit.with_warn_at_percent(60))
        .unwrap();
    let silent = Limit::fixed_window("silent", Quota::per_day(3)).unwrap();
    let group = || {
        let limits = [&ten_a_minute(), &daily, &silent];
        limits.map(|limit| Check::new(limit, Key::new("alice")))
    };
    for near in [false, false, true] {
        let decision = limiter.check_all(group()).await.unwrap();
        let is_near = decision.verdicts().iter().map(|it| it.is_near_limit());
        assert_eq!(is_near.collect::<Vec<_>>(), [false, near, false]);
        assert_eq!(decision.is_near_limit(), near);
    }
    assert_eq!(warnings.take(), ["alice has 2 of daily"]);
}

#[tokio::test]
async fn key_of_an_asynchronous_limit_is_warned_of_without_asking_redis() {
    let server = RedisServer::start();
    let warnings = Warnings::default();
    let limit = asynchronous_thousand_a_day();
    let limiter = warnings.limiter(server.store().connect().await.unwrap());
    let mut near = Vec::new();
    let mut allowed = 0;
    let began = Instant::now();
    while allowed < 1_000 {
        let decision = limiter.check(&limit, "alice").await.unwrap();
        // A check may be denied while the charge of the last units is in flight.
        assert!(began.elapsed() < MINUTE, "{allowed} are allowed");
        if !decision.allowed() {
            tokio::task::yield_now().await;
            continue;
        }
        allowed += 1;
        if decision.is_near_limit() {
            near.push(decision.source());
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(warnings.take().len(), 1);
    assert_eq!(near.len(), 201, "200 are left, or fewer");
    assert!(!limiter.check(&limit, "alice").await.unwrap().allowed());
    assert!(near.contains(&Source::Asynchronous));
}

#[tokio::test]
async fn limit_in_shadow_mode_and_a_peek_warn_of_nobody() {
    let warnings = Warnings::default();
    let limiter = warnings.limiter(MemoryStore::new());
    let shadow = ten_a_minute().with_shadow_mode();
    for _ in 0..12 {
        assert!(!check(&limiter, &shadow, "alice").await);
    }
    let limit = ten_a_minute();
    let peeked = limiter.peek(&limit, "bob", 9).await.unwrap();
    assert!(peeked.is_near_limit(), "a peek says what a charge would");
    assert_eq!(warnings.take(), [""; 0]);
}

#[tokio::test]
async fn requests_near_a_limit_have_a_header_and_the_event_names_the_key() {
    let (log, _guard) = Log::start();
    let key = Header::new("x-user").unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), ten_a_minute(), key).unwrap();
    let exposed = layer.clone().near_limit_header().exposed_headers();
    assert!(exposed.iter().any(|name| name == "x-ratelimit-near-limit"));
    let app = app(layer.near_limit_header());
    for used in 1..=11 {
        let request = request("GET", "/").header("x-user", "alice");
        let response = send(&app, request.body(Default::default()).unwrap()).await;
        assert_eq!(response.status(), if used > 10 { 429 } else { 200 });
        let header = response.headers().get("x-ratelimit-near-limit");
        let expected = (used >= 8).then_some(r#""api""#);
        assert_eq!(header.map(|it| it.to_str().unwrap()), expected, "{used}");
    }
    let lines = log.lines();
    let near: Vec<_> = lines.iter().filter(|it| it.contains("near")).collect();
    assert_eq!(near.len(), 1, "{lines:?}");
    for part in [
        " INFO ",
        "key near a limit",
        r#"limit="api" key=alice remaining=2 capacity=10"#,
    ] {
        assert!(near[0].contains(part), "{}", near[0]);
    }
}

#[test]
fn percentage_that_cannot_work_is_an_error_that_says_what_to_do() {
    let error = |limit: Result<Limit, ConfigError>, percent| {
        let limit = limit.unwrap().with_warn_at_percent(percent);
        limit.unwrap_err().to_string()
    };
    let window = || Limit::fixed_window("api", Quota::per_minute(10));
    for percent in [0, 59, 100, 255] {
        let error = error(window(), percent);
        assert!(error.contains("use 60 to 99"), "{error}");
        assert!(error.contains("limit `api`"), "{error}");
    }
    let error_of_small = error(Limit::gcra("api", Quota::per_minute(4)), 80);
    assert!(
        error_of_small.contains("80 percent of 4 units leave none"),
        "{error_of_small}"
    );
    let error = error(Limit::concurrency("exports", 10), 80);
    assert!(error.contains("permits are given back"), "{error}");
}
