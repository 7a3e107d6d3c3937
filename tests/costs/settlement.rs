//! A charge is settled at its real cost: less is given back, more is charged as a debt.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::decision::Receipt;
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::budget::{Budget, SECOND, START, every_algorithm, quota};

#[test]
fn lower_cost_gives_the_difference_back() {
    for limit in every_algorithm(10, SECOND) {
        let mut budget = Budget::new(limit);
        let receipt = budget.charge(START, 8).receipt();
        let settled = budget.settle(START, 3, receipt);
        assert_eq!(settled.remaining(), 7, "{}", budget.limit);
    }
}

#[test]
fn equal_cost_changes_nothing() {
    for limit in every_algorithm(10, SECOND) {
        let mut budget = Budget::new(limit);
        let receipt = budget.charge(START, 8).receipt();
        let before = budget.state.clone();
        assert_eq!(
            budget.settle(START + 1_000, 8, receipt).remaining(),
            2,
            "{}",
            budget.limit
        );
        assert_eq!(budget.state, before, "{}", budget.limit);
    }
}

#[test]
fn higher_cost_is_a_debt_that_delays_the_next_check() {
    let quarter = SECOND / 4;
    for limit in every_algorithm(10, SECOND) {
        let mut budget = Budget::new(limit);
        let receipt = budget.charge(START, 4).receipt();
        let settled = budget.settle(START, 14, receipt);
        assert!(settled.allowed(), "a settlement is never denied");
        assert_eq!(settled.remaining(), 0, "{}", budget.limit);
        let denied = budget.charge(START + quarter, 1);
        assert!(
            !denied.allowed(),
            "{}: at least 11 units still count",
            budget.limit
        );
        assert_eq!(denied.remaining(), 0, "{}", budget.limit);
    }
}

#[test]
fn bucket_repays_a_debt_and_a_window_forgets_it() {
    let ten = quota(10, 10 * SECOND);
    let wait_after_debt = |limit: Limit| {
        let mut budget = Budget::new(limit);
        let receipt = budget.charge(START, 10).receipt();
        drop(budget.settle(START, 40, receipt));
        budget.charge(START, 1).retry_after().unwrap()
    };
    let seconds = Duration::from_secs;
    assert_eq!(
        wait_after_debt(Limit::token_bucket("api", ten).unwrap()),
        seconds(31)
    );
    assert_eq!(
        wait_after_debt(Limit::fixed_window("api", ten).unwrap()),
        seconds(10)
    );
    assert_eq!(
        wait_after_debt(Limit::sliding_log("api", ten).unwrap()),
        seconds(10)
    );
    let sliding = wait_after_debt(Limit::sliding_window("api", ten).unwrap());
    assert!(
        sliding > seconds(7) && sliding <= seconds(20),
        "{sliding:?}"
    );
}

#[test]
fn debt_counts_under_every_quota_of_the_name() {
    let windows = [
        [Limit::fixed_window, Limit::fixed_window_aligned],
        [Limit::sliding_window, Limit::sliding_window],
    ];
    for [short, long] in windows {
        let mut budget = Budget::new(short("api", quota(10, SECOND)).unwrap());
        let long = long("api", quota(100, 3_600 * SECOND)).unwrap();
        // Both are in use.
        let receipt = budget.charge(START, 1).receipt();
        let mut budget = Budget {
            limit: long,
            ..budget
        };
        assert_eq!(budget.charge(START, 1).remaining(), 98, "{}", budget.limit);
        let long = std::mem::replace(&mut budget.limit, short("api", quota(10, SECOND)).unwrap());
        drop(budget.settle(START, 41, receipt));
        budget.limit = long;
        assert_eq!(
            budget.charge(START, 1).remaining(),
            57,
            "{}: 42 and 1",
            budget.limit
        );
    }
}

#[test]
fn cost_without_a_receipt_is_charged_whole() {
    for limit in every_algorithm(10, SECOND) {
        let mut budget = Budget::new(limit);
        assert_eq!(
            budget.settle(START, 3, None).remaining(),
            7,
            "{}",
            budget.limit
        );
        assert!(!budget.charge(START, 8).allowed(), "{}", budget.limit);
        assert!(budget.charge(START, 7).allowed(), "{}", budget.limit);
    }
}

#[test]
fn debt_is_at_most_its_bound() {
    let bounded = |limit: Limit| limit.with_max_debt(5).unwrap();
    for limit in every_algorithm(10, 10 * SECOND).into_iter().map(bounded) {
        let mut budget = Budget::new(limit);
        drop(budget.settle(START, 1_000_000, None));
        let once = budget.charge(START, 1).retry_after().unwrap();
        drop(budget.settle(START, u32::MAX, None));
        assert_eq!(
            budget.charge(START, 1).retry_after(),
            Some(once),
            "{}",
            budget.limit
        );
        if budget.limit.kind() == "b" {
            assert_eq!(once, Duration::from_secs(6), "a debt of 5, and one unit");
        }
    }
}

#[test]
fn smaller_bound_does_not_cancel_a_debt() {
    for limit in every_algorithm(10, 10 * SECOND) {
        let mut budget = Budget::new(limit);
        drop(budget.settle(START, 100, None));
        let before = budget.charge(START, 1);
        budget.limit = budget.limit.clone().with_max_debt(1).unwrap();
        drop(budget.settle(START, 7, None));
        let after = budget.charge(START, 1);
        assert_eq!(
            after.retry_after(),
            before.retry_after(),
            "{}",
            budget.limit
        );
    }
}

/// A token budget: the responses take so long that the estimate would have drained if it were
/// alone.
#[test]
fn loaded_bucket_gives_back_after_a_long_response() {
    let tokens = Limit::token_bucket("tokens", quota(60_000, 60 * SECOND)).unwrap();
    let mut budget = Budget::new(tokens);
    drop(budget.charge(START, 50_000));
    let receipt = budget.charge(START, 4_000).receipt();
    // 30 s later, 30,000 tokens have drained: 24,000 are left, and the estimate may be among them.
    let settled = budget.settle(START + 30 * SECOND, 1_000, receipt);
    assert_eq!(settled.remaining(), 39_000);

    let known = receipt.unwrap();
    let unknown = Receipt::new(known.charged_at(), known.cost());
    let mut budget = Budget::new(budget.limit);
    drop(budget.charge(START, 54_000));
    let settled = budget.settle(START + 30 * SECOND, 1_000, Some(unknown));
    assert_eq!(
        settled.remaining(),
        36_000,
        "without its level, nothing is known to be left"
    );
}

#[test]
fn what_was_given_back_is_not_given_back_again() {
    // 10 units a second, of which 10 drain in a second.
    let mut budget = Budget::new(Limit::token_bucket("api", quota(100, 10 * SECOND)).unwrap());
    let ten = budget.charge(START, 10).receipt();
    let one = budget.charge(START, 1).receipt();
    // Half of the ten have drained.
    let settled = budget.settle(START + SECOND / 2, 0, ten);
    assert_eq!(settled.remaining(), 99);
    // Half a unit is left, and one more is charged.
    drop(budget.charge(START + SECOND * 55 / 100, 1));
    let settled = budget.settle(START + SECOND * 6 / 10, 0, one);
    assert_eq!(
        settled.remaining(),
        99,
        "the first charge of one unit has drained"
    );
}

#[test]
fn receipt_can_be_stored_and_recreated() {
    let mut budget = Budget::new(Limit::gcra("api", quota(10, SECOND)).unwrap());
    drop(budget.charge(START, 5));
    let known = budget.charge(START, 4).receipt().unwrap();
    assert_eq!(known.drains_at(), Duration::from_micros(START + 900_000));
    let same = Receipt::new(known.charged_at(), known.cost()).with_drains_at(known.drains_at());
    assert_eq!(same, known);
    assert_eq!(same.after(1).drains_at(), known.drains_at());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn retry_after_is_exact_in_debt(
        limit in 1u64..12, cost in 1u32..12,
        traffic in prop::collection::vec((0..SECOND, 0u32..60, any::<bool>()), 1..40),
    ) {
        for limit in every_algorithm(limit, SECOND) {
            let mut budget = Budget::new(limit);
            let mut now = START;
            let mut receipts = Vec::new();
            for &(gap, cost, settles) in &traffic {
                now += gap;
                if settles {
                    drop(budget.settle(now, cost, receipts.pop()));
                } else {
                    receipts.extend(budget.charge(now, cost).receipt());
                }
            }
            let decision = budget.peek(now, cost);
            if let Some(wait) = decision.retry_after() {
                let wait = wait.as_micros() as u64;
                prop_assert!(!budget.clone().charge(now + wait - 1, cost).allowed());
                prop_assert!(budget.clone().charge(now + wait, cost).allowed());
            } else {
                prop_assert_eq!(decision.exceeds_capacity(), !decision.allowed());
            }
            let reset = budget.peek(now, 0).reset_after().as_micros() as u64;
            let full = budget.peek(now + reset, 0);
            prop_assert_eq!(full.remaining(), full.capacity());
        }
    }

    /// The largest costs, again and again: sums stay exact, and the budget heals.
    #[test]
    fn huge_debts_stay_exact(
        limit in prop_oneof![1u64..12, Just(1_000_000), Just(4_000_000_000)],
        gaps in prop::collection::vec(0..2 * SECOND, 1..60),
    ) {
        for limit in every_algorithm(limit, SECOND) {
            let mut budget = Budget::new(limit);
            let mut now = START;
            for gap in &gaps {
                now += gap;
                drop(budget.settle(now, u32::MAX, None));
                drop(budget.charge(now, 1));
            }
            let reset = budget.peek(now, 0).reset_after().as_micros() as u64;
            prop_assert!(reset <= 10 * 366 * 86_400 * SECOND, "{}", reset);
            prop_assert!(budget.charge(now + reset, 1).allowed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn settlement_wakes_a_waiter() {
    let limiter = RateLimiter::new(MemoryStore::new());
    let limit = Limit::token_bucket("tokens", Quota::per_minute(60)).unwrap();
    let key = Key::new("alice");
    let receipt = limiter.check_n(&limit, &key, 60).await.unwrap().receipt();
    let group = [
        Check::new(&limit, &key).with_cost(30),
        Check::new(
            &Limit::fixed_window("day", Quota::per_day(9)).unwrap(),
            &key,
        ),
    ];
    let waiting = limiter.acquire_all(group, Duration::from_secs(60));
    let settling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        limiter.settle(&limit, &key, 10, receipt).await.unwrap();
    };
    let started = tokio::time::Instant::now();
    let (waited, ()) = tokio::join!(waiting, settling);
    assert!(waited.unwrap().allowed());
    assert_eq!(started.elapsed(), Duration::from_secs(1));
}

#[cfg(feature = "redis")]
mod on_redis {
    use tollgate::store::{Change, Operation};

    use super::*;
    use crate::support::RedisServer;

    #[tokio::test]
    async fn charges_of_a_group_are_settled_in_one_call() {
        let server = RedisServer::start();
        let limiter = RateLimiter::new(server.store().build().unwrap());
        let requests = Limit::fixed_window("requests", Quota::per_hour(60)).unwrap();
        let tokens = Limit::token_bucket("tokens", Quota::per_hour(40_000)).unwrap();
        let group = [
            Check::new(&requests, "alice"),
            Check::new(&tokens, "alice").with_cost(500),
        ];
        let charged = limiter.check_all(&group).await.unwrap();
        let before = server.calls("evalsha");
        let charges = group.into_iter().zip([1, 812]).zip(charged.receipts());
        let settlements = charges.map(|((check, cost), receipt)| {
            let receipt = receipt.unwrap();
            limiter.apply(Operation::Change(
                check.into(),
                Change::Settle { receipt, cost },
            ))
        });
        let mut left = Vec::new();
        for settled in settlements.collect::<Vec<_>>() {
            left.push(settled.await.unwrap().remaining());
        }
        assert_eq!(server.calls("evalsha"), before + 1);
        assert_eq!(left, [59, 39_188]);
    }

    #[tokio::test]
    async fn bucket_on_redis_gives_back_after_others_gave_back() {
        let server = RedisServer::start();
        let limiter = RateLimiter::new(server.store().build().unwrap());
        let tokens = Limit::token_bucket("tokens", Quota::per_day(1_000)).unwrap();
        let key = Key::new("alice");
        let mut receipts = Vec::new();
        for _ in 0..5 {
            receipts.push(limiter.check_n(&tokens, &key, 100).await.unwrap().receipt());
        }
        for receipt in receipts {
            limiter.settle(&tokens, &key, 40, receipt).await.unwrap();
        }
        let left = limiter.peek(&tokens, &key, 0).await.unwrap();
        assert_eq!(left.remaining(), 800);
    }
}
