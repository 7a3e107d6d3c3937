//! Lua and Rust decide alike in every field, for a check alone in its call and for a check in a
//! batch.

#![cfg(feature = "redis")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::RedisServer;
use crate::support::op::Op;
use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::limit::BlockPolicy;
use tollgate::store::{Operation, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota};

/// One step of a sequence: the clock moves, then a group is applied.
#[derive(Clone, Debug)]
struct Step {
    move_us: i64,
    op: Op,
    /// Key, limit (0 or 1), cost.
    checks: Vec<(usize, usize, u32)>,
    /// Puts the next quota in force for limit 0 or 1 first.
    swap: Option<usize>,
    /// The refunded charge: how many decisions ago, under the quota in force; or how many
    /// microseconds ago.
    ago: (usize, Option<u64>),
    /// The longest wait of its checks, in microseconds.
    max_wait_us: u64,
    /// The length of a block, in microseconds.
    block_us: u64,
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    TokenBucket,
    LeakyQueue,
    LeakyMeter,
    Gcra,
    FixedFirst,
    FixedAligned,
    /// One of a few calendars.
    #[cfg(feature = "calendar")]
    Calendar(usize),
    Sliding(u32),
    Log,
}

fn limit(name: &str, algorithm: Algorithm, units: u64, period_us: u64, burst: u64) -> Limit {
    let plain = Quota::new(units, Duration::from_micros(period_us));
    let bursty = plain.burst(burst);
    match algorithm {
        Algorithm::TokenBucket => Limit::token_bucket(name, bursty),
        Algorithm::LeakyQueue => Limit::leaky_bucket(name, bursty),
        Algorithm::LeakyMeter => Limit::leaky_bucket_meter(name, bursty),
        Algorithm::Gcra => Limit::gcra(name, bursty),
        Algorithm::FixedFirst => Limit::fixed_window(name, plain),
        Algorithm::FixedAligned => Limit::fixed_window_aligned(name, plain),
        #[cfg(feature = "calendar")]
        Algorithm::Calendar(number) => {
            let quota = on_calendar(number, units);
            Limit::fixed_window(name, quota)
        }
        Algorithm::Sliding(count) => {
            // Sub-windows last whole microseconds.
            let whole = Quota::new(units, plain.period().fixed().unwrap() / 6 * count);
            Limit::sliding_window_with(name, whole, count)
        }
        Algorithm::Log => Limit::sliding_log(name, plain),
    }
    .expect("the numbers are in range")
}

#[cfg(feature = "calendar")]
fn on_calendar(number: usize, units: u64) -> Quota {
    match number {
        0 => Quota::per_day(units).in_time_zone("UTC"),
        1 => Quota::per_day(units).in_time_zone("Europe/Berlin"),
        2 => Quota::per_week(units).starting_at_hour(6),
        3 => Ok(Quota::per_month(units)),
        4 => Quota::per_month(units).starting_on_day(31),
        _ => Quota::per_year(units).starting_on_date(4, 1),
    }
    .unwrap()
}

/// A fixed window, of any start.
fn fixed_windows() -> BoxedStrategy<Algorithm> {
    let lengths = vec![Algorithm::FixedFirst, Algorithm::FixedAligned];
    let lengths = prop::sample::select(lengths);
    #[cfg(feature = "calendar")]
    return prop_oneof![1 => lengths, 1 => (0usize..6).prop_map(Algorithm::Calendar)].boxed();
    #[cfg(not(feature = "calendar"))]
    lengths.boxed()
}

fn algorithms() -> BoxedStrategy<Algorithm> {
    prop_oneof![
        Just(Algorithm::TokenBucket),
        Just(Algorithm::LeakyQueue),
        Just(Algorithm::LeakyMeter),
        Just(Algorithm::Gcra),
        fixed_windows(),
        fixed_windows(),
        (1u32..6).prop_map(Algorithm::Sliding),
        Just(Algorithm::Log),
    ]
    .boxed()
}

/// Small and odd numbers, so that sequences reach the edges.
fn limits(name: &'static str, algorithm: BoxedStrategy<Algorithm>) -> BoxedStrategy<Limit> {
    let units = prop_oneof![1u64..8, 1u64..300, Just(70_000u64), Just(1_000_000u64)];
    let period = prop_oneof![
        6u64..50,
        1_000u64..5_000,
        Just(1_000_000u64),
        50_000_000u64..70_000_000
    ];
    let period = period.prop_map(|period: u64| period / 6 * 6);
    let enforced = prop_oneof![6 => Just(100u8), 1 => Just(0u8), 1 => Just(50u8)];
    let max_debt = prop_oneof![3 => Just(u64::MAX), 1 => 0u64..20];
    (
        algorithm,
        units,
        period,
        1u64..12,
        enforced,
        max_debt,
        blocks(),
    )
        .prop_map(
            move |(algorithm, units, period, burst, enforced, max_debt, block)| {
                let limit = limit(name, algorithm, units, period, burst)
                    .with_max_debt(max_debt)
                    .unwrap();
                let limit = match block {
                    Some(policy) => limit
                        .with_block_policy(policy)
                        .expect("its numbers are in range"),
                    None => limit,
                };
                limit
                    .with_shadow_percent(100 - enforced)
                    .expect("the percentage is in range")
            },
        )
        .boxed()
}

/// Small and odd numbers, too.
fn blocks() -> impl Strategy<Value = Option<BlockPolicy>> {
    let times = prop_oneof![1u64..2_000, 1_000u64..3_000_000, 1_000_000u64..100_000_000].boxed();
    let times = (times.clone(), times.clone(), times).prop_map(|(within, length, more)| {
        [within, length, length + more].map(Duration::from_micros)
    });
    let policy =
        (0u32..6, times, 1u32..5).prop_map(|(denials, [within, length, longest], factor)| {
            if denials == 0 {
                return BlockPolicy::by_operators();
            }
            let policy = BlockPolicy::after(denials, within).lasting(length);
            if factor > 1 {
                policy.growing(factor, longest)
            } else {
                policy
            }
        });
    prop_oneof![1 => Just(None), 1 => policy.prop_map(Some)]
}

const DAY: i64 = 86_400_000_000;

/// Time mostly moves forward, sometimes back; by a little, or by periods.
fn moves() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => Just(0i64),
        4 => 0i64..20,
        4 => 0i64..2_000,
        4 => 0i64..2_000_000,
        2 => 0i64..100_000_000,
        2 => -20i64..0,
        2 => -2_000_000i64..0,
        1 => -200_000_000i64..0,
        1 => prop::sample::select(vec![-31 * DAY, -DAY, DAY, 28 * DAY, 31 * DAY]),
    ]
    .boxed()
}

fn steps() -> BoxedStrategy<Vec<Step>> {
    let op = prop_oneof![
        8 => Just(Op::Charge),
        2 => Just(Op::Peek),
        3 => Just(Op::Refund),
        3 => Just(Op::Settle),
        1 => Just(Op::Reset),
        1 => Just(Op::Block),
    ];
    let cost = prop_oneof![
        1 => Just(0u32),
        6 => Just(1u32),
        4 => 1u32..6,
        1 => 1u32..300,
        1 => Just(u32::MAX),
    ];
    let one = (0usize..2, 0usize..2, cost);
    let checks = prop_oneof![
        3 => one.clone().prop_map(|check| vec![check]),
        2 => (one.clone(), one).prop_map(|(a, mut b)| {
            if (a.0, a.1) == (b.0, b.1) {
                b.1 = 1 - b.1;
            }
            vec![a, b]
        }),
    ];
    // Some sequences change their quotas sometimes, others at most checks.
    let swap = |never| prop_oneof![never => Just(None), 1 => Just(Some(0)), 1 => Just(Some(1))];
    let ago = (
        0usize..6,
        prop_oneof![9 => Just(None), 1 => (0u64..100).prop_map(Some)],
    );
    let step = |never| {
        let max_wait = prop_oneof![
            4 => Just(0u64), 2 => 0u64..2_000, 2 => 0u64..3_000_000, 1 => Just(u64::MAX),
        ];
        let block = prop_oneof![1 => Just(0u64), 2 => 0u64..3_000_000, 1 => Just(u64::MAX)];
        let step = (
            moves(),
            op.clone(),
            checks.clone(),
            swap(never),
            ago.clone(),
            max_wait,
            block,
        );
        step.prop_map(
            |(move_us, op, checks, swap, ago, max_wait_us, block_us)| Step {
                move_us,
                op,
                checks,
                swap,
                ago,
                max_wait_us,
                block_us,
            },
        )
    };
    prop_oneof![
        2 => prop::collection::vec(step(12), 1..60),
        2 => prop::collection::vec(step(1), 1..120),
        1 => prop::collection::vec(reservation(), 1..80),
    ]
    .boxed()
}

/// A charge that may wait, or one that is given back or settled before its turn: of one budget, in
/// a short time.
fn reservation() -> impl Strategy<Value = Step> {
    let op = prop_oneof![4 => Just(Op::Charge), 2 => Just(Op::Refund), 1 => Just(Op::Settle)];
    let moves = prop_oneof![2 => Just(0i64), 3 => 0i64..2_000, 1 => 0i64..100_000];
    let max_wait = prop_oneof![1 => Just(0u64), 3 => Just(u64::MAX)];
    (moves, op, 1u32..4, 0usize..6, max_wait).prop_map(|(move_us, op, cost, back, max_wait_us)| {
        let (checks, swap, ago) = (vec![(0, 0, cost)], None, (back, None));
        Step {
            move_us,
            op,
            checks,
            swap,
            ago,
            max_wait_us,
            block_us: 0,
        }
    })
}

/// Two limits, each with alternative quotas of the same name: up to six, more than a value has
/// counters.
fn quotas() -> BoxedStrategy<[Vec<Limit>; 2]> {
    let several = |name: &'static str| {
        // Most changes keep the algorithm.
        let same = algorithms()
            .prop_flat_map(move |a| prop::collection::vec(limits(name, Just(a).boxed()), 2..7));
        let fixed = fixed_windows();
        let sliding = (1u32..6).prop_map(Algorithm::Sliding).boxed();
        let shapes = [fixed, sliding].map(|it| prop::collection::vec(limits(name, it), 2..7));
        let [fixed, sliding] = shapes;
        let other = prop::collection::vec(limits(name, algorithms()), 2..4);
        prop_oneof![4 => same, 1 => fixed, 1 => sliding, 1 => other].boxed()
    };
    (several("a"), several("b"))
        .prop_map(|(a, b)| [a, b])
        .boxed()
}

/// Replays the steps on the embedded store, and on Redis alone and in batches.
async fn replay(
    [memory, redis, batches]: [&dyn Store; 3],
    clock: &ManualClock,
    start_us: u64,
    mut limits: [Vec<Limit>; 2],
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let keys = [Key::new("k{1}"), Key::from_parts(["k", "2"])];
    let (other_key, other) = (
        Key::new("other"),
        limit("other", Algorithm::Gcra, 1, 1_000, 1),
    );
    let mut now = start_us as i64;
    // The receipts of each key under each limit.
    let mut history: [Vec<Receipt>; 4] = Default::default();
    for (number, step) in steps.iter().enumerate() {
        now = (now + step.move_us).max(0);
        clock.set(Duration::from_micros(now as u64));
        if let Some(limit) = step.swap {
            limits[limit].rotate_left(1);
        }
        let check = |&(key, limit, cost): &(usize, usize, u32)| {
            Check::new(&limits[limit][0], &keys[key])
                .with_cost(cost)
                .with_max_wait(Duration::from_micros(step.max_wait_us))
        };
        let receipt = |&(key, limit, cost): &(usize, usize, u32)| {
            let (back, micros) = step.ago;
            let known = history[key * 2 + limit].iter().rev().nth(back).copied();
            let at_once = micros.map(|it| {
                Receipt::new(Duration::from_micros((now as u64).saturating_sub(it)), cost)
            });
            at_once.or(known)
        };
        let operations = step.op.on_group(
            step.checks.iter().map(check).collect(),
            step.checks.iter().map(receipt).collect(),
            Duration::from_micros(step.block_us),
        );
        let mut receipts = Vec::new();
        for operation in operations {
            let expected = memory
                .apply(operation.clone())
                .await
                .expect("memory decides");
            let alone = redis.apply(operation.clone()).await.expect("Redis decides");
            prop_assert_eq!(
                &expected,
                &alone,
                "alone, step {} at {}: {:?}",
                number,
                now,
                step
            );
            let batched = batches.apply(operation);
            let along = batches.apply(Operation::Charge(Check::new(&other, &other_key).into()));
            let batched = batched.await.expect("Redis decides");
            drop(along.await.expect("Redis decides"));
            prop_assert_eq!(
                &expected,
                &batched,
                "batched, step {} at {}: {:?}",
                number,
                now,
                step
            );
            receipts.extend(expected.receipts());
        }
        for (&(key, limit, _), receipt) in step.checks.iter().zip(receipts) {
            history[key * 2 + limit].extend(receipt);
        }
    }
    Ok(())
}

#[test]
fn memory_and_redis_decide_the_same_in_every_field() {
    let server = RedisServer::start();
    // On one thread, so that two checks made at once are sent in one batch.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime starts");
    let case = AtomicUsize::new(0);
    // The third is the end of a month in Berlin, and the last one in UTC.
    let start = prop::sample::select(vec![
        0u64,
        1_790_000_000_123_456,
        1_774_994_399_900_000,
        1_775_001_599_900_000,
    ]);
    // `TWINS_CASES=20000` tests more sequences.
    let cases = std::env::var("TWINS_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    let config = ProptestConfig {
        cases: cases.unwrap_or(500),
        max_shrink_iters: 2_000,
        failure_persistence: Some(Box::new(
            proptest::test_runner::FileFailurePersistence::WithSource("regressions"),
        )),
        ..ProptestConfig::default()
    };
    proptest!(config, |(start in start, limits in quotas(), steps in steps())| {
        let case = case.fetch_add(1, Ordering::Relaxed);
        runtime.block_on(async {
            let clock = ManualClock::new();
            let memory = MemoryStore::with_clock(clock.clone());
            let redis = |prefix: &str| {
                let store = server.store_of(format!("{prefix}-{case}"));
                store.deny_for(Duration::ZERO).clock(clock.clone()).build()
            };
            let [alone, batches] =
                ["alone", "batches"].map(|prefix| redis(prefix).expect("the settings are right"));
            replay([&memory, &alone, &batches], &clock, start, limits, &steps).await
        })?;
    });
    let (calls, batches) = (server.calls("evalsha"), server.calls("mget"));
    assert!(
        batches > calls / 10,
        "{batches} of {calls} calls read several keys at once"
    );
}
