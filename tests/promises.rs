//! What each algorithm promises, over any sequence of checks; and the contract that all share.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::decision::Receipt;
use tollgate::store::{Op, State, decide};
use tollgate::{Check, Decision, Key, Limit, Quota};

const SECOND: u64 = 1_000_000;

/// A day in 2026, with odd microseconds.
const START: u64 = 1_790_000_123_456_789;

fn quota(limit: u64, period_us: u64) -> Quota {
    Quota::new(limit, Duration::from_micros(period_us))
}

/// One key under one limit.
#[derive(Clone)]
struct Budget {
    limit: Limit,
    state: [Option<State>; 1],
}

impl Budget {
    fn new(limit: Limit) -> Self {
        Self { limit, state: [None] }
    }

    fn apply(&mut self, op: Op, now: u64, cost: u32) -> Decision {
        let key = Key::new("k");
        decide(op, &[Check::new(&self.limit, &key).cost(cost)], &mut self.state, now).unwrap()
    }

    fn refund(&mut self, now: u64, units: u32, receipt: Receipt) -> Decision {
        let key = Key::new("k");
        let refund = Check::new(&self.limit, &key).cost(units).of(receipt);
        decide(Op::Refund, &[refund], &mut self.state, now).unwrap()
    }

    fn charge(&mut self, now: u64, cost: u32) -> Decision {
        self.apply(Op::Charge, now, cost)
    }
}

fn every_algorithm(limit: u64, period_us: u64) -> Vec<Limit> {
    let quota = quota(limit, period_us);
    vec![
        Limit::token_bucket("token_bucket", quota).unwrap(),
        Limit::leaky_bucket("leaky_bucket", quota).unwrap(),
        Limit::leaky_bucket_meter("leaky_bucket_meter", quota).unwrap(),
        Limit::gcra("gcra", quota).unwrap(),
        Limit::fixed_window("fixed_window", quota).unwrap(),
        Limit::fixed_window_aligned("fixed_window_aligned", quota).unwrap(),
        Limit::sliding_window("sliding_window", quota).unwrap(),
        Limit::sliding_window_with("sliding_window_with_5", quota, 5).unwrap(),
        Limit::sliding_log("sliding_log", quota).unwrap(),
    ]
}

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

/// The admitted units of a sequence, with their times.
fn admissions(budget: &mut Budget, traffic: &[(u64, u32)]) -> Vec<(u64, u64)> {
    let mut now = START;
    let mut admitted = Vec::new();
    for &(gap, cost) in traffic {
        now += gap;
        if budget.charge(now, cost).allowed() {
            admitted.push((now, u64::from(cost)));
        }
    }
    admitted
}

/// The most units in any window `[t, t + length)`.
fn peak(admitted: &[(u64, u64)], length: u64) -> u64 {
    let from =
        |start: u64| admitted.iter().filter(move |(at, _)| (start..start + length).contains(at));
    admitted.iter().map(|&(start, _)| from(start).map(|(_, units)| units).sum()).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sliding_log_holds_at_most_the_limit_in_any_window(
        limit in 1u64..20, traffic in traffic(SECOND),
    ) {
        let mut budget = Budget::new(Limit::sliding_log("log", quota(limit, SECOND)).unwrap());
        let admitted = admissions(&mut budget, &traffic);
        prop_assert!(peak(&admitted, SECOND) <= limit);
    }

    #[test]
    fn buckets_allow_at_most_burst_plus_rate_in_any_interval(
        limit in 1u64..20, burst in 1u64..20, traffic in traffic(SECOND),
    ) {
        let quota = quota(limit, SECOND).burst(burst);
        for limit_of in [Limit::token_bucket, Limit::gcra, Limit::leaky_bucket, Limit::leaky_bucket_meter] {
            let mut budget = Budget::new(limit_of("bucket", quota).unwrap());
            let admitted = admissions(&mut budget, &traffic);
            for (i, &(start, _)) in admitted.iter().enumerate() {
                let mut units = 0;
                for &(at, cost) in &admitted[i..] {
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
        let mut budget = Budget::new(Limit::fixed_window_aligned("fixed", quota(limit, SECOND)).unwrap());
        let mut windows = std::collections::HashMap::<u64, u64>::new();
        for (at, units) in admissions(&mut budget, &traffic) {
            *windows.entry(at / SECOND).or_default() += units;
        }
        prop_assert!(windows.values().all(|&units| units <= limit));
    }

    #[test]
    fn consecutive_sub_windows_hold_at_most_the_limit(
        limit in 1u64..20, cells in 1u32..8, traffic in traffic(SECOND),
    ) {
        let mut budget = Budget::new(Limit::sliding_window_with("cells", quota(limit, SECOND), cells).unwrap());
        let admitted = admissions(&mut budget, &traffic);
        let length = SECOND.div_ceil(u64::from(cells));
        for &(at, _) in &admitted {
            let newest = at / length;
            let run = admitted.iter().filter(|(at, _)| {
                (newest + 1).saturating_sub(u64::from(cells)) <= at / length && at / length <= newest
            });
            prop_assert!(run.map(|(_, units)| units).sum::<u64>() <= limit);
        }
        prop_assert!(peak(&admitted, SECOND) <= 2 * limit);
    }

    #[test]
    fn leaky_bucket_drains_no_faster_than_its_rate(
        limit in 1u64..20, burst in 1u64..20, traffic in traffic(SECOND),
    ) {
        let mut budget = Budget::new(Limit::leaky_bucket("queue", quota(limit, SECOND).burst(burst)).unwrap());
        let (mut now, mut free) = (START, 0);
        for (gap, cost) in traffic {
            now += gap;
            let decision = budget.charge(now, cost);
            if decision.allowed() && cost > 0 {
                let leaves = now + decision.delay().as_micros() as u64;
                prop_assert!(leaves >= free, "left {} us early", free - leaves);
                // Rounded down: a turn may begin within the microsecond in which the last ended.
                free = leaves + u64::from(cost) * SECOND / limit;
                prop_assert!(decision.delay().as_micros() as u64 <= (burst * SECOND).div_ceil(limit));
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
                budget.charge(now, *units);
            }
            let decision = budget.apply(Op::Peek, now, cost);
            if let Some(wait) = decision.retry_after() {
                let wait = wait.as_micros() as u64;
                prop_assert!(!decision.allowed() && wait > 0);
                prop_assert!(!budget.clone().charge(now + wait - 1, cost).allowed(), "{} us early", 1);
                prop_assert!(budget.clone().charge(now + wait, cost).allowed());
                // Trying too early in between changes nothing.
                let mut hasty = budget.clone();
                hasty.charge(now + wait / 2, cost);
                hasty.charge(now + wait - 1, cost);
                prop_assert!(hasty.charge(now + wait, cost).allowed());
            } else {
                prop_assert!(decision.allowed() || decision.exceeds_capacity());
                prop_assert_eq!(decision.exceeds_capacity(), u64::from(cost) > decision.capacity());
            }
            let reset = budget.apply(Op::Peek, now, 0).reset_after().as_micros() as u64;
            let whole = budget.apply(Op::Peek, now + reset, 0);
            prop_assert_eq!(whole.remaining(), whole.capacity());
            if reset > 0 {
                let earlier = budget.apply(Op::Peek, now + reset - 1, 0);
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
            admissions(&mut budget, &traffic);
            let now = START + traffic.iter().map(|(gap, _)| gap).sum::<u64>();
            let before = budget.state.clone();
            let peeked = budget.apply(Op::Peek, now, cost);
            prop_assert_eq!(&budget.state, &before);
            let charged = budget.charge(now, cost);
            // But for the receipt.
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
            admissions(&mut budget, &traffic);
            let now = START + traffic.iter().map(|(gap, _)| gap).sum::<u64>();
            let before = budget.apply(Op::Peek, now, 0);
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
            admissions(&mut budget, &traffic);
            let now = START + traffic.iter().map(|(gap, _)| gap).sum::<u64>();
            let before = budget.apply(Op::Peek, now, 1);
            let stepped = budget.apply(Op::Peek, now - back, 1);
            prop_assert!(stepped.remaining() <= before.remaining() || back > SECOND);
            // Charged until refused, at the time stepped back to.
            while budget.charge(now - back, 1).allowed() {}
            let wait = budget.apply(Op::Peek, now - back, 1).retry_after().unwrap();
            // Without a step, it is one period at most; in a window of cells, one cell more.
            let at_most = if budget.limit.name().starts_with("sliding_window") { 3 } else { 2 };
            prop_assert!(wait <= Duration::from_secs(at_most), "{:?} {wait:?}", budget.limit);
            prop_assert!(budget.charge(now - back + wait.as_micros() as u64, 1).allowed());
        }
    }

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
                // Its units fade from the first moment, and fade faster in a shorter period.
                continue;
            }
            let mut budget = Budget::new(old.clone());
            let mut taken = 0;
            while taken < used && budget.charge(START, 1).allowed() {
                taken += 1;
            }
            let now = START + elapsed;
            let kept = budget.apply(Op::Peek, now, 0);
            let in_use = kept.capacity() - kept.remaining();
            budget.limit = new.clone();
            let changed = budget.apply(Op::Peek, now, 0);
            // Whole units may have been rounded down once before.
            let at_most = changed.capacity().saturating_sub(in_use) + 1;
            prop_assert!(changed.remaining() <= at_most, "{:?}: {kept:?} {changed:?}", budget.limit);

            // Nor by changing to and fro: no more is had than the larger quota has left.
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
fn rate_does_not_drift_over_an_hour() {
    for limit_of in [Limit::token_bucket, Limit::gcra, Limit::leaky_bucket_meter] {
        let mut budget = Budget::new(limit_of("thirds", Quota::per_second(3)).unwrap());
        while budget.charge(START, 1).allowed() {}
        let mut admitted = 0;
        for tick in 1..=3600 * 1000 {
            while budget.charge(START + tick * 1000, 1).allowed() {
                admitted += 1;
            }
        }
        assert_eq!(admitted, 3 * 3600);
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
        assert_eq!((decision.remaining(), decision.delay()), (0, Duration::ZERO));
    }
}

#[test]
fn leaky_bucket_delays_charges_one_by_one() {
    let mut budget =
        Budget::new(Limit::leaky_bucket("queue", Quota::per_second(10).burst(3)).unwrap());
    let delays: Vec<_> = (0..3).map(|_| budget.charge(START, 1).delay()).collect();
    assert_eq!(delays, [0, 100, 200].map(Duration::from_millis));
    assert_eq!(budget.charge(START, 1).retry_after(), Some(Duration::from_millis(100)));
}

#[test]
fn lowered_quota_counts_used_units_and_raised_quota_adds_the_difference() {
    for (small, large) in every_algorithm(5, SECOND).into_iter().zip(every_algorithm(10, SECOND)) {
        let mut budget = Budget::new(large.clone());
        assert!(budget.charge(START, 6).allowed());
        budget.limit = small.clone();
        let lowered = budget.charge(START, 1);
        assert_eq!((lowered.allowed(), lowered.remaining()), (false, 0), "{small:?}");
        budget.limit = large;
        assert_eq!(budget.apply(Op::Peek, START, 0).remaining(), 4, "{small:?}");
    }
}

#[test]
fn debt_under_a_smaller_quota_drains_within_two_periods() {
    // 10,000 a day, all used; then 100 a day. At the new rate that would be 99 days.
    let day = 24 * 3600 * SECOND;
    for (large, small) in every_algorithm(10_000, day).into_iter().zip(every_algorithm(100, day)) {
        let mut budget = Budget::new(large);
        assert!(budget.charge(START, 10_000).allowed());
        budget.limit = small;
        let wait = budget.charge(START, 1).retry_after().unwrap();
        assert!(wait <= Duration::from_secs(2 * 24 * 3600), "{:?}: {wait:?}", budget.limit);
        assert!(budget.charge(START + wait.as_micros() as u64, 1).allowed());
    }
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
            // What is above the new capacity drains as fast as before, the rest in a day.
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
        let left = budget.apply(Op::Peek, START, 0).remaining();
        budget.limit = Limit::gcra("gcra", small).unwrap();
        assert!(!budget.charge(START, 1).allowed());
        budget.limit = Limit::gcra("gcra", large).unwrap();
        assert_eq!(budget.apply(Op::Peek, START, 0).remaining(), left);
    }
    let cells = |limit, period| Limit::sliding_window("cells", quota(limit, period)).unwrap();
    let mut budget = Budget::new(cells(10_000, SECOND));
    assert!(budget.charge(START, 10_000).allowed());
    budget.limit = cells(1, 30 * 24 * 3600 * SECOND);
    assert!(!budget.charge(START, 1).allowed());
    budget.limit = cells(10_000, SECOND);
    assert_eq!(budget.apply(Op::Peek, START, 0).remaining(), 0);
}

#[test]
fn alternating_quotas_neither_lock_out_nor_exempt_a_key() {
    for (one, other) in
        every_algorithm(10, 60 * SECOND).into_iter().zip(every_algorithm(10, 61 * SECOND))
    {
        let mut budget = Budget::new(one.clone());
        assert!(budget.charge(START, 10).allowed());
        let admitted = (1..5_000).find(|turn| {
            budget.limit = [&one, &other][(turn % 2) as usize].clone();
            budget.charge(START + turn * 50_000, 10).allowed()
        });
        let waited = admitted.expect("it is let in again") * 50_000;
        // Two cells of a window of one cell are the longest that any of them holds on.
        let aligned = one.name() == "fixed_window_aligned";
        assert!(waited <= 123 * SECOND, "{one}: {waited} us");
        assert!(aligned || waited >= 59 * SECOND, "{one}: {waited} us");
    }
}

#[test]
fn zero_cost_or_denied_check_keeps_the_units_of_another_quota() {
    for (long, short) in
        every_algorithm(10, 3600 * SECOND).into_iter().zip(every_algorithm(10, 1_000))
    {
        let mut budget = Budget::new(long.clone());
        assert!(budget.charge(START, 10).allowed());
        let now = START + 60 * SECOND;
        let left = budget.apply(Op::Peek, now, 0).remaining();
        budget.limit = short.clone();
        budget.charge(now, 0);
        budget.charge(now, 11);
        budget.limit = long;
        assert_eq!(budget.apply(Op::Peek, now, 0).remaining(), left, "{short}");
    }
}

#[test]
fn longer_period_applies_from_its_first_check() {
    for limit_of in [Limit::fixed_window, Limit::sliding_log, Limit::gcra] {
        let mut budget = Budget::new(limit_of("limit", quota(10, SECOND)).unwrap());
        assert!(budget.charge(START, 10).allowed());
        budget.limit = limit_of("limit", quota(10, 3600 * SECOND)).unwrap();
        assert!(!budget.charge(START + SECOND / 2, 10).allowed());
        assert!(!budget.charge(START + SECOND, 10).allowed(), "{}", budget.limit);
        assert!(!budget.charge(START + 1_000 * SECOND, 10).allowed(), "{}", budget.limit);
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
        assert!(!budget.charge(third.0, third.1).allowed(), "{}", budget.limit);
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
    let group = [Check::new(&short, &key).cost(1), Check::new(&exhausted, &key).cost(1)];
    assert!(decide(Op::Charge, &group, &mut states, START).unwrap().allowed());
    let before = states.clone();
    let group = [Check::new(&long, &key).cost(0), Check::new(&exhausted, &key).cost(1)];
    assert!(!decide(Op::Charge, &group, &mut states, START).unwrap().allowed());
    assert_eq!(states, before);
}

#[test]
fn cost_that_exceeds_the_capacity_changes_no_state() {
    for (slow, fast) in
        every_algorithm(10, 3600 * SECOND).into_iter().zip(every_algorithm(10, SECOND))
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
        // All of 100 are used, then 1 in ten seconds: what is above one unit drains in 9.9 s at the
        // old rate, and the last one in ten seconds.
        let mut budget = Budget::new(limit_of("bucket", quota(100, 10 * SECOND)).unwrap());
        assert!(budget.charge(START, 100).allowed());
        budget.limit = limit_of("bucket", quota(1, 10 * SECOND)).unwrap();
        let wait = budget.charge(START, 1).retry_after().unwrap();
        assert_eq!(wait, Duration::from_millis(19_900));
        assert!(!budget.charge(START + 19_900_000 - 1, 1).allowed());
        assert!(budget.charge(START + 19_900_000, 1).allowed());
    }
}

#[test]
fn clock_step_back_by_a_period_delays_at_most_two() {
    for limit in every_algorithm(10, 10 * SECOND) {
        let mut budget = Budget::new(limit);
        // The first moment of a window of the clock.
        let start = 1_790_000_000 * SECOND;
        assert!(budget.charge(start, 10).allowed());
        let wait = budget.charge(start - 10 * SECOND, 10).retry_after().unwrap();
        // In a window of cells, units fade for one cell more.
        let is_sliding = budget.limit.kind() == "s";
        let two = Duration::from_secs(20);
        assert!(if is_sliding { wait > two } else { wait == two }, "{}: {wait:?}", budget.limit);
        assert!(wait <= Duration::from_secs(30), "{}: {wait:?}", budget.limit);
    }
}
