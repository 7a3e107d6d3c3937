//! Limits of one name with two quotas, in two processes on one prefix.

#![cfg(feature = "redis")]

use std::time::Duration;

use redis::Commands;
use tokio::time::{advance, pause, resume};
use tollgate::clock::ManualClock;
use tollgate::{Limit, Quota, RateLimiter};

use crate::support::RedisServer;
use crate::support::log::Log;

const SCRIPT: &str = include_str!("../../scripts/quotas.lua");

const MINUTE: u64 = 60;

/// The notes of all processes, which note at a time in seconds.
struct Notes(redis::Connection);

impl Notes {
    fn of(server: &RedisServer) -> Self {
        Self(server.connection())
    }

    fn note(&mut self, seconds: u64, limits: &[&str]) -> Vec<String> {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg("shop:limits").arg(seconds);
        command.arg(limits).query(&mut self.0).unwrap()
    }

    /// Two processes note their quotas once a minute, for so long. Returns what the second found
    /// at last.
    fn note_both(&mut self, minutes: u64, first: &str, second: &str) -> Vec<String> {
        let mut found = Vec::new();
        for minute in 0..=minutes {
            self.note(minute * MINUTE, &["b:api", first]);
            found = self.note(minute * MINUTE, &["b:api", second]);
        }
        found
    }
}

#[test]
fn two_quotas_that_are_used_for_ten_minutes_are_found() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    assert_eq!(notes.note_both(9, "10 per 1s", "20 per 1s"), [""; 0]);
    assert_eq!(
        notes.note_both(10, "10 per 1s", "20 per 1s"),
        ["b:api", "20 per 1s", "10 per 1s"]
    );
    let ttl: u64 = notes.0.pttl("shop:limits").unwrap();
    assert!((1..=300_000).contains(&ttl), "{ttl}");
}

#[test]
fn quota_that_a_deployment_replaces_is_not() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    for minute in 0..=60 {
        notes.note(minute * MINUTE, &["b:api", "10 per 1s"]);
    }
    // For five minutes, both versions run.
    for minute in 60..=65 {
        notes.note(minute * MINUTE, &["b:api", "10 per 1s"]);
        assert_eq!(
            notes.note(minute * MINUTE, &["b:api", "20 per 1s"]),
            [""; 0]
        );
    }
    for minute in 66..=120 {
        assert_eq!(
            notes.note(minute * MINUTE, &["b:api", "20 per 1s"]),
            [""; 0]
        );
    }
}

#[test]
fn process_that_starts_finds_two_quotas_at_once_if_both_are_old() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    notes.note_both(30, "10 per 1s", "20 per 1s");
    let found = notes.note(30 * MINUTE + 5, &["b:api", "10 per 1s"]);
    assert_eq!(found, ["b:api", "10 per 1s", "20 per 1s"]);
}

#[test]
fn limits_of_another_name_or_kind_of_state_are_no_second_quota() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    for minute in 0..=20 {
        let first = ["b:api", "10 per 1s"];
        assert_eq!(notes.note(minute * MINUTE, &first), [""; 0]);
        assert_eq!(notes.note(minute * MINUTE, &["w:api", "5 per 1s"]), [""; 0]);
        assert_eq!(
            notes.note(minute * MINUTE, &["b:other", "5 per 1s"]),
            [""; 0]
        );
    }
}

#[test]
fn value_of_another_program_counts_as_none() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    for value in [
        "",
        "{",
        "7",
        "[]",
        r#"{"b:api":7}"#,
        r#"{"b:api":{"x":[]}}"#,
    ] {
        let () = notes.0.set("shop:limits", value).unwrap();
        assert_eq!(notes.note(0, &["b:api", "10 per 1s"]), [""; 0], "{value}");
        let kept: String = notes.0.get("shop:limits").unwrap();
        assert_eq!(kept, r#"{"b:api":{"10 per 1s":[0,0]}}"#, "{value}");
    }
    let () = notes.0.del("shop:limits").unwrap();
    let () = notes.0.rpush("shop:limits", "x").unwrap();
    assert_eq!(notes.note(0, &["b:api", "10 per 1s"]), [""; 0], "a list");
}

fn told_of_quotas(log: &Log) -> impl Iterator<Item = String> {
    let is_told = |line: &String| line.contains("another quota in other processes");
    log.lines().into_iter().filter(is_told)
}

/// Advances the clock of the tasks, and lets them work. One that was not asleep yet notes after the
/// next advance.
async fn let_a_minute_pass() {
    pause();
    advance(Duration::from_secs(MINUTE)).await;
    resume();
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The services run on one thread, whose clock is advanced, and the time in Redis is set by hand.
#[tokio::test]
async fn services_note_their_quotas_and_are_told_of_another() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let (log, _guard) = Log::start();
    let service = async |quota: Quota| {
        let store = server.store_of("shop").clock(clock.clone());
        let limiter = RateLimiter::new(store.connect().await.unwrap());
        limiter
            .register(&Limit::gcra("api", quota).unwrap())
            .unwrap();
        limiter
    };
    let _ten = service(Quota::per_second(10)).await;
    let _twenty = service(Quota::per_second(20)).await;
    let mut connection = server.connection();
    let mut told = Vec::new();
    for minute in 0..=10 {
        // Both have noted when the value has their quotas, at this time.
        let noted = format!("{}]", minute * MINUTE);
        let mut has_both = || {
            let value: String = connection.get("shop:limits").unwrap_or_default();
            value.matches(&noted).count() == 2
        };
        while !has_both() {
            let_a_minute_pass().await;
        }
        assert!(minute < 10 || told.is_empty(), "{told:?}");
        told.extend(told_of_quotas(&log));
        clock.advance(Duration::from_secs(MINUTE));
    }
    // The reply to the last note may be on its way.
    while told.len() < 2 {
        let_a_minute_pass().await;
        told.extend(told_of_quotas(&log));
    }
    told.sort_unstable_by_key(|line| line.contains("other=\"10"));
    assert!(
        told[0].contains(r#"limit="api" quota="10 per 1s (gcra)" other="20 per 1s (gcra)""#),
        "{}",
        told[0]
    );
}
