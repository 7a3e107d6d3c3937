//! Replicas that race for one key allow exactly the limit together, under every algorithm.

#![cfg(feature = "redis")]

use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::RedisServer;
use tokio::task::JoinSet;
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

const PROCESSES: usize = 4;
const TASKS: usize = 32;
const CHECKS: usize = 20;
const ROUNDS: usize = 5;

/// Less than a round checks: 4 * 32 * 20 = 2,560.
const LIMIT: u64 = 1_000;

fn limits() -> [Limit; 6] {
    // Nothing replenishes while the test runs.
    let quota = Quota::per_day(LIMIT);
    [
        Limit::token_bucket("token_bucket", quota).unwrap(),
        Limit::leaky_bucket("leaky_bucket", quota).unwrap(),
        Limit::gcra("gcra", quota).unwrap(),
        Limit::fixed_window("fixed_window", quota).unwrap(),
        Limit::sliding_window_with("sliding_window", quota, 24).unwrap(),
        Limit::sliding_log("sliding_log", quota).unwrap(),
    ]
}

/// One replica in a process of its own, started by the test below.
#[test]
#[ignore = "a process that the test below starts"]
fn replica() {
    let url = env::var("REPLICA_REDIS_URL").expect("set by the test below");
    let key = Key::new(env::var("REPLICA_KEY").expect("set by the test below"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // A long deadline: a busy machine must not fail a check.
        let store = RedisStore::builder("tollgate")
            .url(&url)
            .deadline(Duration::from_secs(20));
        let limiter = RateLimiter::new(store.connect().await.unwrap());
        for limit in limits() {
            let mut tasks = JoinSet::new();
            for _ in 0..TASKS {
                let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
                tasks.spawn(async move {
                    let mut allowed = 0;
                    for _ in 0..CHECKS {
                        let decision = limiter.check(&limit, &key).await.unwrap();
                        allowed += usize::from(decision.allowed());
                    }
                    allowed
                });
            }
            let allowed: usize = tasks.join_all().await.into_iter().sum();
            println!("allowed {} {allowed}", limit.name());
        }
    });
}

#[test]
fn racing_replicas_allow_exactly_the_limit() {
    let server = RedisServer::start();
    for round in 0..ROUNDS {
        let replicas: Vec<_> = (0..PROCESSES)
            .map(|_| {
                Command::new(env::current_exe().unwrap())
                    .args(["--exact", "exact::replica", "--ignored", "--nocapture"])
                    .env("REPLICA_REDIS_URL", server.url())
                    .env("REPLICA_KEY", format!("round-{round}"))
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let outputs: Vec<String> = replicas
            .into_iter()
            .map(|replica| {
                let output = replica.wait_with_output().unwrap();
                assert!(output.status.success());
                String::from_utf8(output.stdout).unwrap()
            })
            .collect();
        for limit in limits() {
            let start = format!("allowed {} ", limit.name());
            let each: Vec<u64> = outputs
                .iter()
                .flat_map(|output| output.lines())
                .filter_map(|line| line.strip_prefix(&start)?.parse().ok())
                .collect();
            println!("round {round}, {}: {each:?}", limit.name());
            assert_eq!(each.len(), PROCESSES);
            assert_eq!(each.iter().sum::<u64>(), LIMIT, "{limit}: {each:?}");
        }
    }
}
