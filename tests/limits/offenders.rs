//! Keys that keep being denied are blocked for a while, on all replicas, and operators block and
//! unblock keys.

#![cfg(all(feature = "redis", feature = "test-util"))]

use std::time::Duration;

use proptest::prelude::*;
use redis::Commands;
use tokio::time::advance;
use tollgate::clock::ManualClock;
use tollgate::decision::Source;
use tollgate::limit::{BlockPolicy, OnStoreFailure};
use tollgate::store::{Budget, Change, Group, Operation, Store, WithDenyCache};
use tollgate::{Check, Decision, Key, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::RedisServer;
use crate::support::budget::every_algorithm;
use crate::support::scripted::Scripted;

const START: Duration = Duration::from_secs(1_790_000_000);
const TICK: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn login(policy: BlockPolicy) -> Limit {
    Limit::fixed_window("login", Quota::per_second(1))
        .unwrap()
        .with_block_policy(policy)
        .unwrap()
}

fn three_in_a_minute() -> BlockPolicy {
    BlockPolicy::after(3, MINUTE).lasting(10 * MINUTE)
}

/// A limiter in memory and one on Redis, with a clock that is set by hand.
async fn both(server: &RedisServer) -> (ManualClock, [RateLimiter; 2]) {
    let clock = ManualClock::new();
    clock.set(START);
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = server.store().clock(clock.clone()).connect().await.unwrap();
    (clock, [memory, RateLimiter::new(redis)])
}

/// Checks until one is denied.
async fn exhaust(limiter: &RateLimiter, limit: &Limit, key: &Key) {
    while limiter.peek(limit, key, 1).await.unwrap().allowed() {
        drop(limiter.check(limit, key).await.unwrap());
    }
}

async fn check(limiter: &RateLimiter, limit: &Limit, key: &Key) -> Decision {
    limiter.check(limit, key).await.unwrap()
}

async fn peek(limiter: &RateLimiter, limit: &Limit, key: &Key) -> Decision {
    limiter.peek(limit, key, 1).await.unwrap()
}

#[tokio::test]
async fn denial_that_reaches_the_number_blocks_the_key_and_others_stay_free() {
    let server = RedisServer::start();
    for limit in every_algorithm(5, 1_000_000) {
        let (clock, limiters) = both(&server).await;
        let limit = limit.with_block_policy(three_in_a_minute()).unwrap();
        for limiter in limiters {
            let (mallory, alice) = (Key::new("mallory"), Key::new("alice"));
            clock.set(START);
            exhaust(&limiter, &limit, &mallory).await;
            for _ in 0..2 {
                let denied = check(&limiter, &limit, &mallory).await;
                assert!(
                    !denied.allowed() && !denied.is_blocked(),
                    "{limit}: {denied:?}"
                );
                assert!(denied.retry_after() <= Some(2 * SECOND));
            }
            let blocked = check(&limiter, &limit, &mallory).await;
            assert!(
                blocked.is_blocked() && !blocked.allowed(),
                "{limit}: {blocked:?}"
            );
            assert_eq!(blocked.retry_after(), Some(10 * MINUTE));
            assert_eq!(
                (blocked.remaining(), blocked.reset_after()),
                (0, 10 * MINUTE)
            );
            assert!(check(&limiter, &limit, &alice).await.allowed());

            clock.set(START + 10 * MINUTE - TICK);
            let last = check(&limiter, &limit, &mallory).await;
            assert_eq!((last.allowed(), last.retry_after()), (false, Some(TICK)));
            clock.set(START + 10 * MINUTE);
            let free = check(&limiter, &limit, &mallory).await;
            assert!(free.allowed() && !free.is_blocked(), "{limit}: {free:?}");
            limiter.reset(&limit, &mallory).await.unwrap();
            limiter.reset(&limit, &alice).await.unwrap();
        }
    }
}

#[tokio::test]
async fn denials_are_counted_in_a_window_that_starts_with_the_first() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let (limit, key) = (login(three_in_a_minute()), Key::new("mallory"));
    for limiter in limiters {
        let mut denials = Vec::new();
        // Two in a minute, and two in the next.
        for at in [SECOND, MINUTE, MINUTE + SECOND, MINUTE + 30 * SECOND] {
            clock.set(START + at);
            exhaust(&limiter, &limit, &key).await;
            denials.push(check(&limiter, &limit, &key).await);
        }
        assert!(
            denials
                .iter()
                .all(|denial| !denial.allowed() && !denial.is_blocked())
        );
        clock.set(START + 2 * MINUTE + SECOND - TICK);
        exhaust(&limiter, &limit, &key).await;
        assert!(
            check(&limiter, &limit, &key).await.is_blocked(),
            "the third of the second minute"
        );
    }
}

/// Denies a key until it is blocked. Returns for how long.
async fn offend(limiter: &RateLimiter, limit: &Limit, key: &Key) -> Duration {
    loop {
        let decision = check(limiter, limit, key).await;
        if decision.is_blocked() {
            return decision.retry_after().unwrap();
        }
    }
}

#[tokio::test]
async fn blocks_grow_by_the_factor_up_to_the_longest_and_are_forgotten_after_it() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let policy = three_in_a_minute().growing(3, HOUR);
    let (limit, key) = (login(policy), Key::new("mallory"));
    for limiter in limiters {
        let mut now = START;
        for expected in [10 * MINUTE, 30 * MINUTE, HOUR, HOUR] {
            clock.set(now);
            assert_eq!(offend(&limiter, &limit, &key).await, expected);
            now += expected;
        }
        // Just within the hour after the last block, and just after it.
        for (pause, expected) in [(HOUR - TICK, HOUR), (HOUR, 10 * MINUTE)] {
            now += pause;
            clock.set(now);
            assert_eq!(offend(&limiter, &limit, &key).await, expected);
            now += expected;
        }
    }
}

#[tokio::test]
async fn client_that_goes_on_during_its_block_is_not_blocked_for_longer() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let (limit, key) = (
        login(three_in_a_minute().growing(2, DAY)),
        Key::new("mallory"),
    );
    for limiter in limiters {
        clock.set(START);
        offend(&limiter, &limit, &key).await;
        for second in 1..600 {
            clock.set(START + second * SECOND);
            let denied = check(&limiter, &limit, &key).await;
            assert_eq!(denied.retry_after(), Some((600 - second) * SECOND));
        }
        clock.set(START + 600 * SECOND);
        assert!(check(&limiter, &limit, &key).await.allowed());
        assert!(
            !check(&limiter, &limit, &key).await.is_blocked(),
            "it is the first denial"
        );
    }
}

#[tokio::test]
async fn budget_refills_during_a_block_and_outlasts_it_in_retry_after() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let policy = BlockPolicy::after(1, MINUTE).lasting(MINUTE);
    let day = Limit::fixed_window("day", Quota::per_day(5)).unwrap();
    let day = day.with_block_policy(policy).unwrap();
    let key = Key::new("mallory");
    for limiter in limiters {
        clock.set(START);
        drop(limiter.check_n(&day, &key, 5).await.unwrap());
        let blocked = check(&limiter, &day, &key).await;
        assert!(blocked.is_blocked());
        assert_eq!(
            blocked.retry_after(),
            Some(DAY),
            "the block ends sooner than the window"
        );
        clock.set(START + MINUTE);
        let denied = check(&limiter, &day, &key).await;
        assert_eq!(
            denied.retry_after(),
            Some(DAY - MINUTE),
            "nothing was minted"
        );
    }
}

#[tokio::test]
async fn check_of_cost_0_passes_and_a_peek_neither_counts_nor_begins_a_block() {
    let server = RedisServer::start();
    let (_, limiters) = both(&server).await;
    let (limit, key) = (login(three_in_a_minute()), Key::new("mallory"));
    for limiter in limiters {
        exhaust(&limiter, &limit, &key).await;
        for _ in 0..10 {
            assert!(!limiter.peek(&limit, &key, 1).await.unwrap().is_blocked());
        }
        drop(check(&limiter, &limit, &key).await);
        drop(check(&limiter, &limit, &key).await);
        let next = limiter.peek(&limit, &key, 1).await.unwrap();
        assert!(
            !next.allowed() && !next.is_blocked(),
            "the key is not blocked yet"
        );
        offend(&limiter, &limit, &key).await;
        assert!(limiter.check_n(&limit, &key, 0).await.unwrap().allowed());
    }
}

/// A free check of a blocked key: it passes, and says that nothing else does.
fn assert_reports_block(free: &Decision, left: Duration) {
    assert!(free.allowed() && free.is_blocked(), "{free:?}");
    assert_eq!(
        (free.remaining(), free.retry_after()),
        (0, None),
        "{free:?}"
    );
    assert_eq!(free.deciding().blocked_for(), Some(left));
    assert!(free.reset_after() >= left, "{free:?}");
}

#[tokio::test]
async fn peek_and_check_of_cost_0_say_that_the_key_is_blocked_and_for_how_long() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let day = Limit::fixed_window("day", Quota::per_day(5)).unwrap();
    let offended = login(three_in_a_minute());
    let key = Key::new("mallory");
    for limiter in limiters {
        clock.set(START);
        let charged = limiter.check_n(&day, &key, 2).await.unwrap();
        exhaust(&limiter, &offended, &key).await;
        offend(&limiter, &offended, &key).await;
        limiter.block(&day, &key, 3 * MINUTE).await.unwrap();
        let blocked_for = limiter.peek(&offended, &key, 1).await.unwrap();
        let blocked_for = blocked_for.deciding().blocked_for().unwrap();
        for (limit, left) in [(&day, 3 * MINUTE), (&offended, blocked_for)] {
            let peeked = limiter.peek(limit, &key, 0).await.unwrap();
            assert_reports_block(&peeked, left);
            let checked = limiter.check_n(limit, &key, 0).await.unwrap();
            assert_reports_block(&checked, left);
            let usage = limiter.usage(Check::new(limit, &key)).await.unwrap();
            assert_eq!((usage[0].remaining, usage[0].blocked_for), (0, Some(left)));
        }
        let receipt = charged.receipt().unwrap();
        let refund = Change::Settle { receipt, cost: 1 };
        let refund = Operation::Change(Budget::new(&day, &key), refund);
        let refunded = limiter.apply(refund).await.unwrap();
        assert_reports_block(&refunded, 3 * MINUTE);
        clock.set(START + 3 * MINUTE);
        let over = limiter.peek(&day, &key, 0).await.unwrap();
        assert!(!over.is_blocked());
        assert_eq!(
            over.remaining(),
            4,
            "two were charged, and one was given back"
        );
    }
}

#[tokio::test]
async fn free_check_of_a_blocked_key_does_not_keep_its_group_from_passing() {
    let server = RedisServer::start();
    let (_, limiters) = both(&server).await;
    let day = Limit::fixed_window("day", Quota::per_day(5)).unwrap();
    let tenant = Limit::fixed_window("tenant", Quota::per_day(5)).unwrap();
    let (mallory, acme) = (Key::new("mallory"), Key::new("acme"));
    for limiter in limiters {
        limiter.block(&day, &mallory, MINUTE).await.unwrap();
        let group = [
            Check::new(&day, &mallory).with_cost(0),
            Check::new(&tenant, &acme),
        ];
        let decision = limiter.check_all(group).await.unwrap();
        assert!(decision.allowed() && decision.is_blocked(), "{decision:?}");
        assert_eq!(decision.verdicts()[1].remaining(), 4);
    }
}

#[tokio::test]
async fn group_counts_the_denials_of_the_limits_that_deny_and_charges_none_during_a_block() {
    let server = RedisServer::start();
    let (_, limiters) = both(&server).await;
    let user = login(three_in_a_minute());
    let tenant = Limit::token_bucket("tenant", Quota::per_day(100)).unwrap();
    let tenant = tenant
        .with_block_policy(BlockPolicy::after(1, MINUTE))
        .unwrap();
    let (mallory, acme) = (Key::new("mallory"), Key::new("acme"));
    for limiter in limiters {
        let group = [Check::new(&user, &mallory), Check::new(&tenant, &acme)];
        for _ in 0..10 {
            drop(limiter.check_all(group.clone()).await.unwrap());
        }
        let blocked = limiter.check_all(group.clone()).await.unwrap();
        assert!(
            blocked.is_blocked() && blocked.limit().name() == "login",
            "{blocked:?}"
        );
        let of_tenant = &blocked.verdicts()[1];
        assert!(!of_tenant.is_blocked(), "the tenant was never denied");
        assert_eq!(of_tenant.remaining(), 99);
    }
}

#[tokio::test]
async fn key_in_shadow_mode_is_neither_counted_nor_blocked() {
    let server = RedisServer::start();
    let (_, limiters) = both(&server).await;
    let (limit, key) = (login(three_in_a_minute()), Key::new("mallory"));
    let shadow = limit.clone().with_shadow_mode();
    for limiter in limiters {
        for _ in 0..10 {
            let decision = check(&limiter, &shadow, &key).await;
            assert!(decision.allowed() && !decision.is_blocked());
        }
        assert!(
            !check(&limiter, &limit, &key).await.is_blocked(),
            "the first that counts"
        );
        limiter.block(&limit, &key, HOUR).await.unwrap();
        assert!(check(&limiter, &shadow, &key).await.allowed());
        assert!(!check(&limiter, &limit, &key).await.allowed());
    }
}

#[tokio::test]
async fn operator_blocks_and_unblocks_and_consumed_units_stay_consumed() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let policy = BlockPolicy::by_operators();
    let day = Limit::gcra("day", Quota::per_day(24))
        .unwrap()
        .with_block_policy(policy)
        .unwrap();
    let key = Key::new("mallory");
    for limiter in limiters {
        clock.set(START);
        drop(limiter.check_n(&day, &key, 20).await.unwrap());
        limiter.block(&day, &key, HOUR).await.unwrap();
        let blocked = peek(&limiter, &day, &key).await;
        assert!(blocked.is_blocked());
        assert_eq!(blocked.retry_after(), Some(HOUR));
        limiter.block(&day, &key, MINUTE).await.unwrap();
        let shorter = peek(&limiter, &day, &key).await;
        assert_eq!(shorter.retry_after(), Some(MINUTE), "it replaces the block");
        assert!(!check(&limiter, &day, &key).await.allowed());

        limiter.unblock(&day, &key).await.unwrap();
        let free = peek(&limiter, &day, &key).await;
        assert!(free.allowed() && !free.is_blocked());
        assert_eq!(check(&limiter, &day, &key).await.remaining(), 3);
        for _ in 0..100 {
            assert!(
                !limiter.check_n(&day, &key, 24).await.unwrap().is_blocked(),
                "by operators"
            );
        }
        limiter.block(&day, &key, HOUR).await.unwrap();
        limiter.reset(&day, &key).await.unwrap();
        assert_eq!(
            check(&limiter, &day, &key).await.remaining(),
            23,
            "a reset ends it, too"
        );
    }
}

#[tokio::test]
async fn operator_blocks_under_any_limit_and_the_budget_stays_as_it_was() {
    let server = RedisServer::start();
    for limit in every_algorithm(40, 86_400_000_000) {
        let (clock, limiters) = both(&server).await;
        for (number, limiter) in limiters.into_iter().enumerate() {
            clock.set(START);
            let (mallory, alice) = (Key::new("mallory"), Key::new("alice"));
            // A log of so many requests is longer than what is read of it at first.
            for _ in 0..30 {
                clock.advance(TICK);
                drop(check(&limiter, &limit, &mallory).await);
            }
            let charged = check(&limiter, &limit, &mallory).await;
            limiter.block(&limit, &mallory, HOUR).await.unwrap();
            let denied = check(&limiter, &limit, &mallory).await;
            assert!(
                denied.is_blocked() && denied.retry_after() == Some(HOUR),
                "{number}: {limit}"
            );
            assert!(check(&limiter, &limit, &alice).await.allowed(), "{limit}");
            assert!(
                limiter
                    .check_n(&limit, &mallory, 0)
                    .await
                    .unwrap()
                    .allowed(),
                "{limit}"
            );

            let receipt = charged.receipt().unwrap();
            limiter.refund(&limit, &mallory, 1, receipt).await.unwrap();
            assert!(
                check(&limiter, &limit, &mallory).await.is_blocked(),
                "{limit}"
            );
            clock.advance(HOUR - TICK);
            assert!(
                check(&limiter, &limit, &mallory).await.is_blocked(),
                "{limit}"
            );
            limiter.block(&limit, &mallory, DAY).await.unwrap();
            limiter.unblock(&limit, &mallory).await.unwrap();
            let free = peek(&limiter, &limit, &mallory).await;
            assert!(free.allowed() && !free.is_blocked(), "{limit}");
            // A bucket has refilled one or two meanwhile.
            let next = limiter.check_n(&limit, &mallory, 8).await.unwrap();
            assert!(
                next.allowed() && (2..=5).contains(&next.remaining()),
                "{limit}: {next:?}"
            );
            limiter.block(&limit, &mallory, TICK).await.unwrap();
            clock.advance(TICK);
            assert_eq!(
                check(&limiter, &limit, &mallory).await.remaining(),
                next.remaining() - 1
            );
            limiter.block(&limit, &mallory, HOUR).await.unwrap();
            limiter.reset(&limit, &mallory).await.unwrap();
            assert_eq!(
                check(&limiter, &limit, &mallory).await.remaining(),
                39,
                "{limit}"
            );
        }
        server.connection().flushall::<()>().unwrap();
    }
}

#[tokio::test]
async fn block_by_an_operator_outlives_a_clock_that_is_set_back_by_its_length_at_most() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let (limit, key) = (
        Limit::gcra("api", Quota::per_second(5)).unwrap(),
        Key::new("mallory"),
    );
    for limiter in limiters {
        clock.set(START);
        limiter.block(&limit, &key, MINUTE).await.unwrap();
        clock.set(START - HOUR);
        assert_eq!(
            check(&limiter, &limit, &key).await.retry_after(),
            Some(MINUTE)
        );
        clock.advance(MINUTE);
        assert!(check(&limiter, &limit, &key).await.allowed());
    }
}

#[tokio::test]
async fn block_in_front_of_a_value_that_is_no_budget_stands() {
    let server = RedisServer::start();
    let (_, [_, limiter]) = both(&server).await;
    let key = Key::new("mallory");
    for limit in every_algorithm(5, 1_000_000) {
        let mut redis = server.connection();
        drop(limiter.check(&limit, &key).await.unwrap());
        let keys: Vec<String> = redis.keys("*").unwrap();
        let [name] = &keys[..] else {
            panic!("{keys:?}")
        };
        for garbage in [&b""[..], b"\x0a", b"\x0a garbage", &[0xff; 300]] {
            redis.del::<_, ()>(name).unwrap();
            match garbage.is_empty() {
                true => redis.rpush::<_, _, ()>(name, "a list").unwrap(),
                false => redis.set::<_, _, ()>(name, garbage).unwrap(),
            }
            limiter.block(&limit, &key, HOUR).await.unwrap();
            assert!(check(&limiter, &limit, &key).await.is_blocked(), "{limit}");
            limiter.unblock(&limit, &key).await.unwrap();
            assert_eq!(
                check(&limiter, &limit, &key).await.remaining(),
                4,
                "{limit}"
            );
        }
        redis.flushall::<()>().unwrap();
    }
}

#[tokio::test]
async fn unblock_forgets_what_was_counted() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let (limit, key) = (
        login(three_in_a_minute().growing(2, DAY)),
        Key::new("mallory"),
    );
    for limiter in limiters {
        clock.set(START);
        offend(&limiter, &limit, &key).await;
        limiter.unblock(&limit, &key).await.unwrap();
        assert_eq!(offend(&limiter, &limit, &key).await, 10 * MINUTE, "not 20");
    }
}

#[tokio::test]
async fn block_that_denials_began_ends_by_any_limit_of_the_name() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let service = login(three_in_a_minute());
    // A tool of the operator knows the name and the algorithm.
    let tool = Limit::fixed_window("login", Quota::per_hour(9)).unwrap();
    for limiter in limiters {
        for resets in [false, true] {
            clock.set(START);
            let mallory = Key::new("mallory");
            offend(&limiter, &service, &mallory).await;
            match resets {
                true => limiter.reset(&tool, &mallory).await.unwrap(),
                false => limiter.unblock(&tool, &mallory).await.unwrap(),
            };
            clock.advance(SECOND);
            assert!(check(&limiter, &service, &mallory).await.allowed());
            limiter.reset(&service, &mallory).await.unwrap();
        }
    }
}

#[tokio::test]
async fn block_lasts_a_microsecond_to_366_days_and_others_are_misuse() {
    let (limiter, key) = (RateLimiter::in_memory(), Key::new("mallory"));
    let limit = login(three_in_a_minute());
    for (length, why) in [
        (Duration::ZERO, "`unblock`"),
        (366 * DAY + Duration::from_micros(1), "longer than 366 days"),
        (Duration::MAX, "longer than 366 days"),
    ] {
        let error = limiter.block(&limit, &key, length).await.unwrap_err();
        assert!(
            error.is_misuse() && error.to_string().contains(why),
            "{error}"
        );
    }
    let clock = ManualClock::new();
    clock.set(START);
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock));
    limiter.block(&limit, &key, 366 * DAY).await.unwrap();
    let longest = peek(&limiter, &limit, &key).await;
    assert_eq!(longest.retry_after(), Some(366 * DAY));
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_for_its_units_is_no_offender() {
    let limit = login(BlockPolicy::after(1, DAY));
    let log = Limit::sliding_log("log", Quota::per_second(100)).unwrap();
    let (limiter, key) = (RateLimiter::in_memory(), Key::new("alice"));
    for _ in 0..20 {
        let group = [Check::new(&limit, &key), Check::new(&log, &key)];
        assert!(limiter.acquire_all(group, MINUTE).await.unwrap().allowed());
        assert!(
            limiter
                .acquire(&limit, &key, 1, MINUTE)
                .await
                .unwrap()
                .allowed()
        );
    }
    drop(check(&limiter, &limit, &key).await);
    let denied = limiter
        .acquire(&limit, &key, 1, Duration::from_millis(1))
        .await
        .unwrap();
    assert!(denied.is_blocked(), "it waits for less than its units need");
    let denied = limiter.acquire(&limit, &key, 1, MINUTE).await.unwrap();
    assert!(denied.is_blocked(), "the block lasts longer than the wait");
}

#[tokio::test]
async fn clock_that_steps_back_prolongs_a_block_by_at_most_its_length() {
    let server = RedisServer::start();
    let (clock, limiters) = both(&server).await;
    let (limit, key) = (login(three_in_a_minute()), Key::new("mallory"));
    for limiter in limiters {
        clock.set(START);
        offend(&limiter, &limit, &key).await;
        clock.set(START - DAY);
        assert_eq!(
            check(&limiter, &limit, &key).await.retry_after(),
            Some(10 * MINUTE)
        );
        clock.set(START - DAY + 10 * MINUTE);
        assert!(check(&limiter, &limit, &key).await.allowed());
    }
}

#[tokio::test]
async fn replicas_count_together_and_agree() {
    let server = RedisServer::start();
    let replicas = [
        server.limiter().await,
        server.limiter().await,
        server.limiter().await,
    ];
    let limit = Limit::fixed_window("login", Quota::per_hour(1)).unwrap();
    let limit = limit
        .with_block_policy(BlockPolicy::after(10, HOUR))
        .unwrap();
    let key = Key::new("mallory");
    drop(check(&replicas[0], &limit, &key).await);
    for number in 0..9 {
        let denied = check(&replicas[number % 3], &limit, &key).await;
        assert!(!denied.is_blocked(), "denial {number}");
        assert_eq!(denied.source(), Source::Store, "each is counted");
    }
    for limiter in &replicas {
        assert!(check(limiter, &limit, &key).await.is_blocked());
    }
}

#[tokio::test]
async fn concurrent_denials_begin_one_block_after_exactly_their_number() {
    let server = RedisServer::start();
    let replicas = [server.limiter().await, server.limiter().await];
    let limit = Limit::gcra("login", Quota::per_hour(1)).unwrap();
    let limit = limit
        .with_block_policy(BlockPolicy::after(300, HOUR))
        .unwrap();
    let key = Key::new("mallory");
    let checks = (0..1_000).map(|number| {
        let (limiter, limit, key) = (replicas[number % 2].clone(), limit.clone(), key.clone());
        tokio::spawn(async move { limiter.check(&limit, &key).await.unwrap() })
    });
    let (mut plain, mut blocked) = (0, 0);
    for check in checks.collect::<Vec<_>>() {
        let decision = check.await.unwrap();
        plain += u32::from(!decision.allowed() && !decision.is_blocked());
        blocked += u32::from(decision.is_blocked());
    }
    assert_eq!((plain, blocked), (299, 700));
}

#[tokio::test]
async fn blocked_client_costs_redis_nothing_however_it_varies_its_requests() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_hour(5)).unwrap();
    let limit = limit.with_block_policy(three_in_a_minute()).unwrap();
    let path = Limit::gcra("path", Quota::per_hour(5)).unwrap();
    let mallory = Key::new("mallory");
    offend(&limiter, &limit, &mallory).await;
    server.reset_calls();
    for number in 0..1_000_u64 {
        let group = [
            Check::new(&path, Key::from(number)),
            Check::new(&limit, &mallory).with_cost(1 + number as u32 % 5),
        ];
        let denied = limiter.check_all(group).await.unwrap();
        assert!(
            denied.is_blocked() && denied.source() == Source::DenyCache,
            "{denied:?}"
        );
        assert_eq!(denied.limit().name(), "api");
        assert!(
            denied.verdicts()[0].is_unlimited(),
            "nothing is known of the other budget"
        );
    }
    assert_eq!(server.calls("evalsha"), 0);
    let group = [
        Check::new(&path, Key::from(0)),
        Check::new(&limit, Key::new("alice")),
    ];
    let other = limiter.check_all(group).await.unwrap();
    assert!(other.allowed());
    assert_eq!(
        other.verdicts()[0].remaining(),
        4,
        "the blocked client took nothing from it"
    );
}

#[tokio::test]
async fn allowed_check_costs_one_call_as_without_blocks() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_hour(1_000)).unwrap();
    let limit = limit.with_block_policy(three_in_a_minute()).unwrap();
    for user in 0..100_u64 {
        assert!(check(&limiter, &limit, &Key::from(user)).await.allowed());
    }
    server.reset_calls();
    for user in 0..100_u64 {
        assert!(check(&limiter, &limit, &Key::from(user)).await.allowed());
    }
    assert_eq!(server.calls("evalsha"), 100);
    let keys: u64 = redis::cmd("DBSIZE")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(keys, 100, "there are no offences to keep");
}

#[tokio::test(start_paused = true)]
async fn end_of_a_block_counts_at_once_here_and_within_ten_seconds_elsewhere() {
    let store = Scripted::default();
    let replica = || RateLimiter::new(WithDenyCache::new(store.clone()));
    let (here, there) = (replica(), replica());
    let (limit, key) = (login(three_in_a_minute()), Key::new("mallory"));
    exhaust(&here, &limit, &key).await;
    offend(&here, &limit, &key).await;
    assert!(check(&there, &limit, &key).await.is_blocked());
    store.asked();
    here.unblock(&limit, &key).await.unwrap();
    advance(SECOND).await;
    assert!(check(&here, &limit, &key).await.allowed());
    assert_eq!(store.asked(), 2);
    advance(9 * SECOND - TICK).await;
    let denied = check(&there, &limit, &key).await;
    assert_eq!(
        (denied.is_blocked(), denied.source()),
        (true, Source::DenyCache)
    );
    advance(TICK).await;
    assert!(check(&there, &limit, &key).await.allowed());
}

#[tokio::test(start_paused = true)]
async fn replica_asks_again_after_its_time_and_learns_that_the_block_stands() {
    let store = Scripted::default();
    let cache = WithDenyCache::new(store.clone()).deny_blocked_for(MINUTE);
    let limiter = RateLimiter::new(cache);
    let (limit, key) = (login(three_in_a_minute()), Key::new("mallory"));
    offend(&limiter, &limit, &key).await;
    store.asked();
    for second in 1..600_u32 {
        advance(SECOND).await;
        let denied = check(&limiter, &limit, &key).await;
        assert_eq!(denied.retry_after(), Some((600 - second) * SECOND));
    }
    assert_eq!(store.asked(), 9, "once a minute");
    advance(SECOND).await;
    assert!(check(&limiter, &limit, &key).await.allowed());
}

#[tokio::test(start_paused = true)]
async fn known_block_stands_while_the_store_is_unavailable() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let limit = login(three_in_a_minute())
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    let (mallory, alice) = (Key::new("mallory"), Key::new("alice"));
    offend(&limiter, &limit, &mallory).await;
    store.switch_off(true);
    advance(MINUTE).await;
    let denied = limiter.check_n(&limit, &mallory, 1).await.unwrap();
    assert!(denied.is_blocked());
    assert_eq!(denied.retry_after(), Some(9 * MINUTE));
    assert_eq!(
        check(&limiter, &limit, &alice).await.source(),
        Source::FailOpen
    );
}

#[tokio::test(start_paused = true)]
async fn local_limit_counts_denials_and_blocks_for_itself() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let policy = OnStoreFailure::local(1);
    let limit = login(three_in_a_minute())
        .with_on_store_failure(policy)
        .unwrap();
    let key = Key::new("mallory");
    store.switch_off(true);
    assert_eq!(offend(&limiter, &limit, &key).await, 10 * MINUTE);
    limiter.unblock(&limit, &key).await.unwrap_err();
    advance(SECOND).await;
    let free = check(&limiter, &limit, &key).await;
    assert_eq!(
        (free.allowed(), free.source()),
        (true, Source::Local),
        "it ended here"
    );
}

#[tokio::test]
async fn corrupt_offences_count_as_none_and_are_replaced() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_hour(1)).unwrap();
    let limit = limit
        .with_block_policy(BlockPolicy::after(2, HOUR))
        .unwrap();
    let mut connection = server.connection();
    for (number, value) in ["", "garbage", &"\u{8}".repeat(33), &"\u{ff}".repeat(40)]
        .iter()
        .enumerate()
    {
        let key = Key::from(number as u64);
        let stored = format!("tollgate:{{{number}}}:bx:api");
        let () = connection.set(&stored, value).unwrap();
        assert!(check(&limiter, &limit, &key).await.allowed(), "{value:?}");
        assert!(!check(&limiter, &limit, &key).await.is_blocked());
        assert!(check(&limiter, &limit, &key).await.is_blocked());
        let ttl: i64 = connection.ttl(&stored).unwrap();
        assert!(
            (598..=601).contains(&ttl),
            "it expires after the block: {ttl} s"
        );
    }
    let key = Key::new("list");
    let () = connection
        .lpush("tollgate:{list}:bx:api", "garbage")
        .unwrap();
    assert!(check(&limiter, &limit, &key).await.allowed());
    drop(check(&limiter, &limit, &key).await);
    assert!(check(&limiter, &limit, &key).await.is_blocked());
}

#[tokio::test]
async fn every_key_of_offences_expires() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let policy = BlockPolicy::after(2, MINUTE)
        .lasting(HOUR)
        .growing(2, 3 * HOUR);
    let limit = Limit::gcra("api", Quota::per_hour(1))
        .unwrap()
        .with_block_policy(policy)
        .unwrap();
    let key = Key::new("mallory");
    let ttl = || {
        server
            .connection()
            .ttl::<_, i64>("tollgate:{mallory}:bx:api")
            .unwrap()
    };
    drop(check(&limiter, &limit, &key).await);
    assert_eq!(ttl(), -2, "there is none without a denial");
    drop(check(&limiter, &limit, &key).await);
    assert!(
        (58..=61).contains(&ttl()),
        "the window of denials: {} s",
        ttl()
    );
    drop(check(&limiter, &limit, &key).await);
    assert!(
        (4 * 3600 - 2..=4 * 3600 + 1).contains(&ttl()),
        "block and growth: {} s",
        ttl()
    );
    limiter.unblock(&limit, &key).await.unwrap();
    assert_eq!(ttl(), -2);
}

/// A model of a policy, written from its documentation: all denials and blocks of a key.
#[derive(Default)]
struct Model {
    /// The times of the denials that count.
    denials: Vec<u64>,
    block_ends: u64,
    /// The length of the last block that denials began.
    last: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    denials: u32,
    within: u64,
    length: u64,
    factor: u32,
    longest: u64,
}

impl Numbers {
    fn policy(self) -> BlockPolicy {
        let [within, length, longest] =
            [self.within, self.length, self.longest].map(Duration::from_micros);
        BlockPolicy::after(self.denials, within)
            .lasting(length)
            .growing(self.factor, longest)
    }
}

impl Model {
    /// When the block ends that a key is under, after a check at this time.
    fn check(&mut self, numbers: Numbers, now: u64, is_denied: bool) -> Option<u64> {
        if now < self.block_ends {
            return Some(self.block_ends);
        }
        if !is_denied {
            return None;
        }
        if self
            .denials
            .first()
            .is_some_and(|first| now >= first + numbers.within)
        {
            self.denials.clear();
        }
        self.denials.push(now);
        if self.denials.len() < numbers.denials as usize {
            return None;
        }
        let last = self
            .last
            .filter(|_| now < self.block_ends + numbers.longest);
        let grown = last.map_or(0, |last| {
            (last * u64::from(numbers.factor)).min(numbers.longest)
        });
        let length = grown.max(numbers.length);
        (self.denials, self.last, self.block_ends) = (Vec::new(), Some(length), now + length);
        Some(self.block_ends)
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn blocks_are_those_of_a_model(
        denials in 1u32..6, within in 1u64..5_000_000, length in 1u64..5_000_000, factor in 1u32..5,
        more in 0u64..20_000_000, pauses in prop::collection::vec(0u64..1_500_000, 1..200),
    ) {
        let numbers = Numbers { denials, within, length, factor, longest: length + more };
        let plain = Limit::gcra("api", Quota::per_second(2)).unwrap();
        let limit = plain.with_block_policy(numbers.policy()).unwrap();
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut model, mut now, mut free_at) = (Model::default(), 1_000_000_000_u64, 0_u64);
        let interval = 500_000;
        for pause in pauses {
            now += pause;
            clock.set(Duration::from_micros(now));
            // GCRA with a burst of 2: the theoretical arrival time.
            let is_denied = free_at.max(now) + interval > now + 2 * interval;
            let group = Group::from(Check::new(&limit, Key::new("mallory")));
            let decision =
                runtime.block_on(store.apply(Operation::Charge(group))).unwrap();
            let block = model.check(numbers, now, is_denied);
            prop_assert_eq!(decision.is_blocked(), block.is_some(), "at {}", now);
            prop_assert_eq!(decision.allowed(), block.is_none() && !is_denied);
            if let Some(ends) = block {
                let free = (free_at.max(now) + interval).saturating_sub(2 * interval);
                let expected = Duration::from_micros(ends.max(free) - now);
                prop_assert_eq!(decision.retry_after(), Some(expected));
            }
            if decision.allowed() {
                free_at = free_at.max(now) + interval;
            }
        }
    }
}

#[cfg(feature = "json")]
mod layers {
    use axum::Router;
    use axum::routing::get;
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use tollgate::RateLimitLayer;
    use tollgate::key::Header;
    use tollgate::layer::BodyFormat;

    use super::*;
    use crate::support::log::Log;
    use crate::support::requests::send;

    fn app(limiter: &RateLimiter, format: BodyFormat) -> Router {
        let limit = login(BlockPolicy::after(2, MINUTE).lasting(10 * MINUTE));
        let layer = RateLimitLayer::new(limiter, limit, Header::new("x-user").unwrap());
        let layer = layer.unwrap().body_format(format);
        Router::new().route("/", get(|| async {})).layer(layer)
    }

    async fn as_mallory(app: &Router) -> Response<axum::body::Body> {
        let request = Request::get("/").header("x-user", "mallory");
        send(app, request.body(axum::body::Body::empty()).unwrap()).await
    }

    async fn json(response: Response<axum::body::Body>) -> serde_json::Value {
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn blocked_request_is_answered_429_until_the_block_ends() {
        let limiter = RateLimiter::in_memory();
        let app = app(&limiter, BodyFormat::Json);
        assert_eq!(as_mallory(&app).await.status(), 200);
        let denied = as_mallory(&app).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(json(denied).await["error"], "rate_limited");

        let blocked = as_mallory(&app).await;
        assert_eq!(blocked.status(), 429);
        let retry_after: u64 = blocked.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(retry_after >= 600, "{retry_after} s");
        assert_eq!(blocked.headers()["x-ratelimit-remaining"], "0");
        let body = json(blocked).await;
        assert_eq!(
            (&body["error"], &body["limit"]),
            (&"blocked".into(), &"login".into())
        );
        assert_eq!(
            body["message"],
            format!("blocked by the rate limit `login`: try again in {retry_after} s")
        );
        advance(10 * MINUTE).await;
        assert_eq!(as_mallory(&app).await.status(), 200);
    }

    #[tokio::test]
    async fn problem_of_a_blocked_request_is_abnormal_usage() {
        let limiter = RateLimiter::in_memory();
        let app = app(&limiter, BodyFormat::ProblemDetails);
        for _ in 0..2 {
            as_mallory(&app).await;
        }
        let problem = json(as_mallory(&app).await).await;
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
        );
        assert_eq!(problem["violated-policies"], serde_json::json!(["login"]));
    }

    #[tokio::test]
    async fn block_that_begins_is_one_warning_with_its_key() {
        let (log, _guard) = Log::start();
        let server = RedisServer::start();
        let replicas = [server.limiter().await, server.limiter().await];
        let apps = replicas.map(|limiter| app(&limiter, BodyFormat::Json));
        log.lines();
        for number in 0..20 {
            as_mallory(&apps[number % 2]).await;
        }
        let lines = log.lines();
        let blocked: Vec<_> = lines
            .iter()
            .filter(|line| line.contains("key blocked"))
            .collect();
        assert_eq!(blocked.len(), 1, "{lines:?}");
        for part in [
            " WARN ",
            "limit=\"login\"",
            "key=mallory",
            "blocked_for_ms=600000",
        ] {
            assert!(blocked[0].contains(part), "{part} is not in {}", blocked[0]);
        }
    }
}
