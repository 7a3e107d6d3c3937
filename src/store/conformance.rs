//! The conformance suite for stores of your own (feature `test-util`).
//!
//! ```
//! use tollgate::store::conformance;
//! use tollgate::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // Creates an empty store that decides by the given clock.
//! conformance::check(MemoryStore::with_clock).await;
//! # }
//! ```
//!
//! The suite replays sequences under every algorithm, and in windows of the calendar (feature
//! `calendar`), with time in both directions, changed quotas, usage,
//! refunds, settlements, reservations, shadow mode, blocks, groups and claims of permits. It
//! compares every field of each decision with the decision of [`decide`], and panics with the first
//! difference.

#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a test suite reports by panicking"
)]

use std::collections::HashMap;
use std::time::Duration;

use crate::algorithm::State;
use crate::limiter::RateLimiter;
use crate::model::{
    BlockPolicy, Budget, Change, Check, Decision, Group, Key, Limit, Operation, Usage,
};
use crate::store::{Store, decide};
use crate::units::{Claim, ConfigError, ManualClock, Payment, Quota, Receipt};

/// The number of checks in a sequence.
const STEPS: usize = 400;

/// The start of sequences, a time that is not a round number, in microseconds.
const START: u64 = 1_790_000_123_456_789;

/// Runs the suite. `store` creates an empty store that decides by the given clock.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check<S: Store>(mut store: impl FnMut(ManualClock) -> S) {
    let clock = ManualClock::new();
    group_is_charged_all_or_none(&clock, RateLimiter::new(store(clock.clone()))).await;
    let blocking = pairs().map(|limits| limits.map(blocking_keys));
    for (seed, limits) in (1..).zip(pairs().chain(blocking)) {
        let store = RateLimiter::new(store(clock.clone()));
        sequences_are_decided_as_by_the_algorithm(&clock, store, seed, limits).await;
    }
    permits_are_granted_as_by_the_algorithm(&clock, RateLimiter::new(store(clock.clone()))).await;
}

/// Claims of three holders of a key, some of them lost or repeated. A store may turn concurrency
/// limits down.
async fn permits_are_granted_as_by_the_algorithm(clock: &ManualClock, limiter: RateLimiter) {
    let limit = Limit::concurrency("permits", 4).expect("it is in range");
    if limiter.register(&limit).is_err() {
        return;
    }
    let mut holders = [1, 2, 3].map(|id| Claim::new([id; 8], Duration::from_secs(10)));
    let mut reference = Reference(HashMap::new());
    let mut below = random_below(1);
    let mut now = START;
    for step in 0..STEPS {
        now += below(3_000_000);
        clock.set(Duration::from_micros(now));
        let holder = &mut holders[below(3) as usize];
        let held = holder.granted - holder.released;
        holder.released += below(held + 1);
        holder.waiting = below(3) as u32;
        holder.at_once = below(3) as u32;
        let claim = Change::Claim(*holder);
        let claim = Operation::Change(Budget::new(&limit, "acme"), claim);
        let expected = reference.apply(&claim, now);
        let decided = limiter.apply(claim.clone()).await;
        let decided = decided.unwrap_or_else(|error| panic!("step {step} failed: {error}"));
        assert_eq!(
            decided, expected,
            "the store (left) differs from the algorithm (right) at step {step}: {claim:?} at \
             {now} us"
        );
        let is_lost = below(4) == 0;
        if !is_lost {
            holder.granted += decided.remaining();
        }
    }
}

fn blocking_keys(limit: Limit) -> Limit {
    let policy = BlockPolicy::after(4, Duration::from_secs(2))
        .lasting(Duration::from_secs(1))
        .growing(3, Duration::from_secs(20));
    limit.with_block_policy(policy).expect("it is in range")
}

async fn group_is_charged_all_or_none(clock: &ManualClock, limiter: RateLimiter) {
    clock.set(Duration::from_micros(START));
    let wide = Limit::token_bucket("wide", Quota::per_second(100)).expect("it is in range");
    let tight = Limit::fixed_window("tight", Quota::per_second(1)).expect("it is in range");
    let alice = Key::new("alice");
    let acme = Key::new("acme");
    let group = [
        Check::new(&wide, &alice).with_cost(10),
        Check::new(&tight, &acme).with_cost(1),
    ];
    let charge = async || limiter.check_all(&group).await.expect("it decides");

    assert!(charge().await.allowed(), "a group that fits is allowed");
    let denied = charge().await;
    assert!(
        !denied.allowed(),
        "a group is denied if one check does not fit"
    );
    assert_eq!(
        denied.verdicts()[0].remaining(),
        90,
        "a denied group reports no charge"
    );
    let left = limiter.peek(&wide, &alice, 0).await.expect("it decides");
    assert_eq!(left.remaining(), 90, "a denied group charges nothing");
}

/// The reference store, with states in a map, decided by `decide`.
struct Reference(HashMap<(String, &'static str, String), State>);

impl Reference {
    fn apply(&mut self, operation: &Operation, now_us: u64) -> Decision {
        let budgets = operation.budgets().map(|budget| {
            let limit = budget.limit();
            let key = budget.key().as_str();
            (limit.name().to_owned(), limit.kind(), key.to_owned())
        });
        let budgets: Vec<_> = budgets.collect();
        let mut states: Vec<_> = budgets.iter().map(|budget| self.0.remove(budget)).collect();
        let decision = decide(operation, &mut states, Duration::from_micros(now_us))
            .expect("there is a state for each budget");
        let kept = budgets.into_iter().zip(states);
        self.0
            .extend(kept.filter_map(|(budget, state)| Some((budget, state?))));
        decision
    }
}

async fn sequences_are_decided_as_by_the_algorithm(
    clock: &ManualClock,
    limiter: RateLimiter,
    seed: u64,
    mut limits: [Limit; 2],
) {
    let companion = Limit::gcra("companion", Quota::per_minute(90)).expect("it is in range");
    let keys = [Key::new("{k}\r\n"), Key::from_parts(["a:b", "c"])];
    let mut reference = Reference(HashMap::new());
    let mut below = random_below(seed);
    let mut receipts = Vec::new();
    let mut now = START;
    for step in 0..STEPS {
        now = match below(10) {
            0 => now - below(3_000_000),
            1 => now - below(3_000),
            2 => now + below(90_000_000),
            3..6 => now + below(700_000),
            _ => now + below(40),
        };
        clock.set(Duration::from_micros(now));
        if below(25) == 0 {
            limits.reverse();
        }
        if below(50) == 0 {
            let [first, _] = &mut limits;
            let percent = if first.shadow_percent() == 100 {
                100
            } else {
                0
            };
            *first = first
                .clone()
                .with_shadow_percent(100 - percent)
                .expect("it is in range");
        }
        let max_wait = Duration::from_micros(match below(4) {
            0 => below(3_000_000),
            _ => 0,
        });
        let cost = u32::try_from(below(5)).unwrap_or(0);
        let key = &keys[usize::from(below(3) == 0)];
        let known = receipts.len().checked_sub(1 + below(4) as usize);
        let receipt: Option<Receipt> = known.and_then(|place| receipts.get(place).copied());
        let receipt = receipt.unwrap_or_default();
        let block = Duration::from_micros(below(3) * 700_000);
        let mut group = vec![
            Check::new(&limits[0], key)
                .with_cost(cost)
                .with_max_wait(max_wait),
        ];
        if below(4) == 0 {
            group.push(Check::new(&companion, &keys[0]));
        }
        let group = Group::new(group).expect("its limits differ");
        let change = |change| Operation::Change(Budget::new(&limits[0], key), change);
        let payment = Payment::new([7; 8], 1 + step as u64, cost + 1);
        let operation = match below(16) {
            15 => change(Change::Pay(payment)),
            14 => change(Change::Block(block)),
            0 => change(Change::Reset),
            1 => change(Change::give_back(receipt)),
            2 | 3 => change(Change::Settle { receipt, cost }),
            4 => Operation::Peek(group),
            _ => Operation::Charge(group),
        };
        let expected = reference.apply(&operation, now);
        let decided = limiter.apply(operation.clone()).await;
        let decided = decided.unwrap_or_else(|error| panic!("step {step} failed: {error}"));
        receipts.extend(expected.receipt());
        assert_eq!(
            decided, expected,
            "the store (left) differs from the algorithm (right) at step {step}: \
             {operation:?} at {now} us"
        );
        if below(4) == 0 {
            let free = Check::new(&limits[0], key).with_cost(0);
            let peeked = reference.apply(&Operation::Peek(free.clone().into()), now);
            let usage = limiter.usage(free).await;
            assert_eq!(
                usage.unwrap_or_else(|error| panic!("step {step} failed: {error}")),
                [Usage::from_verdict(peeked.deciding(), peeked.timestamp())],
                "the usage in the store (left) differs from the algorithm's (right) at step {step}"
            );
        }
    }
}

/// Each algorithm with two quotas in turn.
fn pairs() -> impl Iterator<Item = [Limit; 2]> {
    let small = Quota::new(5, Duration::from_secs(1));
    let large = Quota::new(7, Duration::from_millis(1_500));
    let limits = [
        [
            Limit::token_bucket("limit", small.burst(3)),
            Limit::token_bucket("limit", large.burst(9)),
        ],
        [Limit::gcra("limit", small), Limit::gcra("limit", large)],
        [
            Limit::leaky_bucket("limit", small.burst(4)),
            Limit::leaky_bucket_meter("limit", large.burst(4)),
        ],
        [
            Limit::fixed_window("limit", small),
            Limit::fixed_window("limit", large),
        ],
        [
            Limit::fixed_window_aligned("limit", small),
            Limit::fixed_window_aligned("limit", large),
        ],
        [
            Limit::sliding_window("limit", small),
            Limit::sliding_window_with("limit", large, 6),
        ],
        [
            Limit::sliding_log("limit", small),
            Limit::sliding_log("limit", large),
        ],
    ];
    let limits = limits.into_iter().chain(calendars());
    limits.map(|pair| pair.map(|limit| limit.expect("it is in range")))
}

/// A day of the calendar, which ends soon after the start, and a month.
#[cfg(feature = "calendar")]
fn calendars() -> Vec<[Result<Limit, ConfigError>; 2]> {
    let day = Quota::per_day(5).starting_at_hour(15);
    let day = day.and_then(|day| Limit::fixed_window("limit", day));
    vec![[day, Limit::fixed_window("limit", Quota::per_month(7))]]
}

/// None without the feature.
#[cfg(not(feature = "calendar"))]
const fn calendars() -> Vec<[Result<Limit, ConfigError>; 2]> {
    Vec::new()
}

/// Random numbers below a bound (splitmix64), so that the suite needs no other crate.
fn random_below(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |bound| {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
