//! Attacks that print figures, to be run by hand with `make attack`. They take time and load the
//! machine, so `make test` leaves them out. tests/floods.rs asserts the bounds that they showed.
#![cfg(feature = "redis")]

mod support;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::store::{Op, Store};
use tollgate::{Check, Key, Limit, Quota, RateLimiter};

use self::support::RedisServer;

fn hourly() -> Limit {
    Limit::fixed_window("hourly", Quota::per_hour(1)).unwrap()
}

/// Ten thousand callers that check again as soon as they are answered, with the default settings.
/// Errors that the layer would forward count as forwarded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "an attack, to be run by hand"]
async fn flood_of_one_key() {
    for (deny_for, keys, callers) in [(0, 1, 10_000), (1_000, 200, 20_000)] {
        let server = RedisServer::start();
        let builder = tollgate::RedisStore::builder().url(server.url());
        let store = builder.deny_for(Duration::from_millis(deny_for)).connect().await.unwrap();
        let limiter = RateLimiter::new(store);
        let counts: Arc<[AtomicU64; 5]> = Arc::default();
        let (started, mut flood) = (Instant::now(), JoinSet::new());
        for caller in 0..callers {
            let (limiter, counts) = (limiter.clone(), Arc::clone(&counts));
            flood.spawn(async move {
                let (limit, key) = (hourly(), Key::from(caller % keys));
                while started.elapsed() < Duration::from_secs(5) {
                    let what = match limiter.check(&limit, &key).await {
                        Ok(decision) => usize::from(!decision.allowed()),
                        Err(error) if error.is_overloaded() => 2,
                        Err(error) if error.is_timeout() => 3,
                        Err(_) => 4,
                    };
                    counts[what].fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
        }
        while flood.join_next().await.is_some() {}
        let [allowed, denied, overloaded, timeouts, others] =
            [0, 1, 2, 3, 4].map(|what| counts[what].load(Ordering::Relaxed));
        println!(
            "{callers} callers, {keys} keys of one unit an hour, 5 s: {allowed} allowed, {denied} \
             denied, {overloaded} overloaded (503), {timeouts} timeouts and {others} other errors \
             (forwarded by default)"
        );
        assert!(allowed <= keys, "{allowed} allowed");
    }
}

/// Tasks that block their worker thread for three seconds when their check is answered: half of all
/// threads. The other tasks of those threads wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
#[ignore = "an attack, to be run by hand"]
async fn blocked_workers() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(250);
    let builder = tollgate::RedisStore::builder().url(server.url()).deadline(deadline);
    let limiter = RateLimiter::new(builder.deny_for(Duration::ZERO).connect().await.unwrap());
    let (longest, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..200_u64 {
        let (limiter, longest, failed) =
            (limiter.clone(), Arc::clone(&longest), Arc::clone(&failed));
        tasks.spawn(async move {
            let (limit, key, started) = (hourly(), Key::from(number), Instant::now());
            if number % 60 == 7 {
                while started.elapsed() < Duration::from_millis(number * 3) {
                    drop(limiter.check(&limit, &key).await);
                }
                std::thread::sleep(Duration::from_secs(3));
                return;
            }
            while started.elapsed() < Duration::from_secs(3) {
                let asked = Instant::now();
                let answer = limiter.check(&limit, &key).await;
                failed.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
                longest.fetch_max(asked.elapsed().as_millis() as u64, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    println!(
        "workers blocked for 3 s: the longest check took {} ms with a deadline of {deadline:?}, and \
         {} failed",
        longest.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed)
    );
}

/// Callers that poll once and are dropped, while Redis hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "an attack, to be run by hand"]
async fn cancelled_callers() {
    let server = RedisServer::start();
    let builder = tollgate::RedisStore::builder().url(server.url()).max_waiting(100);
    let store =
        builder.deadline(Duration::from_secs(10)).deny_for(Duration::ZERO).connect().await.unwrap();
    let limit = Limit::fixed_window("daily", Quota::per_day(10_000_000)).unwrap();
    let key = Key::new("k");
    store.apply(Op::Charge, Check::new(&limit, &key).into()).await.unwrap();
    server.pause(true);
    let (started, mut calls, mut most) = (Instant::now(), 0_u64, 0);
    let metrics = tokio::runtime::Handle::current().metrics();
    while started.elapsed() < Duration::from_secs(5) {
        let mut answer = pin!(store.apply(Op::Charge, Check::new(&limit, &key).into()));
        poll_fn(|cx| {
            drop(answer.as_mut().poll(cx));
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
        calls += 1;
        most = most.max(metrics.num_alive_tasks());
    }
    server.pause(false);
    let left = loop {
        match store.apply(Op::Peek, Check::new(&limit, &key).with_cost(0).into()).await {
            Ok(decision) => break decision.remaining(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    println!(
        "{calls} callers were dropped in 5 s: at most {most} tasks, and {} charges executed after Redis \
         resumed (max_waiting is 100)",
        10_000_000 - left - 1
    );
}
