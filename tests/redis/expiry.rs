//! Expiry of keys in Redis: never before the budget is fully replenished, and soon after.

#![cfg(feature = "redis")]

use std::time::{Duration, Instant};

use crate::support::RedisServer;
use crate::support::op::Op;
use redis::Commands;
use tollgate::clock::ManualClock;
use tollgate::store::{Group, Operation};
use tollgate::{Check, Key, Limit, Quota, RateLimiter};

/// One limit under each algorithm, and a sliding window with many sub-windows.
fn limits(quota: Quota) -> [Limit; 7] {
    [
        Limit::token_bucket("token", quota),
        Limit::leaky_bucket_meter("leaky", quota),
        Limit::gcra("gcra", quota),
        Limit::fixed_window("fixed", quota),
        Limit::sliding_window("sliding", quota),
        Limit::sliding_window_with("sub_windows", quota, 10),
        Limit::sliding_log("log", quota),
    ]
    .map(Result::unwrap)
}

/// A limiter with a manual clock, whose keys expire an hour later.
async fn limiter_with(clock: &ManualClock, server: &RedisServer) -> RateLimiter {
    let store = server.store().clock(clock.clone());
    RateLimiter::new(store.connect().await.unwrap())
}

/// The server's time in whole milliseconds, as keys expire.
fn server_time(connection: &mut redis::Connection) -> Duration {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    Duration::from_millis(seconds * 1_000 + micros / 1_000)
}

#[tokio::test]
async fn key_expires_soon_after_full_replenishment() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    let quotas = [
        Quota::per_second(5),
        Quota::per_minute(5),
        Quota::per_day(5),
    ];
    for limit in quotas.into_iter().flat_map(limits) {
        limiter.reset(&limit, &key).await.unwrap();
        let asked_at = server_time(&mut connection);
        let decision = limiter.check_n(&limit, &key, 2).await.unwrap();
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        let left: u64 = connection
            .pttl::<_, i64>(&redis_key)
            .unwrap()
            .try_into()
            .unwrap();
        let reset = decision.reset_after();
        let latest = reset + (reset / 4).max(Duration::from_secs(1));
        assert!(
            u128::from(left) <= latest.as_millis(),
            "{limit}: {left} {reset:?}"
        );
        // Read afterwards: on a busy machine this check is weaker, and does not fail.
        let expires_at = server_time(&mut connection) + Duration::from_millis(left);
        let earliest = expiry(&limit, asked_at + reset, reset);
        assert!(
            expires_at >= earliest,
            "{limit}: {expires_at:?} {earliest:?}"
        );
    }
    assert_eq!(connection.keys::<_, Vec<String>>("*").unwrap().len(), 7);
}

/// When the key of a budget expires that is full at a time, so long after its last charge.
fn expiry(limit: &Limit, full_at: Duration, lasts: Duration) -> Duration {
    let mut step = Duration::from_secs(1);
    while ["b", "l"].contains(&limit.kind()) && lasts >= step * 16 {
        step *= 4;
    }
    let steps = full_at.as_nanos().div_ceil(step.as_nanos());
    step * u32::try_from(steps).unwrap()
}

#[tokio::test]
async fn no_key_expires_before_its_budget_is_full() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let clock = ManualClock::new();
    let past = limiter_with(&clock, &server).await;
    let mut connection = server.connection();
    let quotas = [120, 700, 3_000, 40_000, 1_000_000]
        .map(|millis| limits(Quota::new(1_000, Duration::from_millis(millis))));
    for round in 0..120_usize {
        let key = Key::from(round as u64);
        let redis_key =
            |limit: &Limit| format!("tollgate:{{{round}}}:{}:{}", limit.kind(), limit.name());
        // Charges in the past, up to 40, under this quota or another one: most of the capacity.
        let ago = Duration::from_micros(round as u64 * 791_933 % 2_900_000);
        let charges = [1, 3, 1, 3, 3, 40_u32][round % 6];
        let mut receipts = Vec::new();
        for limit in &quotas[(round + round / 90) % 5] {
            let mut then = server_time(&mut connection) - ago;
            let (mut reset_after, mut receipt) = (Duration::ZERO, None);
            for _ in 0..charges {
                then += Duration::from_millis(1);
                clock.set(then);
                let decision = past.check_n(limit, &key, 800 / charges).await.unwrap();
                reset_after = decision.reset_after();
                receipt = decision.receipt().or(receipt);
            }
            receipts.push(receipt);
            // The expiry that the server's clock would have given it.
            let at = expiry(limit, then + reset_after, reset_after);
            let at = at.as_millis().try_into().unwrap();
            let _: bool = connection.pexpire_at(redis_key(limit), at).unwrap();
        }
        // One by one, all but the log as a group, or all: a group with a log takes the slow path.
        let together = [1, 6, 7][round % 3];
        // A refund under another quota only peeks.
        let checks = quotas[round % 5]
            .each_ref()
            .map(|limit| Check::new(limit, &key).with_cost(100));
        let operations: Vec<Operation> = if round % 7 == 4 && round < 90 {
            let refunds = checks.clone().into_iter().zip(receipts);
            refunds
                .map(|(check, receipt)| Op::Refund.on(check, receipt, Duration::ZERO))
                .collect()
        } else {
            let groups = checks.chunks(together);
            groups
                .map(|group| Operation::Charge(Group::new(group).unwrap()))
                .collect()
        };
        // Then a unit of each, whose charge knows the expiry by the value alone.
        let again = checks.map(|check| Operation::Charge(check.with_cost(1).into()));
        for operation in operations.into_iter().chain(again) {
            let asked_at = server_time(&mut connection);
            let decision = limiter.apply(operation.clone()).await.unwrap();
            for (budget, verdict) in operation.budgets().zip(decision.verdicts()) {
                if verdict.reset_after().is_zero() {
                    continue;
                }
                let reset_after = verdict.reset_after();
                let earliest = expiry(budget.limit(), asked_at + reset_after, reset_after);
                let left: i64 = connection.pttl(redis_key(budget.limit())).unwrap();
                // Read afterwards: on a busy machine this check is weaker, and does not fail.
                let now = server_time(&mut connection);
                let expires_at = match left {
                    -2 => now,
                    left => now + Duration::from_millis(left.try_into().expect("an expiry")),
                };
                assert!(
                    expires_at >= earliest,
                    "{}: {expires_at:?} {earliest:?}",
                    budget.limit()
                );
            }
        }
    }
}

#[tokio::test]
async fn a_block_neither_shortens_nor_extends_the_life_of_a_budget() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    let period = Duration::from_secs(1_000);
    // Shorter than the budget, and longer.
    for block in [10, 100_000].map(Duration::from_secs) {
        for limit in limits(Quota::new(1_000, period)) {
            let check = Check::new(&limit, &key);
            let charged = limiter.check_n(&limit, &key, 400).await.unwrap();
            let changes = [
                Op::Block.on(check.clone(), None, block),
                // The budget changes while its key is blocked.
                Op::Settle.on(
                    check.clone().with_cost(300),
                    charged.receipt(),
                    Duration::ZERO,
                ),
                Op::Block.on(check.clone(), None, Duration::ZERO),
                Op::Charge.on(check, None, Duration::ZERO),
            ];
            for change in changes {
                let asked_at = server_time(&mut connection);
                let decision = limiter.apply(change.clone()).await.unwrap();
                let reset_after = decision.verdicts()[0].reset_after();
                if reset_after > 2 * period {
                    // This is when the block ends. The budget is full long before.
                    continue;
                }
                let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
                let left: i64 = connection.pttl(redis_key).unwrap();
                let left = Duration::from_millis(left.try_into().expect("an expiry"));
                let expires_at = server_time(&mut connection) + left;
                let earliest = expiry(&limit, asked_at + reset_after, reset_after);
                assert!(
                    expires_at >= earliest,
                    "{limit}, {change:?}: {expires_at:?} {earliest:?}"
                );
            }
            limiter.reset(&limit, &key).await.unwrap();
        }
    }

    let limit = Limit::token_bucket("often", Quota::new(1_000, period)).unwrap();
    assert!(limiter.check_n(&limit, &key, 400).await.unwrap().allowed());
    // A pause of this test makes the first time earlier, or the second one later.
    let mut expires_between = || {
        let before = server_time(&mut connection);
        let left: u64 = connection.pttl("tollgate:{alice}:b:often").unwrap();
        let left = Duration::from_millis(left);
        (before + left, server_time(&mut connection) + left)
    };
    let (_, latest) = expires_between();
    for length in [10, 0, 10, 0, 10, 0].map(Duration::from_secs) {
        let check = Check::new(&limit, &key);
        let block = Op::Block.on(check, None, length);
        drop(limiter.apply(block).await.unwrap());
    }
    let (earliest, _) = expires_between();
    assert!(earliest < latest + Duration::from_secs(1));
}

#[tokio::test]
async fn restarted_log_frees_the_memory_of_the_old_one() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let clock = ManualClock::new();
    let past = limiter_with(&clock, &server).await;
    let mut connection = server.connection();
    let limit = Limit::sliding_log("log", Quota::new(100, Duration::from_millis(100))).unwrap();
    let mut seen = 0;
    // Most of the time, the new log expires within the same second as the old one.
    for number in 0..20_u32 {
        let key = Key::from(number);
        clock.set(server_time(&mut connection) - Duration::from_millis(200));
        for _ in 0..[5, 80][number as usize % 2] {
            clock.advance(Duration::from_millis(1));
            drop(past.check(&limit, &key).await.unwrap());
        }
        drop(limiter.check(&limit, &key).await.unwrap());
        let length: usize = connection
            .strlen(format!("tollgate:{{{number}}}:l:log"))
            .unwrap();
        // The head alone, or nothing if it has expired already.
        assert!(length == 69 || length == 0, "{length}");
        seen += length;
    }
    assert!(seen > 0);
}

#[tokio::test]
async fn growing_log_wastes_no_memory_and_keeps_its_expiry() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let limit = Limit::sliding_log("log", Quota::per_hour(1_000)).unwrap();
    let key = Key::new("alice");
    for requests in 1..100 {
        drop(limiter.check(&limit, &key).await.unwrap());
        let redis_key = "tollgate:{alice}:l:log";
        let length: usize = connection.strlen(redis_key).unwrap();
        let usage: usize = redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(redis_key)
            .query(&mut connection)
            .unwrap();
        // Redis's overhead for any value, and its allocator's rounding.
        assert!(
            usage <= length * 5 / 4 + 100,
            "{requests} requests: {usage} for {length} bytes"
        );
        let left: i64 = connection.ttl(redis_key).unwrap();
        assert!(left > 3_000, "{requests} requests: {left}");
    }
}

#[tokio::test]
async fn expiry_is_written_at_most_once_a_second() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    // 1,000 units a second, or 1,000 in a window that ends in an hour.
    let (each_second, in_a_window) = (
        Quota::per_second(1_000),
        Quota::new(1_000, Duration::from_secs(3_600)),
    );
    let [buckets, windows] = [each_second, in_a_window].map(limits);
    let key = Key::new("alice");
    let writes = || server.calls("psetex") + server.calls("pexpire");
    // Each limit alone, and a group of two.
    let (both, alone) = (
        [&buckets[0], &buckets[2]],
        buckets[..3].iter().chain(&windows[3..]),
    );
    for group in alone
        .map(std::slice::from_ref)
        .chain([both.map(Limit::clone).as_slice()])
    {
        let (before, start) = (writes(), Instant::now());
        let checks: Vec<_> = group
            .iter()
            .map(|limit| Check::new(limit, &key).with_cost(1))
            .collect();
        for _ in 0..100 {
            assert!(limiter.check_all(&checks[..]).await.unwrap().allowed());
        }
        // A charge moves the end of a budget by 100 ms at most, and the test takes some time.
        let seconds = 2 + start.elapsed().as_secs();
        // For 1, 8, 16, 32 and 64 requests.
        let growths = if group[0].name() == "log" { 5 } else { 0 };
        let most = (1 + seconds) * group.len() as u64 + growths;
        assert!(
            writes() - before <= most,
            "{}: {} of {most}",
            group[0],
            writes() - before
        );
    }
}

#[tokio::test]
async fn expiry_of_a_slow_budget_is_written_for_few_charges() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    // Each charge moves the end by 3.6 seconds.
    let buckets = limits(Quota::per_hour(1_000));
    let key = Key::new("alice");
    for limit in &buckets[..3] {
        let before = server.calls("psetex");
        for _ in 0..300 {
            assert!(limiter.check(limit, &key).await.unwrap().allowed());
        }
        // The first 16 s in steps of a second, then up to 64 s in steps of 4 s, up to 256 s of 16
        // s, and up to 1,024 s of 64 s: 4, 12, 12 and 12. The end may be a step further.
        let written = server.calls("psetex") - before;
        assert!((38..=44).contains(&written), "{limit}: {written}");
    }
}

#[tokio::test]
async fn manual_clock_extends_each_expiry_by_an_hour() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_000_000));
    let limiter = limiter_with(&clock, &server).await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    for limit in limits(Quota::new(100, Duration::from_secs(3_600))) {
        drop(limiter.check(&limit, &key).await.unwrap());
        // An hour and a half later, on the server's clock alone.
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        let left: i64 = connection.pttl(&redis_key).unwrap();
        let _: bool = connection
            .pexpire(&redis_key, (left - 5_400_000).max(1_000))
            .unwrap();
        clock.advance(Duration::from_micros(1));
        let reset_after = limiter.check(&limit, &key).await.unwrap().reset_after();
        let left: u64 = connection
            .pttl::<_, i64>(&redis_key)
            .unwrap()
            .try_into()
            .unwrap();
        assert!(
            Duration::from_millis(left) > reset_after + Duration::from_secs(3_000),
            "{limit}"
        );
    }
}

#[tokio::test]
async fn first_charge_in_a_sub_window_extends_the_expiry() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    const DAY: u64 = 24 * 60 * 60 * 1_000_000;
    for sub_windows in [1, 10_u32] {
        let quota = Quota::new(100, Duration::from_micros(DAY));
        let limit = Limit::sliding_window_with("limit", quota, sub_windows).unwrap();
        let redis_key = "tollgate:{alice}:s:limit";
        drop(limiter.check_n(&limit, &key, 5).await.unwrap());
        // The state after a refund of all units of this sub-window: the one before it expires
        // sooner.
        let mut value: Vec<u8> = connection.get(redis_key).unwrap();
        value.copy_within(22..29, 29);
        value[22..29].fill(0);
        let sooner = DAY / u64::from(sub_windows) / 1_000;
        let before: u64 = connection
            .pttl::<_, i64>(redis_key)
            .unwrap()
            .try_into()
            .unwrap();
        let _: () = connection
            .pset_ex(redis_key, value, before - sooner)
            .unwrap();
        let reset = limiter.check(&limit, &key).await.unwrap().reset_after();
        let left: u64 = connection
            .pttl::<_, i64>(redis_key)
            .unwrap()
            .try_into()
            .unwrap();
        assert!(
            left > before - 5_000,
            "{sub_windows} sub-windows: {left} ms of {before} ms"
        );
        assert!(
            Duration::from_millis(left) + Duration::from_secs(5) > reset,
            "{sub_windows} sub-windows"
        );
        limiter.reset(&limit, &key).await.unwrap();
    }
}

#[tokio::test]
async fn lost_ttl_is_restored_by_the_next_expiry() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let clock = ManualClock::new();
    let past = limiter_with(&clock, &server).await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    for limit in limits(Quota::new(1_000, Duration::from_secs(100))) {
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        clock.set(server_time(&mut connection) - Duration::from_secs(150));
        drop(past.check_n(&limit, &key, 900).await.unwrap());
        let () = connection.persist(&redis_key).unwrap();
        assert!(
            limiter.check_n(&limit, &key, 20).await.unwrap().allowed(),
            "{limit}"
        );
        assert!(connection.ttl::<_, i64>(&redis_key).unwrap() > 0, "{limit}");
    }
}

#[tokio::test]
async fn lost_ttl_does_not_lock_out_callers() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let limiter = limiter_with(&clock, &server).await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    for limit in limits(Quota::per_minute(5)) {
        clock.set(Duration::from_secs(1_790_000_000));
        drop(limiter.check_n(&limit, &key, 5).await.unwrap());
        let () = connection
            .persist(format!(
                "tollgate:{{alice}}:{}:{}",
                limit.kind(),
                limit.name()
            ))
            .unwrap();
        // Two minutes: in a sliding window, units count for a sub-window longer than the period.
        clock.advance(Duration::from_secs(120));
        assert_eq!(
            limiter.check(&limit, &key).await.unwrap().remaining(),
            4,
            "{limit}"
        );
    }
}
