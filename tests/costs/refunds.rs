//! A refund never allows more than if its charge had not been made, on both stores and under each
//! algorithm.
//!
//! Random histories run twice, under two keys: once with refunds, and once with charges that leave
//! out the refunded units. All other events are equal. The first history must not allow a check
//! that the second denies. The clock does not step back: over the end of a window, one charge more
//! or less decides which window is in force.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::limit::Algorithm;
use tollgate::store::{Budget, Change, Group, Operation, State, Store, decide};
use tollgate::{Check, Decision, Key, Limit, MemoryStore, Quota};

use crate::support::op::Op;

const START: u64 = 1_790_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn every_algorithm(units: u64, period: u64) -> Vec<Limit> {
    let quota = Quota::new(units, Duration::from_micros(period));
    [
        Limit::token_bucket("limit", quota),
        Limit::leaky_bucket("limit", quota),
        Limit::leaky_bucket_meter("limit", quota),
        Limit::gcra("limit", quota),
        Limit::fixed_window("limit", quota),
        Limit::fixed_window_aligned("limit", quota),
        Limit::sliding_window("limit", quota),
        Limit::sliding_window_with("limit", quota, 4),
        Limit::sliding_log("limit", quota),
    ]
    .map(Result::unwrap)
    .into()
}

/// A charge is known by its time. After a step back, a new charge may have the time of an old one
/// that the budget no longer counts: the receipt of either gives back nothing, until the clock has
/// caught up.
#[tokio::test]
async fn clock_that_was_set_back_gives_back_nothing_until_it_has_caught_up() {
    let (hour, minute) = (3_600 * SECOND, 60 * SECOND);
    for limit in every_algorithm(1_000, 5 * hour) {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let replica = Replica {
            store: &store,
            clock: &clock,
        };
        let key = Key::new("alice");
        let used = async |now| 1_000 - replica.charge(now, &limit, &key, 0).await.remaining();
        let first = replica.charge(START, &limit, &key, 10).await;
        let back = replica.charge(START - minute, &limit, &key, 100).await;
        replica
            .refund(START - minute, &limit, &key, 100, back.receipt().unwrap())
            .await;
        assert_eq!(used(START - minute).await, 110, "{limit}");
        // The receipt of the charge from before the step is still valid. In a queue, the other one
        // keeps its place behind it.
        replica
            .refund(START - minute, &limit, &key, 10, first.receipt().unwrap())
            .await;
        let left = if queues(&limit) { 110 } else { 100 };
        assert_eq!(used(START - minute).await, left, "{limit}");
        let later = replica.charge(START + 1, &limit, &key, 50).await;
        replica
            .refund(START + 1, &limit, &key, 50, later.receipt().unwrap())
            .await;
        assert_eq!(used(START + 1).await, left, "{limit}");
    }
}

fn queues(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::LeakyBucket && !limit.to_string().contains("meter")
}

struct Replica<'a> {
    store: &'a dyn Store,
    clock: &'a ManualClock,
}

impl Replica<'_> {
    async fn at(&self, now: u64, operation: Operation) -> Decision {
        self.clock.set(Duration::from_micros(now));
        self.store.apply(operation).await.unwrap()
    }

    async fn charge(&self, now: u64, limit: &Limit, key: &Key, cost: u32) -> Decision {
        let check = Check::new(limit, key).with_cost(cost);
        self.at(now, Operation::Charge(check.into())).await
    }

    async fn peek(&self, now: u64, limit: &Limit, key: &Key, cost: u32) -> Decision {
        let check = Check::new(limit, key).with_cost(cost);
        self.at(now, Operation::Peek(check.into())).await
    }

    async fn reset(&self, now: u64, limit: &Limit, key: &Key) {
        let reset = Operation::Change(Budget::new(limit, key), Change::Reset);
        drop(self.at(now, reset).await);
    }

    async fn refund(
        &self,
        now: u64,
        limit: &Limit,
        key: &Key,
        units: u32,
        receipt: Receipt,
    ) -> u64 {
        let check = Check::new(limit, key).with_cost(units);
        let refund = Op::Refund.on(check, Some(receipt), Duration::ZERO);
        self.at(now, refund).await.remaining()
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A charge, and how many of its units are refunded later.
    Charge(u32, u32),
    /// A refund of some of those units, of one of the last charges.
    Refund(usize, u32),
    Reset,
    /// Another quota is in force.
    Change,
    Peek(u32),
}

/// Events, each with the pause before it, in thousandths of the period.
fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    // In the second kind of history a bucket is rarely empty.
    let pause = prop_oneof![
        6 => 0u64..80,
        4 => 0u64..600,
        1 => 900u64..2_500,
    ];
    prop_oneof![
        events_after(pause.boxed()),
        events_after((0u64..100).boxed())
    ]
}

fn events_after(pause: BoxedStrategy<u64>) -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        6 => (1u32..8, 0u32..8).prop_map(|(cost, back)| Event::Charge(cost, back.min(cost))),
        5 => (0usize..5, 1u32..8).prop_map(|(ago, units)| Event::Refund(ago, units)),
        1 => prop_oneof![3 => Just(Event::Peek(3)), 1 => Just(Event::Reset)],
        1 => prop_oneof![4 => Just(Event::Peek(1)), 1 => Just(Event::Change)],
    ];
    prop::collection::vec((pause, event), 1..50)
}

/// A charge with units to be refunded.
struct Owed {
    receipt: Receipt,
    units: u32,
}

async fn compare(
    replica: &Replica<'_>,
    keys: [&Key; 2],
    limits: [&Limit; 2],
    period: u64,
    events: &[(u64, Event)],
) -> Result<(), TestCaseError> {
    let [real, other] = keys;
    let (mut now, mut in_force) = (START, 0);
    let mut owed: Vec<Owed> = Vec::new();
    for (step, (pause, event)) in events.iter().enumerate() {
        now += 1 + pause * period / 1_000;
        let limit = limits[in_force];
        match *event {
            Event::Charge(cost, back) => {
                let decision = replica.charge(now, limit, real, cost).await;
                let Some(receipt) = decision.receipt() else {
                    continue;
                };
                let without = replica.charge(now, limit, other, cost - back).await;
                prop_assert!(
                    without.allowed(),
                    "{limit}, step {step} at {now}: {event:?}"
                );
                owed.push(Owed {
                    receipt,
                    units: back,
                });
            }
            Event::Refund(ago, units) => {
                let Some(place) = owed.len().checked_sub(1 + ago) else {
                    continue;
                };
                let Owed {
                    receipt,
                    units: left,
                } = &mut owed[place];
                let units = units.min(*left);
                *left -= units;
                replica.refund(now, limit, real, units, *receipt).await;
                *receipt = receipt.after(units);
            }
            Event::Reset => {
                // Nothing else happens in the microsecond of a reset.
                now += 1;
                for key in keys {
                    replica.reset(now, limit, key).await;
                }
            }
            Event::Change => {
                in_force = 1 - in_force;
                // A denied check brings the new quota to both histories now. Otherwise a charge
                // that only one history makes would bring it there earlier.
                let all = u32::try_from(limits[in_force].quota().limit()).unwrap();
                for key in keys {
                    let limit = limits[in_force];
                    if !replica.peek(now, limit, key, all).await.allowed() {
                        drop(replica.charge(now, limit, key, all).await);
                    }
                }
            }
            Event::Peek(cost) => {
                let peek = |key| replica.peek(now, limit, key, cost);
                let allowed = peek(real).await.allowed();
                prop_assert!(
                    !allowed || peek(other).await.allowed(),
                    "{limit}, {step} at {now}"
                );
            }
        }
    }
    // And at any later time, for any cost.
    let limit = limits[in_force];
    for parts in [
        0, 1, 50, 250, 251, 499, 500, 750, 999, 1_000, 1_001, 1_250, 1_999,
    ] {
        let then = now + parts * period / 1_000;
        let left = async |key| replica.peek(then, limit, key, 0).await.remaining();
        let (real, other) = (left(real).await, left(other).await);
        prop_assert!(real <= other, "{limit}, {parts} later: {real} {other}");
    }
    Ok(())
}

/// Compares histories under each algorithm but the fixed window that starts with the first request:
/// there, leaving out a charge moves the next windows in both directions.
fn run(store: &dyn Store, clock: &ManualClock, cases: u32) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let number = std::sync::atomic::AtomicU64::new(0);
    proptest!(config, |(
        units in 1u64..20, changed in 1u64..20, halves in 1u64..6,
        period in prop_oneof![Just(40u64), Just(4_000), Just(SECOND)],
        events in events(),
    )| {
        let case = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Which counters a window keeps for other periods also depends on the quota that charged
        // last.
        let changed = every_algorithm(changed, period).into_iter()
            .zip(every_algorithm(changed, period * halves / 2))
            .map(|(same, other)| if matches!(same.kind(), "w" | "s") { same } else { other });
        let pairs = every_algorithm(units, period).into_iter().zip(changed);
        for (number, (limit, changed)) in pairs.enumerate() {
            if limit.to_string().ends_with("(fixed window)") {
                continue;
            }
            let key = |history: &str| Key::from_parts([&format!("{case} {number}"), history]);
            let (real, other) = (key("real"), key("without"));
            let replica = Replica { store, clock };
            let compared = compare(&replica, [&real, &other], [&limit, &changed], period, &events);
            runtime.block_on(compared)?;
        }
    });
}

#[test]
fn refund_allows_no_more_than_without_its_charge() {
    let clock = ManualClock::new();
    run(&MemoryStore::with_clock(clock.clone()), &clock, 1_500);
}

#[cfg(feature = "redis")]
#[test]
fn refund_on_redis_allows_no_more_than_without_its_charge() {
    let clock = ManualClock::new();
    let server = crate::support::RedisServer::start();
    let store = server.store().clock(clock.clone()).build().unwrap();
    run(&store, &clock, 60);
}

#[tokio::test]
async fn receipt_older_than_a_reset_or_clock_step_refunds_nothing() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let replica = Replica {
        store: &store,
        clock: &clock,
    };
    for (number, limit) in every_algorithm(10, SECOND).iter().enumerate() {
        let (key, other) = (
            Key::from_parts(["a", &number.to_string()]),
            Key::from(number as u64),
        );
        let first = replica
            .charge(START, limit, &key, 6)
            .await
            .receipt()
            .unwrap();
        replica.reset(START + 1, limit, &key).await;
        assert!(replica.charge(START + 2, limit, &key, 10).await.allowed());
        assert_eq!(
            replica.refund(START + 3, limit, &key, 6, first).await,
            0,
            "{limit}"
        );

        // An hour back, and an hour later.
        let hour = 3_600 * SECOND;
        let first = replica
            .charge(START, limit, &other, 6)
            .await
            .receipt()
            .unwrap();
        assert!(
            !replica
                .charge(START - hour, limit, &other, 10)
                .await
                .allowed()
        );
        assert!(
            replica
                .charge(START - hour, limit, &other, 4)
                .await
                .allowed()
        );
        assert_eq!(
            replica.refund(START - hour, limit, &other, 6, first).await,
            0,
            "{limit}"
        );
        let mut now = START - hour;
        while now < START {
            now = (now + SECOND / 4).min(START);
            drop(replica.charge(now, limit, &other, 3).await);
        }
        let left = replica.peek(START, limit, &other, 0).await.remaining();
        assert!(
            replica.refund(START, limit, &other, 6, first).await <= left + 3,
            "{limit}"
        );
    }
}

/// A time in seconds, units, and for a refund the time and the cost of the charge.
type Step = (u64, u32, Option<(u64, u32)>);

/// Whether each step is allowed, and the remaining units after it.
async fn answers(limit: &Limit, steps: &[Step]) -> Vec<(bool, u64)> {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let (replica, key) = (
        Replica {
            store: &store,
            clock: &clock,
        },
        Key::new("k"),
    );
    let mut answers = Vec::new();
    for &(second, units, charged) in steps {
        let now = START + second * SECOND;
        answers.push(match charged {
            None => {
                let decision = replica.charge(now, limit, &key, units).await;
                (decision.allowed(), decision.remaining())
            }
            Some((second, cost)) => {
                let receipt = Receipt::new(Duration::from_micros(START + second * SECOND), cost);
                (true, replica.refund(now, limit, &key, units, receipt).await)
            }
        });
    }
    answers
}

#[tokio::test]
async fn refund_of_an_earlier_window_returns_nothing() {
    let ten = Quota::new(10, Duration::from_secs(10));
    for limit in [
        Limit::fixed_window("limit", ten),
        Limit::fixed_window_aligned("limit", ten),
    ] {
        let steps = [
            (0, 10, None),
            (10, 10, None),
            (10, 10, Some((0, 10))),
            (10, 10, None),
        ];
        let answers = answers(&limit.unwrap(), &steps).await;
        assert_eq!(answers, [(true, 0), (true, 0), (true, 0), (false, 0)]);
    }
}

#[tokio::test]
async fn refund_in_a_log_removes_its_own_charge() {
    let log = Limit::sliding_log("limit", Quota::new(10, Duration::from_secs(10))).unwrap();
    // The first five are refunded: the others were charged later, and count for longer.
    let steps = [
        (0, 5, None),
        (9, 5, None),
        (9, 5, Some((0, 5))),
        (9, 5, None),
        (10, 1, None),
    ];
    let first = answers(&log, &steps).await;
    assert_eq!(
        first,
        [(true, 5), (true, 0), (true, 5), (true, 0), (false, 0)]
    );
    // A late refund of the newest charge would allow fifteen in ten seconds.
    let steps = [
        (0, 10, None),
        (10, 10, None),
        (10, 5, Some((0, 10))),
        (10, 5, None),
    ];
    assert_eq!(answers(&log, &steps).await[2..], [(true, 0), (false, 0)]);
}

#[tokio::test]
async fn refund_in_a_bucket_excludes_drained_units() {
    let bucket = Limit::token_bucket("limit", Quota::new(10, Duration::from_secs(10))).unwrap();
    // Of the ten units, four have drained. The other six are refunded.
    let steps = [
        (0, 10, None),
        (4, 4, None),
        (4, 10, Some((0, 10))),
        (4, 7, None),
        (4, 6, None),
    ];
    let answers = answers(&bucket, &steps).await;
    assert_eq!(
        answers,
        [(true, 0), (true, 0), (true, 6), (false, 6), (true, 0)]
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A window starts with the first charge after the previous window, or after a full refund.
    #[test]
    fn refund_in_a_window_excludes_earlier_windows(
        units in 1u64..20, period in prop_oneof![Just(40u64), Just(SECOND)], events in events(),
    ) {
        let limit = Limit::fixed_window("limit", Quota::new(units, Duration::from_micros(period)));
        let (limit, key) = (limit.unwrap(), Key::new("k"));
        let mut states: [Option<State>; 1] = [None];
        let (mut now, mut start, mut used) = (START, 0, 0);
        let mut owed: Vec<Owed> = Vec::new();
        for (pause, event) in events {
            now += 1 + pause * period / 1_000;
            if used == 0 || now >= start + period {
                (start, used) = (now, 0);
            }
            match event {
                Event::Charge(cost, _) => {
                    let charge = Group::from(Check::new(&limit, &key).with_cost(cost));
                    let decision = decide(&Operation::Charge(charge), &mut states, Duration::from_micros(now)).unwrap();
                    let fits = used + u64::from(cost) <= units;
                    prop_assert_eq!(decision.allowed(), fits, "at {}", now);
                    if let Some(receipt) = decision.receipt() {
                        used += u64::from(cost);
                        owed.push(Owed { receipt, units: cost });
                    }
                }
                Event::Refund(ago, back) => {
                    let Some(place) = owed.len().checked_sub(1 + ago) else { continue };
                    let Owed { receipt, .. } = &mut owed[place];
                    let check = Check::new(&limit, &key).with_cost(back);
                    let refund = Op::Refund.on(check, Some(*receipt), Duration::ZERO);
                    let refunded = decide(&refund, &mut states, Duration::from_micros(now)).unwrap();
                    let left = refunded.remaining();
                    if receipt.charged_at() >= Duration::from_micros(start) {
                        used -= u64::from(back.min(receipt.cost()));
                    }
                    *receipt = receipt.after(back);
                    prop_assert_eq!(left, units - used, "at {}", now);
                }
                Event::Reset => {
                    now += 1;
                    states = [None];
                    used = 0;
                }
                Event::Change | Event::Peek(_) => {}
            }
        }
    }
}

#[test]
fn refund_in_a_log_of_two_quotas_frees_no_earlier_units() {
    let log = |limit, seconds| {
        Limit::sliding_log("log", Quota::new(limit, Duration::from_secs(seconds))).unwrap()
    };
    let (short, long, key) = (log(10, 1), log(10, 100), Key::new("k"));
    let mut state = [None];
    let mut at = |second: u64, operation: Operation| {
        decide(
            &operation,
            &mut state,
            Duration::from_micros(START + second * SECOND),
        )
        .unwrap()
    };
    let charge =
        |limit: &Limit, cost| Operation::Charge(Check::new(limit, &key).with_cost(cost).into());
    let give_back = |receipt| {
        let refund = Change::Settle { receipt, cost: 0 };
        Operation::Change(Budget::new(&short, &key), refund)
    };
    assert!(at(0, charge(&long, 1)).allowed());
    assert!(at(0, charge(&short, 9)).allowed());
    let first = at(3, charge(&short, 10)).receipt().unwrap();
    let second = at(5, charge(&short, 10)).receipt().unwrap();
    drop(at(6, give_back(second)));
    drop(at(6, give_back(first)));
    // Without the two charges, the ten units of the start would count for a hundred seconds.
    assert!(!at(7, charge(&long, 10)).allowed());
}
