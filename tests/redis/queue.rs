//! The queue in front of Redis: its bound, deadlines, cancelled checks, hung connections and
//! runtimes that end.

#![cfg(feature = "redis")]

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tollgate::store::{Answer, Operation, RedisStoreBuilder, Store};
use tollgate::{Check, Key, Limit, Quota, RateLimiter};

use crate::support::RedisServer;

/// A store without a circuit breaker: each check is queued.
fn store(server: &RedisServer) -> RedisStoreBuilder {
    server
        .store()
        .deny_for(Duration::ZERO)
        .without_circuit_breaker()
}

#[tokio::test]
async fn every_check_keeps_its_own_deadline_while_the_server_hangs() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(400);
    let limiter = RateLimiter::new(store(&server).deadline(deadline).connect().await.unwrap());
    let (limit, key) = (
        Limit::gcra("all", Quota::per_second(9)).unwrap(),
        Key::global(),
    );
    drop(limiter.check(&limit, &key).await.unwrap());
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
    // Timers have a resolution of a millisecond, and a busy machine adds some.
    assert!(
        waits
            .iter()
            .all(|wait| *wait + Duration::from_millis(2) >= deadline),
        "{waits:?}"
    );
    assert!(waits.iter().all(|wait| *wait < deadline * 2), "{waits:?}");
}

#[tokio::test]
async fn full_queue_is_overload_and_one_key_fills_at_most_half() {
    let server = RedisServer::start();
    let store = store(&server).max_waiting(1_000).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_second(1_000_000)).unwrap();
    let hot = Key::global();
    let ask = |key: &Key| store.apply(Operation::Charge(Check::new(&limit, key).into()));
    let is_full = |answer: &mut Answer| {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match Pin::new(answer).poll(&mut cx) {
            Poll::Ready(answer) => answer.unwrap_err().is_overloaded(),
            Poll::Pending => false,
        }
    };
    // Nothing is sent before this task waits for something, or polls the first answer.
    let mut waiting: Vec<_> = (0..600).map(|_| ask(&hot)).collect();
    let rejected = waiting
        .iter_mut()
        .skip(1)
        .map(is_full)
        .filter(|it| *it)
        .count();
    assert_eq!(rejected, 100, "one key gets half of the queue");
    let mut others: Vec<_> = (0..600_u64).map(|key| ask(&Key::from(key))).collect();
    let rejected = others.iter_mut().map(is_full).filter(|it| *it).count();
    assert_eq!(rejected, 100, "other keys get the other half");
    let error = ask(&hot).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the rate limit store is overloaded: the queue of 1000 checks is full"
    );
    assert!(!error.may_have_charged());
    // Queued checks are answered.
    for answer in waiting
        .into_iter()
        .take(500)
        .chain(others.into_iter().take(500))
    {
        assert!(answer.await.unwrap().allowed());
    }
}

#[tokio::test]
async fn unpolled_check_does_not_delay_others() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(9)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));

    // Never polled, then dropped: another check finds it in the queue and sends it along.
    let unpolled = ask();
    assert_eq!(ask().await.unwrap().remaining(), 7);
    drop(unpolled);
    assert_eq!(ask().await.unwrap().remaining(), 6);

    // Dropped before it is sent: it is not charged.
    drop(ask());
    assert_eq!(ask().await.unwrap().remaining(), 5);

    // Polled once, which sends it and the queued checks, and then not polled again.
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
    let store = store(&server)
        .deadline(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(9)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());

    // The second sends the first along, before the first is polled. When the first is polled, only
    // the third is queued.
    let mut first = ask();
    let mut second = ask();
    server.pause(true);
    assert!(
        timeout(Duration::from_millis(1), Pin::new(&mut second))
            .await
            .is_err()
    );
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
    let store = store(&server)
        .deadline(Duration::from_millis(100))
        .connect()
        .await
        .unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(90)).unwrap();
    let key = Key::global();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    let connections = || -> u64 {
        let info: String = redis::cmd("INFO")
            .arg("stats")
            .query(&mut server.connection())
            .unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    drop(ask().await.unwrap());
    let before = connections();
    server.pause(true);
    for _ in 0..15 {
        assert!(timeout(Duration::from_millis(20), ask()).await.is_err());
    }
    server.pause(false);
    // One is the connection that counts.
    assert!(connections() - before > 1);
}

#[tokio::test]
async fn dropped_checks_leave_the_queue() {
    let server = RedisServer::start();
    let store = store(&server).max_waiting(1).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(90)).unwrap();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, Key::global()).into()));
    drop(ask().await.unwrap());
    drop(ask());
    assert!(ask().await.unwrap_err().is_overloaded());
    // The rejected check made the queue drop it.
    tokio::task::yield_now().await;
    assert_eq!(ask().await.unwrap().remaining(), 88);
}

#[tokio::test]
async fn exhausted_task_budget_does_not_hold_up_a_later_check() {
    let server = RedisServer::start();
    let store = store(&server).connect().await.unwrap();
    let limit = Limit::gcra("all", Quota::per_minute(90)).unwrap();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, Key::global()).into()));
    drop(ask().await.unwrap());
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    (0..300).for_each(|number| sender.send(number).unwrap());
    let mut first = ask();
    std::future::poll_fn(|cx| {
        // Uses up the budget that tokio gives a task in one turn.
        while receiver.poll_recv(cx).is_ready() {}
        assert!(Pin::new(&mut first).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let second = ask();
    assert_eq!(second.await.unwrap().remaining(), 87);
    assert_eq!(first.await.unwrap().remaining(), 88);
}

#[test]
fn check_outside_of_a_runtime_is_an_error_at_once() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = store(&server).build().unwrap();
    let limit = Limit::gcra("all", Quota::per_second(9)).unwrap();
    let ask = || store.apply(Operation::Charge(Check::new(&limit, Key::global()).into()));
    for _ in 0..2 {
        // Also if the answer is awaited inside.
        let error = runtime.block_on(ask()).unwrap_err();
        assert!(error.is_misuse() && !error.may_have_charged(), "{error}");
    }
    assert!(runtime.block_on(async { ask().await }).unwrap().allowed());
}

#[test]
fn answer_that_outlives_its_runtime_is_awaited_in_another() {
    for checks in [1, 3] {
        for connection_ends in [true, false] {
            outlive_runtime(checks, connection_ends);
        }
    }
}

fn outlive_runtime(checks: usize, connection_ends: bool) {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let store = store(&server).build().unwrap();
    let limit = Limit::gcra("all", Quota::per_second(9)).unwrap();
    let connecting = if connection_ends { &first } else { &second };
    drop(
        connecting
            .block_on(async {
                store
                    .apply(Operation::Charge(Check::new(&limit, "a").into()))
                    .await
            })
            .unwrap(),
    );
    server.pause(true);
    let mut answers = {
        let _inside = first.enter();
        let ask = || store.apply(Operation::Charge(Check::new(&limit, "b").into()));
        // One that is alone is sent by its caller.
        Vec::from_iter((0..checks).map(|_| ask()))
    };
    // Each has a timer of the first runtime then.
    first.block_on(async {
        for answer in &mut answers {
            assert!(is_pending_once(answer).await);
        }
    });
    first.shutdown_timeout(Duration::from_secs(60));
    server.pause(false);
    for answer in answers {
        second
            .block_on(async { timeout(Duration::from_secs(10), answer).await })
            .expect("it does not hang")
            .unwrap_err();
    }
}

/// Whether an answer is not there when it is polled once.
async fn is_pending_once(answer: &mut Answer) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *answer).poll(cx).is_pending())).await
}

#[test]
fn runtime_shutdown_fails_pending_checks() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let store = store(&server).build().unwrap();
    let (limit, key) = (
        Limit::gcra("all", Quota::per_second(9)).unwrap(),
        Key::global(),
    );
    let ask = || store.apply(Operation::Charge(Check::new(&limit, &key).into()));
    drop(first.block_on(async { ask().await }).unwrap());
    server.pause(true);
    let waiting = {
        let _inside = first.enter();
        [ask(), ask(), ask()]
    };
    // A check that was in flight when its runtime shut down fails at its deadline.
    first.shutdown_timeout(Duration::from_secs(60));
    for answer in waiting {
        second
            .block_on(async { timeout(Duration::from_secs(10), answer).await })
            .unwrap()
            .unwrap_err();
    }
    server.pause(false);
    let answer = second.block_on(async { ask().await });
    assert!(answer.unwrap().allowed());
}
