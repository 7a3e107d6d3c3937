//! A process that was stopped for a while, as by SIGSTOP or a paused container, whose connections
//! were closed meanwhile.

#![cfg(all(feature = "redis", unix))]

use std::io::stdin;
use std::process::Command;
use std::time::Duration;

use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::process::{Process, answer};

const THAWS: usize = 10;

fn signal(process: &Process, signal: &str) {
    let id = process.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status();
    assert!(sent.expect("there is a `kill`").success());
}

/// A replica of a service, in a process of its own. A line on its input is a check.
async fn replica() {
    let url = std::env::var("REPLICA_URL").unwrap();
    let store = RedisStore::builder("frozen")
        .url(url)
        .deadline(Duration::from_secs(20))
        .without_circuit_breaker();
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let limit = Limit::token_bucket("api", Quota::per_second(1_000)).unwrap();
    let (lines, mut asked) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        stdin()
            .lines()
            .map_while(Result::ok)
            .try_for_each(|it| lines.send(it))
    });
    while asked.recv().await.is_some() {
        match limiter.check(&limit, &Key::new("alice")).await {
            Ok(decision) => answer(&format!("allowed: {}", decision.allowed())),
            Err(error) => answer(&error),
        }
    }
}

#[tokio::test]
#[ignore = "a part of the tests below, in a process of its own"]
async fn replica_with_one_worker() {
    replica().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a part of the tests below, in a process of its own"]
async fn replica_with_workers() {
    tokio::spawn(replica()).await.unwrap();
}

fn check_after_thaws(test: &str) {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let mut process = Process::start(test, &[("REPLICA_URL", &server.url())]);
    for thaw in 0..THAWS {
        assert_eq!(process.ask("check"), "allowed: true");
        signal(&process, "-STOP");
        // The connection counts as idle when the process goes on.
        std::thread::sleep(Duration::from_millis(300));
        let () = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .query(&mut connection)
            .unwrap();
        process.send("check");
        signal(&process, "-CONT");
        assert_eq!(process.receive(), "allowed: true", "thaw {thaw}");
    }
}

#[test]
fn check_after_a_freeze_finds_the_closed_connection_before_it_is_sent() {
    check_after_thaws("frozen::replica_with_one_worker");
}

#[test]
fn check_after_a_freeze_on_a_runtime_with_workers_is_not_lost() {
    check_after_thaws("frozen::replica_with_workers");
}
