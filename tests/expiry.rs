//! When keys in Redis expire: never before their budget is whole, and soon after.

#![cfg(feature = "redis")]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use redis::Commands;
use support::RedisServer;
use tollgate::{Charge, Key, Limit, ManualClock, Op, Quota, RateLimiter};

/// One limit under each algorithm, and a window of many cells.
fn limits(quota: Quota) -> [Limit; 7] {
    [
        Limit::token_bucket("token", quota),
        Limit::leaky_bucket_meter("leaky", quota),
        Limit::gcra("gcra", quota),
        Limit::fixed_window("fixed", quota),
        Limit::sliding_window("sliding", quota),
        Limit::sliding_window_of("cells", quota, 10),
        Limit::sliding_log("log", quota),
    ]
    .map(Result::unwrap)
}

async fn limiter(server: &RedisServer) -> RateLimiter {
    RateLimiter::new(server.store().connect().await.unwrap())
}

/// By a clock that is set by hand, which keeps keys for an hour more.
async fn limiter_by(clock: &ManualClock, server: &RedisServer) -> RateLimiter {
    let store = server.store().clock(clock.clone());
    RateLimiter::new(store.connect().await.unwrap())
}

/// To the millisecond, as keys expire.
fn server_time(connection: &mut redis::Connection) -> Duration {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    Duration::from_millis(seconds * 1_000 + micros / 1_000)
}

#[tokio::test]
async fn every_key_lives_as_long_as_its_state_matters_and_at_most_a_second_more() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let key = Key::new("alice");
    for limit in limits(Quota::per_minute(5)) {
        let decision = limiter.check_n(&limit, &key, 2).await.unwrap();
        let redis_key = format!("tollgate:{{alice}}:{}", limit.name());
        let left: u64 = behind.pttl::<_, i64>(&redis_key).unwrap().try_into().unwrap();
        let reset = decision.reset_after();
        assert!(u128::from(left) <= reset.as_millis() + 1_000, "{limit}: {left} {reset:?}");
        // Time has passed since.
        assert!(Duration::from_millis(left) + Duration::from_secs(5) > reset, "{limit}");
    }
    assert_eq!(behind.keys::<_, Vec<String>>("*").unwrap().len(), 7);
}

#[tokio::test]
async fn no_key_expires_before_its_budget_is_whole_however_it_was_charged() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let limiter = limiter_by(&clock, &server).await;
    let mut behind = server.connection();
    let key = Key::new("alice");
    let quota = Quota::new(1_000, Duration::from_secs(20));
    let limits = limits(quota);
    let redis_key = |charge: &Charge<'_>| format!("tollgate:{{alice}}:{}", charge.limit.name());
    // By this clock, when each key was set to expire.
    let mut expiries: HashMap<&str, Duration> = HashMap::new();
    let mut now = Duration::from_secs(1_000_000);
    for round in 0..400_u32 {
        // Few and large, then many and small, so that a log gets long.
        let (pause, most) = if round / 100 % 2 == 0 { (3_000_000, 60) } else { (100_000, 6) };
        now += Duration::from_micros(u64::from(round) * 7_919_333 % pause);
        clock.set(now);
        let cost = 1 + round * 7 % most;
        let charges: Vec<_> = limits.iter().map(|limit| limit.charge(&key, cost)).collect();
        // One by one, or all but the log together, of which no group is charged in the usual way.
        let together = if round % 4 == 3 { limits.len() - 1 } else { 1 };
        let op = if round % 5 == 4 { Op::Refund } else { Op::Charge };
        for group in charges.chunks(together) {
            // An expiry that no check would write: if it is still there afterwards, none did.
            for charge in group {
                let _: bool = behind.expire(redis_key(charge), 1_000_000).unwrap();
            }
            let asked_at = server_time(&mut behind);
            let decision = limiter.apply(op, group).await.unwrap();
            for (charge, verdict) in group.iter().zip(decision.verdicts()) {
                let left: i64 = behind.pttl(redis_key(charge)).unwrap();
                let Ok(left) = left.try_into().map(Duration::from_millis) else {
                    assert!(verdict.reset_after().is_zero(), "{} has no expiry", charge.limit);
                    continue;
                };
                if left < 100 * HOUR {
                    // Under a clock that is set by hand, keys live for an hour more.
                    let expires_at = server_time(&mut behind) + left - HOUR;
                    expiries.insert(charge.limit.name(), expires_at - asked_at + now);
                }
                let set = expiries[charge.limit.name()];
                assert!(set >= now + verdict.reset_after(), "{}: {set:?} {now:?}", charge.limit);
            }
        }
    }
}

#[tokio::test]
async fn a_log_that_starts_anew_gives_the_memory_of_the_old_one_back() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let limiter = limiter_by(&clock, &server).await;
    let limit = Limit::sliding_log("log", Quota::new(100, Duration::from_millis(100))).unwrap();
    let key = Key::new("alice");
    clock.set(Duration::from_secs(1_000_000));
    for _ in 0..80 {
        clock.advance(Duration::from_millis(1));
        limiter.check(&limit, &key).await.unwrap();
    }
    // All have left, and the new log ends within the same second as the old one.
    clock.advance(Duration::from_millis(200));
    limiter.check(&limit, &key).await.unwrap();
    let length: usize =
        redis::cmd("STRLEN").arg("tollgate:{alice}:log").query(&mut server.connection()).unwrap();
    assert_eq!(length, 56, "the head alone");
}

#[tokio::test]
async fn an_expiry_is_written_once_a_second_and_not_with_each_charge() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let limiter = limiter_by(&clock, &server).await;
    let within_a_second = Duration::from_millis(1_000_000_500);
    // 100 units a second, or 100 in a window that ends in an hour.
    let (each_second, in_a_window) =
        (Quota::per_second(100), Quota::new(100, Duration::from_secs(3_600)));
    let [buckets, windows] = [each_second, in_a_window].map(limits);
    let limits = buckets[..3].iter().chain(&windows[3..]);
    let key = Key::new("alice");
    let seen = || ["psetex", "setrange"].map(|command| server.calls(command));
    for limit in limits {
        let [expiries, values] = seen();
        clock.set(within_a_second);
        for _ in 0..20 {
            clock.advance(Duration::from_millis(10));
            assert!(limiter.check(limit, &key).await.unwrap().allowed());
        }
        assert_eq!(seen(), [expiries + 1, values + 19], "{limit}");
    }
    // The same, where several limits decide together.
    let [one, other] = ["one", "other"].map(|name| Limit::gcra(name, each_second).unwrap());
    let [expiries, values] = seen();
    clock.set(within_a_second);
    for _ in 0..20 {
        clock.advance(Duration::from_millis(10));
        let both = [one.charge(&key, 1), other.charge(&key, 1)];
        assert!(limiter.apply(Op::Charge, &both).await.unwrap().allowed());
    }
    assert_eq!(seen(), [expiries + 2, values + 38]);
}

#[tokio::test]
async fn the_first_charge_in_a_cell_makes_its_key_live_longer() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let key = Key::new("alice");
    const DAY: u64 = 24 * 60 * 60 * 1_000_000;
    for cells in [1, 10_u32] {
        let quota = Quota::new(100, Duration::from_micros(DAY));
        let limit = Limit::sliding_window_of("limit", quota, cells).unwrap();
        let redis_key = "tollgate:{alice}:limit";
        limiter.check_n(&limit, &key, 5).await.unwrap();
        // As it is after a refund of all that was used in this cell: the one before it ends sooner.
        let mut value: Vec<u8> = behind.get(redis_key).unwrap();
        value.copy_within(14..21, 21);
        value[14..21].fill(0);
        let sooner = DAY / u64::from(cells) / 1_000;
        let before: u64 = behind.pttl::<_, i64>(redis_key).unwrap().try_into().unwrap();
        let _: () = behind.pset_ex(redis_key, value, before - sooner).unwrap();
        let reset = limiter.check(&limit, &key).await.unwrap().reset_after();
        let left: u64 = behind.pttl::<_, i64>(redis_key).unwrap().try_into().unwrap();
        assert!(left > before - 5_000, "{cells} cells: {left} ms of {before} ms");
        assert!(Duration::from_millis(left) + Duration::from_secs(5) > reset, "{cells} cells");
        limiter.reset(&limit, &key).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_lost_its_time_to_live_does_not_lock_anyone_out() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let limiter = limiter_by(&clock, &server).await;
    let mut behind = server.connection();
    let key = Key::new("alice");
    for limit in limits(Quota::per_minute(5)) {
        clock.set(Duration::from_secs(1_790_000_000));
        limiter.check_n(&limit, &key, 5).await.unwrap();
        let () = behind.persist(format!("tollgate:{{alice}}:{}", limit.name())).unwrap();
        // Two minutes: a window that moves in cells holds on for a cell longer than its period.
        clock.advance(Duration::from_secs(120));
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 4, "{limit}");
    }
}
