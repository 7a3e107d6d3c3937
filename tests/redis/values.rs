//! The values that the Redis store writes: their format and expiry, and what it reads instead of
//! values that are missing, corrupt or impossible.

#![cfg(feature = "redis")]

use std::time::Duration;

use crate::support::RedisServer;
use crate::support::limits::limits;
use redis::Commands;
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::{Key, Limit, Quota, RateLimiter};

#[tokio::test]
async fn peek_changes_neither_value_nor_ttl() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    for limit in limits() {
        drop(limiter.check_n(&limit, &key, 2).await.unwrap());
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        // An expiry that no check writes.
        let _: bool = connection.expire(&redis_key, 1_000_000).unwrap();
        let before: Vec<u8> = connection.get(&redis_key).unwrap();
        assert!(limiter.peek(&limit, &key, 3).await.unwrap().allowed());
        assert!(!limiter.peek(&limit, &key, 4).await.unwrap().allowed());
        assert!(limiter.check_n(&limit, &key, 0).await.unwrap().allowed());
        assert_eq!(
            connection.get::<_, Vec<u8>>(&redis_key).unwrap(),
            before,
            "{limit}"
        );
        assert!(
            connection.ttl::<_, i64>(&redis_key).unwrap() > 900_000,
            "{limit}"
        );
    }
}

#[tokio::test]
async fn denied_check_writes_nothing() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let key = Key::new("alice");
    for limit in limits() {
        drop(limiter.check_n(&limit, &key, 5).await.unwrap());
        let changes =
            || ["set", "psetex", "setrange", "pexpire", "del"].map(|command| server.calls(command));
        let before = changes();
        assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
        assert_eq!(changes(), before, "{limit}");
    }
}

#[tokio::test]
async fn reset_and_full_refund_leave_no_key() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    for limit in limits() {
        let (clock, key) = (ManualClock::new(), Key::new("bob"));
        clock.set(Duration::from_secs(1_790_000_000));
        let store = server.store().clock(clock.clone()).build().unwrap();
        let stopped = RateLimiter::new(store);
        let receipt = stopped
            .check_n(&limit, &key, 5)
            .await
            .unwrap()
            .receipt()
            .unwrap();
        for (units, left) in [(2, 2), (900, 5)] {
            let refund = stopped.refund(&limit, &key, units, receipt);
            refund.await.unwrap();
            let peeked = stopped.peek(&limit, &key, 0).await.unwrap();
            assert_eq!(peeked.remaining(), left, "{limit}");
        }
        let key = Key::new("alice");
        drop(limiter.check_n(&limit, &key, 5).await.unwrap());
        limiter.reset(&limit, &key).await.unwrap();
        let peeked = limiter.peek(&limit, &key, 0).await.unwrap();
        assert_eq!(peeked.remaining(), 5, "{limit}");
    }
    assert_eq!(
        connection.keys::<_, Vec<String>>("*").unwrap(),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn unreadable_values_count_as_full_budgets_and_are_replaced() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let key = Key::new("alice");
    // With two entries a log has a ring.
    for (limit, entries) in limits()
        .into_iter()
        .flat_map(|limit| [(limit.clone(), 1), (limit, 2)])
    {
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        limiter.reset(&limit, &key).await.unwrap();
        for _ in 0..entries {
            drop(limiter.check(&limit, &key).await.unwrap());
        }
        let good: Vec<u8> = connection.get(&redis_key).unwrap();
        let mut garbage: Vec<Vec<u8>> = vec![
            Vec::new(),
            b"42".to_vec(),
            good[..good.len() - 1].to_vec(),
            [&good[..], b"x"].concat(),
            vec![0xff; good.len()],
            vec![0; good.len()],
            // More sub-windows than any window has.
            [&good[..2], &[0; 20 + 7 * 9_000]].concat(),
        ];
        // A value of the right size, with each of its bytes corrupted in turn.
        for place in 0..good.len() {
            let mut value = good.clone();
            value[place] ^= 0xff;
            garbage.push(value);
        }
        for value in garbage {
            let () = connection.set(&redis_key, &value).unwrap();
            let decision = limiter.check(&limit, &key).await;
            let decision = decision.unwrap_or_else(|error| panic!("{limit} {value:?}: {error}"));
            assert!(decision.remaining() <= 5, "{limit} {value:?}");
            let receipt = Receipt::new(decision.decided_at(), 1);
            limiter.refund(&limit, &key, 1, receipt).await.unwrap();
            drop(limiter.peek(&limit, &key, 1).await.unwrap());
            drop(limiter.check_n(&limit, &key, 5).await.unwrap());
        }
        for other_type in ["LPUSH", "SADD"] {
            let () = connection.del(&redis_key).unwrap();
            let () = redis::cmd(other_type)
                .arg(&redis_key)
                .arg("x")
                .query(&mut connection)
                .unwrap();
            assert_eq!(
                limiter.peek(&limit, &key, 0).await.unwrap().remaining(),
                5,
                "{limit}"
            );
            let refund = limiter.refund(&limit, &key, 1, Receipt::new(Duration::ZERO, 1));
            refund.await.unwrap();
            let peeked = limiter.peek(&limit, &key, 0).await.unwrap();
            assert_eq!(peeked.remaining(), 5, "{limit}");
            assert_eq!(
                limiter.check(&limit, &key).await.unwrap().remaining(),
                4,
                "{limit}"
            );
            assert_eq!(
                limiter.check(&limit, &key).await.unwrap().remaining(),
                3,
                "{limit}"
            );
        }
    }
}

#[tokio::test]
async fn impossible_values_count_as_full_budgets() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let mut connection = server.connection();
    let key = Key::new("k");
    let packed = |kind: u8, numbers: &[(u64, usize)]| -> Vec<u8> {
        let bytes = numbers
            .iter()
            .flat_map(|(number, size)| number.to_be_bytes()[8 - size..].to_vec());
        std::iter::once(kind).chain(bytes).collect()
    };
    let (now, huge) = (1_790_000_000_000_000, (1 << 53) - 1);
    let quota = Quota::per_minute(5);
    for (limit, value) in [
        // It would take 285 years to drain.
        (
            Limit::token_bucket("limit", quota).unwrap(),
            packed(4, &[(now, 7), (huge, 7), (1, 7), (1, 6), (now, 7)]),
        ),
        // Its window would end in 150 years.
        (
            Limit::fixed_window("limit", quota).unwrap(),
            packed(
                1,
                &[
                    (5, 7),
                    (now, 7),
                    (now + (1 << 52), 7),
                    (120_000_000, 6),
                    (now, 7),
                ],
            ),
        ),
        // The counts of two sub-windows could not be added exactly.
        (
            Limit::sliding_window("limit", quota).unwrap(),
            packed(
                2,
                &[
                    (2, 1),
                    (60_000_000, 6),
                    (now, 7),
                    (now, 7),
                    (huge, 7),
                    (huge, 7),
                ],
            ),
        ),
    ] {
        let () = connection
            .set(format!("tollgate:{{k}}:{}:limit", limit.kind()), value)
            .unwrap();
        assert_eq!(
            limiter.check(&limit, &key).await.unwrap().remaining(),
            4,
            "{limit}"
        );
    }
}

#[tokio::test]
async fn stored_values_have_the_format_of_their_kind() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let limiter = RateLimiter::new(server.store().clock(clock.clone()).connect().await.unwrap());
    let quota = Quota::per_minute(5);
    let mut connection = server.connection();
    // A value that another version of this crate reads has to look the same. If this fails, the
    // format changed: give the kind another letter (`Algorithm::kind`), and this list the new
    // value.
    for (limit, expected) in [
        (
            Limit::gcra("limit", quota),
            (
                "b",
                "04065bfeda25e001000000022550ff00000000000001000000b71b00065bfeda25e000",
            ),
        ),
        (
            Limit::fixed_window("limit", quota),
            (
                "w",
                "0100000000000003065bfeda25e001065bfeddb96700000007270e00065bfeda25e000",
            ),
        ),
        (
            Limit::sliding_window("limit", quota),
            (
                "s",
                "0202000003938700065bfeda25e001065bfeda25e0000000000000000300000000000000",
            ),
        ),
        (
            Limit::sliding_log("limit", quota),
            (
                "l",
                "03000003938700000000000005065bfeda25e00004010000000500000000000000010000000000000000000000000000065bfeda25e001000000000000010000000000000300000000010000000000000000000000000000000000000000",
            ),
        ),
    ] {
        let limit = limit.unwrap();
        let key = Key::new("k");
        drop(limiter.check(&limit, &key).await.unwrap());
        clock.advance(Duration::from_micros(1));
        drop(limiter.check_n(&limit, &key, 2).await.unwrap());
        let value: Vec<u8> = connection
            .get(format!("tollgate:{{k}}:{}:limit", limit.kind()))
            .unwrap();
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((limit.kind(), &*hex), expected, "{limit}");
        clock.set(Duration::from_secs(1_790_000_000));
    }
}
