//! Limits of one name with two quotas, in two processes on one prefix.

#![cfg(feature = "redis")]

use std::time::{Duration, Instant};

use redis::Commands;
use tokio::time::{advance, pause, resume, sleep};
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
fn two_quotas_that_are_used_for_an_hour_are_found() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    assert_eq!(notes.note_both(59, "10 per 1s", "20 per 1s"), [""; 0]);
    assert_eq!(
        notes.note_both(60, "10 per 1s", "20 per 1s"),
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
    // For fifty minutes, both versions run.
    for minute in 60..=110 {
        notes.note(minute * MINUTE, &["b:api", "10 per 1s"]);
        assert_eq!(
            notes.note(minute * MINUTE, &["b:api", "20 per 1s"]),
            [""; 0]
        );
    }
    for minute in 111..=300 {
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
    notes.note_both(90, "10 per 1s", "20 per 1s");
    let found = notes.note(90 * MINUTE + 5, &["b:api", "10 per 1s"]);
    assert_eq!(found, ["b:api", "10 per 1s", "20 per 1s"]);
}

#[test]
fn limits_of_another_name_or_kind_of_state_are_no_second_quota() {
    let server = RedisServer::start();
    let mut notes = Notes::of(&server);
    for minute in 0..=90 {
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
        r#"{"b:api":{"x":[null,5]}}"#,
        r#"{"b:api":{"x":["a",5]}}"#,
        r#"{"b:api":{"x":[0,9999999999]}}"#,
        r#"{"b:api":{"x":[-1,-1]}}"#,
        r#"{"b:api":{"x":[NaN,NaN]}}"#,
        r#"{"b:api":{"x":[0,1e999]}}"#,
        r#"{"b:api":[[0,0],[0,0]]}"#,
        &format!(r#"{{"b:api":{{"{}":[0,0]}}}}"#, "x".repeat(1 << 20)),
    ] {
        let () = notes.0.set("shop:limits", value).unwrap();
        assert_eq!(notes.note(0, &["b:api", "10 per 1s"]), [""; 0]);
        let kept: String = notes.0.get("shop:limits").unwrap();
        assert_eq!(kept, r#"{"b:api":{"10 per 1s":[0,0]}}"#);
        let ttl: u64 = notes.0.pttl("shop:limits").unwrap();
        assert!((1..=300_000).contains(&ttl), "{value}: {ttl}");
    }
    let () = notes.0.del("shop:limits").unwrap();
    let () = notes.0.rpush("shop:limits", "x").unwrap();
    assert_eq!(notes.note(0, &["b:api", "10 per 1s"]), [""; 0], "a list");
}

fn told_of_quotas(log: &Log) -> impl Iterator<Item = String> {
    let is_told = |line: &String| line.contains("another quota elsewhere");
    log.lines().into_iter().filter(is_told)
}

/// Advances the clock of the tasks, and gives them time to note in. One that was not asleep yet
/// notes after the next advance.
async fn let_a_minute_pass() {
    pause();
    advance(Duration::from_secs(MINUTE)).await;
    resume();
    // There is no event for a note that was written.
    sleep(Duration::from_millis(20)).await;
}

/// Waits until a condition holds, for a minute at most.
async fn until(what: &str, is_so: impl FnMut() -> bool) {
    work_until(what, async || (), is_so).await;
}

/// The same, with work in each minute.
async fn work_until(what: &str, work: impl AsyncFn(), mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        work().await;
        let_a_minute_pass().await;
    }
}

/// Limiters of one prefix. They run on one thread, whose clock is advanced, and the time in Redis
/// is set by hand.
struct Services {
    server: RedisServer,
    clock: ManualClock,
    log: Log,
}

impl Services {
    fn new(log: &Log) -> Self {
        Self {
            server: RedisServer::start(),
            clock: ManualClock::new(),
            log: log.clone(),
        }
    }

    async fn limiter(&self) -> RateLimiter {
        let store = self.server.store_of("shop").clock(self.clock.clone());
        RateLimiter::new(store.connect().await.unwrap())
    }

    /// Lets minutes pass. In each, the services `work`, and so many quotas are noted. Only in the
    /// last minute may they be told.
    async fn run(&self, minutes: u64, quotas: usize, work: impl AsyncFn()) -> Vec<String> {
        let mut connection = self.server.connection();
        let mut told = Vec::new();
        for minute in 0..=minutes {
            assert_eq!(told, [""; 0], "minute {minute}");
            let noted = format!("{}]", minute * MINUTE);
            work_until("all have noted", &work, || {
                let value: String = connection.get("shop:limits").unwrap_or_default();
                value.matches(&noted).count() == quotas
            })
            .await;
            told.extend(told_of_quotas(&self.log));
            self.clock.advance(Duration::from_secs(MINUTE));
        }
        told
    }

    /// Waits until both services were told that a limit has the other's quota.
    async fn until_told(&self, mut told: Vec<String>) {
        // The reply to the last note may be in flight.
        until("both log the event", || {
            told.extend(told_of_quotas(&self.log));
            told.len() >= 2
        })
        .await;
        told.sort_unstable_by_key(|line| line.contains("other=\"10"));
        let expected = r#"limit="api" quota="10 per 1s (gcra)" other="20 per 1s (gcra)""#;
        assert!(told[0].contains(expected), "{}", told[0]);
    }
}

fn api(per_second: u64) -> Limit {
    Limit::gcra("api", Quota::per_second(per_second)).unwrap()
}

#[tokio::test]
async fn services_note_their_quotas_and_are_told_of_another() {
    let (log, _guard) = Log::start();
    let services = Services::new(&log);
    let (ten, twenty) = (services.limiter().await, services.limiter().await);
    ten.register(&api(10)).unwrap();
    twenty.register(&api(20)).unwrap();
    let told = services.run(60, 2, async || ()).await;
    services.until_told(told).await;
}

#[tokio::test]
async fn services_are_told_of_another_quota_of_limits_that_nobody_registered() {
    let (log, _guard) = Log::start();
    let services = Services::new(&log);
    let (ten, twenty) = (services.limiter().await, services.limiter().await);
    let check = async || {
        for (limiter, quota) in [(&ten, 10), (&twenty, 20)] {
            let decided = limiter.check(&api(quota), "alice").await;
            assert!(decided.is_ok());
        }
    };
    let told = services.run(60, 2, check).await;
    services.until_told(told).await;
}

#[tokio::test]
async fn service_is_not_told_of_checks_under_a_quota_that_it_did_not_register() {
    let (log, _guard) = Log::start();
    let services = Services::new(&log);
    let limiter = services.limiter().await;
    limiter.register(&api(10)).unwrap();
    let check = async || {
        let decided = limiter.check(&api(50), "alice").await;
        assert!(decided.is_ok());
    };
    let told = services.run(63, 2, check).await;
    assert_eq!(told, [""; 0]);
}

#[tokio::test]
async fn services_that_choose_among_several_quotas_are_not_told() {
    let (log, _guard) = Log::start();
    let services = Services::new(&log);
    let (one, other) = (services.limiter().await, services.limiter().await);
    // One of them has no customers of the third plan.
    let check = async || {
        for (limiter, quotas) in [(&one, &[10, 20, 50][..]), (&other, &[10, 20])] {
            for quota in quotas {
                let decided = limiter.check(&api(*quota), "alice").await;
                assert!(decided.is_ok());
            }
        }
    };
    // Both write the same, so there is one time in the note.
    let told = services.run(63, 1, check).await;
    assert_eq!(told, [""; 0]);
    let mut connection = services.server.connection();
    let noted: String = connection.get("shop:limits").unwrap();
    assert_eq!(noted, r#"{"b:api":{"several":[0,3780]}}"#);
}

/// The quotas that a limiter of its own notes, of a file with three plans.
#[cfg(feature = "config")]
async fn noted_quotas_of_plans(server: &RedisServer, prefix: &str) -> String {
    use tollgate::RateLimitLayer;
    use tollgate::config::{Config, Format, LimitSet, Names};

    let text = "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"10/h\"\n\
                key = \"global\"\nplan = \"account\"\nplans.a.quota = \"100/h\"\n\
                plans.b.quota = \"200/h\"\nplans.c.quota = \"300/h\"\n";
    let config = Config::parse("limits.toml", text, Format::Toml).unwrap();
    let limits = LimitSet::new(config, Names::new().plan("account", |_| None::<&str>)).unwrap();
    let store = server.store_of(prefix).clock(ManualClock::new());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let _layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
    let mut connection = server.connection();
    let mut noted = String::new();
    until("it has noted", || {
        noted = connection
            .get(format!("{prefix}:limits"))
            .unwrap_or_default();
        !noted.is_empty()
    })
    .await;
    noted
}

#[cfg(feature = "config")]
#[tokio::test]
async fn quotas_of_plans_are_noted_in_the_same_order_by_all_processes() {
    let server = RedisServer::start();
    let first = noted_quotas_of_plans(&server, "first").await;
    for number in 0..8 {
        let noted = noted_quotas_of_plans(&server, &format!("shop{number}")).await;
        assert_eq!(noted, first);
    }
}

#[test]
fn user_with_the_documented_rights_writes_notes() {
    let server = RedisServer::start();
    let rights = "+evalsha +eval +script|load +time +mget +exists +psetex +del +getrange +set \
                  +setrange +strlen +pexpire +pttl +ping +unwatch";
    let mut command = redis::cmd("ACL");
    command.arg(&["SETUSER", "limiter", "on", ">secret", "~shop:*"]);
    let () = command
        .arg(rights.split(' ').collect::<Vec<_>>())
        .query(&mut server.connection())
        .unwrap();
    let url = server.url().replace("//", "//limiter:secret@");
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let denied = include_str!("../../scripts/denied.lua");
    let () = redis::cmd("EVAL")
        .arg(denied)
        .arg(&["1", "shop:denied:1", "login", "mallory", "7"])
        .query(&mut connection)
        .unwrap();
    let mut notes = Notes(connection);
    assert_eq!(notes.note(0, &["b:api", "10 per 1s"]), [""; 0]);
    let mut connection = server.connection();
    let kept: String = connection.get("shop:denied:1").unwrap();
    assert_eq!(kept, r#"{"login":{"mallory":7}}"#);
}

#[test]
fn minute_with_values_of_another_program_heals() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let script = include_str!("../../scripts/denied.lua");
    for value in [
        "{",
        "7",
        r#"{"a":[1]}"#,
        r#"{"a":{"k":NaN}}"#,
        r#"{"a":{"k":-1}}"#,
        r#"{"a":7}"#,
        r#"{"a":{"k":1e999}}"#,
        "[[0,1,2,3]]",
    ] {
        let () = connection.set("m", value).unwrap();
        let () = redis::cmd("EVAL")
            .arg(script)
            .arg(&["1", "m", "login", "mallory", "7"])
            .query(&mut connection)
            .unwrap();
        let kept: String = connection.get("m").unwrap();
        assert!(kept.contains(r#""login":{"mallory":7}"#), "{value}: {kept}");
        let ttl: u64 = connection.pttl("m").unwrap();
        assert!((1..=3_900_000).contains(&ttl), "{value}: {ttl}");
    }
}
