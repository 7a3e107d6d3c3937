//! Batches: checks in one call decide as if they were sent one after another, and an invalid or
//! dropped check does not affect the others.
#![cfg(feature = "redis")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::limit::BlockPolicy;
use tollgate::store::{Answer, Budget, Change, Group, Operation, RedisStoreBuilder, Store};
use tollgate::{Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::RedisServer;
use crate::support::delay::delaying;
use crate::support::op::Op;

const SECOND: Duration = Duration::from_secs(1);

fn store(server: &RedisServer) -> RedisStoreBuilder {
    server.store().deny_for(Duration::ZERO)
}

/// Awaits answers to checks that were all made before the first one was sent.
async fn at_once(answers: Vec<Answer>) -> Vec<Result<Decision, Error>> {
    let mut decisions = Vec::new();
    for answer in answers {
        decisions.push(answer.await);
    }
    decisions
}

#[derive(Clone, Debug)]
struct Ask {
    op: Op,
    /// Limit, key, cost.
    checks: Vec<(usize, usize, u32)>,
}

fn limits() -> Vec<Limit> {
    let small = Quota::new(5, Duration::from_secs(1));
    let large = Quota::new(40, Duration::from_secs(3));
    let limits = [
        Limit::token_bucket("bucket", small.burst(30)),
        Limit::token_bucket("bucket", large.burst(20)),
        Limit::leaky_bucket("queue", small.burst(9)),
        Limit::gcra("gcra", large),
        // Its units do not replenish in whole microseconds.
        Limit::leaky_bucket("sevenths", Quota::new(7, Duration::from_secs(3)).burst(11)),
        Limit::fixed_window("fixed", large),
        Limit::fixed_window_aligned("aligned", small),
        Limit::sliding_window("window", large),
        // The same budget, in a value of another length.
        Limit::sliding_window_with("window", large, 3),
        Limit::sliding_window_with("sub_windows", large, 6),
        Limit::sliding_log("log", large),
        Limit::sliding_log("bucket", large),
        // With more sub-windows than the first read of a log covers.
        Limit::sliding_window_with("log", large, 40),
    ];
    let limits = limits.map(Result::unwrap);
    // Each a second time, and blocking keys: some after their first denial, some after several in
    // one batch.
    let denials = [3, 0, 1, 7, 2, 20].into_iter().cycle();
    let blocking = limits
        .clone()
        .into_iter()
        .zip(denials)
        .map(|(limit, denials)| {
            let policy = match denials {
                0 => BlockPolicy::by_operators(),
                denials => BlockPolicy::after(denials, Duration::from_secs(1))
                    .lasting(Duration::from_millis(700))
                    .growing(2, Duration::from_secs(2)),
            };
            limit.with_block_policy(policy).unwrap()
        });
    blocking.chain(limits.clone()).collect()
}

fn ask() -> impl Strategy<Value = Ask> {
    let op = prop_oneof![
        20 => Just(Op::Charge), 2 => Just(Op::Peek), 2 => Just(Op::Refund), 1 => Just(Op::Reset),
        1 => Just(Op::Block), 6 => Just(Op::Pay)
    ];
    // One cost most of the time, so that checks are identical.
    let cost = prop_oneof![6 => Just(1_u32), 1 => Just(0), 1 => Just(3), 1 => 0..50_u32];
    let check = (0..limits().len(), 0..3_usize, cost);
    let checks = prop_oneof![3 => vec(check.clone(), 1), 1 => vec(check, 2..4)];
    (op, checks).prop_map(|(op, checks)| Ask { op, checks })
}

/// Some are sent several times in a row: then they are one run of the batch.
fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let times = prop_oneof![5 => Just(1_usize), 1 => 2..9_usize];
    vec((ask(), times), 1..60).prop_map(|asks| {
        let asks = asks.into_iter();
        asks.flat_map(|(ask, times)| vec![ask; times]).collect()
    })
}

fn group<'a>(ask: &Ask, limits: &'a [Limit], keys: &'a [Key]) -> Vec<Check> {
    let mut group: Vec<Check> = Vec::new();
    for &(limit, key, cost) in &ask.checks {
        let check = Check::new(&limits[limit], &keys[key]).with_cost(cost);
        let same =
            |it: &Check| it.limit().name() == check.limit().name() && it.key() == check.key();
        if !group.iter().any(same) {
            group.push(check);
        }
    }
    group
}

/// The operation of an ask, as the charges of its call were made at `now`. A refund is of a charge
/// in the same call.
fn operation(ask: &Ask, group: Vec<Check>, now: Duration) -> Operation {
    let cost = group[0].cost();
    let receipt = Receipt::new(now, cost);
    let block = Duration::from_millis(u64::from(cost) * 300);
    match ask.op {
        Op::Charge => Operation::Charge(Group::new(group).unwrap()),
        Op::Peek => Operation::Peek(Group::new(group).unwrap()),
        op => op.on(group[0].clone(), Some(receipt), block),
    }
}

#[test]
fn batched_checks_decide_as_sequential_checks() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (clock, limits) = (ManualClock::new(), limits());
    let redis = runtime
        .block_on(store(&server).clock(clock.clone()).connect())
        .unwrap();
    let cases = AtomicU64::new(0);
    let runs = vec((asks(), 0..2_000_000_u64), 1..5);
    let config = ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..Default::default()
    };
    proptest!(config, |(runs in runs)| {
        let case = cases.fetch_add(1, Ordering::Relaxed);
        let keys = [0, 1, 2].map(|key: u64| Key::from_parts([case.to_string(), key.to_string()]));
        let memory = MemoryStore::with_clock(clock.clone());
        let mut now = Duration::from_secs(1_790_000_000);
        for (asks, pause) in runs {
            now += Duration::from_micros(pause);
            clock.set(now);
            let operations = asks
                .iter()
                .map(|ask| operation(ask, group(ask, &limits, &keys), now));
            let operations: Vec<Operation> = operations.collect();
            let inside = runtime.enter();
            let answers = operations.iter().map(|it| redis.apply(it.clone())).collect();
            drop(inside);
            let together = runtime.block_on(at_once(answers));
            for (operation, decided) in operations.iter().zip(together) {
                let alone = runtime.block_on(memory.apply(operation.clone())).unwrap();
                prop_assert_eq!(decided.unwrap(), alone, "{:?}", operation);
            }
        }
    });
}

/// A check of cost 0 is allowed although its key is blocked, so each group is charged.
#[tokio::test]
async fn identical_groups_with_a_free_check_of_a_blocked_key_are_each_charged() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let key = Key::new("mallory");
    let blocking = Limit::gcra("items", Quota::per_hour(10)).unwrap();
    let requests = Limit::fixed_window("requests", Quota::per_hour(10)).unwrap();
    let block = Operation::Change(Budget::new(&blocking, &key), Change::Block(60 * SECOND));
    drop(store.apply(block).await.unwrap());
    let group = || {
        let free = Check::new(&blocking, &key).with_cost(0);
        Group::new([free, Check::new(&requests, &key)]).unwrap()
    };
    let answers = (0..200)
        .map(|_| store.apply(Operation::Charge(group())))
        .collect();
    let decisions = at_once(answers).await;
    let allowed = decisions.iter().filter(|it| it.as_ref().unwrap().allowed());
    assert_eq!(allowed.count(), 10);
}

#[tokio::test]
async fn shorter_value_replaces_all_of_the_longer_one() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    // In the last third of the window, so that it ends at the same time with three sub-windows and
    // with one.
    clock.set(Duration::from_millis(3_002_500));
    let store = store(&server).clock(clock.clone()).connect().await.unwrap();
    server.reset_calls();
    let quota = Quota::new(40, Duration::from_secs(3));
    let [three, one] = [3, 1].map(|count| Limit::sliding_window_with("window", quota, count));
    let (three, one) = (three.unwrap(), one.unwrap());
    let other = Limit::gcra("other", quota).unwrap();
    let key = Key::new("alice");
    drop(
        store
            .apply(Operation::Charge(Check::new(&three, &key).into()))
            .await
            .unwrap(),
    );
    let both = [
        Check::new(&three, &key).with_cost(1),
        Check::new(&other, &key),
    ];
    let together = vec![
        store.apply(Operation::Charge(Group::new(both).unwrap())),
        store.apply(Operation::Charge(Check::new(&one, &key).into())),
    ];
    assert!(
        at_once(together)
            .await
            .iter()
            .all(|it| it.as_ref().unwrap().allowed())
    );
    assert_eq!(server.calls("evalsha"), 2);
    let mut connection = server.connection();
    let mut length = || -> usize {
        redis::cmd("STRLEN")
            .arg("tollgate:{alice}:s:window")
            .query(&mut connection)
            .unwrap()
    };
    assert_eq!(length(), 22 + 2 * 7 + 28 + 4 * 7, "a counter for each");
    let left = store
        .apply(Operation::Peek(Check::new(&one, &key).with_cost(0).into()))
        .await
        .unwrap();
    assert_eq!(left.remaining(), 37);
    clock.advance(Duration::from_secs(3));
    drop(
        store
            .apply(Operation::Charge(Check::new(&one, &key).into()))
            .await
            .unwrap(),
    );
    let left = store
        .apply(Operation::Peek(Check::new(&one, &key).with_cost(0).into()))
        .await
        .unwrap();
    assert_eq!(left.remaining(), 38, "the first three fade");
    // The quota with three sub-windows was not used for one and a half of its periods.
    clock.advance(Duration::from_millis(1_500));
    drop(
        store
            .apply(Operation::Charge(Check::new(&one, &key).into()))
            .await
            .unwrap(),
    );
    assert_eq!(length(), 22 + 2 * 7, "one counter");
}

#[tokio::test]
async fn concurrent_checks_of_one_key_share_calls_and_reads() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    server.reset_calls();
    let (limit, key) = (
        Limit::gcra("all", Quota::per_day(1).burst(600)).unwrap(),
        Key::global(),
    );
    let answers = (0..1_000)
        .map(|_| store.apply(Operation::Charge(Check::new(&limit, &key).into())))
        .collect();
    let decisions = at_once(answers).await;
    let remaining: Vec<_> = decisions[..600]
        .iter()
        .map(|it| it.as_ref().unwrap().remaining())
        .collect();
    assert_eq!(
        remaining,
        (0..600).rev().collect::<Vec<u64>>(),
        "first come, first served"
    );
    assert!(
        decisions[600..]
            .iter()
            .all(|it| !it.as_ref().unwrap().allowed())
    );
    let batches = server.calls("evalsha");
    assert!(batches <= 4, "{batches} calls");
    assert!(server.calls("get") <= batches);
    assert!(server.calls("psetex") + server.calls("setrange") <= batches);
}

#[tokio::test]
async fn lone_check_is_sent_at_once() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store(&server).connect().await.unwrap());
    server.reset_calls();
    let (limit, key) = (
        Limit::gcra("all", Quota::per_second(9)).unwrap(),
        Key::global(),
    );
    for _ in 0..5 {
        drop(limiter.check(&limit, &key).await.unwrap());
    }
    assert_eq!(server.calls("evalsha"), 5);
}

/// As many calls in flight as the round trip takes steps of 4 ms, and not one for each check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_distant_server_are_at_most_250_a_second() {
    let server = RedisServer::start();
    let port = delaying(server.port(), Arc::new(AtomicU64::new(20))).await;
    let store = store(&server).url(format!("redis://127.0.0.1:{port}/"));
    let limiter = RateLimiter::new(store.deadline(SECOND / 4).connect().await.unwrap());
    server.reset_calls();
    let limit = Limit::gcra("all", Quota::per_second(1_000_000)).unwrap();
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for key in 0..64_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        callers.spawn(async move {
            while start.elapsed() < SECOND {
                drop(limiter.check(&limit, &Key::from(key)).await.unwrap());
            }
        });
    }
    callers.join_all().await;
    let (calls, most) = (server.calls("evalsha"), start.elapsed().as_millis() / 4 + 2);
    assert!(
        u128::from(calls) <= most,
        "{calls} calls in {:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn check_dropped_before_its_batch_is_sent_is_not_charged() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::token_bucket("all", Quota::per_day(1).burst(100)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    let kept = ask();
    let dropped: Vec<_> = (0..50).map(|_| ask()).collect();
    let kept_too = ask();
    drop(dropped);
    assert_eq!(kept.await.unwrap().remaining(), 99);
    assert_eq!(kept_too.await.unwrap().remaining(), 98);
}

#[tokio::test]
async fn batch_of_dropped_checks_is_not_sent() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store(&server).connect().await.unwrap());
    let limit = Limit::token_bucket("all", Quota::per_day(1).burst(100)).unwrap();
    let key = Key::global();
    drop(limiter.apply(Operation::Charge(Check::new(&limit, &key).into())));
    tokio::task::yield_now().await;
    assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 99);
}

#[tokio::test]
async fn corrupt_value_and_cost_above_the_capacity_do_not_fail_their_batch() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::token_bucket("all", Quota::per_second(9)).unwrap();
    let keys: Vec<_> = (0..9_u64).map(Key::from).collect();
    let mut connection = server.connection();
    let () = redis::cmd("SET")
        .arg("tollgate:{3}:b:all")
        .arg("garbage")
        .query(&mut connection)
        .unwrap();
    let () = redis::cmd("LPUSH")
        .arg("tollgate:{5}:b:all")
        .arg("x")
        .query(&mut connection)
        .unwrap();
    let mut answers = Vec::new();
    for key in &keys {
        answers.push(store.apply(Operation::Charge(Check::new(&limit, key).into())));
        answers.push(store.apply(Operation::Charge(
            Check::new(&limit, key).with_cost(u32::MAX).into(),
        )));
    }
    let mut decisions = at_once(answers).await.into_iter();
    for key in &keys {
        assert_eq!(decisions.next().unwrap().unwrap().remaining(), 8, "{key}");
        assert!(
            decisions.next().unwrap().unwrap().exceeds_capacity(),
            "{key}"
        );
    }
}

#[tokio::test]
async fn batch_without_an_answer_fails_and_is_not_sent_again() {
    let mut server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_second(9)).unwrap();
    let keys: Vec<_> = (0..30_u64).map(Key::from).collect();
    let ask = |key| store.apply(Operation::Charge(Check::new(&limit, key).into()));
    drop(ask(&keys[0]).await.unwrap());
    server.pause(true);
    let mut answers: Vec<_> = keys.iter().map(ask).collect();
    // They are sent and not answered.
    for answer in &mut answers {
        let pending = timeout(Duration::from_millis(5), Pin::new(answer)).await;
        assert!(pending.is_err());
    }
    let port = server.port();
    server.kill();
    let again = RedisServer::start_on(port).expect("the port is free again");
    for answer in answers {
        let error = answer.await.unwrap_err();
        assert!(error.may_have_charged(), "{error}");
    }
    let mut connection = again.connection();
    let left: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(left, 0, "no check was sent again");
}

#[tokio::test]
async fn checks_in_one_call_are_bounded() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limits: Vec<_> = (0..8)
        .map(|n| Limit::gcra(&format!("l{n}"), Quota::per_day(9_999)).unwrap())
        .collect();
    let key = Key::global();
    let group: Vec<_> = limits
        .iter()
        .map(|limit| Check::new(limit, &key).with_cost(1))
        .collect();
    let group = Group::new(group).unwrap();
    drop(store.apply(Operation::Charge(group.clone())).await.unwrap());
    let before = server.calls("evalsha");
    let answers = (0..1_024)
        .map(|_| store.apply(Operation::Charge(group.clone())))
        .collect();
    for (number, decision) in (0..).zip(at_once(answers).await) {
        assert_eq!(decision.unwrap().remaining(), 9_997 - number);
    }
    // 8 x 1,024 checks, 1,024 at most in a call.
    assert!(server.calls("evalsha") - before >= 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_allow_exactly_the_limit_together() {
    let server = RedisServer::start();
    for lanes in [1, 2, 4] {
        let limiter = RateLimiter::new(store(&server).lanes(lanes).connect().await.unwrap());
        let name = format!("of {lanes}");
        let limit = Limit::token_bucket(&name, Quota::per_day(1).burst(50)).unwrap();
        let mut checks = JoinSet::new();
        for number in 0..2_000_u64 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            checks.spawn(async move {
                limiter
                    .check(&limit, &Key::from(number % 20))
                    .await
                    .unwrap()
                    .allowed()
            });
        }
        let allowed = checks.join_all().await.into_iter().filter(|it| *it).count();
        assert_eq!(allowed, 20 * 50);
    }
}
