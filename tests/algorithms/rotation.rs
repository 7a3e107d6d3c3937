//! Two quotas of one name in turn, as in a rolling deployment, over many periods and on both
//! stores.

use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::store::{Operation, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota};

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
        Limit::sliding_window_with(name, quota, 5),
        Limit::sliding_log(name, quota),
    ]
    .map(Result::unwrap)
    .into()
}

/// The embedded store and one on Redis, with the same clock.
fn stores(clock: &ManualClock) -> Vec<(Box<dyn Store>, Option<Redis>)> {
    let memory = Box::new(MemoryStore::with_clock(clock.clone()));
    let mut stores: Vec<(Box<dyn Store>, Option<Redis>)> = vec![(memory, None)];
    stores.extend(on_redis(clock));
    stores
}

#[cfg(feature = "redis")]
type Redis = crate::support::RedisServer;

#[cfg(feature = "redis")]
fn on_redis(clock: &ManualClock) -> Option<(Box<dyn Store>, Option<Redis>)> {
    let server = crate::support::RedisServer::start();
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
                let mut count = 0;
                for tick in 0..600 {
                    clock.set(Duration::from_micros(START + tick * SECOND));
                    let limit = [&one, &other][tick as usize % 2];
                    let decision = store
                        .apply(Operation::Charge(Check::new(limit, &key).into()))
                        .await;
                    count += u32::from(decision.unwrap().allowed());
                }
                // In ten minutes, each allows 110 at most: ten at once, and ten a minute.
                assert!(count <= 220, "{one}, {other}: {count}");
            }
        }
    }
}

/// Applies the steps to all stores, and returns their common answers.
async fn charge_on_both(steps: &[(u64, &Limit, u32)]) -> Vec<bool> {
    let clock = ManualClock::new();
    let key = Key::new("k");
    let mut answers: Vec<Vec<bool>> = Vec::new();
    for (store, _server) in stores(&clock) {
        let mut allowed = Vec::new();
        for &(second, limit, cost) in steps {
            clock.set(Duration::from_micros(START + second * SECOND));
            let decision = store
                .apply(Operation::Charge(
                    Check::new(limit, &key).with_cost(cost).into(),
                ))
                .await
                .unwrap();
            allowed.push(decision.allowed());
        }
        answers.push(allowed);
    }
    assert!(
        answers.iter().all(|it| *it == answers[0]),
        "both stores decide alike"
    );
    answers.swap_remove(0)
}

fn per(limit: u64, seconds: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(seconds))
}

#[tokio::test]
async fn short_quota_keeps_the_used_units_of_a_long_one() {
    for (long, short) in every_algorithm("limit", per(100, 100))
        .iter()
        .zip(&every_algorithm("limit", per(10, 10)))
    {
        if long.kind() == "b" {
            // A level drains at the rate, which is the same for both.
            continue;
        }
        let allowed = charge_on_both(&[(0, long, 100), (20, short, 1), (20, long, 99)]).await;
        // In a sliding window, the first charges fade.
        assert!(allowed[0] && !allowed[2], "{long}: {allowed:?}");
        assert!(allowed[1], "{long}: {allowed:?}");
    }
}

#[tokio::test]
async fn alternating_quotas_allow_at_most_their_sum() {
    let longs = every_algorithm("limit", per(1_000, 3_600));
    for (long, short) in longs.iter().zip(&every_algorithm("limit", per(10, 60))) {
        let steps: Vec<_> = (0..3_600 * 2)
            .map(|tick| (tick / 2, if tick % 2 == 0 { long } else { short }, 1))
            .collect();
        let allowed = charge_on_both(&steps).await;
        let count = allowed.iter().filter(|it| **it).count();
        // A thousand at once, or a burst and the faster rate; and ten a minute in addition.
        let at_most = if long.kind() == "b" { 2_000 } else { 1_620 };
        assert!(count <= at_most, "{long}: {count}");
    }
}

#[tokio::test]
async fn short_quota_is_not_locked_out_by_a_long_one() {
    let longs = every_algorithm("limit", per(1_000, 3_600));
    for (long, short) in longs.iter().zip(&every_algorithm("limit", per(10, 60))) {
        if long.kind() == "b" {
            // Units above the short quota's capacity drain first.
            continue;
        }
        // The long quota allows half as many checks as the short one.
        let mut steps = vec![(0, long, 500)];
        for tick in 0..720 {
            steps.push((tick * 5, short, 1));
            steps.extend((tick % 3 == 0).then_some((tick * 5 + 1, long, 1)));
        }
        let allowed = charge_on_both(&steps).await;
        let asked = steps.iter().zip(allowed);
        let count = asked
            .filter(|((_, limit, _), allowed)| *limit == short && *allowed)
            .count();
        assert!(
            count >= 180,
            "{long}: {count} of the 300 that are left in an hour"
        );
    }
}

#[tokio::test]
async fn log_counts_the_units_of_a_short_quota_since_a_denied_check_of_a_long_one() {
    let log = |limit, seconds| Limit::sliding_log("limit", per(limit, seconds)).unwrap();
    let (long, short) = (log(2, 200), log(1, 10));
    let allowed = charge_on_both(&[
        (0, &long, 2),
        (190, &long, 1),
        (190, &short, 1),
        // The charge of the first second leaves. The short quota's two do not.
        (200, &short, 1),
        (200, &long, 1),
    ])
    .await;
    assert_eq!(allowed, [true, false, true, true, false]);
}

#[tokio::test]
async fn log_keeps_the_units_of_a_quota_when_a_longer_one_is_no_longer_used() {
    let log = |limit, seconds| Limit::sliding_log("limit", per(limit, seconds)).unwrap();
    let (longest, long, short) = (log(9, 300), log(3, 200), log(1, 10));
    let mut steps = vec![(0, &longest, 1)];
    // The longest quota's period ends between two checks of the long one.
    steps.extend([
        (150, &long, 1),
        (250, &long, 1),
        (301, &short, 1),
        (340, &long, 1),
    ]);
    assert_eq!(
        charge_on_both(&steps).await,
        [true, true, true, true, false]
    );
}
