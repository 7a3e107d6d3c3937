//! A budget under a changed quota, or under several in turn: used units stay used, none are added,
//! and no key is locked out for long.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::{Group, Operation, decide};
use tollgate::{Check, Key, Limit};

use crate::support::budget::{Budget, SECOND, START, every_algorithm, quota};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_quota_keeps_used_units_and_adds_none(
        old in 1u64..30, new in 1u64..30, used in 1u32..30,
        old_period in 1u64..5, new_period in 1u64..5, elapsed in 0u64..SECOND,
    ) {
        let pairs = every_algorithm(old, old_period * SECOND)
            .into_iter()
            .zip(every_algorithm(new, new_period * SECOND));
        for (old, new) in pairs {
            if old.name().starts_with("sliding_window") && new_period < old_period {
                // Its units fade from the start, and faster in a shorter period.
                continue;
            }
            let mut budget = Budget::new(old.clone());
            let mut charged = 0;
            while charged < used && budget.charge(START, 1).allowed() {
                charged += 1;
            }
            let now = START + elapsed;
            let kept = budget.peek(now, 0);
            let in_use = kept.capacity() - kept.remaining();
            budget.limit = new.clone();
            let changed = budget.peek(now, 0);
            // The remaining units may have been rounded down once before.
            let at_most = changed.capacity().saturating_sub(in_use) + 1;
            let limit = &budget.limit;
            prop_assert!(changed.remaining() <= at_most, "{limit:?}: {kept:?} {changed:?}");

            // Alternating adds none either: no more is allowed than the larger quota has left.
            let mut more = 0;
            for turn in 0..100 {
                budget.limit = [&old, &new][turn % 2].clone();
                more += u64::from(budget.charge(now, 1).allowed());
            }
            prop_assert!(more <= kept.remaining().max(at_most));
        }
    }
}

#[test]
fn lowered_quota_counts_used_units_and_raised_quota_adds_the_difference() {
    for (small, large) in every_algorithm(5, SECOND)
        .into_iter()
        .zip(every_algorithm(10, SECOND))
    {
        let mut budget = Budget::new(large.clone());
        assert!(budget.charge(START, 6).allowed());
        budget.limit = small.clone();
        let lowered = budget.charge(START, 1);
        assert_eq!(
            (lowered.allowed(), lowered.remaining()),
            (false, 0),
            "{small:?}"
        );
        budget.limit = large;
        assert_eq!(budget.peek(START, 0).remaining(), 4, "{small:?}");
    }
}

#[test]
fn debt_under_a_smaller_quota_drains_within_two_periods() {
    // 10,000 a day, all used; then 100 a day. At the new rate, they would drain in 99 days.
    let day = 24 * 3600 * SECOND;
    for (large, small) in every_algorithm(10_000, day)
        .into_iter()
        .zip(every_algorithm(100, day))
    {
        let mut budget = Budget::new(large);
        assert!(budget.charge(START, 10_000).allowed());
        budget.limit = small;
        let wait = budget.charge(START, 1).retry_after().unwrap();
        assert!(
            wait <= Duration::from_secs(2 * 24 * 3600),
            "{:?}: {wait:?}",
            budget.limit
        );
        assert!(budget.charge(START + wait.as_micros() as u64, 1).allowed());
    }
}

#[test]
fn overdrawn_units_drain_at_the_old_rate_after_a_cut() {
    let large = quota(1_000, SECOND);
    let small = quota(10, 24 * 3600 * SECOND);
    for limit_of in [Limit::token_bucket, Limit::gcra, Limit::leaky_bucket_meter] {
        let day = Duration::from_secs(24 * 3600);
        for used in [10, 11, 500] {
            let mut budget = Budget::new(limit_of("bucket", large).unwrap());
            assert!(budget.charge(START, used).allowed());
            budget.limit = limit_of("bucket", small).unwrap();
            let wait = budget.charge(START, 10).retry_after().unwrap();
            // Units above the new capacity drain at the old rate, the others in a day.
            assert_eq!(wait, day + Duration::from_millis(u64::from(used) - 10));
            let wait = wait.as_micros() as u64;
            for early in [1_000, wait / 3, wait - 1] {
                assert!(!budget.charge(START + early, 10).allowed());
            }
            assert!(budget.charge(START + wait, 10).allowed());
        }
    }
}

#[test]
fn denied_check_under_a_smaller_quota_adds_no_units_to_the_larger() {
    for (large, small) in [
        (
            quota(1_000_000_000, SECOND).burst(1_000_000_000_000),
            quota(1_000_000_007, SECOND).burst(1_000_000_000),
        ),
        (quota(1_000, SECOND), quota(1, 24 * 3600 * SECOND)),
    ] {
        let mut budget = Budget::new(Limit::gcra("gcra", large).unwrap());
        while budget.charge(START, u32::MAX).allowed() {}
        while budget.charge(START, 1_000).allowed() {}
        let left = budget.peek(START, 0).remaining();
        budget.limit = Limit::gcra("gcra", small).unwrap();
        assert!(!budget.charge(START, 1).allowed());
        budget.limit = Limit::gcra("gcra", large).unwrap();
        assert_eq!(budget.peek(START, 0).remaining(), left);
    }
    let sliding = |limit, period| Limit::sliding_window("limit", quota(limit, period)).unwrap();
    let mut budget = Budget::new(sliding(10_000, SECOND));
    assert!(budget.charge(START, 10_000).allowed());
    budget.limit = sliding(1, 30 * 24 * 3600 * SECOND);
    assert!(!budget.charge(START, 1).allowed());
    budget.limit = sliding(10_000, SECOND);
    assert_eq!(budget.peek(START, 0).remaining(), 0);
}

#[test]
fn alternating_quotas_neither_lock_out_nor_exempt_a_key() {
    for (one, other) in every_algorithm(10, 60 * SECOND)
        .into_iter()
        .zip(every_algorithm(10, 61 * SECOND))
    {
        let mut budget = Budget::new(one.clone());
        assert!(budget.charge(START, 10).allowed());
        let allowed = (1..5_000).find(|turn| {
            budget.limit = [&one, &other][(turn % 2) as usize].clone();
            budget.charge(START + turn * 50_000, 10).allowed()
        });
        let waited = allowed.expect("it is allowed again") * 50_000;
        // The longest wait is two periods of a sliding window with one sub-window.
        let aligned = one.name() == "fixed_window_aligned";
        assert!(waited <= 123 * SECOND, "{one}: {waited} us");
        assert!(aligned || waited >= 59 * SECOND, "{one}: {waited} us");
    }
}

#[test]
fn zero_cost_or_denied_check_keeps_the_units_of_another_quota() {
    for (long, short) in every_algorithm(10, 3600 * SECOND)
        .into_iter()
        .zip(every_algorithm(10, 1_000))
    {
        let mut budget = Budget::new(long.clone());
        assert!(budget.charge(START, 10).allowed());
        let now = START + 60 * SECOND;
        let left = budget.peek(now, 0).remaining();
        budget.limit = short.clone();
        drop(budget.charge(now, 0));
        drop(budget.charge(now, 11));
        budget.limit = long;
        assert_eq!(budget.peek(now, 0).remaining(), left, "{short}");
    }
}

#[test]
fn longer_period_applies_from_its_first_check() {
    for limit_of in [Limit::fixed_window, Limit::sliding_log, Limit::gcra] {
        let mut budget = Budget::new(limit_of("limit", quota(10, SECOND)).unwrap());
        assert!(budget.charge(START, 10).allowed());
        budget.limit = limit_of("limit", quota(10, 3600 * SECOND)).unwrap();
        assert!(!budget.charge(START + SECOND / 2, 10).allowed());
        assert!(
            !budget.charge(START + SECOND, 10).allowed(),
            "{}",
            budget.limit
        );
        assert!(
            !budget.charge(START + 1_000 * SECOND, 10).allowed(),
            "{}",
            budget.limit
        );
    }
}

#[test]
fn aligned_window_holds_at_most_the_limit_across_a_change() {
    let aligned = |period| Limit::fixed_window_aligned("limit", quota(10, period)).unwrap();
    let first = |period| Limit::fixed_window("limit", quota(10, period)).unwrap();
    for (old, new, charges, border) in [
        (aligned(10), aligned(55), [(51, 1), (58, 9), (60, 10)], 110),
        (aligned(55), aligned(10), [(52, 1), (54, 9), (55, 10)], 60),
        (first(60), aligned(60), [(5, 1), (64, 9), (65, 10)], 120),
    ] {
        let mut budget = Budget::new(old);
        let [(at, cost), second, third] = charges;
        assert!(budget.charge(at, cost).allowed());
        budget.limit = new;
        assert!(budget.charge(second.0, second.1).allowed());
        assert!(
            !budget.charge(third.0, third.1).allowed(),
            "{}",
            budget.limit
        );
        assert!(budget.charge(border, 10).allowed(), "{}", budget.limit);
    }
}

#[test]
fn zero_cost_check_of_a_denied_group_changes_no_state() {
    let key = Key::new("k");
    let short = Limit::fixed_window("a", quota(5, SECOND)).unwrap();
    let long = Limit::fixed_window("a", quota(5, 3600 * SECOND)).unwrap();
    let exhausted = Limit::fixed_window("b", quota(1, SECOND)).unwrap();
    let mut states = [None, None];
    let group = [
        Check::new(&short, &key).with_cost(1),
        Check::new(&exhausted, &key).with_cost(1),
    ];
    assert!(
        decide(
            &Operation::Charge(Group::new(group).unwrap()),
            &mut states,
            Duration::from_micros(START)
        )
        .unwrap()
        .allowed()
    );
    let before = states.clone();
    let group = [
        Check::new(&long, &key).with_cost(0),
        Check::new(&exhausted, &key).with_cost(1),
    ];
    assert!(
        !decide(
            &Operation::Charge(Group::new(group).unwrap()),
            &mut states,
            Duration::from_micros(START)
        )
        .unwrap()
        .allowed()
    );
    assert_eq!(states, before);
}

#[test]
fn cost_that_exceeds_the_capacity_changes_no_state() {
    for (slow, fast) in every_algorithm(10, 3600 * SECOND)
        .into_iter()
        .zip(every_algorithm(10, SECOND))
    {
        let mut budget = Budget::new(slow.clone());
        assert!(budget.charge(START, 10).allowed());
        let before = budget.state.clone();
        budget.limit = fast;
        assert!(budget.charge(START, 11).exceeds_capacity());
        assert_eq!(budget.state, before, "{slow}");
    }
}

#[test]
fn bucket_with_a_slower_quota_waits_at_most_both_periods() {
    for limit_of in [Limit::token_bucket, Limit::gcra, Limit::leaky_bucket_meter] {
        // 100 units are used, then the quota is 1 in ten seconds. The units above one drain in 9.9
        // s at the old rate, and the last one in ten seconds.
        let mut budget = Budget::new(limit_of("bucket", quota(100, 10 * SECOND)).unwrap());
        assert!(budget.charge(START, 100).allowed());
        budget.limit = limit_of("bucket", quota(1, 10 * SECOND)).unwrap();
        let wait = budget.charge(START, 1).retry_after().unwrap();
        assert_eq!(wait, Duration::from_millis(19_900));
        assert!(!budget.charge(START + 19_900_000 - 1, 1).allowed());
        assert!(budget.charge(START + 19_900_000, 1).allowed());
    }
}
