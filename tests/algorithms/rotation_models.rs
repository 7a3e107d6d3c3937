//! Several quotas of one name in random turns, over many periods, against a model of each quota's
//! promise. The models know every allowed unit of all quotas, and nothing of how the crate counts.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::decision::Receipt;
use tollgate::store::{Budget, Change, Operation, State, decide};
use tollgate::{Check, Key, Limit, Quota};

const START: u64 = 1_790_000_123_456_789;

/// A unit of time: periods are small multiples of it, so that checks often fall on their borders.
const TICK: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Log,
    Clock,
    First,
    Sliding(u64),
    Bucket,
}

#[derive(Clone, Debug)]
struct Asked {
    algorithm: Algorithm,
    period: u64,
    units: u64,
    limit: Limit,
}

impl Asked {
    fn new(algorithm: Algorithm, ticks: u64, units: u64) -> Self {
        let period = ticks * TICK;
        let quota = Quota::new(units, Duration::from_micros(period));
        let limit = match algorithm {
            Algorithm::Log => Limit::sliding_log("limit", quota),
            Algorithm::Clock => Limit::fixed_window_aligned("limit", quota),
            Algorithm::First => Limit::fixed_window("limit", quota),
            Algorithm::Sliding(count) => Limit::sliding_window_with("limit", quota, count as u32),
            Algorithm::Bucket => Limit::token_bucket("limit", quota),
        };
        Self {
            algorithm,
            period,
            units,
            limit: limit.unwrap(),
        }
    }
}

/// The allowed units with their times, since the last long pause.
type Allowed = [(u64, u64)];

fn between(allowed: &Allowed, from: u64, to: u64) -> u64 {
    allowed
        .iter()
        .filter(|(at, _)| (from..=to).contains(at))
        .map(|(_, units)| units)
        .sum()
}

/// Whether a quota's promise permits the last unit, which it has just allowed at `now`.
fn is_promised(quota: &Asked, allowed: &Allowed, now: u64) -> bool {
    let Asked { period, units, .. } = *quota;
    match quota.algorithm {
        Algorithm::Log => between(allowed, now + 1 - period, now) <= units,
        Algorithm::Clock => between(allowed, now - now % period, now) <= units,
        Algorithm::Sliding(count) => {
            let length = period / count;
            let newest = now - now % length;
            let window = between(allowed, newest - (count - 1) * length, now);
            let oldest = newest - count * length;
            let fading = between(allowed, oldest, oldest + length - 1) * (length - now % length);
            window + fading.div_ceil(length) <= units
        }
        // Verified over the whole sequence, below.
        Algorithm::First | Algorithm::Bucket => true,
    }
}

/// Whether windows exist, each at least a period after the previous one, in which each charge of a
/// quota is within its limit.
fn has_windows(quota: &Asked, allowed: &Allowed, charges: &[(u64, usize)]) -> bool {
    // The possible starts of the last charge's window.
    let mut starts = BTreeSet::from([0]);
    let mut last = 0;
    // Each charge has the number of allowed units by then.
    for &(now, count) in charges {
        let allowed = &allowed[..count];
        let mut next = starts.clone();
        for start in starts {
            let from = (last + 1).max(if start == 0 { 0 } else { start + quota.period });
            let after_units = allowed.iter().map(|(at, _)| at + 1);
            next.extend(
                [from, now]
                    .into_iter()
                    .chain(after_units)
                    .filter(|it| (from..=now).contains(it)),
            );
        }
        next.retain(|&from| between(allowed, from, now) <= quota.units);
        starts = next;
        last = now;
    }
    charges.is_empty() || !starts.is_empty()
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::Log),
        Just(Algorithm::Clock),
        Just(Algorithm::First),
        (1u64..5).prop_map(Algorithm::Sliding),
        Just(Algorithm::Bucket),
    ]
}

/// Two to four quotas of one algorithm. A sliding window's period is a multiple of its
/// sub-windows.
fn quotas() -> impl Strategy<Value = Vec<Asked>> {
    algorithms().prop_flat_map(|algorithm| {
        prop::collection::vec((1u64..40, 1u64..25), 2..5).prop_map(move |numbers| {
            let asked = |(ticks, units)| Asked::new(algorithm, ticks * 12, units);
            numbers.into_iter().map(asked).collect()
        })
    })
}

/// A pause in thousandths of the longest period, the direction of the turns, a cost for each quota,
/// and how many charges before the last one is refunded, if any.
fn steps() -> impl Strategy<Value = Vec<(u64, bool, Vec<u32>, Option<usize>)>> {
    let pause = prop_oneof![4 => 0u64..50, 2 => 0u64..400, 2 => 400u64..1_500, 1 => Just(2_000)];
    let step = (
        pause,
        prop::bool::ANY,
        prop::collection::vec(0u32..6, 4),
        prop::option::weighted(0.2, 0usize..6),
    );
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn alternating_quotas_keep_the_promise_of_each(quotas in quotas(), steps in steps()) {
        let key = Key::new("k");
        let mut states: [Option<State>; 1] = [None];
        let longest = quotas.iter().map(|quota| quota.period).max().unwrap();
        let mut now = START;
        let mut allowed: Vec<(u64, u64)> = Vec::new();
        let mut charges: Vec<Vec<(u64, usize)>> = vec![Vec::new(); quotas.len()];
        let mut is_known = vec![false; quotas.len()];
        let mut receipts: Vec<Receipt> = Vec::new();
        for (pause, backwards, costs, refunded) in steps {
            let pause = pause * longest / 1_000;
            now += pause;
            // After so long, a quota may start from the state of the others.
            if pause >= longest {
                allowed.clear();
                charges.iter_mut().for_each(Vec::clear);
                receipts.clear();
            }
            let last = allowed.iter().rfind(|(_, units)| *units > 0);
            if last.is_none_or(|&(at, _)| now - at >= longest) {
                is_known.fill(false);
            }
            let mut turns: Vec<_> = quotas.iter().zip(&costs).enumerate().collect();
            if backwards {
                turns.reverse();
            }
            for (number, (quota, cost)) in turns {
                // A log keeps entries for every quota that has checked it since it was last empty.
                // The other algorithms keep a quota in use, so every one of them charges at each
                // step.
                if *cost == 0 && is_known[number] && matches!(quota.algorithm, Algorithm::Log) {
                    continue;
                }
                is_known[number] = true;
                let cost = (*cost).clamp(1, quota.units as u32);
                let check = Check::new(&quota.limit, &key).with_cost(cost);
                let charge = Operation::Charge(check.into());
                let decision = decide(&charge, &mut states, Duration::from_micros(now)).unwrap();
                if !decision.allowed() {
                    if let Some(wait) = decision.retry_after() {
                        let later = now + wait.as_micros() as u64;
                        let mut alone = states.clone();
                        let early = decide(&charge, &mut alone, Duration::from_micros(later - 1)).unwrap();
                        prop_assert!(!early.allowed(), "{} at {now}, before {wait:?}", quota.limit);
                        let in_time = decide(&charge, &mut alone, Duration::from_micros(later)).unwrap();
                        prop_assert!(in_time.allowed(), "{} at {now}, after {wait:?}", quota.limit);
                    }
                    continue;
                }
                allowed.push((now, cost.into()));
                receipts.extend(decision.receipt());
                charges[number].push((now, allowed.len()));
                let is_promised = is_promised(quota, &allowed, now);
                prop_assert!(is_promised, "{} at {now}: {allowed:?}", quota.limit);
            }
            // Through any of the quotas. The model counts it as given back as a whole.
            if let Some(before) = refunded
                && matches!(quotas[0].algorithm, Algorithm::Log)
                && let Some(place) = allowed.len().checked_sub(before + 1)
                && allowed[place].1 > 0
            {
                let (receipt, quota) = (receipts[place], &quotas[before % quotas.len()]);
                let give_back = Change::Settle { receipt, cost: 0 };
                let refund = Operation::Change(Budget::new(&quota.limit, &key), give_back);
                drop(decide(&refund, &mut states, Duration::from_micros(now)).unwrap());
                allowed[place].1 = 0;
            }
        }
        for (quota, charges) in quotas.iter().zip(&charges) {
            if matches!(quota.algorithm, Algorithm::First) {
                prop_assert!(has_windows(quota, &allowed, charges), "{}: {allowed:?}", quota.limit);
            }
        }
        if matches!(quotas[0].algorithm, Algorithm::Bucket) {
            let burst = quotas.iter().map(|quota| quota.units).max().unwrap();
            for (i, &(start, _)) in allowed.iter().enumerate() {
                let mut units = 0;
                for &(at, cost) in &allowed[i..] {
                    units += cost;
                    let fastest = quotas.iter().map(|quota| {
                        let units = u128::from(quota.units) * u128::from(at - start);
                        units.div_ceil(u128::from(quota.period))
                    });
                    prop_assert!(u128::from(units) <= u128::from(burst) + fastest.max().unwrap());
                }
            }
        }
    }
}
