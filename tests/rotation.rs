//! Two configurations of one name, in turn, as in a rolling deployment: over many periods, on both
//! stores.

mod support;

use std::time::Duration;

use tollgate::{Key, Limit, ManualClock, MemoryStore, Op, Quota, Store};

const SECOND: u64 = 1_000_000;

/// A whole hour in 2026.
const START: u64 = 1_790_002_800 * SECOND;

fn every_algorithm(name: &str, quota: Quota) -> Vec<Limit> {
    [
        Limit::token_bucket(name, quota),
        Limit::leaky_bucket(name, quota),
        Limit::leaky_bucket_meter(name, quota),
        Limit::gcra(name, quota),
        Limit::fixed_window(name, quota),
        Limit::fixed_window_aligned(name, quota),
        Limit::sliding_window(name, quota),
        Limit::sliding_window_of(name, quota, 5),
        Limit::sliding_log(name, quota),
    ]
    .map(Result::unwrap)
    .into()
}

/// The embedded store, and one on Redis, by the same clock.
fn stores(clock: &ManualClock) -> Vec<(Box<dyn Store>, Option<Redis>)> {
    let memory = Box::new(MemoryStore::with_clock(clock.clone()));
    let mut stores: Vec<(Box<dyn Store>, Option<Redis>)> = vec![(memory, None)];
    stores.extend(on_redis(clock));
    stores
}

#[cfg(feature = "redis")]
type Redis = support::RedisServer;

#[cfg(feature = "redis")]
fn on_redis(clock: &ManualClock) -> Option<(Box<dyn Store>, Option<Redis>)> {
    let server = support::RedisServer::start();
    let store = server.store().clock(clock.clone()).build().unwrap();
    Some((Box::new(store), Some(server)))
}

#[cfg(not(feature = "redis"))]
type Redis = ();

#[cfg(not(feature = "redis"))]
fn on_redis(_: &ManualClock) -> Option<(Box<dyn Store>, Option<Redis>)> {
    None
}

#[tokio::test]
async fn two_algorithms_in_turn_allow_at_most_the_sum_of_both_limits() {
    let clock = ManualClock::new();
    for (store, _server) in stores(&clock) {
        let quota = Quota::per_minute(10);
        let mut number = 0_u32;
        for one in every_algorithm("limit", quota) {
            for other in every_algorithm("limit", quota) {
                number += 1;
                let key = Key::from(number);
                let mut passed = 0;
                for tick in 0..600 {
                    clock.set(Duration::from_micros(START + tick * SECOND));
                    let limit = [&one, &other][tick as usize % 2];
                    let decision = store.apply(Op::Charge, &[limit.charge(&key, 1)]).await;
                    passed += u32::from(decision.unwrap().allowed());
                }
                // In ten minutes each allows 110 at most: ten at once, and ten a minute.
                assert!(passed <= 220, "{one}, {other}: {passed}");
            }
        }
    }
}
