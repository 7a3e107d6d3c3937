//! `tollgate top`: the keys that several services denied, through one Redis.

mod support;

use std::time::{Duration, Instant};

use redis::Commands;
use tollgate::denied_keys::DeniedKeys;
use tollgate::{Key, Limit, Quota, RateLimiter};

use self::support::budgets::{run, store};
use self::support::{RedisServer, Run};

/// Has a service deny keys so often each, and lets its minute end.
async fn deny(url: &str, denied: &DeniedKeys, keys: &[(&str, usize)]) -> RateLimiter {
    let limiter = RateLimiter::builder(store(url).await).count_denied_keys(denied);
    let limiter = limiter.build().unwrap();
    let limit = Limit::fixed_window("login", Quota::per_hour(1)).unwrap();
    for (key, times) in keys {
        let key = Key::new(key);
        while limiter.check(&limit, &key).await.unwrap().allowed() {}
        for _ in 1..*times {
            assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
        }
    }
    // Its task has begun to sleep.
    tokio::task::yield_now().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    let started = Instant::now();
    while denied.previous().denials() == 0 {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "its minute ends"
        );
        tokio::task::yield_now().await;
    }
    limiter
}

/// Asks until a condition holds, for a minute at most.
async fn until(url: &str, is_so: impl Fn(&Run) -> bool) -> Run {
    let started = Instant::now();
    loop {
        let run = top(url, &["--json"]);
        if is_so(&run) {
            return run;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{run:?}");
        tokio::task::yield_now().await;
    }
}

fn top(url: &str, arguments: &[&str]) -> Run {
    let run = run(url, &[&["top"], arguments].concat());
    assert_eq!(run.code, 0, "{run:?}");
    run
}

#[tokio::test]
async fn denials_of_all_services_are_added_up() {
    let server = RedisServer::start();
    let url = server.url();
    let mut services = Vec::new();
    for denied in [DeniedKeys::new(), DeniedKeys::new()] {
        let keys = [("mallory", 5), ("bob smith", 2)];
        services.push(deny(&url, &denied, &keys).await);
    }
    // The second note may be in flight.
    let json = until(&url, |run| run.out.contains("10")).await.json_lines();
    let found: Vec<_> = json
        .iter()
        .map(|it| (it["key"].as_str().unwrap(), it["denials"].as_u64().unwrap()))
        .collect();
    assert_eq!(found, [("mallory", 10), ("bob%20smith", 4)]);
    assert!(json.iter().all(|it| it["limit"] == "login"), "{json:?}");

    let table = top(&url, &["--max", "1"]).out;
    assert!(
        table.contains("mallory") && !table.contains("bob"),
        "{table}"
    );
    let other = top(&url, &["--name", "search"]).out;
    assert!(
        other.contains("no denied key in the last 10 min"),
        "{other}"
    );
    let mut connection = server.connection();
    let keys: Vec<String> = connection.keys("tollgate:denied:*").unwrap();
    let ttl: u64 = connection.pttl(&keys[0]).unwrap();
    assert!((1..=3_900_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn hashed_keys_stay_hashed_and_keys_of_a_process_stay_there() {
    let server = RedisServer::start();
    let url = server.url();
    let hashed = DeniedKeys::hashed("0123456789abcdef").unwrap();
    let kept = DeniedKeys::new().in_this_process();
    let _services = [
        deny(&url, &hashed, &[("mallory", 3)]).await,
        deny(&url, &kept, &[("eve", 3)]).await,
    ];
    let out = until(&url, |run| !run.out.is_empty()).await.out;
    let previous = hashed.previous();
    assert!(out.contains(previous.keys()[0].key()), "{out}");
    assert!(!out.contains("mallory") && !out.contains("eve"), "{out}");
}

#[tokio::test]
async fn minute_is_bounded_and_a_value_of_another_program_counts_as_none() {
    let server = RedisServer::start();
    let script = include_str!("../../../scripts/denied.lua");
    let mut connection = server.connection();
    let now: (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    let minute = format!("tollgate:denied:{}", now.0 / 60);
    let () = connection.set(&minute, r#"{"login":[1],"x":7}"#).unwrap();
    let out = top(&server.url(), &[]).out;
    assert!(out.contains("no denied key"), "{out}");
    for number in 0..300 {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(&minute);
        command
            .arg("login")
            .arg(format!("key-{number}"))
            .arg(number + 1);
        let () = command.query(&mut connection).unwrap();
    }
    let lines = top(&server.url(), &["--max", "1000", "--json"]).json_lines();
    assert_eq!(lines.len(), 256);
    assert_eq!(
        (&lines[0]["key"], &lines[0]["denials"]),
        (&"key-299".into(), &300.into())
    );
}
