//! What each algorithm promises over any sequence of checks, and the contract that all of them
//! share.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::{Group, Operation, decide};
use tollgate::{Check, Decision, Limit, Quota};

use crate::support::budget::{Budget, SECOND, START, every_algorithm, quota};

/// Gaps between checks, and costs.
fn traffic(period_us: u64) -> impl Strategy<Value = Vec<(u64, u32)>> {
    let gap = prop_oneof![
        3 => Just(0),
        3 => 0..period_us / 20,
        2 => 0..period_us / 2,
        1 => 0..period_us * 3,
    ];
    let cost = prop_oneof![5 => Just(1u32), 1 => 0u32..5];
    prop::collection::vec((gap, cost), 1..200)
}

/// The allowed units of a sequence, with their times.
fn allowed_units(budget: &mut Budget, traffic: &[(u64, u32)]) -> Vec<(u64, u64)> {
    let mut now = START;
    let mut allowed = Vec::new();
    for &(gap, cost) in traffic {
        now += gap;
        if budget.charge(now, cost).allowed() {
            allowed.push((now, u64::from(cost)));
        }
    }
    allowed
}

/// The most units in any window `[t, t + length)`.
fn peak(allowed: &[(u64, u64)], length: u64) -> u64 {
    let from = |start: u64| {
        allowed
            .iter()
            .filter(move |(at, _)| (start..start + length).contains(at))
    };
    allowed
        .iter()
        .map(|&(start, _)| from(start).map(|(_, units)| units).sum())
        .max()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sliding_log_holds_at_most_the_limit_in_any_window(
        limit in 1u64..20, traffic in traffic(SECOND),
    ) {
        let mut budget = Budget::new(Limit::sliding_log("log", quota(limit, SECOND)).unwrap());
        let allowed = allowed_units(&mut budget, &traffic);
        prop_assert!(peak(&allowed, SECOND) <= limit);
    }

    #[test]
    fn buckets_allow_at_most_burst_plus_rate_in_any_interval(
        limit in 1u64..20, burst in 1u64..20, traffic in traffic(SECOND),
    ) {
        let quota = quota(limit, SECOND).burst(burst);
        for limit_of in [
            Limit::token_bucket,
            Limit::gcra,
            Limit::leaky_bucket,
            Limit::leaky_bucket_meter,
        ] {
            let mut budget = Budget::new(limit_of("bucket", quota).unwrap());
            let allowed = allowed_units(&mut budget, &traffic);
            for (i, &(start, _)) in allowed.iter().enumerate() {
                let mut units = 0;
                for &(at, cost) in &allowed[i..] {
                    units += cost;
                    // units <= burst + limit * (at - start) / second, without a division
                    prop_assert!((units - units.min(burst)) * SECOND <= limit * (at - start));
                }
            }
        }
    }

    #[test]
    fn fixed_window_holds_at_most_the_limit(
        limit in 1u64..20, traffic in traffic(SECOND),
    ) {
        let window = Limit::fixed_window_aligned("fixed", quota(limit, SECOND)).unwrap();
        let mut budget = Budget::new(window);
        let mut windows = std::collections::HashMap::<u64, u64>::new();
        for (at, units) in allowed_units(&mut budget, &traffic) {
            *windows.entry(at / SECOND).or_default() += units;
        }
        prop_assert!(windows.values().all(|&units| units <= limit));
    }

    #[test]
    fn consecutive_sub_windows_hold_at_most_the_limit(
        limit in 1u64..20, sub_windows in 1u32..8, traffic in traffic(SECOND),
    ) {
        let quota = quota(limit, SECOND);
        let window = Limit::sliding_window_with("limit", quota, sub_windows).unwrap();
        let mut budget = Budget::new(window);
        let allowed = allowed_units(&mut budget, &traffic);
        let length = SECOND.div_ceil(u64::from(sub_windows));
        for &(at, _) in &allowed {
            let newest = at / length;
            let oldest = (newest + 1).saturating_sub(u64::from(sub_windows));
            let run = allowed.iter().filter(|(at, _)| (oldest..=newest).contains(&(at / length)));
            prop_assert!(run.map(|(_, units)| units).sum::<u64>() <= limit);
        }
        prop_assert!(peak(&allowed, SECOND) <= 2 * limit);
    }

    #[test]
    fn leaky_bucket_drains_no_faster_than_its_rate(
        limit in 1u64..20, burst in 1u64..20, traffic in traffic(SECOND),
    ) {
        let queue = Limit::leaky_bucket("queue", quota(limit, SECOND).burst(burst)).unwrap();
        let mut budget = Budget::new(queue);
        let (mut now, mut free) = (START, 0);
        for (gap, cost) in traffic {
            now += gap;
            let decision = budget.charge(now, cost);
            if decision.allowed() && cost > 0 {
                let leaves = now + decision.delay().as_micros() as u64;
                prop_assert!(leaves >= free, "left {} us early", free - leaves);
                // Rounded down: a turn may begin in the microsecond in which the last one ended.
                free = leaves + u64::from(cost) * SECOND / limit;
                let delay = decision.delay().as_micros() as u64;
                prop_assert!(delay <= (burst * SECOND).div_ceil(limit));
                free -= u64::from(free > leaves);
            }
        }
    }

    #[test]
    fn retry_after_and_reset_after_are_exact(
        limit in 1u64..12, cost in 1u32..12, traffic in traffic(SECOND),
    ) {
        for limit in every_algorithm(limit, SECOND) {
            let mut budget = Budget::new(limit);
            let mut now = START;
            for (gap, units) in &traffic {
                now += gap;
                drop(budget.charge(now, *units));
            }
            let decision = budget.peek(now, cost);
            if let Some(wait) = decision.retry_after() {
                let wait = wait.as_micros() as u64;
                prop_assert!(!decision.allowed() && wait > 0);
                prop_assert!(!budget.clone().charge(now + wait - 1, cost).allowed(), "1 us early");
                prop_assert!(budget.clone().charge(now + wait, cost).allowed());
                // Denied attempts in between change nothing.
                let mut hasty = budget.clone();
                drop(hasty.charge(now + wait / 2, cost));
                drop(hasty.charge(now + wait - 1, cost));
                prop_assert!(hasty.charge(now + wait, cost).allowed());
            } else {
                prop_assert!(decision.allowed() || decision.exceeds_capacity());
                prop_assert_eq!(decision.exceeds_capacity(), u64::from(cost) > decision.capacity());
            }
            let reset = budget.peek(now, 0).reset_after().as_micros() as u64;
            let full = budget.peek(now + reset, 0);
            prop_assert_eq!(full.remaining(), full.capacity());
            if reset > 0 {
                let earlier = budget.peek(now + reset - 1, 0);
                prop_assert!(!earlier.reset_after().is_zero());
            }
        }
    }

    #[test]
    fn denied_check_and_peek_consume_nothing(
        limit in 1u64..12, cost in 0u32..20, traffic in traffic(SECOND),
    ) {
        for limit in every_algorithm(limit, SECOND) {
            let mut budget = Budget::new(limit);
            allowed_units(&mut budget, &traffic);
            let now = START + traffic.iter().map(|(gap, _)| gap).sum::<u64>();
            let before = budget.state.clone();
            let peeked = budget.peek(now, cost);
            prop_assert_eq!(&budget.state, &before);
            let charged = budget.charge(now, cost);
            // All fields but the receipt.
            let answer = |it: Decision| {
                let verdict = it.deciding();
                let waits = (verdict.retry_after(), verdict.reset_after(), verdict.delay());
                (verdict.allowed(), verdict.exceeds_capacity(), verdict.remaining(), waits)
            };
            let (allowed, peeked) = (charged.allowed(), answer(peeked));
            prop_assert_eq!(peeked, answer(charged), "a peek answers as a charge");
            if !allowed || cost == 0 {
                prop_assert_eq!(&budget.state, &before);
            }
        }
    }

    #[test]
    fn immediate_refund_returns_exactly_the_charged_units(
        limit in 1u64..12, cost in 1u32..12, traffic in traffic(SECOND),
    ) {
        for limit in every_algorithm(limit, SECOND) {
            let mut budget = Budget::new(limit);
            allowed_units(&mut budget, &traffic);
            let now = START + traffic.iter().map(|(gap, _)| gap).sum::<u64>();
            let before = budget.peek(now, 0);
            let charged = budget.charge(now, cost);
            if let Some(receipt) = charged.receipt() {
                let after = budget.refund(now, u32::MAX, receipt);
                prop_assert_eq!(after.remaining(), before.remaining());
                prop_assert_eq!(after.reset_after(), before.reset_after());
            }
        }
    }

    #[test]
    fn clock_step_back_adds_no_units_and_delays_at_most_a_period(
        limit in 1u64..12, back in 1u64..5 * SECOND, traffic in traffic(SECOND),
    ) {
        for limit in every_algorithm(limit, SECOND) {
            let mut budget = Budget::new(limit);
            allowed_units(&mut budget, &traffic);
            let now = START + traffic.iter().map(|(gap, _)| gap).sum::<u64>();
            let before = budget.peek(now, 1);
            let stepped = budget.peek(now - back, 1);
            prop_assert!(stepped.remaining() <= before.remaining() || back > SECOND);
            // Charged until denied, at the earlier time.
            while budget.charge(now - back, 1).allowed() {}
            let wait = budget.peek(now - back, 1).retry_after().unwrap();
            // Without a step, it is one period at most; in a sliding window, one sub-window more.
            let at_most = if budget.limit.name().starts_with("sliding_window") { 3 } else { 2 };
            prop_assert!(wait <= Duration::from_secs(at_most), "{:?} {wait:?}", budget.limit);
            prop_assert!(budget.charge(now - back + wait.as_micros() as u64, 1).allowed());
        }
    }

}

#[test]
fn rate_does_not_drift_over_an_hour() {
    for limit_of in [Limit::token_bucket, Limit::gcra, Limit::leaky_bucket_meter] {
        let mut budget = Budget::new(limit_of("thirds", Quota::per_second(3)).unwrap());
        while budget.charge(START, 1).allowed() {}
        let mut allowed = 0;
        for tick in 1..=3600 * 1000 {
            while budget.charge(START + tick * 1000, 1).allowed() {
                allowed += 1;
            }
        }
        assert_eq!(allowed, 3 * 3600);
    }
}

#[test]
fn fresh_budget_has_exactly_its_capacity() {
    for limit in every_algorithm(7, SECOND) {
        let mut budget = Budget::new(limit);
        for left in (0..7).rev() {
            let decision = budget.charge(START, 1);
            assert!(decision.allowed());
            assert_eq!(decision.remaining(), left, "{:?}", budget.limit);
        }
        assert!(!budget.charge(START, 1).allowed());
    }
}

#[test]
fn cost_that_exceeds_the_capacity_has_no_retry_after() {
    for limit in every_algorithm(7, SECOND) {
        let mut budget = Budget::new(limit);
        for cost in [8, u32::MAX] {
            let decision = budget.charge(START, cost);
            assert!(!decision.allowed() && decision.exceeds_capacity());
            assert_eq!(decision.retry_after(), None);
            assert_eq!(decision.remaining(), 7);
        }
        assert!(budget.charge(START, 7).allowed());
    }
}

#[test]
fn zero_cost_is_allowed_and_consumes_nothing() {
    for limit in every_algorithm(2, SECOND) {
        let mut budget = Budget::new(limit);
        assert!(budget.charge(START, 2).allowed());
        let decision = budget.charge(START, 0);
        assert!(decision.allowed());
        assert_eq!(
            (decision.remaining(), decision.delay()),
            (0, Duration::ZERO)
        );
    }
}

#[test]
fn leaky_bucket_delays_charges_one_by_one() {
    let mut budget =
        Budget::new(Limit::leaky_bucket("queue", Quota::per_second(10).burst(3)).unwrap());
    let delays: Vec<_> = (0..3).map(|_| budget.charge(START, 1).delay()).collect();
    assert_eq!(delays, [0, 100, 200].map(Duration::from_millis));
    assert_eq!(
        budget.charge(START, 1).retry_after(),
        Some(Duration::from_millis(100))
    );
}

#[test]
fn clock_set_back_by_a_year_keeps_used_units() {
    for limit in every_algorithm(5, SECOND) {
        let mut budget = Budget::new(limit);
        assert!(budget.charge(START, 3).allowed());
        let year = 365 * 24 * 3600 * SECOND;
        assert!(budget.charge(START - year, 1).allowed());
        let decision = budget.charge(START - year, 2);
        assert!(!decision.allowed(), "{:?}: {decision:?}", budget.limit);
        assert!(decision.retry_after().unwrap() <= Duration::from_micros(2 * SECOND));
    }
}

#[test]
fn clock_step_back_by_a_period_delays_at_most_two() {
    for limit in every_algorithm(10, 10 * SECOND) {
        let mut budget = Budget::new(limit);
        // The start of an aligned window.
        let start = 1_790_000_000 * SECOND;
        assert!(budget.charge(start, 10).allowed());
        let wait = budget
            .charge(start - 10 * SECOND, 10)
            .retry_after()
            .unwrap();
        // In a sliding window, units fade for one sub-window more.
        let is_sliding = budget.limit.kind() == "s";
        let two = Duration::from_secs(20);
        assert!(
            if is_sliding { wait > two } else { wait == two },
            "{}: {wait:?}",
            budget.limit
        );
        assert!(
            wait <= Duration::from_secs(30),
            "{}: {wait:?}",
            budget.limit
        );
    }
}

proptest! {
    #[test]
    fn check_alone_is_decided_as_in_a_group(
        traffic in traffic(SECOND), changed in 1u64..20, number in 0..9_usize,
    ) {
        let limits = [every_algorithm(5, SECOND), every_algorithm(changed, SECOND * 2)];
        let plenty = Limit::fixed_window("plenty", quota(1_000_000, SECOND)).unwrap();
        let (mut alone, mut states, mut now) = ([None], [None, None], START);
        for (step, (gap, cost)) in traffic.into_iter().enumerate() {
            now += gap;
            let check = Check::new(&limits[step % 7 / 5][number], "k").with_cost(cost * 2);
            let one = decide(&Operation::Charge(check.clone().into()), &mut alone, Duration::from_micros(now)).unwrap();
            let group = Group::new([check, Check::new(&plenty, "k")]).unwrap();
            let both = decide(&Operation::Charge(group), &mut states, Duration::from_micros(now)).unwrap();
            prop_assert_eq!(&one.verdicts()[0], &both.verdicts()[0]);
            prop_assert_eq!(&alone[0], &states[0]);
        }
    }
}
