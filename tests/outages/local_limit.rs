//! The bound of the local limit: what all replicas together allow while the store is unavailable.

#![cfg(feature = "redis")]

use std::collections::HashMap;
use std::io::stdin;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::advance;
use tollgate::decision::Source;
use tollgate::limit::{Algorithm, OnStoreFailure};
use tollgate::{Error, Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::limits::any_limits;
use crate::support::process::{Process, answer};
use crate::support::scripted::Scripted;
use crate::support::{RedisServer, free_port};

const SECOND: u64 = 1_000_000;

/// An allowed check: when, in microseconds, and its cost.
type Allowed = (u64, u64);

/// The units that were allowed from `from`, before `to`.
fn between(allowed: &[Allowed], from: u64, to: u64) -> u64 {
    allowed
        .iter()
        .filter(|(at, _)| (from..to).contains(at))
        .map(|(_, cost)| cost)
        .sum()
}

/// The most units that the documented bound allows in a time of `micros` that starts at `from`.
fn bound(limit: &Limit, replicas: u32, micros: u64) -> f64 {
    let (quota, replicas) = (limit.quota(), u64::from(replicas));
    let most = quota.capacity().max(replicas) as f64;
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            most + quota.limit() as f64 * micros as f64
                / quota.period().fixed().unwrap().as_micros() as f64
        }
        Algorithm::SlidingLog => most,
        // Two windows, each in part.
        _ => 2.0 * most,
    }
}

/// Whether no span of time has more allowed units than the bound.
fn is_within_bound(limit: &Limit, replicas: u32, allowed: &[Allowed]) -> bool {
    let period = limit.quota().period().fixed().unwrap().as_micros() as u64;
    let is_bucket = limit.kind() == "b";
    allowed.iter().all(|&(from, _)| {
        let ends = allowed
            .iter()
            .map(|&(at, _)| at + 1)
            .filter(|&to| to > from);
        ends.filter(|to| is_bucket || to - from <= period)
            .all(|to| between(allowed, from, to) as f64 <= bound(limit, replicas, to - from) + 1e-6)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn replicas_together_stay_within_the_bound(
        limits in any_limits(),
        replicas in 1_u32..30,
        steps in prop::collection::vec((0_u64..2_000_000, 0_usize..30, 1_u32..4), 1..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        let limit = limits[0].clone();
        let Ok(limit) = limit.with_on_store_failure(OnStoreFailure::local(replicas)) else {
            return Ok(());
        };
        let allowed = runtime.block_on(async {
            let error = || Error::unreachable("no server");
            let limiter = |_| RateLimiter::new(Scripted::failing(error));
            let limiters: Vec<_> = (0..replicas).map(limiter).collect();
            let (mut allowed, mut now, key) = (Vec::new(), 0, Key::new("alice"));
            for (pause, replica, cost) in steps {
                advance(Duration::from_micros(pause)).await;
                now += pause;
                let limiter = &limiters[replica % limiters.len()];
                // A burst of checks, as of a client that does not wait.
                for _ in 0..4 {
                    if limiter.check_n(&limit, &key, cost).await.unwrap().allowed() {
                        allowed.push((now, u64::from(cost)));
                    }
                }
            }
            allowed
        });
        prop_assert!(is_within_bound(&limit, replicas, &allowed), "{limit} {replicas} {allowed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn share_locks_a_key_out_for_no_longer_than_the_largest_debt_of_its_limit() {
    let limiter = RateLimiter::new(Scripted::failing(|| Error::unreachable("down")));
    let limit = Limit::token_bucket("tokens", Quota::per_second(10)).unwrap();
    let limit = limit
        .with_max_debt(5)
        .unwrap()
        .with_on_store_failure(OnStoreFailure::local(1))
        .unwrap();
    let alice = Key::new("alice");
    let charged = limiter.check(&limit, &alice).await.unwrap();
    assert_eq!(charged.source(), Source::Local);
    limiter
        .settle(&limit, &alice, 1_000, charged.receipt())
        .await
        .unwrap();
    let denied = limiter.check(&limit, &alice).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(600)));
}

/// Limits that do not divide evenly among three replicas, and limits below three.
fn limits(replicas: u32) -> Vec<Limit> {
    let constructors: [fn(&str, Quota) -> _; 6] = [
        Limit::token_bucket,
        Limit::leaky_bucket_meter,
        Limit::gcra,
        Limit::fixed_window,
        Limit::sliding_window,
        Limit::sliding_log,
    ];
    let limits = constructors.iter().enumerate().flat_map(|(number, new)| {
        [100, 7, 2, 1].map(|limit| {
            let limit = new(&format!("{number}-{limit}"), Quota::per_day(limit)).unwrap();
            limit
                .with_on_store_failure(OnStoreFailure::local(replicas))
                .unwrap()
        })
    });
    limits.collect()
}

/// Starts a replica of a service, in a process of its own.
fn start(url: &str, replicas: u32) -> Process {
    Process::start(
        "local_limit::replica",
        &[("REPLICA_URL", url), ("REPLICAS", &replicas.to_string())],
    )
}

/// Sends a command. Returns the units that each limit allowed.
fn run(replica: &mut Process, command: &str) -> Vec<u64> {
    let answer = replica.ask(command);
    answer
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect()
}

// Its tasks run while it waits for a command.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process that `processes_together_stay_within_the_bound...` starts"]
async fn replica() {
    let url = std::env::var("REPLICA_URL").unwrap();
    let limits = limits(std::env::var("REPLICAS").unwrap().parse().unwrap());
    let limiter = RateLimiter::new(RedisStore::builder("tollgate").url(url).build().unwrap());
    let key = Key::new("alice");
    for command in stdin().lines().map_while(Result::ok) {
        let mut allowed = HashMap::new();
        match &*command {
            // More checks than any limit allows.
            "flood" => {
                for limit in limits.iter().flat_map(|limit| [limit; 150]) {
                    let decision = limiter.check(limit, &key).await.unwrap();
                    assert_eq!(decision.source(), Source::Local);
                    *allowed.entry(limit.name()).or_insert(0) += u64::from(decision.allowed());
                }
            }
            // Until the server decides, and nothing is owed.
            "recover" => {
                let other = Key::new("bob");
                while limiter.peek(&limits[0], &other, 1).await.unwrap().source() != Source::Store {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            _ => panic!("{command}"),
        }
        let allowed = limits
            .iter()
            .map(|limit| allowed.get(limit.name()).unwrap_or(&0).to_string());
        answer(&allowed.collect::<Vec<_>>().join(" "));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_together_stay_within_the_bound_and_charge_it_after_the_outage() {
    const REPLICAS: u32 = 3;
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}/");
    let mut replicas: Vec<_> = (0..REPLICAS).map(|_| start(&url, REPLICAS)).collect();
    let limits = limits(REPLICAS);
    let mut allowed = vec![0; limits.len()];
    for _ in 0..2 {
        for replica in &mut replicas {
            let more = run(replica, "flood");
            allowed
                .iter_mut()
                .zip(more)
                .for_each(|(allowed, more)| *allowed += more);
        }
    }
    for (limit, &allowed) in limits.iter().zip(&allowed) {
        // Each has its share at once, and a day is long: what drains meanwhile is less than a unit.
        let each = (limit.quota().capacity() / u64::from(REPLICAS)).max(1);
        assert_eq!(allowed, each * u64::from(REPLICAS), "{limit}");
        assert!(allowed as f64 <= bound(limit, REPLICAS, SECOND), "{limit}");
    }

    let server = RedisServer::start_on(port).expect("the port is still free");
    for replica in &mut replicas {
        run(replica, "recover");
    }
    let limiter = server.limiter().await;
    let key = Key::new("alice");
    for (limit, allowed) in limits.iter().zip(allowed) {
        let capacity = limit.quota().capacity();
        let used = async || capacity - limiter.peek(limit, &key, 0).await.unwrap().remaining();
        let settled = async {
            while used().await < allowed.min(capacity) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), settled)
            .await
            .expect("it is settled");
        assert_eq!(used().await, allowed.min(capacity), "{limit}");
    }
}
