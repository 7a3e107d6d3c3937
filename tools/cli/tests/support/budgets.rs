//! Budgets that the tests put into Redis, and what the program says of them.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use super::{RedisServer, Run, tollgate};

pub const HOUR: Duration = Duration::from_secs(3_600);

pub fn limits() -> Vec<Limit> {
    let quota = Quota::new(100, HOUR);
    [
        Limit::token_bucket("bucket", quota.burst(50)),
        Limit::fixed_window("fixed", quota),
        Limit::sliding_window("sliding", quota),
        Limit::sliding_log("log", quota),
    ]
    .map(Result::unwrap)
    .into()
}

pub async fn store(url: &str) -> RedisStore {
    let store = RedisStore::builder("tollgate").url(url).connect();
    store.await.unwrap()
}

pub async fn limiter(url: &str) -> RateLimiter {
    RateLimiter::new(store(url).await)
}

pub async fn until(is_so: impl Fn() -> bool) {
    let turns = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), turns)
        .await
        .expect("it becomes so");
}

/// A service notes its limits after 5 seconds.
pub async fn until_limits_are_noted(server: &RedisServer) {
    let noted = || {
        let mut exists = redis::cmd("EXISTS");
        let exists = exists.arg("tollgate:limits");
        exists.query::<bool>(&mut server.connection()).unwrap()
    };
    until(noted).await;
}

/// Charges seven units to a client under every limit.
pub async fn charge(limiter: &RateLimiter, client: &str) {
    for limit in limits() {
        assert!(
            limiter
                .check_n(&limit, &Key::new(client), 7)
                .await
                .unwrap()
                .allowed()
        );
    }
}

pub fn run(url: &str, arguments: &[&str]) -> Run {
    let (command, rest) = arguments.split_first().unwrap();
    tollgate(&[&[*command, "--url", url][..], rest].concat())
}

/// What `show` says of a client: the limits, and the units used.
pub fn shown(url: &str, client: &str) -> Vec<(String, u64)> {
    let run = run(url, &["show", client, "--json"]);
    assert_eq!(run.code, 0, "{run:?}");
    if run.out.trim().is_empty() {
        return Vec::new();
    }
    let used = |row: &serde_json::Value| match row["state"].as_str().unwrap() {
        "fixed_window" => row["windows"][0]["used"].as_u64(),
        "in_flight" => row["in_flight"].as_u64(),
        "offences" => row["denials"].as_u64(),
        _ => row["used"].as_u64(),
    };
    let row = |row: &serde_json::Value| {
        (
            row["limit"].as_str().unwrap().to_owned(),
            used(row).unwrap(),
        )
    };
    let mut rows: Vec<_> = run.json_lines().iter().map(row).collect();
    rows.sort();
    rows
}
