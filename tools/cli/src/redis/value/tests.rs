#[path = "../../../../../tests/support/redis_server.rs"]
mod redis_server;

use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::{Key, RateLimiter, RedisStore};

use self::redis_server::RedisServer;
use super::*;
use crate::limit::LimitSpec;

#[test]
fn values_that_are_cut_off_or_of_other_programs_are_unreadable() {
    for kind in [1, 2, 3, 4, 8, 9] {
        for length in 0..20 {
            let mut value = vec![kind];
            value.extend(vec![0xff; length]);
            assert_eq!(
                Value::read(&value, 0),
                Value::Unreadable,
                "{kind}: {length} bytes"
            );
        }
    }
    for value in [&b""[..], b"5", b"1700000000000", &[0; 100]] {
        assert_eq!(Value::read(value, 0), Value::Unreadable, "{value:?}");
    }
}

/// A small generator of numbers: what they are does not matter, only that they differ.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

#[tokio::test]
async fn units_used_are_those_that_the_library_says_at_any_time() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let start = Duration::from_secs(1_700_000_000);
    let store = RedisStore::builder("tollgate")
        .url(server.url())
        .clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let mut random = Random(7);
    for spec in [
        "token_bucket 7/10s burst 20",
        "gcra 20/min",
        "leaky_bucket 3/1s burst 40",
        "fixed_window 25/10s",
        "fixed_window_aligned 25/10s",
        "fixed_window 2500/month",
        "sliding_window 25/10s",
        "sliding_window(7) 25/10s",
        "sliding_log 25/10s",
    ] {
        let name = spec.replace([' ', '/', '(', ')'], "-");
        let limit = spec.parse::<LimitSpec>().unwrap().limit(&name).unwrap();
        let (key, mut now) = (Key::new("alice"), start);
        let redis_key = format!("tollgate:{{alice}}:{}:{name}", limit.kind());
        let mut compared = 0;
        for _ in 0..300 {
            now += Duration::from_micros(random.below(2_500_000));
            clock.set(now);
            let cost = 1 + random.below(3) as u32;
            drop(limiter.check_n(&limit, &key, cost).await.unwrap());
            now += Duration::from_micros(random.below(4_000_000));
            clock.set(now);
            let peeked = limiter.peek(&limit, &key, 0).await.unwrap();
            let value: Option<Vec<u8>> =
                redis::Commands::get(&mut server.connection(), &redis_key).unwrap();
            let Some(value) = value else { continue };
            let read = Value::read(&value, now.as_micros() as u64);
            let used = peeked.capacity() - peeked.remaining();
            assert_eq!(read.used(), used.to_string(), "{spec} at {now:?}: {read:?}");
            compared += 1;
        }
        assert!(compared > 200, "{spec}: {compared} values");
    }
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let mut random = Random(1);
    for length in 0..400 {
        let mut value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        for kind in [1, 2, 3, 4, 8, 9] {
            if let Some(first) = value.first_mut() {
                *first = kind;
            }
            for now in [0, 1_700_000_000_000_000, u64::MAX] {
                let _ = Value::read(&value, now);
            }
        }
    }
}
