//! Redis servers that decline commands, fail, or send malformed or late replies: the errors of
//! checks, and the events.
#![cfg(feature = "redis")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tollgate::limit::OnStoreFailure;
use tollgate::store::{Budget, Change, Operation, RedisStoreBuilder, Store};
use tollgate::{Check, Error, Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::fake_redis::{FakeRedis, greeting, reply_to};
use crate::support::log::Log;
use crate::support::pass_on::Upstream;

fn daily() -> Limit {
    Limit::fixed_window("daily", Quota::per_day(5)).unwrap()
}

/// A store without a circuit breaker: each check meets the fault.
/// Longer than a busy machine takes.
const DEADLINE: Duration = Duration::from_secs(20);

fn store_of(url: &str) -> RedisStoreBuilder {
    let store = RedisStore::builder("tollgate")
        .url(url)
        .without_circuit_breaker();
    store.deadline(DEADLINE).deny_for(Duration::ZERO)
}

async fn check(store: &RedisStore, key: &str) -> Result<tollgate::Decision, Error> {
    store
        .apply(Operation::Charge(Check::new(&daily(), key).into()))
        .await
}

fn run(server: &RedisServer, command: &[&str]) {
    let () = redis::cmd(command[0])
        .arg(&command[1..])
        .query(&mut server.connection())
        .unwrap();
}

#[tokio::test]
async fn missing_permission_is_named_when_the_store_connects() {
    let server = RedisServer::start();
    for permission in [
        "mget", "psetex", "pexpire", "setrange", "getrange", "strlen", "set", "del",
    ] {
        run(
            &server,
            &[
                "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all",
            ],
        );
        run(
            &server,
            &["ACL", "SETUSER", "limiter", &format!("-{permission}")],
        );
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
        let error = RedisStore::connect(&url, "tollgate")
            .await
            .unwrap_err()
            .to_string();
        let named = format!("`{}`", permission.to_uppercase());
        assert!(
            error.contains(&named) && !error.contains("secret"),
            "{permission}: {error}"
        );
        assert!(
            error.ends_with(&format!(
                "add `+{permission}` to the ACL of this Redis user"
            )),
            "{error}"
        );
    }
    for permission in ["evalsha", "eval", "ping", "script"] {
        run(
            &server,
            &[
                "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all",
            ],
        );
        run(
            &server,
            &["ACL", "SETUSER", "limiter", &format!("-{permission}")],
        );
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
        let error = RedisStore::connect(&url, "tollgate")
            .await
            .unwrap_err()
            .to_string();
        // Redis from 7 on names the subcommand: `script|load`.
        assert!(
            error.contains(&format!("add `+{permission}")),
            "{permission}: {error}"
        );
    }
    run(
        &server,
        &[
            "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~other:*", "+@all",
        ],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let error = RedisStore::connect(&url, "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("add `~tollgate:*` to "), "{error}");
}

#[tokio::test]
async fn revoked_read_permission_is_an_error_and_not_a_full_budget() {
    let server = RedisServer::start();
    run(
        &server,
        &[
            "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all",
        ],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = store_of(&url).connect().await.unwrap();
    run(
        &server,
        &["ACL", "SETUSER", "limiter", "-get", "-getrange", "-mget"],
    );
    let log = Limit::sliding_log("log", Quota::per_day(5)).unwrap();
    let key = Key::new("k");
    for _ in 0..20 {
        let error = check(&store, "k").await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let error = store
            .apply(Operation::Charge(Check::new(&log, &key).into()))
            .await
            .unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
}

#[tokio::test]
async fn node_of_a_cluster_needs_the_url_of_a_cluster() {
    let directory = std::env::temp_dir().join(format!("tollgate-cluster-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.to_str().unwrap();
    let server = RedisServer::start_with(&["--cluster-enabled", "yes", "--dir", path]);
    for assigned in [false, true] {
        if assigned {
            // Redis 6.2 has no ADDSLOTSRANGE.
            let slots: Vec<u16> = (0..16_384).collect();
            let mut assign = redis::cmd("CLUSTER");
            let () = assign
                .arg("ADDSLOTS")
                .arg(slots)
                .query(&mut server.connection())
                .unwrap();
            let state = || -> String {
                redis::cmd("CLUSTER")
                    .arg("INFO")
                    .query(&mut server.connection())
                    .unwrap()
            };
            while !state().contains("cluster_state:ok") {}
        }
        let error = RedisStore::connect(&server.url(), "tollgate")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("write redis-cluster://"), "{error}");
        // A store that does not connect when it is built fails at the first check.
        let store = store_of(&server.url()).build().unwrap();
        let error = check(&store, "k").await.unwrap_err();
        assert!(
            error.to_string().contains("write redis-cluster://"),
            "{error}"
        );
        assert!(!error.may_have_charged());
    }
    drop(server);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn out_of_memory_fails_only_checks_that_write() {
    let server = RedisServer::start();
    let store = store_of(&server.url()).connect().await.unwrap();
    for _ in 0..5 {
        assert!(check(&store, "denied").await.unwrap().allowed());
    }
    run(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let (limit, denied) = (daily(), Key::new("denied"));
    // All at once, so that they are sent in few calls.
    let keys: Vec<_> = (0..50_u64).map(Key::from).collect();
    let mut answers = vec![store.apply(Operation::Peek(Check::new(&limit, &keys[0]).into()))];
    for key in &keys {
        answers.push(store.apply(Operation::Charge(Check::new(&limit, key).into())));
        answers.push(store.apply(Operation::Charge(Check::new(&limit, &denied).into())));
    }
    let mut decisions = Vec::new();
    for answer in answers {
        decisions.push(answer.await);
    }
    assert!(
        decisions[0].as_ref().unwrap().allowed(),
        "a peek needs no write"
    );
    for pair in decisions[1..].chunks(2) {
        let error = pair[0].as_ref().unwrap_err();
        assert!(error.is_declined() && !error.may_have_charged(), "{error}");
        assert!(error.to_string().contains("OOM"), "{error}");
        assert!(
            !pair[1].as_ref().unwrap().allowed(),
            "a denial needs no write"
        );
    }
    run(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(
        check(&store, "7").await.unwrap().remaining(),
        4,
        "nothing was charged"
    );
}

#[tokio::test]
async fn failed_refund_keeps_its_connection() {
    let server = RedisServer::start();
    let store = store_of(&server.url()).connect().await.unwrap();
    let (limit, key) = (daily(), Key::new("k"));
    let charged = store
        .apply(Operation::Charge(
            Check::new(&limit, &key).with_cost(3).into(),
        ))
        .await
        .unwrap();
    let receipt = charged.receipt().unwrap();
    let refund = || {
        let refund = Change::Settle { receipt, cost: 2 };
        store.apply(Operation::Change(Budget::new(&limit, &key), refund))
    };
    let (log, _guard) = Log::start();
    run(&server, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = refund().await.unwrap_err();
    assert!(error.is_declined() && !error.may_have_charged(), "{error}");
    run(&server, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    run(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let error = refund().await.unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    run(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(
        refund().await.unwrap().remaining(),
        3,
        "on the same connection"
    );
    let lines = log.lines();
    assert!(
        lines.iter().all(|line| !line.contains("connection closed")),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn reply_of_another_type_closes_its_connection() {
    let server = FakeRedis::start(|command, arguments| {
        let mut reply = b"$1000000\r\n".to_vec();
        reply.extend(b"x".repeat(1_000_000));
        reply.extend(b"\r\n");
        greeting(command, arguments).or(Some(reply))
    });
    let store = store_of(&server.url()).build().unwrap();
    for connections in 1..3 {
        let error = check(&store, "k").await.unwrap_err();
        assert!(
            error.may_have_charged() && error.to_string().len() < 300,
            "{error}"
        );
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test]
async fn late_answer_does_not_end_an_outage() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(300);
    let store = store_of(&server.url())
        .deadline(deadline)
        .connect()
        .await
        .unwrap();
    drop(check(&store, "k").await.unwrap());
    let (log, _guard) = Log::start();
    for _ in 0..2 {
        server.pause(true);
        assert!(check(&store, "k").await.unwrap_err().is_timeout());
        // The answer comes before the connection is closed.
        server.pause(false);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let recoveries = |lines: &[String]| {
        lines
            .iter()
            .filter(|line| line.contains("decides again"))
            .count()
    };
    assert_eq!(recoveries(&log.lines()), 0);
    drop(check(&store, "k").await.unwrap());
    let lines = log.lines();
    assert_eq!(recoveries(&lines), 1, "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("undecided=2")),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn checks_that_time_out_in_the_queue_are_counted() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(200);
    let store = store_of(&server.url())
        .deadline(deadline)
        .connect()
        .await
        .unwrap();
    drop(check(&store, "k").await.unwrap());
    let (log, _guard) = Log::start();
    server.pause(true);
    let (limit, keys) = (daily(), (0..500_u64).map(Key::from).collect::<Vec<_>>());
    let mut answers = Vec::new();
    for key in &keys {
        // Some are sent alone, and most are queued behind them.
        let mut answer = Box::pin(store.apply(Operation::Charge(Check::new(&limit, key).into())));
        assert!(is_pending_when_polled(&mut answer));
        answers.push(answer);
        tokio::task::yield_now().await;
    }
    for answer in answers {
        assert!(answer.await.unwrap_err().is_unavailable());
    }
    server.pause(false);
    while check(&store, "k").await.is_err() {
        tokio::task::yield_now().await;
    }
    let lines = log.lines();
    let end = lines
        .iter()
        .find(|line| line.contains("decides again"))
        .expect("it recovered");
    let undecided = end
        .split("undecided=")
        .nth(1)
        .and_then(|it| it.split(' ').next());
    assert!(undecided.unwrap().parse::<u64>().unwrap() >= 500, "{end}");
}

fn is_pending_when_polled(answer: &mut std::pin::Pin<Box<tollgate::store::Answer>>) -> bool {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    answer.as_mut().poll(&mut cx).is_pending()
}

#[tokio::test]
async fn unresponsive_server_does_not_accumulate_connection_attempts() {
    // Accepts connections in its backlog, and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let store = store_of(&url)
        .deadline(Duration::from_millis(5))
        .build()
        .unwrap();
    let tasks = tokio::runtime::Handle::current().metrics();
    // On a busy machine, a task may end a moment after the next one began. Tasks that accumulate
    // would not end at all.
    let mut fewest = [usize::MAX; 4];
    for number in 0..200 {
        assert!(check(&store, "k").await.is_err());
        let alive = tasks.num_alive_tasks();
        assert!(alive < 20, "{alive} tasks");
        fewest[number / 50] = fewest[number / 50].min(alive);
    }
    assert!(fewest.iter().all(|alive| *alive < 6), "{fewest:?} tasks");
}

#[tokio::test]
async fn key_that_the_user_has_no_right_to_fails_no_other_check() {
    let server = RedisServer::start();
    let keys = "~tollgate:{probe}* ~tollgate:{a}:probe ~tollgate:{b}:probe ~tollgate:{u*";
    let mut rules = vec![
        "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "+@all",
    ];
    rules.extend(keys.split(' '));
    run(&server, &rules);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::builder("tollgate").url(&url).deadline(DEADLINE);
    let store = store.connect().await.unwrap();
    for round in 0..20 {
        let mut checks = tokio::task::JoinSet::new();
        for number in 0..200_u64 {
            let is_forbidden = number % 50 == 7;
            let user = if is_forbidden { "mallory" } else { "u" };
            let store = store.clone();
            checks.spawn(async move {
                let key = format!("{user}{number}-{round}");
                (is_forbidden, check(&store, &key).await)
            });
        }
        for (is_forbidden, answer) in checks.join_all().await {
            match answer {
                Ok(decision) => assert!(!is_forbidden && decision.remaining() == 4),
                Err(error) => {
                    assert!(is_forbidden && error.is_declined(), "{error}");
                    assert!(!error.may_have_charged(), "{error}");
                }
            }
        }
    }
    assert_eq!(store.breaker_state(), tollgate::store::BreakerState::Closed);
}

/// A user with rights to the keys of alice alone, of a budget or of permits.
async fn store_with_rights_to_alice(server: &RedisServer) -> RedisStore {
    run(
        server,
        &[
            "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all",
        ],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::builder("tollgate").url(&url).deadline(DEADLINE);
    let store = store.connect().await.unwrap();
    run(
        server,
        &[
            "ACL",
            "SETUSER",
            "limiter",
            "resetkeys",
            "~tollgate:{alice*",
        ],
    );
    store
}

#[tokio::test]
async fn forbidden_key_that_is_checked_alone_opens_no_breaker() {
    let server = RedisServer::start();
    let store = store_with_rights_to_alice(&server).await;
    for _ in 0..50 {
        assert!(check(&store, "mallory").await.unwrap_err().is_declined());
    }
    assert_eq!(store.breaker_state(), tollgate::store::BreakerState::Closed);
    assert_eq!(check(&store, "alice").await.unwrap().remaining(), 4);
}

#[tokio::test]
async fn forbidden_key_fails_the_permits_of_no_other() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_with_rights_to_alice(&server).await);
    let limit = Limit::concurrency("in flight", 1).unwrap();
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    for round in 0..20 {
        let mut claims = tokio::task::JoinSet::new();
        for number in 0..100 {
            let is_forbidden = number % 10 == 7;
            let user = if is_forbidden { "mallory" } else { "alice" };
            let key = Key::new(format!("{user}{number}-{round}"));
            let (limiter, limit) = (limiter.clone(), limit.clone());
            claims.spawn(async move {
                // On a busy machine, a caller that does not wait may be answered by the failure
                // policy.
                let permit = limiter.acquire_permit(&limit, &key, DEADLINE).await;
                (is_forbidden, permit.is_ok_and(|permit| permit.is_some()))
            });
        }
        for (is_forbidden, is_granted) in claims.join_all().await {
            assert_eq!(is_granted, !is_forbidden);
        }
    }
    limiter.flush().await;
    assert_eq!(limiter.keys_with_permits(), 0, "no claim was applied");
}

#[tokio::test]
async fn divided_call_keeps_the_order_of_its_checks() {
    let server = RedisServer::start();
    run(
        &server,
        &["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all"],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = store_of(&url).connect().await.unwrap();
    run(
        &server,
        &[
            "ACL",
            "SETUSER",
            "limiter",
            "resetkeys",
            "~tollgate:{alice}*",
        ],
    );
    let limit = Limit::fixed_window("daily", Quota::per_day(1_000)).unwrap();
    let of = |key: &str, cost| Check::new(&limit, key).with_cost(cost);
    let ask = |check: Check| {
        (
            check.key().as_str() == "alice",
            store.apply(Operation::Charge(check.into())),
        )
    };
    // Checks of different costs are not decided together.
    let asked: Vec<_> = (1..=20)
        .flat_map(|cost| [ask(of("alice", cost)), ask(of("mallory", cost))])
        .collect();
    let mut remaining = Vec::new();
    for (is_allowed, answer) in asked {
        match answer.await {
            Ok(decision) => remaining.push(decision.remaining()),
            Err(error) => assert!(!is_allowed && error.is_declined(), "{error}"),
        }
    }
    let used = (1..=20).scan(0, |used, cost| {
        *used += cost;
        Some(*used)
    });
    assert_eq!(
        remaining,
        used.map(|used| 1_000 - used).collect::<Vec<u64>>()
    );
}

#[tokio::test]
async fn right_that_is_revoked_between_the_writes_of_a_log_may_mean_a_charge() {
    let server = RedisServer::start();
    run(
        &server,
        &["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all"],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = store_of(&url).connect().await.unwrap();
    let log = Limit::sliding_log("log", Quota::per_day(5)).unwrap();
    run(
        &server,
        &[
            "ACL",
            "SETUSER",
            "limiter",
            "-setrange",
            "-psetex",
            "-pexpire",
        ],
    );
    let error = store
        .apply(Operation::Charge(Check::new(&log, "alice").into()))
        .await
        .unwrap_err();
    assert!(error.may_have_charged(), "{error}");
}

/// The calls that the server rejected before it ran them.
fn rejected_calls(server: &RedisServer) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.connection())
        .unwrap();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .unwrap();
    let rejected = line
        .split("rejected_calls=")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    rejected.parse().unwrap()
}

#[tokio::test]
async fn user_that_loses_its_rights_to_all_keys_causes_no_flood_and_opens_the_breaker() {
    let server = RedisServer::start();
    run(
        &server,
        &["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all"],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::builder("tollgate").url(&url).deadline(DEADLINE);
    let store = store.connect().await.unwrap();
    run(
        &server,
        &["ACL", "SETUSER", "limiter", "resetkeys", "~other:*"],
    );
    let mut waves = 0;
    while store.breaker_state() == tollgate::store::BreakerState::Closed && waves < 100 {
        let mut checks = tokio::task::JoinSet::new();
        for number in 0..1_000 {
            let store = store.clone();
            checks.spawn(async move { check(&store, &format!("user{number}")).await });
        }
        for answer in checks.join_all().await {
            let error = answer.unwrap_err();
            assert!(
                error.is_unavailable() && !error.may_have_charged(),
                "{error}"
            );
        }
        waves += 1;
    }
    assert_eq!(store.breaker_state(), tollgate::store::BreakerState::Open);
    // A call for each key would be 2,000 calls a wave.
    let rejected = rejected_calls(&server);
    assert!(rejected < 500 * waves, "{rejected} calls in {waves} waves");
}

#[tokio::test]
async fn right_that_is_revoked_while_running_means_that_nothing_was_charged() {
    let server = RedisServer::start();
    run(
        &server,
        &["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all"],
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let store = store_of(&url).connect().await.unwrap();
    drop(check(&store, "alice").await.unwrap());
    for (right, key) in [
        ("psetex", "bob"),
        ("setrange", "alice"),
        ("getrange", "alice"),
    ] {
        run(
            &server,
            &["ACL", "SETUSER", "limiter", &format!("-{right}")],
        );
        let error = check(&store, key).await.unwrap_err();
        assert!(
            !error.may_have_charged() && error.is_unavailable(),
            "{right}: {error}"
        );
        run(
            &server,
            &["ACL", "SETUSER", "limiter", &format!("+{right}")],
        );
    }
    assert_eq!(check(&store, "alice").await.unwrap().remaining(), 3);
    assert_eq!(check(&store, "bob").await.unwrap().remaining(), 4);
}

/// Reading such a value as a whole holds Redis up for one to three seconds.
#[tokio::test]
async fn huge_value_at_one_key_holds_up_nobody() {
    let server = RedisServer::start();
    let store = RedisStore::builder("tollgate")
        .url(server.url())
        .deadline(Duration::from_secs(1));
    let store = store.connect().await.unwrap();
    run(
        &server,
        &["SETRANGE", "tollgate:{alice}:w:daily", "400000000", "x"],
    );
    assert_eq!(check(&store, "alice").await.unwrap().remaining(), 4);
    assert_eq!(check(&store, "bob").await.unwrap().remaining(), 4);
    assert_eq!(check(&store, "alice").await.unwrap().remaining(), 3);
    assert_eq!(store.breaker_state(), tollgate::store::BreakerState::Closed);
}

#[tokio::test]
async fn declined_checks_are_reported_as_not_charged() {
    let server = RedisServer::start();
    let store = store_of(&server.url()).connect().await.unwrap();
    drop(check(&store, "k").await.unwrap());
    let set = |setting: &str, value: &str| run(&server, &["CONFIG", "SET", setting, value]);
    set("min-replicas-to-write", "1");
    let error = check(&store, "k").await.unwrap_err();
    assert!(error.is_declined() && !error.may_have_charged(), "{error}");
    set("min-replicas-to-write", "0");
    assert_eq!(check(&store, "k").await.unwrap().remaining(), 3);
    run(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    let error = check(&store, "k").await.unwrap_err();
    assert!(error.is_declined() && !error.may_have_charged(), "{error}");
}

#[tokio::test]
async fn malformed_reply_closes_its_connection() {
    let malformed = Arc::new(AtomicBool::new(true));
    let is_malformed = Arc::clone(&malformed);
    let server = FakeRedis::start(move |command, arguments| {
        greeting(command, arguments).or_else(|| {
            if is_malformed.load(Ordering::SeqCst) {
                return Some(reply_to(arguments, &[1_234_567; 100_000]));
            }
            Some(reply_to(arguments, &[1_790_000_000_000_000, 4, 60_000_000]))
        })
    });
    let store = store_of(&server.url()).build().unwrap();
    let (limit, keys) = (daily(), (0..200_u64).map(Key::from).collect::<Vec<_>>());
    let answers: Vec<_> = keys
        .iter()
        .map(|key| store.apply(Operation::Charge(Check::new(&limit, key).into())))
        .collect();
    for answer in answers {
        let error = answer.await.unwrap_err();
        // On a busy machine, the next connection may take too long.
        let was_sent = error.may_have_charged() || error.is_unreachable();
        assert!(was_sent && error.to_string().len() < 300, "{error}");
    }
    malformed.store(false, Ordering::SeqCst);
    while check(&store, "k").await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(server.connections() >= 2, "on another connection");
}

/// None of the calls is late: each gets the answer to the next one.
#[tokio::test]
async fn reply_after_a_lost_one_is_not_taken_for_that_of_another_call() {
    let calls = AtomicUsize::new(0);
    let server = FakeRedis::start(move |command, arguments| {
        greeting(command, arguments).or_else(|| {
            let is_lost = calls.fetch_add(1, Ordering::SeqCst) == 0;
            // One unit is left, so that the answer would not be noticed.
            let reply = reply_to(arguments, &[1_790_000_000_000_000, 1, 60_000_000]);
            Some(if is_lost { Vec::new() } else { reply })
        })
    });
    let store = store_of(&server.url()).deadline(Duration::from_secs(5));
    let store = store.connect().await.unwrap();
    let (alice, bob) = tokio::join!(check(&store, "alice"), check(&store, "bob"));
    let error = alice.unwrap_err();
    assert!(error.may_have_charged(), "{error}");
    assert!(
        error.to_string().contains("the reply is to another call"),
        "{error}"
    );
    assert!(bob.is_err(), "its reply was the other's");
    while check(&store, "carol").await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(server.connections() >= 2, "on another connection");
}

#[tokio::test]
async fn attempts_to_replace_a_failing_connection_are_spaced_out() {
    let server = FakeRedis::start(|command, arguments| {
        // Accepts connections, and declines writes like a server that became a replica.
        let read_only = || b"-READONLY You can't write against a read only replica.\r\n".to_vec();
        greeting(command, arguments).or_else(|| Some(read_only()))
    });
    let store = store_of(&server.url()).build().unwrap();
    let (log, _guard) = Log::start();
    let (started, mut checks) = (Instant::now(), 0_u64);
    while started.elapsed() < Duration::from_secs(2) {
        let error = check(&store, "k").await.unwrap_err();
        assert!(!error.may_have_charged(), "{error}");
        assert!(error.to_string().contains(&server.address()), "{error}");
        checks += 1;
        tokio::task::yield_now().await;
    }
    assert!(checks > 100, "{checks} checks");
    assert!(
        server.connections() <= 12,
        "{} connections in 2 s",
        server.connections()
    );
    let lines = log.lines();
    assert!(lines.len() <= 8, "{lines:#?}");
    let closed = lines
        .iter()
        .find(|line| line.contains("Redis connection closed"))
        .unwrap();
    assert!(
        closed.contains(&server.address()) && !closed.contains("hunter2"),
        "{closed}"
    );
}

#[tokio::test]
async fn end_of_an_outage_is_one_event_with_duration_and_count() {
    let mut server = RedisServer::start();
    let store = store_of(&server.url()).connect().await.unwrap();
    drop(check(&store, "k").await.unwrap());
    let (log, _guard) = Log::start();
    server.kill();
    for _ in 0..10 {
        check(&store, "k").await.unwrap_err();
    }
    let restarted = RedisServer::start_on(server.port()).expect("the port is free again");
    let mut failed = 10;
    while check(&store, "k").await.is_err() {
        failed += 1;
        tokio::task::yield_now().await;
    }
    drop(check(&store, "k").await.unwrap());
    let lines = log.lines();
    let ends: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("Redis decides again"))
        .collect();
    assert_eq!(ends.len(), 1, "{lines:#?}");
    assert!(
        ends[0].contains(&format!("undecided={failed}")),
        "{failed}: {}",
        ends[0]
    );
    assert!(ends[0].contains("outage_ms=") && ends[0].contains(&format!(":{}", restarted.port())));
}

#[tokio::test]
async fn timeout_names_the_server() {
    let server = RedisServer::start();
    let store = store_of(&server.url())
        .deadline(Duration::from_millis(50))
        .connect()
        .await
        .unwrap();
    drop(check(&store, "k").await.unwrap());
    server.pause(true);
    let error = check(&store, "k").await.unwrap_err();
    server.pause(false);
    assert!(error.is_timeout() && error.may_have_charged(), "{error}");
    assert!(
        error
            .to_string()
            .ends_with(&format!("Redis at 127.0.0.1:{}", server.port())),
        "{error}"
    );
}

#[tokio::test]
async fn every_connection_failure_has_a_reason() {
    // Completes the greeting, and closes every other connection.
    let turns = AtomicU64::new(0);
    let server = FakeRedis::start(move |command, arguments| {
        let hangs_up = command == "PING" && turns.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        if hangs_up {
            None
        } else {
            greeting(command, arguments)
        }
    });
    let store = store_of(&server.url()).build().unwrap();
    let mut checks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = store.clone();
        checks.spawn(async move {
            let mut errors = Vec::new();
            for _ in 0..50 {
                errors.push(check(&store, "k").await.unwrap_err().to_string());
                tokio::task::yield_now().await;
            }
            errors
        });
    }
    for error in checks.join_all().await.concat() {
        let reason = error.rsplit(": ").next().unwrap_or_default();
        assert!(
            !reason.is_empty() && error.contains(&server.address()),
            "{error}"
        );
    }
}

/// A proxy that loses one reply. All later replies on the connection answer the call before.
#[tokio::test]
async fn connection_that_lost_a_reply_is_never_used_again() {
    let server = RedisServer::start();
    let upstream = Upstream::of(&server);
    let loses_reply = Arc::new(AtomicBool::new(false));
    let loses = Arc::clone(&loses_reply);
    let proxy = FakeRedis::start(move |command, arguments| {
        let is_call = command == "EVALSHA" && arguments[1] == b"1";
        match command {
            "EVAL" | "EVALSHA" | "SCRIPT" => {
                let reply = upstream.pass_on(command, arguments);
                let is_lost = is_call && loses.swap(false, Ordering::SeqCst);
                Some(if is_lost { Vec::new() } else { reply })
            }
            _ => greeting(command, arguments),
        }
    });
    let store = RedisStore::builder("tollgate").url(proxy.url());
    let store = store.without_circuit_breaker().deny_for(Duration::ZERO);
    let store = store.connect().await.unwrap();
    assert!(check(&store, "alice").await.unwrap().allowed());
    loses_reply.store(true, Ordering::SeqCst);
    let lost = check(&store, "alice").await.unwrap_err();
    assert!(lost.is_timeout() && lost.may_have_charged(), "{lost}");
    for client in 0..20 {
        let decision = check(&store, &format!("client-{client}")).await.unwrap();
        assert_eq!(decision.remaining(), 4, "the answer to this check");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(proxy.connections(), 2);
}
