//! A check that waits reserves its units: it is allowed with a delay, in the order of the store's
//! decisions.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::decision::Receipt;
use tollgate::store::Group;
use tollgate::{Check, Limit, Quota};

use crate::support::budget::{Budget, SECOND, START, every_algorithm, quota};

/// The algorithms that reserve units.
fn buckets(quota: Quota) -> [Limit; 3] {
    [Limit::token_bucket, Limit::gcra, Limit::leaky_bucket_meter]
        .map(|of| of("bucket", quota).unwrap())
}

#[test]
fn waiting_checks_get_their_turns_one_after_another() {
    for limit in buckets(quota(2, SECOND)) {
        let mut budget = Budget::new(limit);
        let delays: Vec<_> = (0..5)
            .map(|_| budget.reserve(START, 1, 10 * SECOND).delay().as_millis())
            .collect();
        assert_eq!(delays, [0, 0, 500, 1_000, 1_500], "{}", budget.limit);
    }
}

#[test]
fn reserved_units_are_not_left_for_others() {
    for limit in buckets(quota(1, SECOND)) {
        let mut budget = Budget::new(limit);
        drop(budget.reserve(START, 1, 0));
        assert_eq!(
            budget.reserve(START, 1, 3 * SECOND).delay(),
            Duration::from_secs(1)
        );
        let denied = budget.charge(START + SECOND, 1);
        assert_eq!(
            denied.retry_after(),
            Some(Duration::from_secs(1)),
            "{}",
            budget.limit
        );
        assert!(budget.charge(START + 2 * SECOND, 1).allowed());
    }
}

#[test]
fn longer_wait_is_denied_until_it_is_short_enough() {
    for limit in buckets(quota(1, SECOND)) {
        let mut budget = Budget::new(limit);
        for _ in 0..4 {
            assert!(budget.reserve(START, 1, 3 * SECOND).allowed());
        }
        let denied = budget.reserve(START, 1, 3 * SECOND);
        assert_eq!(
            denied.retry_after(),
            Some(Duration::from_secs(1)),
            "{}",
            budget.limit
        );
        assert!(!budget.reserve(START + SECOND - 1, 1, 3 * SECOND).allowed());
        let allowed = budget.reserve(START + SECOND, 1, 3 * SECOND);
        assert_eq!(allowed.delay(), Duration::from_secs(3));
    }
}

/// While units are reserved, what the last turn leaves bounds a refund.
#[test]
fn turn_that_is_over_bounds_no_refund_even_if_the_clock_is_set_back() {
    for limit in buckets(quota(1, SECOND).burst(5)) {
        let mut budget = Budget::new(limit);
        drop(budget.charge(START, 5));
        assert_eq!(
            budget.reserve(START, 5, 9 * SECOND).delay(),
            Duration::from_secs(5)
        );
        let receipt = budget.charge(START + 6 * SECOND, 1).receipt().unwrap();
        // Before that turn, which would leave nothing.
        let set_back = START + 4_500_000;
        assert_eq!(
            budget.reserve(set_back, 1, 9 * SECOND).delay(),
            Duration::from_millis(2_500)
        );
        let before = budget.charge(set_back, 0).reset_after();
        let after = budget.refund(set_back, 1, receipt).reset_after();
        assert_eq!(before - after, Duration::from_secs(1), "{}", budget.limit);
    }
}

#[test]
fn cost_above_the_capacity_is_not_reserved() {
    for limit in buckets(quota(5, SECOND)) {
        let decision = Budget::new(limit).reserve(START, 6, 60 * SECOND);
        assert!(decision.exceeds_capacity() && decision.retry_after().is_none());
    }
}

#[test]
fn last_reservation_is_given_up_whole() {
    for limit in buckets(quota(10, SECOND)) {
        let mut budget = Budget::new(limit);
        drop(budget.charge(START, 10));
        let receipts: Vec<Receipt> = (0..20)
            .filter_map(|_| budget.reserve(START, 1, 10 * SECOND).receipt())
            .collect();
        let next = |budget: &mut Budget| {
            let decision = budget.reserve(START + 99_000, 1, 10 * SECOND);
            (decision.delay().as_micros(), decision.receipt().unwrap())
        };
        let (delay, last) = next(&mut budget);
        assert_eq!(delay, 2_001_000, "{}", budget.limit);
        for receipt in receipts.into_iter().chain([last]).rev() {
            drop(budget.refund(START + 99_000, 1, receipt));
        }
        assert_eq!(next(&mut budget).0, 1_000, "{}", budget.limit);
    }
}

#[test]
fn earlier_reservation_leaves_room_for_the_turns_behind_it() {
    // The turns are at 1, 2 and 3 seconds, and stay there.
    for (burst, freed) in [(1, 0), (2, 1), (9, 1)] {
        for limit in buckets(quota(1, SECOND).burst(burst)) {
            let mut budget = Budget::new(limit);
            drop(budget.charge(START, u32::try_from(burst).unwrap()));
            let first = budget.reserve(START, 1, 10 * SECOND).receipt().unwrap();
            for _ in 0..2 {
                drop(budget.reserve(START, 1, 10 * SECOND));
            }
            drop(budget.refund(START, 1, first));
            let next = budget.reserve(START, 1, 10 * SECOND).delay();
            assert_eq!(next, Duration::from_secs(4 - freed), "{}", budget.limit);
        }
    }
}

#[test]
fn other_algorithms_and_groups_do_not_reserve() {
    let waits =
        |limit: &Limit, key: &str| Check::new(limit, key).with_max_wait(Duration::from_secs(60));
    for limit in every_algorithm(1, SECOND) {
        if matches!(limit.name(), "token_bucket" | "gcra" | "leaky_bucket_meter") {
            continue;
        }
        let mut budget = Budget::new(limit);
        drop(budget.charge(START, 1));
        assert!(
            !budget.reserve(START, 1, 60 * SECOND).allowed(),
            "{}",
            budget.limit
        );
    }
    let [bucket, ..] = buckets(quota(1, SECOND));
    let group = Group::new([waits(&bucket, "alice"), waits(&bucket, "bob")]).unwrap();
    assert!(group.iter().all(|check| check.max_wait().is_zero()));
}

/// A slower quota, while a larger debt drains at the earlier rate.
#[test]
fn units_are_not_reserved_at_an_earlier_faster_rate() {
    let fast = Limit::token_bucket("api", quota(10, SECOND).burst(40)).unwrap();
    let slow = Limit::token_bucket("api", quota(1, SECOND)).unwrap();
    let mut budget = Budget::new(fast);
    drop(budget.charge(START, 31));
    budget.limit = slow;
    // 30 units drain in 3 s at the earlier rate. Then one unit a second is replenished.
    let denied = budget.reserve(START, 1, 60 * SECOND);
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(3)));
    let then = START + 3 * SECOND;
    assert!(!budget.reserve(then - 1, 1, 60 * SECOND).allowed());
    let delays: Vec<_> = (0..3)
        .map(|_| budget.reserve(then, 1, 60 * SECOND).delay().as_secs())
        .collect();
    assert_eq!(delays, [1, 2, 3]);
}

#[derive(Clone, Debug)]
struct Event {
    pause: u64,
    cost: u32,
    max_wait: u64,
    /// Whether the check is given up, this long after its reservation if it still waits then.
    gives_up: Option<u64>,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pause = prop_oneof![3 => Just(0), 3 => 0..SECOND / 20, 1 => 0..2 * SECOND];
    let max_wait = prop_oneof![2 => Just(0), 3 => 0..SECOND, 2 => 0..20 * SECOND];
    let gives_up = prop_oneof![3 => Just(None), 2 => (0..3 * SECOND).prop_map(Some)];
    let event = (pause, 1u32..4, max_wait, gives_up);
    let event = event.prop_map(|(pause, cost, max_wait, gives_up)| Event {
        pause,
        cost,
        max_wait,
        gives_up,
    });
    prop::collection::vec(event, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// In any time `t`, the checks that are carried out cost at most `burst + rate * t`, for any
    /// checks that wait, pass or give up. In histories in which none gives up, turns are in the
    /// order of the decisions.
    #[test]
    fn reservations_keep_the_promise_of_a_bucket(
        limit in 1u64..20, burst in 3u64..20, events in events(),
    ) {
        for of in buckets(quota(limit, SECOND).burst(burst)) {
            let mut budget = Budget::new(of);
            let mut now = START;
            let mut carried_out: Vec<(u64, u64)> = Vec::new();
            // When, and what is given back.
            let mut given_up: Vec<(u64, u32, Receipt)> = Vec::new();
            let mut last_turn = 0;
            for event in &events {
                now += event.pause;
                given_up.sort_by_key(|(at, ..)| *at);
                while given_up.first().is_some_and(|(at, ..)| *at <= now) {
                    let (at, cost, receipt) = given_up.remove(0);
                    drop(budget.refund(at, cost, receipt));
                }
                let decision = budget.reserve(now, event.cost, event.max_wait);
                let delay = decision.delay().as_micros() as u64;
                prop_assert!(delay <= event.max_wait);
                if let Some(wait) = decision.retry_after() {
                    let wait = wait.as_micros() as u64;
                    let mut early = budget.clone();
                    let too_early = early.reserve(now + wait - 1, event.cost, event.max_wait);
                    prop_assert!(!too_early.allowed());
                    let mut later = budget.clone();
                    prop_assert!(later.reserve(now + wait, event.cost, event.max_wait).allowed());
                    continue;
                }
                match (event.gives_up, decision.receipt()) {
                    (Some(after), Some(receipt)) if after < delay => {
                        given_up.push((now + after, event.cost, receipt));
                    }
                    _ => carried_out.push((now + delay, event.cost.into())),
                }
                let any_gives_up = events.iter().any(|event| event.gives_up.is_some());
                prop_assert!(any_gives_up || now + delay >= last_turn);
                last_turn = now + delay;
            }
            carried_out.sort_unstable();
            for (i, &(start, _)) in carried_out.iter().enumerate() {
                let mut units = 0;
                for &(at, cost) in &carried_out[i..] {
                    units += cost;
                    // Turns are whole microseconds.
                    let bound = burst * SECOND + limit * (at - start + 1);
                    prop_assert!(units * SECOND <= bound, "{units} in {} us", at - start);
                }
            }
        }
    }
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use crate::support::RedisServer;
    use tollgate::RateLimiter;
    use tollgate::store::Operation;

    #[tokio::test]
    async fn replicas_take_turns_in_the_order_in_which_they_asked() {
        let server = RedisServer::start();
        let replica = || RateLimiter::new(server.store().build().unwrap());
        let replicas = [replica(), replica(), replica()];
        let limit = Limit::token_bucket("provider", Quota::per_minute(1)).unwrap();
        let mut last = None;
        for turn in 0..9 {
            let check = Check::new(&limit, "openai").with_max_wait(Duration::from_secs(3_600));
            let decision = replicas[turn % 3]
                .apply(Operation::Charge(check.into()))
                .await
                .unwrap();
            assert!(decision.allowed());
            assert!(Some(decision.delay()) > last || turn == 0, "turn {turn}");
            last = Some(decision.delay());
        }
        let minutes = last.unwrap().as_secs_f64() / 60.0;
        assert!((7.9..=8.0).contains(&minutes), "{minutes} minutes");
    }
}
