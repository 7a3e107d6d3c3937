//! Sliding logs in Redis: their size, their growth, and logs that cannot be continued.

#![cfg(feature = "redis")]

use std::time::Duration;

use crate::support::RedisServer;
use crate::support::op::Op;
use redis::Commands;
use tollgate::clock::ManualClock;
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter};

#[tokio::test]
async fn log_with_appended_bytes_is_replaced() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let limit = Limit::sliding_log("log", Quota::per_minute(40)).unwrap();
    // A ring of 32 slots is longer than the first read of a log.
    for requests in [1, 5, 35] {
        let key = Key::from(requests);
        for _ in 0..requests {
            drop(limiter.check(&limit, &key).await.unwrap());
        }
        let redis_key = format!("tollgate:{{{requests}}}:l:log");
        let () = connection.append(&redis_key, "junk").unwrap();
        assert_eq!(
            limiter.peek(&limit, &key, 0).await.unwrap().remaining(),
            40,
            "{requests}"
        );
        assert_eq!(
            limiter.check(&limit, &key).await.unwrap().remaining(),
            39,
            "{requests}"
        );
        assert_eq!(
            connection.strlen::<_, usize>(&redis_key).unwrap(),
            69,
            "{requests}"
        );
        assert_eq!(
            limiter.peek(&limit, &key, 0).await.unwrap().remaining(),
            39,
            "{requests}"
        );
    }
}

#[tokio::test]
async fn log_of_a_thousand_requests_is_small() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let limit = Limit::sliding_log("log", Quota::per_minute(1_000)).unwrap();
    let key = Key::new("k");
    for _ in 0..1_000 {
        clock.advance(Duration::from_micros(40_017));
        assert!(limiter.check(&limit, &key).await.unwrap().allowed());
    }
    let usage: u64 = redis::cmd("MEMORY")
        .arg(&["USAGE", "tollgate:{k}:l:log"])
        .query(&mut server.connection())
        .unwrap();
    assert!(usage <= 7_000, "{usage} bytes");
}

#[tokio::test]
async fn cost_of_a_thousand_is_one_log_entry() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::sliding_log("log", Quota::per_minute(100_000)).unwrap();
    let key = Key::new("k");
    for _ in 0..5 {
        assert!(
            limiter
                .check_n(&limit, &key, 1_000)
                .await
                .unwrap()
                .allowed()
        );
    }
    let size: usize = server.connection().strlen("tollgate:{k}:l:log").unwrap();
    assert!(size < 200, "{size} bytes");
}

#[tokio::test]
async fn growing_log_doubles_and_decides_as_the_embedded_store() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let redis = RateLimiter::new(store.connect().await.unwrap());
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let key = Key::new("k");
    let log = |limit, minutes: u64| {
        Limit::sliding_log("log", Quota::new(limit, Duration::from_secs(60 * minutes))).unwrap()
    };
    let mut limit = log(4_000, 1);
    let mut receipts = Vec::new();
    for step in 0..9_000_u32 {
        clock.advance(Duration::from_micros(11_003));
        match step {
            // Sums need three bytes, then clocks five.
            3_000 => limit = log(70_000, 1),
            5_000 => limit = log(70_000, 90),
            _ => {}
        }
        let cost = if step % 100 == 0 { 7 } else { 1 };
        let expected = memory.check_n(&limit, &key, cost).await.unwrap();
        assert_eq!(
            redis.check_n(&limit, &key, cost).await.unwrap(),
            expected,
            "step {step}"
        );
        receipts.extend(expected.receipt());
        if step % 500 == 499 {
            // Of the newest charge, with some newer ones, and with so many that the oldest entries
            // change.
            for place in [
                receipts.len() - 1,
                receipts.len() - 100,
                receipts.len().max(1_500) - 1_500,
            ] {
                let receipt = receipts[place];
                let check = Check::new(&limit, &key).with_cost(5);
                let refund = Op::Refund.on(check, Some(receipt), Duration::ZERO);
                let expected = memory.apply(refund.clone()).await.unwrap();
                let refunded = redis.apply(refund).await.unwrap();
                assert_eq!(refunded, expected, "step {step}");
            }
        }
    }
    let rings = server.calls("set");
    assert!(rings < 40, "the ring was rewritten {rings} times");
}

#[tokio::test]
async fn log_of_alternating_quotas_is_bounded_by_the_larger_limit() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let log = |limit, seconds| {
        Limit::sliding_log("log", Quota::new(limit, Duration::from_secs(seconds))).unwrap()
    };
    let (long, short) = (log(10, 1_000), log(100, 1));
    let key = Key::new("k");
    let (mut passed, mut longest) = (0, 0);
    for _ in 0..3_000 {
        clock.advance(Duration::from_millis(11));
        passed += u32::from(limiter.check(&short, &key).await.unwrap().allowed());
        assert!(!limiter.check(&long, &key).await.unwrap().allowed() || passed <= 10);
        let length: usize = server.connection().strlen("tollgate:{k}:l:log").unwrap();
        longest = longest.max(length);
    }
    assert!(passed > 2_500, "{passed}");
    assert!(
        longest <= 69 + 200 * 6,
        "{longest} bytes for {passed} requests in the long period"
    );
}

#[tokio::test]
async fn log_restarts_its_sums_before_they_lose_precision() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let limit = Limit::sliding_log("log", Quota::per_minute(1_000)).unwrap();
    let key = Key::new("k");
    let redis_key = "tollgate:{k}:l:log";
    for _ in 0..3 {
        clock.advance(Duration::from_millis(1));
        drop(limiter.check(&limit, &key).await.unwrap());
    }
    // Both sums of the head, `before` and `sum`, as after 2^52 units: a multiple of the ring's.
    let mut connection = server.connection();
    for (place, sum) in [(34, 0), (62, 3)] {
        let sum: u64 = (1 << 52) + sum;
        let bytes = &sum.to_be_bytes()[1..];
        let () = connection.setrange(redis_key, place, bytes).unwrap();
    }
    for left in (900..997).rev() {
        clock.advance(Duration::from_millis(1));
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), left);
    }
    let head: Vec<u8> = connection.getrange(redis_key, 62, 68).unwrap();
    assert_eq!(
        head,
        100_u64.to_be_bytes()[1..],
        "the sums start from zero again"
    );
}

#[tokio::test]
async fn refund_through_the_largest_quota_exposes_no_entries_that_left_early() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = RateLimiter::new(server.store().clock(clock.clone()).connect().await.unwrap());
    for limiter in [
        redis,
        RateLimiter::new(MemoryStore::with_clock(clock.clone())),
    ] {
        let hourly = Limit::sliding_log("log", Quota::per_hour(10)).unwrap();
        let each_minute = Limit::sliding_log("log", Quota::per_minute(5)).unwrap();
        let key = Key::new("k");
        assert!(limiter.check(&hourly, &key).await.unwrap().allowed());
        let mut receipts = Vec::new();
        for _ in 0..6 {
            clock.advance(Duration::from_secs(60));
            let decision = limiter.check_n(&each_minute, &key, 5).await.unwrap();
            assert!(decision.allowed());
            receipts.extend(decision.receipt());
        }
        // Of the 31 units of this hour, 21 are left.
        for receipt in &receipts[4..] {
            limiter.refund(&hourly, &key, 5, *receipt).await.unwrap();
        }
        assert!(!limiter.check_n(&hourly, &key, 5).await.unwrap().allowed());
        clock.advance(Duration::from_secs(7_200));
    }
}

#[tokio::test]
async fn refund_of_a_charge_that_still_counts_gives_back_its_units_beside_an_empty_entry() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let log =
        |period| Limit::sliding_log("log", Quota::new(10, Duration::from_micros(period))).unwrap();
    let long = log(1_000_000_000);
    let short = log(1_000);
    let key = Key::new("k");
    for limiter in [
        RateLimiter::new(MemoryStore::with_clock(clock.clone())),
        RateLimiter::new(store.connect().await.unwrap()),
    ] {
        let first = limiter.check(&long, &key).await.unwrap().receipt();
        clock.advance(Duration::from_micros(10));
        let nine = limiter.check_n(&long, &key, 9).await.unwrap().receipt();
        limiter
            .refund(&long, &key, 1, first.unwrap())
            .await
            .unwrap();
        for _ in 0..2 {
            clock.advance(Duration::from_millis(2));
            assert!(limiter.check(&short, &key).await.unwrap().allowed());
        }
        limiter.refund(&long, &key, 9, nine.unwrap()).await.unwrap();
        let left = limiter.peek(&long, &key, 0).await.unwrap();
        assert_eq!(left.remaining(), 8, "two units count");
    }
}
