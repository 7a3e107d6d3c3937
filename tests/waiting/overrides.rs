//! Callers that wait when the override of their key changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[cfg(feature = "axum")]
use axum::body::Body;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
#[cfg(feature = "axum")]
use tollgate::RateLimitLayer;
use tollgate::clock::ManualClock;
#[cfg(feature = "axum")]
use tollgate::key::Header;
use tollgate::overrides::{Override, Overrides};
use tollgate::{Check, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::budget::every_algorithm;
#[cfg(feature = "axum")]
use crate::support::requests::{app, request, send};

const SECOND: Duration = Duration::from_secs(1);
const HALF_A_DAY: Duration = Duration::from_secs(12 * 60 * 60);
const HOUR_US: u64 = 3_600_000_000;

fn with_overrides() -> (Overrides, RateLimiter) {
    let overrides = Overrides::new();
    let builder = RateLimiter::builder(MemoryStore::new()).overrides(&overrides);
    (overrides, builder.build().unwrap())
}

/// Limits of one an hour. In the queue of a leaky bucket, each caller has its place already, and an
/// aligned window may end at any moment.
fn one_an_hour() -> Vec<Limit> {
    let mut limits = every_algorithm(1, HOUR_US);
    limits.retain(|limit| !["leaky_bucket", "fixed_window_aligned"].contains(&limit.name()));
    limits
}

/// Three callers that wait for a unit of acme. Each returns whether it was allowed.
async fn waiters(limiter: &RateLimiter, limit: &Limit) -> JoinSet<bool> {
    assert!(limiter.check(limit, "acme").await.unwrap().allowed());
    let mut waiters = JoinSet::new();
    for _ in 0..3 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        waiters.spawn(async move {
            let decision = limiter.acquire(&limit, "acme", 1, HALF_A_DAY).await;
            decision.unwrap().allowed()
        });
    }
    // Time is virtual, so all of them wait after this second.
    sleep(SECOND).await;
    waiters
}

#[tokio::test(start_paused = true)]
async fn raised_quota_ends_the_wait_of_each_caller_under_every_algorithm() {
    for limit in one_an_hour() {
        let (overrides, limiter) = with_overrides();
        let began = Instant::now();
        let waiters = waiters(&limiter, &limit).await;
        let raised = Override::quota(limit.name(), "acme", Quota::per_minute(6_000));
        overrides.set(raised).await.unwrap();
        assert_eq!(waiters.join_all().await, [true; 3], "{limit}");
        assert!(began.elapsed() < 2 * SECOND, "{limit}");
        let later = limiter.acquire(&limit, "acme", 1, SECOND).await.unwrap();
        assert!(later.allowed(), "{limit}: no caller waits in front of it");
        assert_eq!(
            later.remaining(),
            6_000 - 5,
            "{limit}: each unit is charged once"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn exemption_and_denial_end_the_wait_of_each_caller_under_every_algorithm() {
    for limit in one_an_hour() {
        for is_exempt in [true, false] {
            let (overrides, limiter) = with_overrides();
            let began = Instant::now();
            let waiters = waiters(&limiter, &limit).await;
            let set = match is_exempt {
                true => Override::unlimited(limit.name(), "acme"),
                false => Override::denied(limit.name(), "acme", "suspended"),
            };
            overrides.set(set).await.unwrap();
            assert_eq!(waiters.join_all().await, [is_exempt; 3], "{limit}");
            assert_eq!(began.elapsed(), SECOND, "{limit}");
            // Nothing stays reserved for those that waited.
            overrides.remove(limit.name(), "acme").await.unwrap();
            sleep(2 * 3_600 * SECOND).await;
            let next = limiter.check(&limit, "acme").await.unwrap();
            assert!(next.allowed(), "{limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn override_of_another_key_changes_no_wait() {
    for limit in one_an_hour() {
        let (overrides, limiter) = with_overrides();
        let began = Instant::now();
        let mut waiters = waiters(&limiter, &limit).await;
        for key in ["bob", "carol"] {
            overrides
                .set(Override::unlimited(limit.name(), key))
                .await
                .unwrap();
        }
        assert!(waiters.join_next().await.unwrap().unwrap(), "{limit}");
        assert!(began.elapsed() > 3_000 * SECOND, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_an_override_ends_a_wait_under_it() {
    let clock = ManualClock::new();
    let start = 1_790_000_000 * SECOND;
    clock.set(start);
    let overrides = Overrides::with_clock(clock.clone());
    let builder = RateLimiter::builder(MemoryStore::new()).overrides(&overrides);
    let limiter = builder.build().unwrap();
    let limit = Limit::sliding_log("log", Quota::per_hour(100)).unwrap();
    let end = SystemTime::UNIX_EPOCH + start + 60 * SECOND;
    let lowered = Override::quota("log", "acme", Quota::per_hour(1)).until(end);
    overrides.set(lowered).await.unwrap();
    let began = Instant::now();
    let waiters = waiters(&limiter, &limit).await;
    clock.advance(60 * SECOND);
    assert_eq!(waiters.join_all().await, [true; 3]);
    // When the callers began to wait, it had 60 seconds to go.
    assert_eq!(began.elapsed(), 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_for_a_permit_follows_the_override_of_its_key() {
    let exports = Limit::concurrency("exports", 1).unwrap();
    for (set, is_granted) in [
        (Override::permits("exports", "acme", 2), true),
        (Override::unlimited("exports", "acme"), true),
        (Override::denied("exports", "acme", "suspended"), false),
    ] {
        let (overrides, limiter) = with_overrides();
        let acquire = async |limiter: RateLimiter, limit: Limit| {
            let permit = limiter.acquire_permit(&limit, "acme", HALF_A_DAY).await;
            permit.unwrap()
        };
        let held = acquire(limiter.clone(), exports.clone()).await.unwrap();
        let waiter = tokio::spawn(acquire(limiter.clone(), exports.clone()));
        sleep(SECOND).await;
        let began = Instant::now();
        overrides.set(set).await.unwrap();
        let permit = waiter.await.unwrap();
        assert_eq!(permit.is_some(), is_granted);
        assert!(began.elapsed() < SECOND);
        drop((held, permit));
        overrides.remove("exports", "acme").await.unwrap();
        let next = limiter.try_acquire_permit(&exports, "acme").await.unwrap();
        assert!(next.is_some(), "no caller waits in front of it");
    }
}

#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn request_that_waits_follows_the_override_of_its_client() {
    for (set, status, body, capacity) in [
        (
            Override::quota("api", "acme", Quota::per_minute(50)),
            200,
            "hello",
            Some("50"),
        ),
        (Override::unlimited("api", "acme"), 200, "hello", None),
        (
            Override::denied("api", "acme", "suspended"),
            403,
            "suspended",
            None,
        ),
    ] {
        let (overrides, limiter) = with_overrides();
        let key = Header::new("user").unwrap();
        let layer = RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(1), key);
        let app = app(layer.unwrap().wait_up_to(60 * SECOND).unwrap());
        let of_acme = || {
            let request = request("GET", "/").header("user", "acme");
            request.body(Body::empty()).unwrap()
        };
        assert_eq!(send(&app, of_acme()).await.status(), 200);
        let waiting = {
            let (app, request) = (app.clone(), of_acme());
            tokio::spawn(async move { send(&app, request).await })
        };
        sleep(SECOND).await;
        overrides.set(set).await.unwrap();
        let response = waiting.await.unwrap();
        assert_eq!(response.status(), status);
        let header = response.headers().get("x-ratelimit-limit").cloned();
        assert_eq!(header.as_ref().map(|it| it.to_str().unwrap()), capacity);
        let text = axum::body::to_bytes(response.into_body(), 1_000)
            .await
            .unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains(body), "{text}");
    }
}

#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn request_that_waits_for_a_permit_is_answered_by_the_denial_of_its_client() {
    let (overrides, limiter) = with_overrides();
    let exports = Limit::concurrency("exports", 1).unwrap();
    let layer = RateLimitLayer::new(&limiter, exports.clone(), Header::new("user").unwrap());
    let app = app(layer.unwrap().wait_up_to(60 * SECOND).unwrap());
    let held = limiter.try_acquire_permit(&exports, "acme").await.unwrap();
    let waiting = tokio::spawn(async move {
        let request = request("GET", "/").header("user", "acme");
        send(&app, request.body(Body::empty()).unwrap()).await
    });
    sleep(SECOND).await;
    let denied = Override::denied("exports", "acme", "suspended");
    overrides.set(denied).await.unwrap();
    assert_eq!(waiting.await.unwrap().status(), 403);
    drop(held);
}

#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn override_that_is_set_while_a_request_waits_for_a_permit_counts_for_its_rate_as_well() {
    let exports = Limit::concurrency("exports", 1).unwrap();
    for (set, status, capacity) in [
        (Override::denied("api", "acme", "suspended"), 403, None),
        (Override::unlimited("api", "acme"), 200, None),
        (
            Override::quota("api", "acme", Quota::per_hour(50)),
            200,
            Some("50"),
        ),
    ] {
        let (overrides, limiter) = with_overrides();
        let key = || Header::new("user").unwrap();
        let layer = RateLimitLayer::fixed_window(&limiter, "api", Quota::per_hour(5), key());
        let layer = layer.unwrap().limit(exports.clone(), key()).unwrap();
        let app = app(layer.wait_up_to(60 * SECOND).unwrap());
        let held = limiter.try_acquire_permit(&exports, "acme").await.unwrap();
        let waiting = tokio::spawn(async move {
            let request = request("GET", "/").header("user", "acme");
            send(&app, request.body(Body::empty()).unwrap()).await
        });
        sleep(SECOND).await;
        overrides.set(set).await.unwrap();
        sleep(SECOND).await;
        drop(held);
        let response = waiting.await.unwrap();
        assert_eq!(response.status(), status);
        let header = response.headers().get("x-ratelimit-limit");
        assert_eq!(header.map(|it| it.to_str().unwrap()), capacity);
    }
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_follows_thousands_of_changes() {
    for limit in one_an_hour() {
        let (overrides, limiter) = with_overrides();
        let waiters = waiters(&limiter, &limit).await;
        for number in 0..3_000 {
            let quota = Quota::new(1, Duration::from_secs(3_600 + number % 2));
            let changed = Override::quota(limit.name(), "acme", quota);
            overrides.set(changed).await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
        overrides
            .set(Override::unlimited(limit.name(), "acme"))
            .await
            .unwrap();
        assert_eq!(waiters.join_all().await, [true; 3], "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn group_that_waits_is_denied_with_the_denial_of_one_of_its_keys() {
    let (overrides, limiter) = with_overrides();
    let tenant = Limit::token_bucket("tenant", Quota::per_hour(1)).unwrap();
    let user = Limit::sliding_log("user", Quota::per_hour(100)).unwrap();
    let group = || [Check::new(&tenant, "acme"), Check::new(&user, "alice")];
    assert!(limiter.check(&tenant, "acme").await.unwrap().allowed());
    let waiting = {
        let (limiter, group) = (limiter.clone(), group());
        tokio::spawn(async move { limiter.acquire_all(group, HALF_A_DAY).await.unwrap() })
    };
    sleep(SECOND).await;
    let denied = Override::denied("user", "alice", "suspended");
    overrides.set(denied).await.unwrap();
    let decision = waiting.await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.verdicts().len(), 2);
    assert_eq!(decision.deciding().limit().name(), "user");
    // Nothing was charged to either.
    overrides.remove("user", "alice").await.unwrap();
    let left = limiter.peek(&user, "alice", 0).await.unwrap().remaining();
    assert_eq!(left, 100);
}

/// A bucket gives nothing back if another process has charged it at another rate.
#[tokio::test(start_paused = true)]
async fn units_that_two_processes_have_reserved_stay_reserved_through_small_changes() {
    let store = Arc::new(MemoryStore::new());
    let overrides = Overrides::new();
    let processes = [(); 2].map(|()| {
        let builder = RateLimiter::builder(Arc::clone(&store)).overrides(&overrides);
        builder.build().unwrap()
    });
    let limit = Limit::token_bucket("api", Quota::new(1, 10 * SECOND)).unwrap();
    assert!(processes[0].check(&limit, "acme").await.unwrap().allowed());
    let began = Instant::now();
    let mut waiting = JoinSet::new();
    for process in processes {
        let limit = limit.clone();
        waiting.spawn(async move {
            let decision = process.acquire(&limit, "acme", 1, 120 * SECOND).await;
            (decision.unwrap().allowed(), began.elapsed())
        });
    }
    for number in 0..10 {
        sleep(Duration::from_millis(100)).await;
        let period = Duration::from_millis(9_900 + 100 * (number % 2));
        let changed = Override::quota("api", "acme", Quota::new(1, period));
        overrides.set(changed).await.unwrap();
    }
    let mut served = waiting.join_all().await;
    served.sort_unstable();
    assert_eq!(served, [(true, 10 * SECOND), (true, 20 * SECOND)]);
}
