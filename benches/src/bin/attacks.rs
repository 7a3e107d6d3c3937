//! Attacks, with figures: floods, blocked workers, callers that leave, distant and hung servers.
//! `make attack` runs all of them, and arguments choose some. The tests of floods assert the bounds
//! that they showed.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tollgate::store::{Operation, Store};
use tollgate::{Check, Key, Limit, Quota, RateLimiter};

use support::RedisServer;
use support::delay::delaying;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the tests use the rest of the helpers"
)]
#[path = "../../../tests/support"]
mod support {
    pub mod cluster;
    pub mod delay;
    mod redis_server;

    pub use redis_server::{RedisServer, free_port};
}

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the memory of Redis is of no interest here"
)]
#[path = "../memory.rs"]
mod memory;

fn main() -> std::io::Result<()> {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let run = |name: &str, workers: usize, attack: Pin<Box<dyn Future<Output = ()>>>| {
        if !chosen.is_empty() && !chosen.iter().any(|known| known == name) {
            return Ok(());
        }
        println!("\n# {name}\n");
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(workers).enable_all().build()?;
        runtime.block_on(attack);
        std::io::Result::Ok(())
    };
    run("flood_of_one_key", 2, Box::pin(flood_of_one_key()))?;
    run("blocked_workers", 6, Box::pin(blocked_workers()))?;
    run("cancelled_callers", 2, Box::pin(cancelled_callers()))?;
    run("latencies", 2, Box::pin(latencies()))?;
    run("asynchronous", 2, Box::pin(asynchronous()))?;
    run("new_keys", 2, Box::pin(new_keys()))?;
    run("partitions", 2, Box::pin(partitions()))?;
    run("hung_redis", 2, Box::pin(hung_redis()))
}

fn hourly() -> Limit {
    Limit::fixed_window("hourly", Quota::per_hour(1)).unwrap()
}

/// Ten thousand callers that check again as soon as they are answered, with the default settings.
/// Errors that the layer would forward count as forwarded.
async fn flood_of_one_key() {
    for (deny_for, keys, callers) in [(0, 1, 10_000), (1_000, 200, 20_000)] {
        let server = RedisServer::start();
        let builder = tollgate::RedisStore::builder("tollgate").url(server.url());
        let store = builder
            .deny_for(Duration::from_millis(deny_for))
            .connect()
            .await
            .unwrap();
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
async fn blocked_workers() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(250);
    let builder = tollgate::RedisStore::builder("tollgate")
        .url(server.url())
        .deadline(deadline);
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
        "workers blocked for 3 s: the longest check took {} ms with a deadline of {deadline:?}, \
         and {} failed",
        longest.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed)
    );
}

/// Callers that poll once and are dropped, while Redis hangs.
async fn cancelled_callers() {
    let server = RedisServer::start();
    let builder = tollgate::RedisStore::builder("tollgate")
        .url(server.url())
        .max_waiting(100);
    let store = builder
        .deadline(Duration::from_secs(10))
        .deny_for(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let limit = Limit::fixed_window("daily", Quota::per_day(10_000_000)).unwrap();
    let key = Key::new("k");
    drop(
        store
            .apply(Operation::Charge(Check::new(&limit, &key).into()))
            .await
            .unwrap(),
    );
    server.pause(true);
    let (started, mut calls, mut most) = (Instant::now(), 0_u64, 0);
    let metrics = tokio::runtime::Handle::current().metrics();
    while started.elapsed() < Duration::from_secs(5) {
        let mut answer = pin!(store.apply(Operation::Charge(Check::new(&limit, &key).into())));
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
        match store
            .apply(Operation::Peek(
                Check::new(&limit, &key).with_cost(0).into(),
            ))
            .await
        {
            Ok(decision) => break decision.remaining(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    println!(
        "{calls} callers were dropped in 5 s: at most {most} tasks, and {} charges executed after \
         Redis resumed (max_waiting is 100)",
        10_000_000 - left - 1
    );
}

/// The latency of checks, with a network of so many milliseconds for a round trip: what a deadline
/// has to leave room for. The deadline is the default of 250 ms.
async fn latencies() {
    println!("| round trip | checks at once | checks/s | p50 | p99 | p99.9 | longest | failed |");
    println!("|---|---|---|---|---|---|---|---|");
    for millis in [0, 1, 5, 20, 60, 110, 135, 180, 225, 235] {
        for at_once in [1, 6, 100, 1_024] {
            let server = RedisServer::start();
            let port = match millis {
                0 => server.port(),
                _ => delaying(server.port(), Arc::new(AtomicU64::new(millis))).await,
            };
            let store =
                tollgate::RedisStore::builder("tollgate").url(format!("redis://127.0.0.1:{port}/"));
            let store = store.connect().await.unwrap();
            let lasts = Duration::from_secs(5);
            let (latencies, failed) = checks(&store, at_once, lasts).await;
            let at = |per_mille: usize| latencies[(latencies.len() - 1) * per_mille / 1_000];
            println!(
                "| {millis} ms | {at_once} | {:.0} | {:.1?} | {:.1?} | {:.1?} | {:.1?} | {:.1} % |",
                latencies.len() as f64 / lasts.as_secs_f64(),
                at(500),
                at(990),
                at(999),
                at(1_000),
                failed as f64 * 100.0 / latencies.len() as f64,
            );
        }
    }
}

/// Checks of 10,000 keys, so many at once, for so long. Returns the latencies, from the shortest,
/// and how many failed.
async fn checks(
    store: &tollgate::RedisStore,
    at_once: u64,
    lasts: Duration,
) -> (Vec<Duration>, usize) {
    let limit = Limit::token_bucket("api", Quota::per_second(1_000_000)).unwrap();
    let mut clients = JoinSet::new();
    for client in 0..at_once {
        let (store, limit) = (store.clone(), limit.clone());
        clients.spawn(async move {
            let (started, mut latencies, mut key) = (Instant::now(), Vec::new(), client);
            let mut failed = 0;
            while started.elapsed() < lasts {
                let asked = Instant::now();
                key = (key * 31 + 7) % 10_000_u64;
                let check = Check::new(&limit, Key::from(key));
                failed += usize::from(store.apply(Operation::Charge(check.into())).await.is_err());
                latencies.push(asked.elapsed());
            }
            (latencies, failed)
        });
    }
    let (latencies, failed): (Vec<_>, Vec<_>) = clients.join_all().await.into_iter().unzip();
    let mut latencies = latencies.concat();
    latencies.sort();
    (latencies, failed.iter().sum())
}

/// The latencies of decisions without waiting, of a Redis that is far away.
async fn asynchronous() {
    let quota = Quota::per_minute(1_000_000);
    let limits = [
        Limit::token_bucket("api", quota),
        Limit::fixed_window("api", quota).and_then(Limit::asynchronous),
        Limit::token_bucket("api", quota).and_then(|limit| limit.with_overshoot_percent(5)),
    ];
    println!("| round trip | limit | checks/s | p50 | p99 | p99.9 | longest |");
    println!("|---|---|---|---|---|---|---|");
    for millis in [1, 5, 50] {
        for limit in limits.clone().map(Result::unwrap) {
            let server = RedisServer::start();
            let port = delaying(server.port(), Arc::new(AtomicU64::new(millis))).await;
            let url = format!("redis://127.0.0.1:{port}/");
            let limiter = RateLimiter::redis(&url, "tollgate").await.unwrap();
            // Until all keys are known.
            drop(directly(&limiter, &limit, Duration::from_secs(10)).await);
            let lasts = Duration::from_secs(5);
            let latencies = directly(&limiter, &limit, lasts).await;
            let at = |per_mille: usize| latencies[(latencies.len() - 1) * per_mille / 1_000];
            let way = match (limit.is_asynchronous(), limit.overshoot_percent()) {
                (false, _) => "waits",
                (true, 0) => "asynchronous",
                (true, _) => "5 % overshoot",
            };
            println!(
                "| {millis} ms | {} {way} | {:.0} | {:.1?} | {:.1?} | {:.1?} | {:.1?} |",
                limit.algorithm().name(),
                latencies.len() as f64 / lasts.as_secs_f64(),
                at(500),
                at(990),
                at(999),
                at(1_000)
            );
        }
    }
}

/// Checks of 1,000 keys, 64 at once. Returns the latencies, from the shortest.
async fn directly(limiter: &RateLimiter, limit: &Limit, lasts: Duration) -> Vec<Duration> {
    let mut clients = JoinSet::new();
    for client in 0..64_u64 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        clients.spawn(async move {
            let (started, mut latencies, mut key) = (Instant::now(), Vec::new(), client);
            while started.elapsed() < lasts {
                // Each of the keys in turn.
                key = (key * 21 + 7) % 1_000;
                let key = Key::from(key);
                let asked = Instant::now();
                assert!(limiter.check(&limit, &key).await.unwrap().allowed());
                latencies.push(asked.elapsed());
                tokio::task::consume_budget().await;
            }
            latencies
        });
    }
    let mut latencies = clients.join_all().await.concat();
    latencies.sort();
    latencies
}

/// Ten minutes of keys that never come again, beside 20 keys in use. It prints the latencies of the
/// keys in use and the memory of this process, which a table of 100,000 accounts bounds. A minute of
/// the same limit without an overshoot, and a minute of a fixed window, come before and after that.
async fn new_keys() {
    const MINUTE: Duration = Duration::from_secs(60);
    let exact = Limit::token_bucket("api", Quota::per_minute(10_000)).unwrap();
    let bucket = exact.clone().with_overshoot_percent(5).unwrap();
    let window = Limit::fixed_window("api", Quota::per_minute(10_000))
        .and_then(Limit::asynchronous)
        .unwrap();
    let new = Arc::new(AtomicU64::new(0));
    println!("| limit | minute | new keys/s | keys in use: p50 | p99 | longest | resident |");
    println!("|---|---|---|---|---|---|---|");
    for (name, limit, minutes) in [
        ("waits", &exact, 1),
        ("asynchronous window", &window, 1),
        ("5 % overshoot", &bucket, 10),
        ("waits", &exact, 1),
        ("asynchronous window", &window, 1),
    ] {
        let server = RedisServer::start();
        let limiter = RateLimiter::redis(&server.url(), "tollgate").await.unwrap();
        let mut attack = JoinSet::new();
        for _ in 0..64 {
            let (limiter, limit, new) = (limiter.clone(), limit.clone(), Arc::clone(&new));
            attack.spawn(async move {
                loop {
                    let key = Key::from(1_000_000 + new.fetch_add(1, Ordering::Relaxed));
                    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
                    tokio::task::consume_budget().await;
                }
            });
        }
        for minute in 1..=minutes {
            let (begin, before) = (Instant::now(), new.load(Ordering::Relaxed));
            let mut latencies = Vec::new();
            for number in 0_u64.. {
                if begin.elapsed() >= MINUTE {
                    break;
                }
                let asked = Instant::now();
                let decision = limiter.check(limit, Key::from(number % 20)).await;
                assert!(decision.unwrap().allowed());
                latencies.push(asked.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            latencies.sort();
            let at = |per_mille: usize| latencies[(latencies.len() - 1) * per_mille / 1_000];
            println!(
                "| {name} | {minute} | {:.0} | {:.1?} | {:.1?} | {:.1?} | {} MB |",
                (new.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64(),
                at(500),
                at(990),
                at(1_000),
                memory::of_this_process() / 1_000_000
            );
        }
        attack.shutdown().await;
    }
}

/// How many partitions a cluster needs: decisions a second on three masters, and how many checks
/// share a call. With 1,024 partitions and 64 checks at once, each has a call of its own.
async fn partitions() {
    let cluster = support::cluster::Cluster::start();
    let masters = &cluster.nodes[..3];
    println!("| partitions | checks at once | checks/s | checks a call | p50 | p99 |");
    println!("|---|---|---|---|---|---|");
    for partitions in [1, 4, 8, 16, 32, 64, 256, 1_024] {
        for at_once in [64, 256, 1_024] {
            let store = tollgate::RedisStore::builder("tollgate")
                .url(cluster.url())
                .partitions(partitions);
            let store = store.max_waiting(1 << 22).deadline(Duration::from_secs(20));
            let store = store.connect().await.unwrap();
            masters.iter().for_each(RedisServer::reset_calls);
            let lasts = Duration::from_secs(4);
            let (latencies, failed) = checks(&store, at_once, lasts).await;
            assert_eq!(failed, 0);
            let calls: u64 = masters.iter().map(|node| node.calls("evalsha")).sum();
            println!(
                "| {partitions} | {at_once} | {:.0} | {:.1} | {:.1?} | {:.1?} |",
                latencies.len() as f64 / lasts.as_secs_f64(),
                latencies.len() as f64 / calls as f64,
                latencies[latencies.len() / 2],
                latencies[latencies.len() * 99 / 100],
            );
        }
    }
}

/// Clients over TCP that send a request after each response, for so long: requests a second, and
/// the latency that 99 % do not exceed.
async fn load(app: axum::Router, clients: usize, lasts: Duration) -> (f64, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut load = JoinSet::new();
    for client in 0..clients {
        load.spawn(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let io = hyper_util::rt::TokioIo::new(stream);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            let (started, mut latencies) = (Instant::now(), Vec::new());
            while started.elapsed() < lasts {
                let request = http::Request::get("/").header("x-client", client);
                let request = request
                    .header("host", "localhost")
                    .body(axum::body::Body::empty());
                let sent = Instant::now();
                let response = sender.send_request(request.unwrap()).await.unwrap();
                assert_eq!(response.status(), 200);
                http_body_util::BodyExt::collect(response.into_body())
                    .await
                    .unwrap();
                latencies.push(sent.elapsed());
            }
            latencies
        });
    }
    let mut latencies = load.join_all().await.concat();
    server.abort();
    latencies.sort();
    (
        latencies.len() as f64 / lasts.as_secs_f64(),
        latencies[latencies.len() * 99 / 100],
    )
}

/// A service in front of a Redis that hangs, against the bare service, side by side.
async fn hung_redis() {
    use tollgate::store::{BreakerSettings, BreakerState};

    let bare = || axum::Router::new().fallback(|| async { "hello" });
    let lasts = Duration::from_secs(2);
    for clients in [6, 64] {
        for breaker in [Some(BreakerSettings::new()), None] {
            let server = RedisServer::start();
            let store = tollgate::RedisStore::builder("tollgate").url(server.url());
            let store = match breaker {
                Some(settings) => store.circuit_breaker(settings),
                None => store.without_circuit_breaker(),
            };
            let store = store.connect().await.unwrap();
            let limiter = RateLimiter::new(store.clone());
            let key = tollgate::key::Header::new("x-client").unwrap();
            let limit = Limit::token_bucket("api", Quota::per_second(1_000_000)).unwrap();
            let layer = tollgate::RateLimitLayer::new(limiter, limit, key).unwrap();
            let (before, _) = load(bare().layer(layer.clone()), clients, lasts).await;
            server.pause(true);
            let paused = Instant::now();
            let opening = tokio::spawn(async move {
                while store.breaker_state() == BreakerState::Closed && paused.elapsed() < lasts {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                paused.elapsed()
            });
            let (during, _) = load(bare().layer(layer.clone()), clients, lasts).await;
            let opened = opening.await.unwrap();
            // In turns, because the machine is not quiet.
            let (mut ratios, mut latencies) = (Vec::new(), Vec::new());
            for _ in 0..5 {
                let (limited, limited_p99) =
                    load(bare().layer(layer.clone()), clients, lasts).await;
                let (unlimited, bare_p99) = load(bare(), clients, lasts).await;
                ratios.push(limited / unlimited);
                latencies.push((limited_p99, bare_p99));
            }
            server.pause(false);
            ratios.sort_by(f64::total_cmp);
            latencies.sort();
            println!(
                "{clients} clients, {}: {before:.0} requests/s before, {during:.0} in the 2 s from \
                 the hang on{}, then {:.2} of the bare service's ({:.2} to {:.2}), p99 {:.2?} \
                 (bare: {:.2?})",
                if breaker.is_some() {
                    "breaker"
                } else {
                    "no breaker"
                },
                if breaker.is_some() {
                    format!(", opened after {opened:.0?}")
                } else {
                    String::new()
                },
                ratios[2],
                ratios[0],
                ratios[4],
                latencies[2].0,
                latencies[2].1,
            );
        }
    }
}
