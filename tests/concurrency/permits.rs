//! Requests in flight: at most the limit at once, first come, first served, and nothing is lost in
//! a crash or an outage.

#![cfg(feature = "redis")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::clock::ManualClock;
use tollgate::decision::Source;
use tollgate::limit::OnStoreFailure;
use tollgate::store::{Budget, Change, Claim, Operation, Store};
use tollgate::{Key, Limit, MemoryStore, Permit, RateLimiter};

use crate::support::RedisServer;
use crate::support::chaos::{Chaos, Mode};
use crate::support::process::{Process, answer};
use crate::support::scripted::Scripted;

const SECOND: Duration = Duration::from_secs(1);

fn exports(limit: u32) -> Limit {
    Limit::concurrency("exports", limit).unwrap()
}

async fn on(server: &RedisServer) -> RateLimiter {
    RateLimiter::new(server.store().connect().await.unwrap())
}

/// A limiter whose permits have this lease.
fn leasing_for(lease: Duration, store: impl Store) -> RateLimiter {
    let limiter = RateLimiter::builder(store).permit_lease(lease);
    limiter.build().unwrap()
}

async fn take(limiter: &RateLimiter, limit: &Limit, key: &Key) -> Option<Permit> {
    limiter.try_acquire_permit(limit, key).await.unwrap()
}

#[tokio::test]
async fn nobody_has_permits_at_first_and_a_lease_has_a_range() {
    let limiter = RateLimiter::in_memory();
    assert_eq!(limiter.held_permits(&exports(3), "acme"), 0);
    assert_eq!(limiter.keys_with_permits(), 0);
    for lease in [SECOND / 2, 601 * SECOND] {
        let limiter = RateLimiter::builder(MemoryStore::new()).permit_lease(lease);
        let error = limiter.build().unwrap_err().to_string();
        assert!(error.contains("use 1s to 600s"), "{error}");
    }
}

#[tokio::test]
async fn at_most_the_limit_are_in_flight_on_all_replicas_and_keys_are_apart() {
    let server = RedisServer::start();
    let memory = RateLimiter::in_memory();
    let redis = [on(&server).await, on(&server).await];
    let (limit, acme) = (exports(3), Key::new("acme"));
    for replicas in [[&memory, &memory], [&redis[0], &redis[1]]] {
        let mut permits = Vec::new();
        for number in 0..3 {
            permits.push(take(replicas[number % 2], &limit, &acme).await.unwrap());
        }
        for replica in replicas {
            assert!(take(replica, &limit, &acme).await.is_none());
            assert!(take(replica, &limit, &Key::new("other")).await.is_some());
        }
        permits.pop();
        let again = timeout(SECOND, async {
            loop {
                if let Some(permit) = take(replicas[1], &limit, &acme).await {
                    return permit;
                }
            }
        });
        permits.push(again.await.expect("a permit that was dropped is free"));
        assert!(take(replicas[0], &limit, &acme).await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_caller_gets_the_permit_that_is_given_back_and_none_in_vain() {
    let limiter = RateLimiter::in_memory();
    let (limit, key) = (exports(1), Key::new("acme"));
    let first = take(&limiter, &limit, &key).await.unwrap();
    let waiting = tokio::spawn({
        let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
        async move {
            limiter
                .acquire_permit(&limit, &key, 10 * SECOND)
                .await
                .unwrap()
        }
    });
    sleep(SECOND).await;
    assert!(
        take(&limiter, &limit, &key).await.is_none(),
        "a new caller does not pass it"
    );
    drop(first);
    assert!(waiting.await.unwrap().is_some());
    let started = Instant::now();
    let held = take(&limiter, &limit, &key).await.unwrap();
    assert!(
        limiter
            .acquire_permit(&limit, &key, SECOND)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(started.elapsed(), SECOND);
    drop(held);
    assert_eq!(limiter.held_permits(&limit, &key), 0);
    assert!(
        take(&limiter, &limit, &key).await.is_some(),
        "a caller that gave up has no place"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_never_exceeds_the_limit_and_ends_with_all_permits_free() {
    let server = RedisServer::start();
    let replicas = [on(&server).await, on(&server).await, on(&server).await];
    let (limit, keys) = (exports(7), [Key::new("acme"), Key::new("globex")]);
    let in_flight: Arc<[AtomicU32; 2]> = Arc::default();
    let most: Arc<[AtomicU32; 2]> = Arc::default();
    let mut tasks = JoinSet::new();
    for number in 0..3_000_usize {
        let (limiter, limit, place) = (replicas[number % 3].clone(), limit.clone(), number % 2);
        let (key, in_flight, most) = (
            keys[place].clone(),
            Arc::clone(&in_flight),
            Arc::clone(&most),
        );
        tasks.spawn(async move {
            let wait = if number % 5 == 0 {
                Duration::ZERO
            } else {
                Duration::from_millis(number as u64 % 4_000)
            };
            let Some(_permit) = limiter.acquire_permit(&limit, &key, wait).await.unwrap() else {
                return 0;
            };
            let now = in_flight[place].fetch_add(1, Ordering::SeqCst) + 1;
            most[place].fetch_max(now, Ordering::SeqCst);
            sleep(Duration::from_micros(number as u64 % 900)).await;
            in_flight[place].fetch_sub(1, Ordering::SeqCst);
            1
        });
    }
    let mut served = 0;
    while let Some(done) = tasks.join_next().await {
        served += done.unwrap();
    }
    assert!(served > 100, "{served} were served");
    for place in 0..2 {
        assert_eq!(
            most[place].load(Ordering::SeqCst),
            7,
            "the limit was reached, and not exceeded"
        );
        let free = timeout(10 * SECOND, async {
            let mut permits = Vec::new();
            while permits.len() < 7 {
                permits.extend(
                    replicas[2]
                        .acquire_permit(&limit, &keys[place], SECOND)
                        .await
                        .unwrap(),
                );
            }
            permits
        });
        assert_eq!(free.await.expect("all are free").len(), 7);
    }
}

#[tokio::test]
async fn permits_stay_valid_and_are_limited_locally_while_the_store_is_away() {
    let mut server = RedisServer::start();
    let store = server.store().connect().await.unwrap();
    let limiter = RateLimiter::new(store);
    let key = Key::new("acme");
    let local = exports(4)
        .with_on_store_failure(OnStoreFailure::local(2))
        .unwrap();
    let closed = Limit::concurrency("closed", 4).unwrap();
    let closed = closed
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let open = Limit::concurrency("open", 1).unwrap();
    let held = take(&limiter, &local, &key).await.unwrap();
    let port = server.port();
    server.kill();
    let second = take(&limiter, &local, &key)
        .await
        .expect("two of four are this replica's share");
    assert!(take(&limiter, &local, &key).await.is_none());
    assert!(
        limiter
            .try_acquire_permit(&closed, &key)
            .await
            .unwrap_err()
            .is_unavailable()
    );
    let unlimited = [
        take(&limiter, &open, &key).await,
        take(&limiter, &open, &key).await,
    ];
    assert!(unlimited.iter().all(Option::is_some));

    let server = RedisServer::start_on(port).expect("the port is free again");
    let other = on(&server).await;
    // Within a third of the lease, Redis knows what is held.
    timeout(20 * SECOND, async {
        while let Some(permit) = take(&other, &local, &key).await {
            let more = [
                take(&other, &local, &key).await,
                take(&other, &local, &key).await,
            ];
            drop((permit, more));
            let free = other
                .acquire_permit(&local, &key, Duration::from_millis(50))
                .await
                .unwrap();
            let two = other
                .acquire_permit(&local, &key, Duration::from_millis(50))
                .await
                .unwrap();
            let three = other
                .acquire_permit(&local, &key, Duration::from_millis(50))
                .await
                .unwrap();
            if three.is_none() && free.is_some() && two.is_some() {
                break;
            }
        }
    })
    .await
    .expect("Redis learns what is held");
    drop((held, second, unlimited));
}

#[tokio::test]
async fn lost_state_is_restored_by_the_holders_and_allows_at_most_twice_the_limit() {
    let server = RedisServer::start();
    let short = async || leasing_for(SECOND, server.store().connect().await.unwrap());
    let (old, new) = (short().await, short().await);
    let (limit, key) = (exports(2), Key::new("acme"));
    let held = [
        take(&old, &limit, &key).await,
        take(&old, &limit, &key).await,
    ];
    assert!(held.iter().all(Option::is_some) && take(&new, &limit, &key).await.is_none());
    // As a failover to a replica that has got nothing.
    let () = redis::cmd("FLUSHALL")
        .query(&mut server.connection())
        .unwrap();
    let mut granted = Vec::new();
    while let Some(permit) = take(&new, &limit, &key).await {
        granted.push(permit);
    }
    assert!(granted.len() <= 2, "{} more than the limit", granted.len());
    drop(granted);
    // The holder renews three times a second.
    let restored = timeout(20 * SECOND, async {
        while let Some(permit) = take(&new, &limit, &key).await {
            drop(permit);
        }
    });
    restored.await.expect("the store learns what is held");
    drop(held);
    assert!(
        new.acquire_permit(&limit, &key, 20 * SECOND)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn corrupt_value_counts_as_none_and_is_replaced() {
    let server = RedisServer::start();
    let limiter = on(&server).await;
    let mut connection = server.connection();
    for (number, value) in [
        &b""[..],
        b"garbage",
        b"\x09\xff\xff",
        &[9; 75],
        &[0xff; 200],
    ]
    .iter()
    .enumerate()
    {
        let key = Key::from(number as u64);
        let stored = format!("tollgate:{{{number}}}:c:exports");
        let () = redis::cmd("SET")
            .arg(&stored)
            .arg(*value)
            .query(&mut connection)
            .unwrap();
        let permit = take(&limiter, &exports(1), &key)
            .await
            .expect("nothing is held");
        assert!(take(&limiter, &exports(1), &key).await.is_none());
        let ttl: i64 = redis::cmd("TTL")
            .arg(&stored)
            .query(&mut connection)
            .unwrap();
        assert!((9..=11).contains(&ttl), "it ends with its lease: {ttl} s");
        drop(permit);
    }
    let () = redis::cmd("LPUSH")
        .arg(&["tollgate:{list}:c:exports", "x"])
        .query(&mut connection)
        .unwrap();
    assert!(
        take(&limiter, &exports(1), &Key::new("list"))
            .await
            .is_some()
    );
}

#[tokio::test]
async fn permits_of_many_keys_share_calls_and_leave_nothing_behind() {
    let server = RedisServer::start();
    let limiter = on(&server).await;
    drop(take(&limiter, &exports(1), &Key::new("first")).await);
    server.reset_calls();
    let mut tasks = JoinSet::new();
    for user in 0..2_000_u64 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            take(&limiter, &exports(1), &Key::from(user))
                .await
                .is_some()
        });
    }
    assert!(tasks.join_all().await.into_iter().all(|acquired| acquired));
    let emptied = timeout(20 * SECOND, async {
        loop {
            let keys: u64 = redis::cmd("DBSIZE")
                .query(&mut server.connection())
                .unwrap();
            if keys == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    emptied.await.expect("what is given back is forgotten");
    let calls = server.calls("evalsha");
    assert!(calls < 400, "{calls} calls for 2,000 permits");
}

#[test]
fn limiter_outlives_the_runtimes_that_use_it_and_renews_what_others_hold() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    // The connection is a task of this one.
    let keeps = runtime();
    // A connection that is lost with a runtime may be replaced after a pause of a second, which a
    // renewal has to outlast on a busy machine.
    let lease = 3 * SECOND;
    let [limiter, other] = keeps.block_on(async {
        let on = async || leasing_for(lease, server.store().connect().await.unwrap());
        [on().await, on().await]
    });
    let (limit, acme) = (exports(1), Key::new("acme"));
    for _ in 0..10 {
        let first = runtime();
        // The first one to ask runs the task.
        first.block_on(async {
            for user in 0..20_u64 {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                tokio::spawn(async move {
                    loop {
                        drop(
                            limiter
                                .acquire_permit(&limit, &Key::from(user % 5), SECOND)
                                .await,
                        );
                        tokio::task::yield_now().await;
                    }
                });
            }
            sleep(Duration::from_millis(5)).await;
        });
        drop(first);
        let acquired =
            keeps.block_on(limiter.acquire_permit(&limit, &Key::new("next"), 10 * SECOND));
        assert!(
            acquired.unwrap().is_some(),
            "the limiter works in another runtime"
        );
    }
    let first = runtime();
    drop(
        first
            .block_on(limiter.try_acquire_permit(&limit, &Key::new("first")))
            .unwrap(),
    );
    // While the connection is replaced, the limit fails open, and such a permit is not in the
    // store.
    let held = loop {
        let acquired = keeps.block_on(limiter.acquire_permit(&limit, &acme, 10 * SECOND));
        let permit = acquired.unwrap().expect("the only permit is free");
        if permit.source() == Source::Store {
            break permit;
        }
    };
    drop(first);
    let stolen = keeps
        .block_on(other.acquire_permit(&limit, &acme, 2 * lease))
        .unwrap();
    assert!(stolen.is_none(), "what is held is renewed");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn limiters_on_one_embedded_store_share_permits_and_wake_each_other() {
    let store = Arc::new(MemoryStore::new());
    let [one, two] = [(); 2].map(|()| RateLimiter::new(Arc::clone(&store)));
    let (limit, key) = (exports(1), Key::new("acme"));
    let held = take(&one, &limit, &key).await;
    sleep(60 * SECOND).await;
    assert!(take(&two, &limit, &key).await.is_none());
    let waiting = tokio::spawn({
        let (limit, key) = (limit.clone(), key.clone());
        async move { two.acquire_permit(&limit, &key, 10 * SECOND).await.unwrap() }
    });
    sleep(SECOND).await;
    drop(held);
    assert!(waiting.await.unwrap().is_some());
}

#[tokio::test]
async fn short_wait_gets_a_free_permit_and_the_policy_decides_while_redis_hangs() {
    let server = RedisServer::start();
    let limiter = on(&server).await;
    let closed = Limit::concurrency("closed", 5).unwrap();
    let closed = closed
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let tick = Duration::from_micros(1);
    for user in 0..50_u64 {
        let permit = limiter
            .acquire_permit(&exports(1), &Key::from(user), tick)
            .await
            .unwrap();
        assert!(permit.is_some(), "it is free");
    }
    server.pause(true);
    let acme = Key::new("acme");
    assert!(
        limiter
            .acquire_permit(&exports(1), &acme, tick)
            .await
            .unwrap()
            .is_some(),
        "it fails open"
    );
    assert!(
        limiter
            .acquire_permit(&closed, &acme, tick)
            .await
            .unwrap_err()
            .is_unavailable()
    );
    server.pause(false);
}

#[tokio::test]
async fn permit_whose_grant_is_lost_with_its_connection_is_given_back() {
    let server = RedisServer::start();
    let network = Chaos::start(server.port()).await;
    let url = format!("redis://127.0.0.1:{}", network.port);
    let store = server.store().url(url).connect().await.unwrap();
    let limiter = leasing_for(600 * SECOND, store);
    let closed = exports(1)
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let acme = Key::new("acme");
    drop(take(&limiter, &closed, &acme).await);
    limiter.flush().await;
    // Neither the grant nor the greeting of the next connection arrives.
    network.set(Mode::CutReplies);
    let failed = limiter.try_acquire_permit(&closed, &acme).await;
    assert!(failed.is_err(), "{failed:?}");
    let other = on(&server).await;
    assert!(
        take(&other, &closed, &acme).await.is_none(),
        "it was granted"
    );
    network.set(Mode::Well);
    let given_back = other.acquire_permit(&closed, &acme, 20 * SECOND).await;
    assert!(given_back.unwrap().is_some());
}

#[tokio::test]
async fn wrong_number_of_a_store_takes_no_time() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    // More than any holder wants.
    store.does(|memory, operation| {
        let Operation::Change(budget, Change::Claim(mut claim)) = operation else {
            panic!("permits are claimed, not {operation:?}");
        };
        claim.waiting = 1_000;
        let more = Budget::new(&exports(1_000_000), budget.key());
        memory.apply(Operation::Change(more, Change::Claim(claim)))
    });
    assert!(
        take(&limiter, &exports(1), &Key::new("acme"))
            .await
            .is_some()
    );
    let mut claim = Claim::new([1; 8], Duration::MAX);
    claim.granted = u64::MAX;
    claim.released = 3;
    let claim = Operation::Change(Budget::new(&exports(1), "acme"), Change::Claim(claim));
    let memory = MemoryStore::new();
    for _ in 0..2 {
        assert!(memory.apply(claim.clone()).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn permit_in_memory_lasts_for_as_long_as_it_is_held() {
    let limiter = RateLimiter::in_memory();
    let held = take(&limiter, &exports(1), &Key::new("acme")).await;
    sleep(24 * 3600 * SECOND).await;
    assert!(
        take(&limiter, &exports(1), &Key::new("acme"))
            .await
            .is_none()
    );
    drop(held);
    assert!(
        take(&limiter, &exports(1), &Key::new("acme"))
            .await
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_while_the_store_is_away() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    store.switch_off(true);
    for user in 0..30_000_u64 {
        let permit = take(&limiter, &exports(1), &Key::from(user)).await;
        drop(permit.expect("it fails open"));
    }
    sleep(SECOND).await;
    assert!(
        limiter.keys_with_permits() <= 10_001,
        "{} keys",
        limiter.keys_with_permits()
    );
    store.switch_off(false);
    sleep(10 * SECOND).await;
    assert_eq!(limiter.keys_with_permits(), 0);
}

#[tokio::test(start_paused = true)]
async fn store_that_is_away_is_asked_four_times_a_second() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let held = take(&limiter, &exports(1), &Key::new("acme")).await;
    store.switch_off(true);
    drop(held);
    sleep(SECOND).await;
    store.asked();
    sleep(10 * SECOND).await;
    let asked = store.asked();
    assert!((30..=41).contains(&asked), "{asked} times in 10 seconds");
    store.switch_off(false);
    sleep(SECOND).await;
    assert!(
        take(&limiter, &exports(1), &Key::new("acme"))
            .await
            .is_some()
    );
}

/// A replica that reads commands: `wait KEY MS`, `drop`.
#[test]
#[ignore = "a replica of the tests below"]
fn replica() {
    let url = std::env::var("REDIS_URL").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = tollgate::RedisStore::builder("tollgate")
            .url(url)
            .connect()
            .await
            .unwrap();
        let limiter = leasing_for(2 * SECOND, store);
        let mut held = Vec::new();
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["wait", key, millis] => {
                    let wait = Duration::from_millis(millis.parse().unwrap());
                    let permit = limiter
                        .acquire_permit(&exports(1), &Key::new(key), wait)
                        .await
                        .unwrap();
                    answer(&if permit.is_some() { "yes" } else { "no" });
                    held.extend(permit);
                }
                ["drop"] => {
                    held.clear();
                    answer(&"dropped");
                }
                _ => panic!("{line}"),
            }
        }
    });
}

fn replicas<const N: usize>(server: &RedisServer) -> [Process; N] {
    std::array::from_fn(|_| Process::start("permits::replica", &[("REDIS_URL", &server.url())]))
}

#[test]
fn crashed_process_loses_its_permits_when_its_lease_is_over_and_a_live_one_keeps_them() {
    let server = RedisServer::start();
    let [mut live, mut crashed, mut next] = replicas(&server);
    for (process, key) in [(&mut live, "a"), (&mut crashed, "b")] {
        assert_eq!(process.ask(&format!("wait {key} 0")), "yes");
    }
    drop(crashed);
    let started = std::time::Instant::now();
    assert_eq!(next.ask("wait b 20000"), "yes");
    assert!(
        started.elapsed() < 10 * SECOND,
        "the lease was 2 s: {:?}",
        started.elapsed()
    );
    // Several leases long, the live one renewed what it holds.
    assert_eq!(next.ask("wait a 5000"), "no");
    assert_eq!(live.ask("drop"), "dropped");
    assert_eq!(next.ask("wait a 5000"), "yes");
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    let server = RedisServer::start();
    let [mut first, second, third, fourth] = replicas(&server);
    assert_eq!(first.ask("wait a 0"), "yes");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let waiting: Vec<_> = [(2, second), (3, third), (4, fourth)]
        .into_iter()
        .map(|(number, mut process)| {
            let order = Arc::clone(&order);
            let waiting = std::thread::spawn(move || {
                assert_eq!(process.ask("wait a 20000"), "yes");
                order.lock().unwrap().push(number);
                assert_eq!(process.ask("drop"), "dropped");
            });
            until_queued(&server, number - 1);
            waiting
        })
        .collect();
    assert_eq!(first.ask("drop"), "dropped");
    waiting
        .into_iter()
        .for_each(|waiting| waiting.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [2, 3, 4]);
}

/// Waits until so many holders have a place in the queue.
fn until_queued(server: &RedisServer, holders: usize) {
    let mut connection = server.connection();
    let (head, holder, place) = (31, 40, 12);
    // The first one holds the permit, and has no place.
    let expected = head + (holders + 1) * holder + holders * place;
    let started = std::time::Instant::now();
    loop {
        let length: usize = redis::cmd("STRLEN")
            .arg("tollgate:{a}:c:exports")
            .query(&mut connection)
            .unwrap();
        if length == expected {
            return;
        }
        assert!(
            started.elapsed() < 20 * SECOND,
            "{length} bytes, not {expected}"
        );
    }
}

#[derive(Clone, Debug)]
struct Step {
    holder: usize,
    restarts: bool,
    repeats: bool,
    move_us: i64,
    grow: [u64; 2],
    waiting: u32,
    at_once: u32,
    limit: u32,
    lease_us: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let moves = prop_oneof![
        3 => Just(0i64),
        4 => 0i64..500_000,
        1 => 0i64..5_000_000,
        1 => -3_000_000i64..0,
    ];
    let grow = (prop_oneof![6 => Just(0u64), 1 => 0u64..3], 0u64..4);
    let restarts = prop_oneof![30 => Just(false), 1 => Just(true)];
    let asks = (prop_oneof![Just(0u32), 0u32..4], 0u32..3);
    let odd = (restarts, prop::bool::weighted(0.1));
    (
        0usize..4,
        odd,
        moves,
        grow,
        asks,
        1u32..6,
        500_000u64..2_000_000,
    )
        .prop_map(
            |(
                holder,
                (restarts, repeats),
                move_us,
                (granted, released),
                (waiting, at_once),
                limit,
                lease_us,
            )| {
                Step {
                    holder,
                    restarts,
                    repeats,
                    move_us,
                    grow: [granted, released],
                    waiting,
                    at_once,
                    limit,
                    lease_us,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn lua_and_rust_grant_the_same(
        holders in 1usize..5,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        thread_local! {
            static SERVER: RedisServer = RedisServer::start();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clock = ManualClock::new();
        let memory = MemoryStore::with_clock(clock.clone());
        let case = NEXT.fetch_add(1, Ordering::Relaxed);
        let redis = SERVER.with(|server| {
            server.store_of(format!("case{case}")).clock(clock.clone()).build().unwrap()
        });
        // What each holder knows.
        let mut known = [[0u64; 2]; 4];
        let mut now = 1_790_000_000_000_000_i64;
        for step in steps {
            let Step {
                holder,
                restarts,
                repeats,
                move_us,
                grow,
                waiting,
                at_once,
                limit,
                lease_us,
            } = step;
            let holder = holder % holders;
            now += move_us;
            clock.set(Duration::from_micros(now as u64));
            if restarts {
                known[holder] = [0, 0];
            }
            let [granted, released] = &mut known[holder];
            *granted += grow[0];
            *released = (*released + grow[1]).min(*granted);
            let mut claim = Claim::new([holder as u8 + 1; 8], Duration::from_micros(lease_us));
            claim.granted = *granted;
            claim.released = *released;
            claim.waiting = waiting;
            claim.at_once = at_once;
            let budget = Budget::new(&exports(limit), "acme");
            let operation = Operation::Change(budget, Change::Claim(claim));
            let ask = |store: &dyn Store| {
                let claiming = async { store.apply(operation.clone()).await };
                let decision = runtime.block_on(claiming).expect("the store answers");
                // The number of holders stands in place of a time.
                (claim.granted + decision.remaining(), decision.reset_after())
            };
            let [expected, answered] = [ask(&memory), ask(&redis)];
            prop_assert_eq!(answered, expected, "{:?} at {}", claim, now);
            if repeats {
                // A holder of nothing is forgotten, and begins at zero.
                let again = [ask(&memory), ask(&redis)];
                let is_the_same = again[0] == again[1] && again[0].0 <= expected.0;
                prop_assert!(is_the_same, "{:?} again: {:?}", claim, again);
            }
            *granted = (*granted).max(expected.0);
        }
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

#[tokio::test]
async fn claims_of_one_call_say_how_many_processes_hold_or_wait() {
    let server = RedisServer::start();
    let redis = server.store().build().unwrap();
    let claim = |number: u8, waiting| {
        let mut claim = Claim::new([number; 8], 10 * SECOND);
        claim.waiting = waiting;
        redis.apply(Operation::Change(
            Budget::new(&exports(2), "acme"),
            Change::Claim(claim),
        ))
    };
    // The last one wants nothing.
    let answers = [(1, 1), (2, 3), (3, 1), (4, 0)].map(|(number, waiting)| claim(number, waiting));
    let mut holders = Vec::new();
    for answer in answers {
        holders.push(answer.await.unwrap().reset_after().as_micros());
    }
    assert_eq!(holders, [1, 2, 3, 3]);
}

#[tokio::test]
async fn long_queue_is_served_alike_and_a_poll_of_it_is_cheap() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let mut now = Duration::from_secs(1_790_000_000);
    clock.set(now);
    let memory = MemoryStore::with_clock(clock.clone());
    let redis = server.store().clock(clock.clone()).build().unwrap();
    // granted, released, waiting of each holder
    let mut holders = [[0_u64; 3]; 50];
    let claim = async |number: usize, holders: &mut [[u64; 3]; 50]| {
        let mut claim = Claim::new([number as u8 + 1; 8], 10 * SECOND);
        let [granted, released, waiting] = holders[number];
        claim.granted = granted;
        claim.released = released;
        claim.waiting = waiting as u32;
        let claim = Operation::Change(Budget::new(&exports(20), "acme"), Change::Claim(claim));
        let answered = redis.apply(claim.clone()).await.unwrap();
        let expected = memory.apply(claim).await.unwrap();
        let new = expected.remaining();
        assert_eq!(answered.remaining(), new, "holder {number}");
        assert_eq!(answered.reset_after(), expected.reset_after());
        holders[number] = [granted + new, released, waiting - new.min(waiting)];
        new
    };
    // They come in turns, so that each place is a row of its own.
    for _ in 0..64 {
        for number in 0..50 {
            holders[number][2] += 1;
            claim(number, &mut holders).await;
        }
    }
    server.reset_calls();
    for _ in 0..10 {
        now += Duration::from_millis(25);
        clock.set(now);
        for number in 0..50 {
            assert_eq!(
                claim(number, &mut holders).await,
                0,
                "all permits are in use"
            );
        }
    }
    let polls = server.calls("evalsha");
    assert_eq!(
        (polls, server.calls("psetex")),
        (500, 0),
        "a poll does not write the queue"
    );
    for _ in 0..200 {
        for number in 0..50 {
            holders[number][1] = holders[number][0];
            claim(number, &mut holders).await;
        }
    }
    let served: u64 = holders.iter().map(|[granted, ..]| granted).sum();
    assert_eq!(served, 50 * 64, "each place once");
}
