//! Checks that travel together decide as checks one after another do, and none pays for another.
#![cfg(feature = "redis")]

mod support;

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::store::{Answer, Op, RedisStoreBuilder, Store};
use tollgate::{Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimiter};

use self::support::RedisServer;

fn store(server: &RedisServer) -> RedisStoreBuilder {
    server.store().deny_for(Duration::ZERO)
}

/// Asks everything before anything is answered. On one thread, so that it is one moment.
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
    charges: Vec<(usize, usize, u32)>,
}

fn limits() -> Vec<Limit> {
    let small = Quota::new(5, Duration::from_secs(1));
    let large = Quota::new(40, Duration::from_secs(3));
    let limits = [
        Limit::token_bucket("bucket", small.burst(30)),
        Limit::token_bucket("bucket", large.burst(20)),
        Limit::leaky_bucket("queue", small.burst(9)),
        Limit::gcra("gcra", large),
        // Its units do not come back in whole microseconds.
        Limit::leaky_bucket("sevenths", Quota::new(7, Duration::from_secs(3)).burst(11)),
        Limit::fixed_window("fixed", large),
        Limit::fixed_window_aligned("aligned", small),
        Limit::sliding_window("window", large),
        // The same budget, in a value of another length.
        Limit::sliding_window_with("window", large, 3),
        Limit::sliding_window_with("cells", large, 6),
        Limit::sliding_log("log", large),
        Limit::sliding_log("bucket", large),
        // Of more cells than are read of a log at first.
        Limit::sliding_window_with("log", large, 40),
    ];
    limits.map(Result::unwrap).into()
}

fn ask() -> impl Strategy<Value = Ask> {
    let op = prop_oneof![
        20 => Just(Op::Charge), 2 => Just(Op::Peek), 2 => Just(Op::Refund), 1 => Just(Op::Reset)
    ];
    // One cost most of the time, so that checks are alike.
    let cost = prop_oneof![6 => Just(1_u32), 1 => Just(3), 1 => 0..50_u32];
    let charge = (0..limits().len(), 0..3_usize, cost);
    let charges = prop_oneof![3 => vec(charge.clone(), 1), 1 => vec(charge, 2..4)];
    (op, charges).prop_map(|(op, charges)| Ask { op, charges })
}

fn batch<'a>(ask: &Ask, limits: &'a [Limit], keys: &'a [Key]) -> Vec<Check> {
    let mut batch: Vec<Check> = Vec::new();
    for &(limit, key, cost) in &ask.charges {
        let check = Check::new(&limits[limit], &keys[key]).cost(cost);
        let same =
            |it: &Check| it.limit().name() == check.limit().name() && it.key() == check.key();
        if !batch.iter().any(same) {
            batch.push(check);
        }
    }
    batch
}

#[test]
fn batched_checks_decide_as_sequential_checks() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (clock, limits) = (ManualClock::new(), limits());
    let redis = runtime.block_on(store(&server).clock(clock.clone()).connect()).unwrap();
    let cases = AtomicU64::new(0);
    let runs = vec((vec(ask(), 1..80), 0..2_000_000_u64), 1..5);
    proptest!(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() }, |(runs in runs)| {
        let case = cases.fetch_add(1, Ordering::Relaxed);
        let keys = [0, 1, 2].map(|key: u64| Key::from_parts([case.to_string(), key.to_string()]));
        let memory = MemoryStore::with_clock(clock.clone());
        let mut now = Duration::from_secs(1_790_000_000);
        for (asks, pause) in runs {
            now += Duration::from_micros(pause);
            clock.set(now);
            let mut batches: Vec<_> =
                asks.iter().map(|it| (it.op, batch(it, &limits, &keys))).collect();
            // Refunds are of charges of the same call.
            for check in batches.iter_mut().flat_map(|(_, batch)| batch) {
                let receipt = Receipt::new(now.as_micros() as u64, check.units());
                *check = check.clone().of(receipt);
            }
            let answers = batches.iter().map(|(op, batch)| redis.apply(*op, batch)).collect();
            let together = runtime.block_on(at_once(answers));
            for ((op, batch), decided) in batches.iter().zip(together) {
                let alone = runtime.block_on(memory.apply(*op, batch)).unwrap();
                prop_assert_eq!(decided.unwrap(), alone, "{:?} of {:?}", op, batch);
            }
        }
    });
}

#[tokio::test]
async fn shorter_value_replaces_all_of_the_longer_one() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    // In the last third of the window, so that it ends at the same time in three cells and in one.
    clock.set(Duration::from_millis(3_002_500));
    let store = store(&server).clock(clock.clone()).connect().await.unwrap();
    server.forget_calls();
    let quota = Quota::new(40, Duration::from_secs(3));
    let [three, one] = [3, 1].map(|cells| Limit::sliding_window_with("window", quota, cells));
    let (three, one) = (three.unwrap(), one.unwrap());
    let other = Limit::gcra("other", quota).unwrap();
    let key = Key::new("alice");
    store.apply(Op::Charge, &[Check::new(&three, &key)]).await.unwrap();
    let both = [Check::new(&three, &key).cost(1), Check::new(&other, &key)];
    let together =
        vec![store.apply(Op::Charge, &both), store.apply(Op::Charge, &[Check::new(&one, &key)])];
    assert!(at_once(together).await.iter().all(|it| it.as_ref().unwrap().allowed()));
    assert_eq!(server.calls("evalsha"), 2);
    let mut behind = server.connection();
    let mut length = || -> usize {
        redis::cmd("STRLEN").arg("tollgate:{alice}:s:window").query(&mut behind).unwrap()
    };
    assert_eq!(length(), 22 + 2 * 7 + 28 + 4 * 7, "a counter for each");
    let left = store.apply(Op::Peek, &[Check::new(&one, &key).cost(0)]).await.unwrap();
    assert_eq!(left.remaining(), 37);
    clock.advance(Duration::from_secs(3));
    store.apply(Op::Charge, &[Check::new(&one, &key)]).await.unwrap();
    let left = store.apply(Op::Peek, &[Check::new(&one, &key).cost(0)]).await.unwrap();
    assert_eq!(left.remaining(), 38, "the first three fade");
    // The quota in three cells has not asked for one and a half of its periods.
    clock.advance(Duration::from_millis(1_500));
    store.apply(Op::Charge, &[Check::new(&one, &key)]).await.unwrap();
    assert_eq!(length(), 22 + 2 * 7, "one counter");
}

#[tokio::test]
async fn concurrent_checks_of_one_key_share_calls_and_reads() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    server.forget_calls();
    let (limit, key) = (Limit::gcra("all", Quota::per_day(1).burst(600)).unwrap(), Key::global());
    let answers =
        (0..1_000).map(|_| store.apply(Op::Charge, &[Check::new(&limit, &key)])).collect();
    let decisions = at_once(answers).await;
    let remaining: Vec<_> =
        decisions[..600].iter().map(|it| it.as_ref().unwrap().remaining()).collect();
    assert_eq!(remaining, (0..600).rev().collect::<Vec<u64>>(), "first come, first served");
    assert!(decisions[600..].iter().all(|it| !it.as_ref().unwrap().allowed()));
    let batches = server.calls("evalsha");
    assert!(batches <= 4, "{batches} calls");
    assert!(server.calls("get") <= batches);
    assert!(server.calls("psetex") + server.calls("setrange") <= batches);
}

#[tokio::test]
async fn lone_check_is_sent_at_once() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store(&server).connect().await.unwrap());
    server.forget_calls();
    let (limit, key) = (Limit::gcra("all", Quota::per_second(9)).unwrap(), Key::global());
    for _ in 0..5 {
        limiter.check(&limit, &key).await.unwrap();
    }
    assert_eq!(server.calls("evalsha"), 5);
}

#[tokio::test]
async fn check_dropped_before_its_batch_is_sent_is_not_charged() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::token_bucket("all", Quota::per_day(1).burst(100)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &key)]);
    let stays = ask();
    let leave: Vec<_> = (0..50).map(|_| ask()).collect();
    let stays_too = ask();
    drop(leave);
    assert_eq!(stays.await.unwrap().remaining(), 99);
    assert_eq!(stays_too.await.unwrap().remaining(), 98);
}

#[tokio::test]
async fn batch_of_dropped_checks_is_not_sent() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store(&server).connect().await.unwrap());
    let limit = Limit::token_bucket("all", Quota::per_day(1).burst(100)).unwrap();
    let key = Key::global();
    drop(limiter.apply(Op::Charge, &[Check::new(&limit, &key)]));
    tokio::task::yield_now().await;
    assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 99);
}

#[tokio::test]
async fn invalid_check_does_not_fail_its_batch() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::token_bucket("all", Quota::per_second(9)).unwrap();
    let keys: Vec<_> = (0..9_u64).map(Key::from).collect();
    let mut behind = server.connection();
    let () = redis::cmd("SET").arg("tollgate:{3}:all").arg("garbage").query(&mut behind).unwrap();
    let () = redis::cmd("LPUSH").arg("tollgate:{5}:all").arg("x").query(&mut behind).unwrap();
    let twice = [Check::new(&limit, &keys[0]).cost(1), Check::new(&limit, &keys[0])];
    let mut answers = vec![store.apply(Op::Charge, &twice), store.apply(Op::Charge, &[])];
    for key in &keys {
        answers.push(store.apply(Op::Charge, &[Check::new(&limit, key)]));
        answers.push(store.apply(Op::Charge, &[Check::new(&limit, key).cost(u32::MAX)]));
    }
    let mut decisions = at_once(answers).await.into_iter();
    assert!(decisions.next().unwrap().unwrap_err().is_misuse());
    assert!(decisions.next().unwrap().unwrap_err().is_misuse());
    for key in &keys {
        assert_eq!(decisions.next().unwrap().unwrap().remaining(), 8, "{key}");
        assert!(decisions.next().unwrap().unwrap().exceeds_capacity(), "{key}");
    }
}

#[tokio::test]
async fn every_check_keeps_its_own_deadline_while_the_server_hangs() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(400);
    let limiter = RateLimiter::new(store(&server).deadline(deadline).connect().await.unwrap());
    let (limit, key) = (Limit::gcra("all", Quota::per_second(9)).unwrap(), Key::global());
    limiter.check(&limit, &key).await.unwrap();
    server.pause(true);
    let mut checks = JoinSet::new();
    for number in 0..20_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number * 20)).await;
            let asked = Instant::now();
            let error = limiter.check(&limit, &Key::from(number)).await.unwrap_err();
            assert!(error.is_timeout() || error.is_unreachable(), "{error}");
            asked.elapsed()
        });
    }
    let waits = checks.join_all().await;
    server.pause(false);
    // Timers are good to a millisecond, and a busy machine adds some.
    assert!(waits.iter().all(|wait| *wait + Duration::from_millis(2) >= deadline), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait < deadline * 2), "{waits:?}");
}

#[tokio::test]
async fn batch_without_an_answer_fails_and_is_not_sent_again() {
    let mut server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_second(9)).unwrap();
    let keys: Vec<_> = (0..30_u64).map(Key::from).collect();
    let ask = |key| store.apply(Op::Charge, &[Check::new(&limit, key)]);
    ask(&keys[0]).await.unwrap();
    server.pause(true);
    let mut answers: Vec<_> = keys.iter().map(ask).collect();
    // They leave, and nobody answers.
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
    let mut behind = again.connection();
    let left: u64 = redis::cmd("DBSIZE").query(&mut behind).unwrap();
    assert_eq!(left, 0, "nothing was sent again");
}

#[tokio::test]
async fn full_queue_is_overload_and_one_key_fills_at_most_half() {
    let server = RedisServer::start();
    let store = store(&server).max_waiting(1_000).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_second(1_000_000)).unwrap();
    let hot = Key::global();
    let ask = |key: &Key| store.apply(Op::Charge, &[Check::new(&limit, key)]);
    let is_full = |answer: &mut Answer| {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match Pin::new(answer).poll(&mut cx) {
            Poll::Ready(answer) => answer.unwrap_err().is_overloaded(),
            Poll::Pending => false,
        }
    };
    // Nothing is sent before this task waits for something, or asks for the first answer.
    let mut waiting: Vec<_> = (0..600).map(|_| ask(&hot)).collect();
    let refused = waiting.iter_mut().skip(1).map(is_full).filter(|it| *it).count();
    assert_eq!(refused, 100, "half of the room is for one key");
    let mut others: Vec<_> = (0..600_u64).map(|key| ask(&Key::from(key))).collect();
    let refused = others.iter_mut().map(is_full).filter(|it| *it).count();
    assert_eq!(refused, 100, "the other half is left to others");
    let error = ask(&hot).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the rate limit store is overloaded: the queue of 1000 checks is full"
    );
    assert!(!error.may_have_charged());
    // Those that wait are served.
    for answer in waiting.into_iter().take(500).chain(others.into_iter().take(500)) {
        assert!(answer.await.unwrap().allowed());
    }
}

#[tokio::test]
async fn unpolled_check_does_not_delay_others() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(9)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &key)]);

    // Not awaited at all, and then dropped: another check finds it in the queue, and takes it along.
    let never = ask();
    assert_eq!(ask().await.unwrap().remaining(), 7);
    drop(never);
    assert_eq!(ask().await.unwrap().remaining(), 6);

    // Dropped before it left: it is not charged, and leaves when another does.
    drop(ask());
    assert_eq!(ask().await.unwrap().remaining(), 5);

    // Asked for once, which sends it and what came with it, and then left alone.
    let (mut first, second) = (ask(), ask());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(&mut first).poll(&mut cx).is_pending());
    assert_eq!(second.await.unwrap().remaining(), 3);
    let mut alone = ask();
    assert!(Pin::new(&mut alone).poll(&mut cx).is_pending());
    assert_eq!(ask().await.unwrap().remaining(), 1);
    assert_eq!(alone.await.unwrap().remaining(), 2);
    assert_eq!(first.await.unwrap().remaining(), 4);
}

#[tokio::test]
async fn cancelled_caller_does_not_cancel_other_checks() {
    let server = RedisServer::start();
    let store = store(&server).deadline(Duration::from_secs(2)).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(9)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &key)]);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());

    // The first comes alone, and is taken along by the second before it is asked for. When it is,
    // only the third's check is waiting.
    let mut first = ask();
    let mut second = ask();
    server.pause(true);
    assert!(timeout(Duration::from_millis(1), Pin::new(&mut second)).await.is_err());
    let third = ask();
    assert!(Pin::new(&mut first).poll(&mut cx).is_pending());
    drop(first);
    server.pause(false);
    assert_eq!(second.await.unwrap().remaining(), 7);
    assert_eq!(third.await.unwrap().remaining(), 6);
}

#[tokio::test]
async fn hung_connection_is_replaced_when_callers_give_up_early() {
    let server = RedisServer::start();
    let store = store(&server).deadline(Duration::from_millis(100)).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(90)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &key)]);
    let connections = || -> u64 {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    ask().await.unwrap();
    let before = connections();
    server.pause(true);
    for _ in 0..15 {
        assert!(timeout(Duration::from_millis(20), ask()).await.is_err());
    }
    server.pause(false);
    // One is this question's own.
    assert!(connections() - before > 1);
}

#[tokio::test]
async fn dropped_checks_leave_the_queue() {
    let server = RedisServer::start();
    let store = store(&server).max_waiting(1).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(90)).unwrap();
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &Key::global())]);
    ask().await.unwrap();
    drop(ask());
    assert!(ask().await.unwrap_err().is_overloaded());
    // The one that found it full has seen to it.
    tokio::task::yield_now().await;
    assert_eq!(ask().await.unwrap().remaining(), 88);
}

#[tokio::test]
async fn exhausted_task_budget_does_not_hold_up_a_later_check() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(90)).unwrap();
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &Key::global())]);
    ask().await.unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    (0..300).for_each(|number| sender.send(number).unwrap());
    let mut first = ask();
    std::future::poll_fn(|cx| {
        // Nothing more than this is done for a task in one turn.
        while receiver.poll_recv(cx).is_ready() {}
        assert!(Pin::new(&mut first).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let second = ask();
    assert_eq!(second.await.unwrap().remaining(), 87);
    assert_eq!(first.await.unwrap().remaining(), 88);
}

#[tokio::test]
async fn check_outside_a_runtime_is_an_error() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(9)).unwrap();
    let outside = std::thread::spawn(move || {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..2 {
            let mut answer = store.apply(Op::Charge, &[Check::new(&limit, &Key::global())]);
            let Poll::Ready(Err(error)) = Pin::new(&mut answer).poll(&mut cx) else {
                panic!("nobody can answer");
            };
            assert!(!error.may_have_charged(), "{error}");
        }
    });
    outside.join().unwrap();
}

#[tokio::test]
async fn checks_in_one_call_are_bounded() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limits: Vec<_> =
        (0..8).map(|n| Limit::gcra(&format!("l{n}"), Quota::per_day(9_999)).unwrap()).collect();
    let key = Key::global();
    let group: Vec<_> = limits.iter().map(|limit| Check::new(&limit, &key).cost(1)).collect();
    store.apply(Op::Charge, &group).await.unwrap();
    let before = server.calls("evalsha");
    let answers = (0..1_024).map(|_| store.apply(Op::Charge, &group)).collect();
    for (number, decision) in (0..).zip(at_once(answers).await) {
        assert_eq!(decision.unwrap().remaining(), 9_997 - number);
    }
    // 8 x 1,024 charges, 1,024 at most in a call.
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
                limiter.check(&limit, &Key::from(number % 20)).await.unwrap().allowed()
            });
        }
        let admitted = checks.join_all().await.into_iter().filter(|it| *it).count();
        assert_eq!(admitted, 20 * 50);
    }
}

#[test]
fn check_made_outside_the_runtime_is_sent_when_polled_inside() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = store(&server).build().unwrap();
    let (limit, key) = (Limit::gcra("all", Quota::per_second(9)).unwrap(), Key::global());
    let answer = store.apply(Op::Charge, &[Check::new(&limit, &key)]);
    assert!(runtime.block_on(answer).unwrap().allowed());
}

#[test]
fn runtime_shutdown_fails_pending_checks() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let store = store(&server).build().unwrap();
    let (limit, key) = (Limit::gcra("all", Quota::per_second(9)).unwrap(), Key::global());
    let ask = || store.apply(Op::Charge, &[Check::new(&limit, &key)]);
    first.block_on(ask()).unwrap();
    server.pause(true);
    let waiting = {
        let _inside = first.enter();
        [ask(), ask(), ask()]
    };
    // Waited for: a check handed to a connection while its runtime goes down has its deadline.
    first.shutdown_timeout(Duration::from_secs(60));
    for answer in waiting {
        second
            .block_on(async { timeout(Duration::from_secs(10), answer).await })
            .unwrap()
            .unwrap_err();
    }
    server.pause(false);
    assert!(second.block_on(ask()).unwrap().allowed());
}
