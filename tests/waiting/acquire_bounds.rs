//! `acquire` on a store that is slow or hangs: `max_wait` bounds the wait for units, and the
//! store's deadline each of its answers.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tollgate::store::{Answer, Change, Operation, Store};
use tollgate::{Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::scripted::{self, Scripted, time_out_after};

const MS: Duration = Duration::from_millis(1);

/// What a limiter asks of its store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Charge,
    Peek,
    Refund,
}

impl Op {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Charge(_) => Self::Charge,
            Operation::Peek(_) => Self::Peek,
            Operation::Change(_, Change::Settle { cost: 0, .. }) => Self::Refund,
            operation => panic!("{operation:?}"),
        }
    }
}

/// The operations, and the times at which they were asked.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(Op, Duration)>>>);

impl Asked {
    fn times(&self, op: Op) -> Vec<Duration> {
        let asked = self.0.lock().unwrap();
        asked
            .iter()
            .filter(|(asked, _)| *asked == op)
            .map(|(_, at)| *at)
            .collect()
    }
}

/// The deadline of a hung store, which fails then as a hung Redis does.
const STORE_DEADLINE: Duration = Duration::from_millis(250);

/// A limiter on a store of which some answers come late, by the operation and the number of earlier
/// ones.
fn late(slow: fn(Op, usize) -> Option<Duration>) -> (RateLimiter, Asked) {
    let asked = Asked::default();
    let noted = asked.clone();
    let started = Instant::now();
    let store = Scripted::new(move |memory, operation| {
        let mut noted = noted.0.lock().unwrap();
        let op = Op::of(&operation);
        let slow = slow(op, noted.len());
        noted.push((op, started.elapsed()));
        drop(noted);
        match slow {
            Some(STORE_DEADLINE) => time_out_after(STORE_DEADLINE),
            Some(latency) => scripted::late(latency, memory.apply(operation)),
            None => memory.apply(operation),
        }
    });
    (RateLimiter::new(store), asked)
}

fn one_a_second() -> Limit {
    Limit::gcra("limit", Quota::per_second(1)).unwrap()
}

/// Of an algorithm that reserves no units.
fn one_in_any_second() -> Limit {
    Limit::sliding_log("limit", Quota::per_second(1)).unwrap()
}

type Outcome = (Duration, Result<Decision, Error>);

/// Starts waiters of one key at once. Returns their outcomes in the order of completion.
async fn acquire_at_once(
    limiter: &RateLimiter,
    waiters: usize,
    max_wait: Duration,
) -> Vec<Outcome> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let decision = limiter
                .acquire(&one_in_any_second(), &Key::new("k"), 1, max_wait)
                .await;
            (started.elapsed(), decision)
        });
        tokio::task::yield_now().await;
    }
    let all = timeout(Duration::from_secs(10), tasks.join_all()).await;
    let mut ended = all.expect("the waits are bounded");
    ended.sort_by_key(|(elapsed, _)| *elapsed);
    ended
}

#[tokio::test(start_paused = true)]
async fn callers_on_a_hung_store_return_at_its_deadline() {
    let (limiter, asked) = late(|_, _| Some(STORE_DEADLINE));
    let ended = acquire_at_once(&limiter, 10, 100 * MS).await;
    let times: Vec<_> = ended.iter().map(|(elapsed, _)| *elapsed).collect();
    assert_eq!(times, [STORE_DEADLINE; 10]);
    let errors: Vec<_> = ended
        .iter()
        .map(|(_, it)| it.as_ref().unwrap_err())
        .collect();
    assert!(errors.iter().all(|error| error.is_timeout()), "{errors:?}");
    assert_eq!(asked.times(Op::Charge), [Duration::ZERO; 10]);
}

#[tokio::test(start_paused = true)]
async fn units_that_are_free_are_not_waited_for_whatever_the_latency() {
    for max_wait in [Duration::ZERO, MS, 10 * MS] {
        let (limiter, _) = late(|_, _| Some(20 * MS));
        let limits = [
            Limit::token_bucket("api", Quota::per_hour(5)).unwrap(),
            Limit::fixed_window("api", Quota::per_hour(5)).unwrap(),
        ];
        for limit in limits {
            let key = Key::new("k");
            for left in (0..5).rev() {
                let decision = limiter.acquire(&limit, &key, 1, max_wait).await.unwrap();
                assert!(decision.allowed(), "{max_wait:?}, {left}");
                assert_eq!(decision.remaining(), left);
            }
            let denied = limiter.acquire(&limit, &key, 1, max_wait).await.unwrap();
            assert!(!denied.allowed() && denied.retry_after().is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_key_whose_units_are_free_do_not_wait_for_each_other() {
    let (limiter, _) = late(|_, _| Some(20 * MS));
    let limit = Limit::token_bucket("api", Quota::per_second(100_000)).unwrap();
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for number in 0..20 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        let max_wait = if number % 2 == 0 {
            Duration::ZERO
        } else {
            1_000 * MS
        };
        callers.spawn(async move { limiter.acquire(&limit, &Key::new("k"), 1, max_wait).await });
    }
    for decision in callers.join_all().await {
        assert!(decision.unwrap().allowed());
    }
    assert_eq!(started.elapsed(), 20 * MS);
}

#[tokio::test(start_paused = true)]
async fn waiter_does_not_call_the_store_after_its_max_wait() {
    // The first charge takes the unit, the second is denied. Then the store hangs.
    let (limiter, asked) = late(|_, asked| (asked > 1).then_some(STORE_DEADLINE));
    drop(
        limiter
            .check(&one_in_any_second(), &Key::new("k"))
            .await
            .unwrap(),
    );
    let ended = acquire_at_once(&limiter, 10, 1_100 * MS).await;
    let times: Vec<_> = ended.iter().map(|(elapsed, _)| *elapsed).collect();
    // Each waits for the one answer that it had asked for in time.
    assert_eq!(times, [1_250 * MS; 10]);
    assert!(
        ended
            .iter()
            .all(|(_, answer)| answer.as_ref().is_err_and(Error::is_timeout))
    );
    assert_eq!(
        asked.times(Op::Charge),
        [Duration::ZERO, Duration::ZERO, 1_000 * MS]
    );
    assert_eq!(asked.times(Op::Peek), [1_000 * MS; 9]);
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_others_is_denied_in_time_on_a_slow_store() {
    let (limiter, _) = late(|_, _| Some(5 * MS));
    let (limit, key) = (one_in_any_second(), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let front = {
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { limiter.acquire(&limit, &key, 1, Duration::MAX).await })
    };
    // It is denied, and waits.
    sleep(10 * MS).await;
    let started = Instant::now();
    let decision = limiter.acquire(&limit, &key, 1, 250 * MS).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(started.elapsed(), 250 * MS);
    // The rest of the second in which the first unit replenishes.
    let retry_after = decision.retry_after().unwrap();
    assert!(
        (730 * MS..=740 * MS).contains(&retry_after),
        "{retry_after:?}"
    );
    assert!(front.await.unwrap().unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn units_that_are_available_when_the_wait_ends_are_asked_for() {
    let (limiter, asked) = late(|_, _| Some(5 * MS));
    let (limit, key) = (one_in_any_second(), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    // After the first answer, 995 ms are left of both times. The second answer takes 5 ms more.
    let started = Instant::now();
    let decision = limiter.acquire(&limit, &key, 1, 1_000 * MS).await.unwrap();
    assert_eq!((decision.allowed(), started.elapsed()), (true, 1_005 * MS));
    assert_eq!(asked.times(Op::Charge).len(), 3);
    let denied = limiter.acquire(&limit, &key, 1, 990 * MS).await.unwrap();
    assert_eq!((denied.allowed(), started.elapsed()), (false, 1_010 * MS));
}

#[tokio::test(start_paused = true)]
async fn denial_behind_a_long_queue_waits_for_the_store_until_its_deadline() {
    let (limiter, _) = late(|op, _| (op == Op::Peek).then_some(STORE_DEADLINE));
    let (limit, key) = (one_a_second(), Key::new("k"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let mut waiters = JoinSet::new();
    for _ in 0..5 {
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        waiters.spawn(async move { limiter.acquire(&limit, &key, 1, 60_000 * MS).await });
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    let error = limiter
        .acquire(&limit, &key, 1, 300 * MS)
        .await
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(started.elapsed(), STORE_DEADLINE);
}

fn queue() -> Limit {
    Limit::leaky_bucket("queue", Quota::per_second(10)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn delay_that_is_too_long_is_denied_by_the_store_without_a_refund() {
    let (limiter, asked) = late(|_, _| None);
    let key = Key::new("k");
    drop(limiter.check_n(&queue(), &key, 4).await.unwrap());
    let started = Instant::now();
    let decision = limiter.acquire(&queue(), &key, 1, 150 * MS).await.unwrap();
    assert_eq!(
        (decision.allowed(), started.elapsed()),
        (false, Duration::ZERO)
    );
    assert_eq!(decision.retry_after(), Some(250 * MS));
    assert_eq!(asked.times(Op::Charge).len(), 2);
    assert_eq!(asked.times(Op::Refund), [Duration::ZERO; 0]);
}

/// A bucket whose checks may reserve units for longer than the caller waits.
fn bucket() -> Limit {
    Limit::token_bucket("bucket", Quota::per_second(10).burst(4)).unwrap()
}

fn reserving(key: &Key, cost: u32) -> Check {
    Check::new(&bucket(), key)
        .with_cost(cost)
        .with_max_wait(Duration::from_secs(10))
}

#[tokio::test(start_paused = true)]
async fn refund_of_a_delay_that_is_too_long_is_waited_for() {
    let (limiter, asked) = late(|op, number| match op {
        Op::Refund => Some(200 * MS),
        _ => (number > 0).then_some(60 * MS),
    });
    let key = Key::new("k");
    drop(limiter.check_n(&bucket(), &key, 4).await.unwrap());
    let started = Instant::now();
    let group = [reserving(&key, 4)];
    let decision = limiter.acquire_all(group, 380 * MS).await.unwrap();
    assert_eq!((decision.allowed(), started.elapsed()), (false, 260 * MS));
    assert_eq!(decision.retry_after(), Some(20 * MS));
    assert_eq!(asked.times(Op::Refund).len(), 1);
}

/// Answers a charge 20 ms after it is decided, and hands other operations to `other`.
fn answering_charges_late(
    other: impl Fn(&Arc<MemoryStore>, Operation) -> Answer + Send + Sync + 'static,
) -> RateLimiter {
    RateLimiter::new(Scripted::new(move |memory, operation| match operation {
        Operation::Charge(_) => scripted::late(20 * MS, memory.apply(operation)),
        operation => other(memory, operation),
    }))
}

#[tokio::test(start_paused = true)]
async fn refund_completes_after_max_wait_and_after_a_cancelled_call() {
    for timeout_after in [30 * MS, Duration::MAX] {
        let limiter = answering_charges_late(|memory, operation| {
            scripted::ask_after(200 * MS, memory, operation)
        });
        let key = Key::new("k");
        let started = Instant::now();
        drop(limiter.check_n(&bucket(), &key, 4).await.unwrap());
        let acquire = limiter.acquire_all([reserving(&key, 4)], 370 * MS);
        let answer = timeout(timeout_after, acquire).await;
        assert_eq!(answer.is_ok(), timeout_after == Duration::MAX);
        sleep_until(started + 250 * MS).await;
        // Two units came since, and the last four are given back.
        let decision = limiter.check_n(&bucket(), &key, 2).await.unwrap();
        assert!(decision.allowed(), "{decision:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_refund_reports_that_units_may_be_charged() {
    let limiter =
        answering_charges_late(|_, _| Answer::ready(Err(Error::unreachable("connection refused"))));
    let key = Key::new("k");
    drop(limiter.check_n(&bucket(), &key, 4).await.unwrap());
    let group = [reserving(&key, 4)];
    let error = limiter.acquire_all(group, 370 * MS).await.unwrap_err();
    assert!(error.may_have_charged(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn zero_max_wait_waits_for_the_answer_but_not_for_units() {
    let (limiter, asked) = late(|op, _| (op == Op::Charge).then_some(30 * MS));
    let key = Key::new("k");
    let limit = Limit::gcra("api", Quota::per_minute(1)).unwrap();
    assert!(
        limiter
            .acquire(&limit, &key, 1, Duration::ZERO)
            .await
            .unwrap()
            .allowed()
    );
    assert!(
        !limiter
            .acquire(&limit, &key, 1, Duration::ZERO)
            .await
            .unwrap()
            .allowed()
    );
    assert_eq!(asked.times(Op::Charge), [Duration::ZERO, 30 * MS]);
}

#[test]
fn acquire_outside_a_runtime_is_an_error() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (one_a_second(), Key::new("k"));
    let mut acquire = pin!(limiter.acquire(&limit, &key, 1, MS));
    let Poll::Ready(answer) = acquire
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("it waits without a runtime")
    };
    assert!(answer.unwrap_err().is_misuse());
}
