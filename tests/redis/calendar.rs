//! Fixed windows of the calendar, in memory and on Redis.

#![cfg(all(feature = "axum", feature = "calendar", feature = "redis"))]

use std::time::Duration;

use redis::Commands;
use tollgate::clock::ManualClock;
use tollgate::decision::Source;
use tollgate::key::Global;
use tollgate::layer::IetfDraft;
use tollgate::store::{Budget, Change, Operation, Payment, Store};
use tollgate::{Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::requests::{app, plain, send};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 60 * 60;

/// March 15, 2026, 00:00 in Berlin, which is 23:00 in UTC.
const MARCH: Duration = Duration::from_secs(1_773_529_200);
/// April 15, 2026, 00:00 in Berlin, which is 22:00 in UTC, because clocks were set forward.
const APRIL: Duration = Duration::from_secs(1_776_204_000);

fn window(quota: Quota) -> Limit {
    Limit::fixed_window("api", quota).unwrap()
}

/// Where alice's budget is in Redis.
fn limit_key(limit: &Limit) -> String {
    format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name())
}

fn billing_month(units: u64) -> Quota {
    let month = Quota::per_month(units).starting_on_day(15).unwrap();
    month.in_time_zone("Europe/Berlin").unwrap()
}

/// A day of the calendar, in UTC.
fn day(units: u64) -> Quota {
    Quota::per_day(units).in_time_zone("UTC").unwrap()
}

/// A limiter in memory and one on Redis, with a clock that is set by hand.
async fn both(server: &RedisServer) -> (ManualClock, [RateLimiter; 2]) {
    let clock = ManualClock::new();
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = server.store().clock(clock.clone()).connect().await.unwrap();
    (clock, [memory, RateLimiter::new(redis)])
}

#[tokio::test]
async fn billing_month_ends_at_its_instant_for_every_key() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let limit = window(billing_month(3));
    for limiter in limiters {
        clock.set(MARCH - SECOND);
        for (key, used) in [("alice", 3), ("bob", 1)] {
            let decision = limiter.check_n(&limit, key, used).await.unwrap();
            assert_eq!(decision.reset_after(), SECOND, "{key}");
        }
        let denied = limiter.check(&limit, "alice").await.unwrap();
        assert_eq!(denied.retry_after(), Some(SECOND));
        clock.set(MARCH);
        let allowed = limiter.check(&limit, "alice").await.unwrap();
        assert_eq!(
            (allowed.remaining(), allowed.reset_after()),
            (2, APRIL - MARCH)
        );
        assert_eq!(APRIL - MARCH, Duration::from_secs(31 * 86_400 - 3_600));
    }
}

#[tokio::test]
async fn headers_have_the_length_of_this_month_and_the_instant_of_its_end() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    for limiter in limiters {
        clock.set(MARCH);
        let layer = RateLimitLayer::new(&limiter, window(billing_month(1)), Global).unwrap();
        let app = app(layer.ietf_headers(IetfDraft::Draft11));
        let response = send(&app, plain("/")).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        let length = (APRIL - MARCH).as_secs();
        assert_eq!(
            header("ratelimit-policy"),
            format!("\"api\";q=1;w={length}")
        );
        assert_eq!(header("ratelimit"), format!("\"api\";r=0;t={length}"));
        assert_eq!(header("x-ratelimit-reset"), APRIL.as_secs().to_string());
        // A denial names the same instant, although its `Retry-After` is rounded up.
        clock.set(MARCH + Duration::from_millis(400));
        let denied = send(&app, plain("/")).await;
        let header = |name: &str| denied.headers()[name].to_str().unwrap();
        assert_eq!(header("retry-after"), length.to_string());
        assert_eq!(header("x-ratelimit-reset"), APRIL.as_secs().to_string());
    }
}

#[tokio::test]
async fn other_calendar_and_other_quota_of_a_name_share_what_a_key_has_used() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let month = window(billing_month(10));
    let day = window(day(10));
    let thirty_days = Limit::fixed_window("api", Quota::new(10, 30 * 24 * 3_600 * SECOND)).unwrap();
    for limiter in limiters {
        clock.set(MARCH);
        for (number, limit) in [&month, &day, &thirty_days, &day, &month, &thirty_days]
            .into_iter()
            .enumerate()
        {
            let decision = limiter.check(limit, "alice").await.unwrap();
            assert_eq!(decision.remaining(), 9 - number as u64, "{limit}");
        }
        // The day is over, and the others are not.
        clock.set(MARCH + 3_600 * SECOND);
        let remaining = async |limit: &Limit| {
            let decision = limiter.peek(limit, "alice", 1).await.unwrap();
            decision.remaining()
        };
        assert_eq!(remaining(&day).await, 9);
        assert_eq!(remaining(&month).await, 3);
        assert_eq!(remaining(&thirty_days).await, 3);
        // The new day has what the month is charged in it, and nothing else.
        let charged = limiter.check(&month, "alice").await.unwrap();
        assert_eq!(charged.remaining(), 3);
        let day = limiter.check(&day, "alice").await.unwrap();
        assert_eq!(day.remaining(), 8);
        assert_eq!(day.reset_after(), 24 * 3_600 * SECOND);
    }
}

#[tokio::test]
async fn server_whose_clock_is_wrong_decides_by_its_own_time_or_not_at_all() {
    for (hours, quota, is_decided) in [
        (3, day(3), true),
        (-3, day(3), true),
        (26, Quota::per_month(3), true),
        (-26, Quota::per_month(3), true),
        (49, day(3), false),
        (-49, day(3), false),
    ] {
        let server = RedisServer::start_with_clock(hours * HOUR, &[]);
        let limiter = RateLimiter::new(server.store().connect().await.unwrap());
        let limit = window(quota);
        let answer = limiter.check(&limit, Key::global()).await;
        let error = match (answer, is_decided) {
            (Ok(decision), true) => {
                let end = decision.decided_at() + decision.reset_after();
                assert_eq!(end.as_micros() % 3_600_000_000, 0, "{hours} h, {end:?}");
                let other = limiter.check(&limit, Key::global()).await.unwrap();
                assert_eq!(other.remaining(), 1);
                continue;
            }
            (answer, _) => answer.unwrap_err(),
        };
        assert!(!is_decided, "{hours} h: {error}");
        assert!(error.to_string().contains("clocks"), "{error}");
        assert!(!error.may_have_charged());
        let keys: u64 = redis::cmd("DBSIZE")
            .query(&mut server.connection())
            .unwrap();
        assert_eq!(keys, 0, "nothing was written");
    }
}

#[tokio::test]
async fn key_goes_on_in_its_stored_window_and_is_reset_whatever_the_clock_of_a_process_says() {
    let limit = window(day(3));
    let key = limit_key(&limit);
    let right = RedisServer::start();
    let limiter = RateLimiter::new(right.store().connect().await.unwrap());
    drop(limiter.check(&limit, "alice").await.unwrap());
    let value: Vec<u8> = right.connection().get(&key).unwrap();
    let wrong = RedisServer::start_with_clock(49 * HOUR, &[]);
    let mut connection = wrong.connection();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    // Kind, count, the time of the last charge, the end, the calendar, the first refundable charge.
    let day_end = (seconds / 86_400 + 1) * 86_400;
    let micros = |seconds: u64| (1_000_000 * seconds).to_be_bytes()[1..].to_vec();
    let two = 2_u64.to_be_bytes()[1..].to_vec();
    let stored = [
        vec![1],
        two,
        micros(seconds),
        micros(day_end),
        value[22..28].to_vec(),
        micros(seconds),
    ]
    .concat();
    let () = connection.set(&key, stored).unwrap();

    let limiter = RateLimiter::new(wrong.store().connect().await.unwrap());
    let third = limiter.check(&limit, "alice").await.unwrap();
    assert_eq!((third.allowed(), third.remaining()), (true, 0));
    let denied = limiter.check(&limit, "alice").await.unwrap();
    assert!(!denied.allowed());
    let ends_at = denied.decided_at() + denied.retry_after().unwrap();
    assert_eq!(ends_at, Duration::from_secs(day_end));
    limiter.reset(&limit, "alice").await.unwrap();
    let error = limiter.check(&limit, "alice").await.unwrap_err();
    assert!(error.to_string().contains("clocks"), "{error}");
    let left: Option<Vec<u8>> = connection.get(&key).unwrap();
    assert_eq!(left, None, "nothing was written");
}

#[tokio::test]
async fn replicas_decide_a_month_without_waiting_and_pass_its_limit_exactly() {
    let server = RedisServer::start();
    let limit = window(billing_month(2_000)).asynchronous().unwrap();
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(RateLimiter::new(server.store().connect().await.unwrap()));
    }
    let (mut allowed, mut decided_here) = (0, 0);
    let mut denied_in_a_row = 0;
    while denied_in_a_row < 4 {
        for replica in &replicas {
            let decision = replica.check(&limit, "alice").await.unwrap();
            allowed += u64::from(decision.allowed());
            decided_here += u64::from(decision.source() == Source::Asynchronous);
            denied_in_a_row = match decision.allowed() {
                true => 0,
                false => denied_in_a_row + 1,
            };
        }
        tokio::task::yield_now().await;
    }
    assert!(allowed <= 2_000, "{allowed}");
    assert!(allowed > 1_900, "{allowed}");
    assert!(decided_here > 1_000, "{decided_here}");
}

/// The server's time, in seconds.
fn clock(server: &RedisServer) -> u64 {
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
    seconds
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_to_a_clock_that_is_off_goes_on_in_the_stored_day() {
    const DAY: Duration = Duration::from_secs(86_400);
    // The clock of the promoted replica, when the day starts by the hour of the clock, and how many
    // units the replica allows.
    for (ahead, start, allowed) in [
        (3, 12, 0),
        (-3, 12, 0),
        // By the replica's clock, the day has not started.
        (-3, -1, 0),
        // By the replica's clock, the day is over, so the next one has all its units.
        (3, 2, 10),
    ] {
        let master = RedisServer::start();
        let port = master.port().to_string();
        let replica_of = ["--replicaof", "127.0.0.1", &port];
        let replica = RedisServer::start_with_clock(ahead * HOUR, &replica_of);
        let hour = (clock(&master) / 3_600 % 24) as i64;
        let start = u8::try_from((hour + start).rem_euclid(24)).unwrap();
        let limit = window(Quota::per_day(10).starting_at_hour(start).unwrap());
        let before = RateLimiter::new(master.store().connect().await.unwrap());
        for _ in 0..10 {
            assert!(before.check(&limit, "alice").await.unwrap().allowed());
        }
        let denied = before.check(&limit, "alice").await.unwrap();
        let end = denied.decided_at() + denied.retry_after().unwrap();
        let replicated: u32 = {
            let mut connection = master.connection();
            let () = connection.set("written", 1).unwrap();
            let mut wait = redis::cmd("WAIT");
            wait.arg(1).arg(60_000).query(&mut connection).unwrap()
        };
        assert_eq!(replicated, 1);
        drop(master);
        let mut connection = replica.connection();
        let () = redis::cmd("REPLICAOF")
            .arg(&["NO", "ONE"])
            .query(&mut connection)
            .unwrap();

        let after = RateLimiter::new(replica.store().connect().await.unwrap());
        let mut passed = 0;
        let denied = loop {
            let decision = after.check(&limit, "alice").await.unwrap();
            match decision.allowed() {
                true => passed += 1,
                false => break decision,
            }
        };
        assert_eq!(passed, allowed, "{ahead} h, {limit}");
        let ends_at = denied.decided_at() + denied.retry_after().unwrap();
        let next_day = if allowed > 0 { DAY } else { Duration::ZERO };
        assert_eq!(ends_at, end + next_day, "{ahead} h, {limit}");
    }
}

#[tokio::test]
async fn payment_to_a_server_whose_clock_is_wrong_charges_nothing_and_counts_once_elsewhere() {
    let limit = window(day(10));
    let payment = Change::Pay(Payment::new(*b"process1", 1, 4));
    let payment = Operation::Change(Budget::new(&limit, "alice"), payment);
    let wrong = RedisServer::start_with_clock(49 * HOUR, &[]);
    let store = wrong.store().connect().await.unwrap();
    let error = store.apply(payment.clone()).await.unwrap_err();
    assert!(error.to_string().contains("clocks"), "{error}");
    assert!(!error.may_have_charged());
    let keys: u64 = redis::cmd("DBSIZE").query(&mut wrong.connection()).unwrap();
    assert_eq!(keys, 0, "nothing was written");
    let right = RedisServer::start();
    let store = right.store().connect().await.unwrap();
    for _ in 0..2 {
        let paid = store.apply(payment.clone()).await.unwrap();
        assert_eq!(paid.remaining(), 6);
    }
}
