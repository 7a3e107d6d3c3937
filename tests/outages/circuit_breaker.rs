//! The circuit breaker: around a store in virtual time, and of the Redis store on a real server.

#![cfg(all(feature = "redis", feature = "axum", feature = "test-util"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tollgate::decision::Source;
use tollgate::key::Global;
use tollgate::layer::OnStoreFailure;
use tollgate::store::{Answer, BreakerSettings, BreakerState, CircuitBreaker, Operation, Store};
use tollgate::{
    Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore,
};

use crate::support::RedisServer;
use crate::support::delay::delaying;
use crate::support::log::Log;
use crate::support::requests::{number, plain, send};
use crate::support::scripted::{Scripted, decide, time_out_after};

const MS: Duration = Duration::from_millis(1);

/// The deadline of a store.
const DEADLINE: Duration = Duration::from_millis(250);

fn limit() -> Limit {
    Limit::fixed_window("api", Quota::per_day(1_000_000)).unwrap()
}

/// Makes a store hang until its deadline, or answer again.
fn hang(store: &Scripted, hangs: bool) {
    match hangs {
        true => store.does(|_, _| time_out_after(DEADLINE)),
        false => store.does(decide),
    }
}

/// A check, and how long it took.
async fn timed(store: &impl Store) -> (Result<Decision, Error>, Duration) {
    let started = Instant::now();
    let answer = store
        .apply(Operation::Charge(Check::new(&limit(), "alice").into()))
        .await;
    (answer, started.elapsed())
}

fn breaker(store: &Scripted) -> CircuitBreaker<Scripted> {
    CircuitBreaker::new(store.clone(), BreakerSettings::new()).unwrap()
}

/// Hangs the store until its breaker is open. Returns the number of checks that waited.
async fn open(store: &Scripted, breaker: &CircuitBreaker<Scripted>) -> usize {
    hang(store, true);
    for waited in 0.. {
        if breaker.state() == BreakerState::Open {
            return waited;
        }
        timed(breaker).await.0.unwrap_err();
    }
    unreachable!()
}

#[tokio::test(start_paused = true)]
async fn checks_of_an_outage_fail_at_once_after_the_first_few() {
    let store = Scripted::default();
    let breaker = breaker(&store);
    for _ in 0..100 {
        assert!(timed(&breaker).await.0.unwrap().allowed());
        sleep(MS).await;
    }
    assert_eq!(
        open(&store, &breaker).await,
        2,
        "two of the last three calls failed"
    );
    store.asked();
    for _ in 0..1_000 {
        let (answer, took) = timed(&breaker).await;
        let error = answer.unwrap_err();
        assert!(error.is_circuit_open() && error.is_unavailable() && !error.may_have_charged());
        assert!(error.probe_after().unwrap() <= Duration::from_secs(1));
        assert_eq!(took, Duration::ZERO);
    }
    assert_eq!(store.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_probe_at_a_time_finds_out_and_no_check_waits_for_it() {
    let store = Scripted::default();
    let breaker = breaker(&store);
    open(&store, &breaker).await;
    store.asked();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        let (answer, took) = timed(&breaker).await;
        assert!(answer.unwrap_err().is_circuit_open());
        assert_eq!(took, Duration::ZERO);
        sleep(MS).await;
    }
    // A pause of half a second to a second, and the deadline of the probe.
    let probes = store.asked();
    assert!((48..=90).contains(&probes), "{probes} probes in a minute");

    hang(&store, false);
    let recovered = Instant::now();
    let mut allowed_at = None;
    while breaker.state() != BreakerState::Closed {
        assert!(
            recovered.elapsed() < Duration::from_secs(2),
            "{:?}",
            breaker.state()
        );
        let (answer, took) = timed(&breaker).await;
        assert_eq!(took, Duration::ZERO);
        if answer.is_ok() {
            allowed_at.get_or_insert(recovered.elapsed());
        }
        sleep(MS).await;
    }
    assert!(
        recovered.elapsed() - allowed_at.unwrap() > MS * 400,
        "it closes gradually"
    );
    for _ in 0..100 {
        assert!(timed(&breaker).await.0.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn answers_other_than_unavailability_do_not_open_it() {
    for (error, opens) in [
        ((|| Error::overloaded(1)) as fn() -> Error, false),
        (|| Error::full("no room"), false),
        (|| Error::misuse("never"), false),
        (|| Error::unreachable("no server"), true),
        (|| Error::store("garbage"), true),
        (|| Error::declined("loading"), true),
    ] {
        let breaker =
            CircuitBreaker::new(Scripted::failing(error), BreakerSettings::new()).unwrap();
        for _ in 0..100 {
            timed(&breaker).await.0.unwrap_err();
        }
        assert_eq!(breaker.state() == BreakerState::Open, opens, "{}", error());
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_store_is_not_probed() {
    let store = Scripted::default();
    let breaker = breaker(&store);
    open(&store, &breaker).await;
    drop(breaker);
    let tasks = tokio::runtime::Handle::current().metrics();
    sleep(Duration::from_secs(10)).await;
    store.asked();
    sleep(Duration::from_secs(60)).await;
    assert_eq!((store.asked(), tasks.num_alive_tasks()), (0, 0));
}

/// The task that probes ends with its runtime.
#[test]
fn check_of_another_runtime_goes_on_probing() {
    let runtime = || {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let store = Scripted::default();
    let breaker = breaker(&store);
    runtime().block_on(open(&store, &breaker));
    hang(&store, false);
    runtime().block_on(async {
        assert!(timed(&breaker).await.0.unwrap_err().is_circuit_open());
        sleep(Duration::from_secs(3)).await;
        assert!(timed(&breaker).await.0.is_ok());
        assert_eq!(breaker.state(), BreakerState::Closed);
    });
}

#[test]
fn settings_out_of_range_are_errors() {
    let new = BreakerSettings::new;
    let (zero, long) = (Duration::ZERO, Duration::from_secs(61));
    for (settings, why) in [
        (
            new().failure_percent(0),
            "`failure_percent` is 0; use 1 to 100",
        ),
        (
            new().failure_percent(101),
            "`failure_percent` is 101; use 1 to 100",
        ),
        (new().min_calls(0), "`min_calls` is 0; use 1 to 32"),
        (new().min_calls(33), "`min_calls` is 33; use 1 to 32"),
        (new().window(zero), "`window` is 0ns; use 1 ms to a minute"),
        (new().window(long), "`window` is 61s; use 1 ms to a minute"),
        (
            new().slow_after(zero),
            "`slow_after` is 0ns; use 1 ms to a minute",
        ),
        (
            new().recovery(long),
            "`recovery` is 61s; use 1 ms to a minute",
        ),
        (
            new().pause(zero, MS),
            "`pause` is 0ns; use 1 ms to a minute",
        ),
        (
            new().pause(MS * 2, MS),
            "`pause` is 2ms, and then at most 1ms; use a longest pause of at least the first one",
        ),
    ] {
        let expected = format!("the circuit breaker's {why}");
        let error = RedisStore::builder("tollgate")
            .circuit_breaker(settings)
            .build()
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
        let error = CircuitBreaker::new(MemoryStore::new(), settings).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

/// Checks that follow one another, each with a new key, until the breaker has this state.
async fn check_until(store: &RedisStore, state: BreakerState) {
    for number in 0_u64.. {
        if store.breaker_state() == state {
            return;
        }
        drop(
            store
                .apply(Operation::Charge(Check::new(&limit(), number).into()))
                .await,
        );
        yield_now().await;
    }
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future)
        .await
        .expect("it does not hang")
}

/// The charges that Redis holds for a key.
async fn used(store: &RedisStore, key: &Key) -> u64 {
    let peek = Check::new(&limit(), key).with_cost(0);
    1_000_000
        - in_time(store.apply(Operation::Peek(peek.into())))
            .await
            .unwrap()
            .remaining()
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_redis_is_not_asked_and_recovers_exactly() {
    let server = RedisServer::start();
    let store = server.store().deadline(DEADLINE).connect().await.unwrap();
    let limiter = RateLimiter::new(store.clone());
    let allowed = Arc::new(AtomicU64::new(0));
    // As many clients as a busy service has, each of which waits for its answer.
    let mut clients = JoinSet::new();
    let ended = Arc::new(AtomicBool::new(false));
    for _ in 0..50 {
        let (limiter, allowed, ended) = (limiter.clone(), Arc::clone(&allowed), Arc::clone(&ended));
        clients.spawn(async move {
            let mut unknown = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                match limiter.check(&limit(), &Key::global()).await {
                    Ok(_) => drop(allowed.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => unknown += u64::from(error.may_have_charged()),
                }
                yield_now().await;
            }
            unknown
        });
    }
    for _ in 0..2 {
        server.pause(true);
        let started = Instant::now();
        in_time(check_until(&store, BreakerState::Open)).await;
        // The calls in flight end at the deadline. A busy machine adds to it.
        assert!(started.elapsed() < DEADLINE * 6, "{:?}", started.elapsed());
        sleep(DEADLINE * 4).await;
        server.pause(false);
        in_time(check_until(&store, BreakerState::Closed)).await;
    }
    ended.store(true, Ordering::Relaxed);
    let unknown: u64 = in_time(clients.join_all()).await.into_iter().sum();
    // Of each client the check in flight when it hung, and few more.
    assert!(
        unknown <= 2 * 2 * 50,
        "{unknown} checks were sent to a hung server"
    );
    let (used, allowed) = (
        used(&store, &Key::global()).await,
        allowed.load(Ordering::Relaxed),
    );
    assert!(
        (allowed..=allowed + unknown).contains(&used),
        "{used} of {allowed} and {unknown}"
    );
}

#[tokio::test]
async fn killed_redis_opens_it_at_once_and_a_restart_closes_it() {
    let mut server = RedisServer::start();
    let store = server.store().connect().await.unwrap();
    assert_eq!(store.breaker_state(), BreakerState::Closed);
    let (log, _guard) = Log::start();
    server.kill();
    in_time(check_until(&store, BreakerState::Open)).await;
    let _restarted = RedisServer::start_on(server.port()).expect("the port is free again");
    in_time(check_until(&store, BreakerState::Closed)).await;
    let lines = log.lines();
    for event in [
        "circuit breaker opened",
        "circuit breaker half-open",
        "circuit breaker closed",
    ] {
        let of_event: Vec<_> = lines.iter().filter(|line| line.contains(event)).collect();
        assert_eq!(of_event.len(), 1, "{event}: {lines:#?}");
        assert!(of_event[0].contains(&format!("Redis at 127.0.0.1:{}", server.port())));
    }
}

/// A call may fail while it is handed over, and open the breaker in the middle of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_dies_again_while_it_recovers_stalls_no_check() {
    let mut server = RedisServer::start();
    let store = server.store().deadline(DEADLINE).connect().await.unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..16_u64 {
        let (store, ended) = (store.clone(), Arc::clone(&ended));
        clients.spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                drop(
                    store
                        .apply(Operation::Charge(Check::new(&limit(), client).into()))
                        .await,
                );
                sleep(MS * 20).await;
            }
        });
    }
    for _ in 0..4 {
        server.kill();
        let is_open = async || store.breaker_state() == BreakerState::Open;
        in_time(async {
            while !is_open().await {
                sleep(MS).await
            }
        })
        .await;
        server = RedisServer::start_on(server.port()).expect("the port is free again");
        in_time(async {
            while is_open().await {
                sleep(MS).await
            }
        })
        .await;
        sleep(MS * 300).await;
    }
    ended.store(true, Ordering::Relaxed);
    in_time(clients.join_all()).await;
}

/// No check waits while it is open, so nothing drives the task that probes.
#[test]
fn runtime_that_is_driven_by_checks_alone_closes_it() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let second = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let (first, second) = (runtime(), second.unwrap());
    let store = first
        .block_on(server.store().deadline(DEADLINE).connect())
        .unwrap();
    let check = |runtime: &tokio::runtime::Runtime| {
        runtime.block_on(async {
            let check = Check::new(&limit(), "alice");
            store.apply(Operation::Charge(check.into())).await
        })
    };
    // The one that opened it, and one that did not while the other stands still.
    for runtime in [&first, &second] {
        server.pause(true);
        while store.breaker_state() == BreakerState::Closed {
            check(&first).unwrap_err();
        }
        server.pause(false);
        let started = std::time::Instant::now();
        while store.breaker_state() != BreakerState::Closed {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{:?}",
                store.breaker_state()
            );
            drop(check(runtime));
            std::thread::sleep(MS);
        }
        assert!(check(runtime).is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn distant_server_that_answers_within_the_deadline_decides_every_check() {
    let server = RedisServer::start();
    let millis = Arc::new(AtomicU64::new(0));
    let port = delaying(server.port(), Arc::clone(&millis)).await;
    let store = RedisStore::builder("tollgate").url(format!("redis://127.0.0.1:{port}/"));
    let store = store.deadline(MS * 1_500).connect().await.unwrap();
    millis.store(1_000, Ordering::Relaxed);
    let mut clients = JoinSet::new();
    for client in 0..5_000_u64 {
        clients.spawn(store.apply(Operation::Charge(Check::new(&limit(), client).into())));
    }
    let answers = in_time(clients.join_all()).await;
    assert!(
        answers.iter().all(Result::is_ok),
        "{:?}",
        answers.iter().find(|it| it.is_err())
    );
    assert_eq!(store.breaker_state(), BreakerState::Closed);
}

/// The checks have waited for their runtime. They expire halfway through their call, and the call
/// is in time.
#[tokio::test]
async fn checks_that_expire_in_a_call_that_is_in_time_do_not_open_it() {
    let server = RedisServer::start();
    let millis = Arc::new(AtomicU64::new(0));
    let port = delaying(server.port(), Arc::clone(&millis)).await;
    let store = RedisStore::builder("tollgate").url(format!("redis://127.0.0.1:{port}/"));
    let store = store.deadline(MS * 1_500).connect().await.unwrap();
    for _ in 0..5 {
        let checks: Vec<_> = (0..100_u64)
            .map(|client| store.apply(Operation::Charge(Check::new(&limit(), client).into())))
            .collect();
        millis.store(1_000, Ordering::Relaxed);
        std::thread::sleep(MS * 1_000);
        for answer in in_time(futures_of(checks)).await {
            let error = answer.unwrap_err();
            assert!(error.is_timeout() && error.may_have_charged(), "{error}");
        }
        millis.store(0, Ordering::Relaxed);
        // Until the late answer is here.
        drop(
            in_time(store.apply(Operation::Charge(Check::new(&limit(), "bob").into())))
                .await
                .unwrap(),
        );
        assert_eq!(store.breaker_state(), BreakerState::Closed);
    }
}

async fn futures_of(answers: Vec<Answer>) -> Vec<Result<Decision, Error>> {
    let mut tasks = JoinSet::new();
    answers
        .into_iter()
        .for_each(|answer| drop(tasks.spawn(answer)));
    tasks.join_all().await
}

#[tokio::test(start_paused = true)]
async fn probe_that_panics_is_one_that_failed() {
    let probes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&probes);
    let store = Scripted::new(move |_, operation| {
        if let Operation::Peek(_) = operation {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("a probe");
        }
        Answer::ready(Err(Error::timeout()))
    });
    let breaker = CircuitBreaker::new(store, BreakerSettings::new()).unwrap();
    for _ in 0..10_000 {
        timed(&breaker).await.0.unwrap_err();
        sleep(MS).await;
    }
    let probes = probes.load(Ordering::Relaxed);
    assert!((8..=25).contains(&probes), "{probes} probes in ten seconds");
}

#[tokio::test]
async fn queued_checks_fail_when_it_opens() {
    let server = RedisServer::start();
    // Long enough that only the breaker can end the wait of those in the queue.
    let settings = BreakerSettings::new().min_calls(1);
    let store = server
        .store()
        .circuit_breaker(settings)
        .connect()
        .await
        .unwrap();
    drop(
        store
            .apply(Operation::Peek(Check::new(&limit(), "alice").into()))
            .await
            .unwrap(),
    );
    server.pause(true);
    let mut checks = JoinSet::new();
    for number in 0..5_000_u64 {
        checks.spawn(store.apply(Operation::Charge(Check::new(&limit(), number).into())));
    }
    yield_now().await;
    let mut killed = server;
    killed.kill();
    let answers = in_time(checks.join_all()).await;
    let errors: Vec<_> = answers.into_iter().map(Result::unwrap_err).collect();
    let queued = errors
        .iter()
        .filter(|error| error.is_circuit_open())
        .count();
    assert!(queued > 2_500, "{queued} of {} were queued", errors.len());
    assert!(
        errors
            .iter()
            .all(|error| !(error.is_circuit_open() && error.may_have_charged()))
    );
}

#[tokio::test]
async fn denial_stands_while_it_is_open() {
    let server = RedisServer::start();
    let store = server.store().deadline(DEADLINE).connect().await.unwrap();
    let once = Limit::fixed_window("once", Quota::per_day(1)).unwrap();
    let check = || store.apply(Operation::Charge(Check::new(&once, "alice").into()));
    assert!(check().await.unwrap().allowed());
    assert!(!check().await.unwrap().allowed());
    server.pause(true);
    in_time(check_until(&store, BreakerState::Open)).await;
    let denied = check().await.unwrap();
    assert_eq!(
        (denied.allowed(), denied.source()),
        (false, Source::DenyCache)
    );
    server.pause(false);
}

/// It is alive, and denials need no write.
#[tokio::test]
async fn redis_that_is_out_of_memory_does_not_open_it() {
    let server = RedisServer::start();
    let store = server.store().connect().await.unwrap();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", "1"])
        .query(&mut server.connection())
        .unwrap();
    for number in 0..50_u64 {
        let error = store
            .apply(Operation::Charge(Check::new(&limit(), number).into()))
            .await
            .unwrap_err();
        assert!(error.is_declined(), "{error}");
    }
    assert_eq!(store.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn layer_fails_open_or_says_when_to_return() {
    let mut server = RedisServer::start();
    let store = server.store().connect().await.unwrap();
    server.kill();
    in_time(check_until(&store, BreakerState::Open)).await;
    let layer = |policy| {
        let limiter = RateLimiter::new(store.clone());
        let layer = RateLimitLayer::new(limiter, limit(), Global).unwrap();
        Router::new()
            .fallback(|| async {})
            .layer(layer.on_store_failure(policy).unwrap())
    };
    let open = send(&layer(OnStoreFailure::FailOpen), plain("/")).await;
    assert_eq!(open.status(), 200);
    assert!(!open.headers().contains_key("x-ratelimit-limit"));
    let closed = send(&layer(OnStoreFailure::FailClosed), plain("/")).await;
    assert_eq!(closed.status(), 503);
    // The next probe is due within a second.
    assert_eq!(number(closed.headers(), "retry-after"), 1);
}

#[tokio::test]
async fn store_without_a_breaker_asks_every_time() {
    let mut server = RedisServer::start();
    let store = server
        .store()
        .without_circuit_breaker()
        .connect()
        .await
        .unwrap();
    server.kill();
    for number in 0..100_u64 {
        let error = store
            .apply(Operation::Charge(Check::new(&limit(), number).into()))
            .await
            .unwrap_err();
        assert!(!error.is_circuit_open(), "{error}");
    }
    assert_eq!(store.breaker_state(), BreakerState::Closed);
}

/// As in a failover, or by `CLIENT KILL`.
#[tokio::test]
async fn connection_that_is_closed_with_two_calls_in_flight_does_not_open_the_breaker() {
    let server = RedisServer::start();
    let store = RedisStore::builder("tollgate").url(server.url());
    let store = store.deadline(Duration::from_secs(30)).connect().await;
    let store = store.unwrap();
    let limiter = RateLimiter::new(store.clone());
    let limit = Limit::gcra("api", Quota::per_minute(500)).unwrap();
    let mut connection = server.connection();
    let mut client = |arguments: &[&str]| -> redis::Value {
        let mut command = redis::cmd("CLIENT");
        command.arg(arguments).query(&mut connection).unwrap()
    };
    // After 250 ms of silence, as on a busy machine, a task sends both checks in one call, and the
    // attempt has to be repeated.
    for _ in 0..10 {
        drop(limiter.check(&limit, "alice").await.unwrap());
        client(&["PAUSE", "60000", "WRITE"]);
        let calls = ["alice", "bob"].map(|key| {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tokio::spawn(async move { limiter.check(&limit, key).await })
        });
        let started = Instant::now();
        let mut is_behind = false;
        while !is_behind && started.elapsed() < Duration::from_secs(1) {
            is_behind = has_unread_bytes(&client(&["LIST", "TYPE", "normal"]));
            yield_now().await;
        }
        if is_behind {
            client(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        client(&["UNPAUSE"]);
        for call in calls {
            assert_eq!(call.await.unwrap().is_err(), is_behind);
        }
        if is_behind {
            assert_eq!(store.breaker_state(), BreakerState::Closed);
            drop(limiter.check(&limit, "alice").await.unwrap());
            return;
        }
    }
    panic!("two calls were never in flight at once");
}

/// Returns whether a client, other than the one that asks, has sent more than Redis has read.
fn has_unread_bytes(clients: &redis::Value) -> bool {
    let clients: String = redis::from_redis_value(clients.clone()).unwrap();
    clients
        .lines()
        .filter(|client| !client.contains(" cmd=client"))
        .any(|client| !client.contains(" qbuf=0 "))
}

/// A pool may give up a call before the store's deadline. Its connection is not closed then.
#[tokio::test]
async fn each_call_that_a_pool_gives_up_counts() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(server.url())
        .create_pool(Some(deadpool_redis::Runtime::Tokio1))
        .unwrap();
    // The pool's connections have a deadline of 500 ms.
    let store = RedisStore::builder("tollgate").pool(pool);
    let store = store.deadline(Duration::from_secs(30)).build().unwrap();
    let limiter = RateLimiter::new(store.clone());
    let limit = Limit::gcra("api", Quota::per_minute(500)).unwrap();
    drop(limiter.check(&limit, "alice").await.unwrap());

    server.pause(true);
    let calls = ["alice", "bob"].map(|key| {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        tokio::spawn(async move { limiter.check(&limit, key).await })
    });
    for call in calls {
        assert!(call.await.unwrap().unwrap_err().is_unavailable());
    }
    server.pause(false);
    assert_eq!(store.breaker_state(), BreakerState::Open);
}
