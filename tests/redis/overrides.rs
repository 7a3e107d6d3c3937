//! Overrides in Redis, which all replicas follow.

#![cfg(feature = "config")]

use std::time::{Duration, Instant};

use redis::Commands;
use tokio::time::{sleep, timeout};
use tollgate::clock::ManualClock;
use tollgate::overrides::{Override, Overrides};
use tollgate::{Limit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::log::Log;

const SECOND: Duration = Duration::from_secs(1);

/// Far more than any change takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

const HASH: &str = "tollgate-config:overrides";

/// A replica, and the overrides that it follows.
struct Replica {
    overrides: Overrides,
    limiter: RateLimiter,
}

impl Replica {
    fn new(store: RedisStore) -> Self {
        let overrides = Overrides::in_redis(&store).unwrap();
        let limiter = RateLimiter::builder(store).overrides(&overrides);
        Self {
            overrides,
            limiter: limiter.build().unwrap(),
        }
    }

    async fn of(server: &RedisServer) -> Self {
        Self::new(server.store().connect().await.unwrap())
    }

    /// The capacity that a key has under a limit of 10.
    async fn capacity(&self, key: &'static str) -> u64 {
        let api = Limit::gcra("api", Quota::per_minute(10)).unwrap();
        self.limiter.peek(&api, key, 0).await.unwrap().capacity()
    }

    fn has(&self, key: &'static str) -> bool {
        self.overrides.get("api", key).is_some()
    }
}

fn raised(key: &str, units: u64) -> Override {
    Override::quota("api", key, Quota::per_minute(units))
}

/// The replicas that are subscribed to the channel.
fn subscriptions(server: &RedisServer) -> u64 {
    let mut count = redis::cmd("PUBSUB");
    count.arg("NUMSUB").arg(HASH);
    let (_, count): (String, u64) = count.query(&mut server.connection()).unwrap();
    count
}

/// Waits for what another task does.
async fn until(is_so: impl Fn() -> bool) {
    let turns = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, turns).await.expect("it becomes so");
}

#[tokio::test]
async fn override_is_in_force_on_all_replicas_within_a_second_and_gone_as_fast() {
    let server = RedisServer::start();
    let mut replicas = Vec::new();
    for _ in 0..5 {
        replicas.push(Replica::of(&server).await);
    }
    let operator = &replicas[0].overrides;
    operator.set(raised("bob", 20)).await.unwrap();
    for replica in &replicas {
        until(|| replica.has("bob")).await;
    }
    server.reset_calls();
    let mut fastest = LONG;
    for _ in 0..5 {
        let began = Instant::now();
        operator.set(raised("acme", 100)).await.unwrap();
        assert_eq!(
            replicas[0].capacity("acme").await,
            100,
            "at once where it is set"
        );
        for replica in &replicas {
            until(|| replica.has("acme")).await;
            assert_eq!(replica.capacity("acme").await, 100);
        }
        assert!(operator.remove("api", "acme").await.unwrap());
        for replica in &replicas {
            until(|| !replica.has("acme")).await;
            assert_eq!(replica.capacity("acme").await, 10);
        }
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < SECOND, "{fastest:?}");
    assert_eq!(server.calls("hscan"), 0, "only what changed is read");
    assert!(!operator.remove("api", "acme").await.unwrap());
}

#[tokio::test]
async fn override_comes_back_from_redis_as_it_was_set() {
    let server = RedisServer::start();
    let store = server.store().connect().await.unwrap();
    let overrides = Overrides::in_redis(&store).unwrap();
    let week = 7 * 24 * 60 * 60 * SECOND;
    let all = [
        raised("acme", 100).lasting(week).with_author("maria"),
        Override::quota("api", "burst", Quota::new(7, SECOND * 3 / 2).burst(70)),
        Override::quota("api", "month", "900/30d".parse::<Quota>().unwrap()),
        Override::unlimited("the api", "a b").with_reason("{\"a\": \"b\"} é"),
        Override::denied("zz", "mallory", "suspended: call us"),
        Override::permits("zz", "zoe", 7),
    ];
    for one in all.iter().rev() {
        overrides.set(one.clone()).await.unwrap();
    }
    let other = Overrides::in_redis(&server.store().connect().await.unwrap()).unwrap();
    assert_eq!(other.list().await.unwrap(), all);
    let text: String = server.connection().hget(HASH, "a%20b the api").unwrap();
    assert_eq!(text, r#"{"unlimited":true,"reason":"{\"a\": \"b\"} é"}"#);
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn calendar_of_a_quota_is_the_calendar_of_its_limit() {
    let server = RedisServer::start();
    let replica = Replica::of(&server).await;
    let quota = Quota::per_month(10).starting_on_day(15).unwrap();
    let month = Limit::fixed_window("month", quota).unwrap();
    let wrong = Override::quota("month", "acme", quota);
    let error = replica.overrides.set(wrong).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("because the limit has them; leave them out"),
        "{error}"
    );
    let more = Override::quota("month", "acme", Quota::per_month(50));
    replica.overrides.set(more).await.unwrap();
    let check = async |key: &'static str| replica.limiter.check(&month, key).await.unwrap();
    let (acme, bob) = (check("acme").await, check("bob").await);
    assert_eq!((acme.remaining(), bob.remaining()), (49, 9));
    let difference = acme.reset_after().abs_diff(bob.reset_after());
    assert!(difference < LONG, "{difference:?}");
}

#[tokio::test]
async fn change_that_was_not_announced_is_read_after_ten_seconds() {
    let server = RedisServer::start();
    let replica = Replica::of(&server).await;
    until(|| subscriptions(&server) == 1).await;
    let operator = Replica::of(&server).await.overrides;
    operator.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    let mut cli = server.connection();
    let () = cli.hset(HASH, "bob api", r#"{"quota":"50/min"}"#).unwrap();
    let () = cli.hincr(HASH, "version", 1).unwrap();
    until(|| replica.has("bob")).await;
    assert_eq!(replica.capacity("bob").await, 50);
    // An announced change after one that was not.
    let () = cli.hdel(HASH, "bob api").unwrap();
    let () = cli.hincr(HASH, "version", 1).unwrap();
    let began = Instant::now();
    operator.set(raised("carol", 30)).await.unwrap();
    until(|| !replica.has("bob")).await;
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn malformed_override_is_reported_and_the_others_are_in_force() {
    let server = RedisServer::start();
    let mut cli = server.connection();
    let malformed = [
        ("mallory api", "no JSON"),
        ("(acme api", r#"{"unlimited":true}"#),
        ("alone", r#"{"unlimited":true}"#),
        ("both api", r#"{"unlimited":true,"quota":"5/min"}"#),
        ("when api", r#"{"unlimited":true,"until":"tomorrow"}"#),
        ("other api", r#"{"unlimited":true,"forever":true}"#),
        ("zero api", r#"{"quota":"many/min"}"#),
    ];
    for (field, value) in malformed {
        let () = cli.hset(HASH, field, value).unwrap();
    }
    let not_utf8: [(&[u8], &[u8]); 2] = [
        (b"\xffkey api", br#"{"unlimited":true}"#),
        (
            b"coffee api",
            b"{\"unlimited\":true,\"reason\":\"caf\xe9\"}",
        ),
    ];
    for (field, value) in not_utf8 {
        let () = cli.hset(HASH, field, value).unwrap();
    }
    let () = cli.hset(HASH, "version", 7).unwrap();
    let () = cli
        .hset(HASH, "acme api", r#"{"quota":"100/min"}"#)
        .unwrap();
    let (log, _guard) = Log::start();
    let replica = Replica::of(&server).await;
    until(|| replica.has("acme")).await;
    assert_eq!(replica.capacity("acme").await, 100);
    assert_eq!(replica.overrides.list().await.unwrap().len(), 1);
    let lines = log.lines();
    for (field, _) in malformed {
        let is_reported = |line: &String| {
            line.contains("override malformed") && line.contains(&format!("\"{field}\""))
        };
        assert!(lines.iter().any(is_reported), "{field}: {lines:#?}");
    }
    let is_no_utf8 = |line: &&String| line.contains("it is not UTF-8");
    assert!(lines.iter().filter(is_no_utf8).count() >= 2, "{lines:#?}");
    // Read alone, it is also none.
    assert!(!replica.overrides.remove("api", "nobody").await.unwrap());
    assert!(replica.overrides.remove("api", "coffee").await.unwrap());
    // A value of another kind is not read, and what was known stays.
    let () = cli.del(HASH).unwrap();
    let () = cli.set(HASH, "a string").unwrap();
    let error = replica.overrides.list().await.unwrap_err();
    assert!(error.is_misuse(), "{error}");
    assert_eq!(replica.capacity("acme").await, 100);
}

#[tokio::test]
async fn overrides_outlive_an_outage_and_a_redis_that_lost_them() {
    let mut server = RedisServer::start();
    let port = server.port();
    let (log, _guard) = Log::start();
    let replica = Replica::of(&server).await;
    replica.overrides.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    server.kill();
    let unread = || {
        let lines = log.lines();
        lines.iter().any(|line| line.contains("overrides not read"))
    };
    until(unread).await;
    assert!(replica.has("acme"));
    let error = replica.overrides.set(raised("bob", 50)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    // It comes back without data.
    let server = RedisServer::start_on(port).unwrap();
    let mut capacity = Err("no answer yet");
    while capacity.is_err() {
        let api = Limit::gcra("api", Quota::per_minute(10)).unwrap();
        let peeked = replica.limiter.peek(&api, "acme", 0).await;
        capacity = peeked.map(|it| it.capacity()).map_err(|_| "no answer yet");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(capacity, Ok(100), "the process keeps what it had");
    let lost = || {
        let lines = log.lines();
        lines.iter().any(|line| line.contains("the hash is gone"))
    };
    until(lost).await;
    let operator = Replica::of(&server).await;
    operator.overrides.set(raised("bob", 50)).await.unwrap();
    until(|| replica.has("bob")).await;
    assert!(!replica.has("acme"), "now Redis has overrides again");
}

#[tokio::test]
async fn override_ends_by_the_clock_of_the_store_and_makes_room() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let start = 1_790_000_000 * SECOND;
    clock.set(start);
    let store = server.store().clock(clock.clone()).connect().await.unwrap();
    let replica = Replica::new(store);
    let minute = std::time::SystemTime::UNIX_EPOCH + start + 60 * SECOND;
    replica
        .overrides
        .set(raised("acme", 100).until(minute))
        .await
        .unwrap();
    assert_eq!(replica.capacity("acme").await, 100);
    // The rest of the room, in one call.
    let mut fill = redis::cmd("HSET");
    fill.arg(HASH);
    for number in 1..100_000 {
        fill.arg(format!("{number} api"))
            .arg(r#"{"quota":"20/min"}"#);
    }
    let () = fill.query(&mut server.connection()).unwrap();
    let bob = raised("bob", 50);
    let error = replica.overrides.set(bob.clone()).await.unwrap_err();
    assert!(
        error.is_misuse() && error.to_string().contains("100000 overrides"),
        "{error}"
    );
    clock.set(start + 60 * SECOND);
    assert_eq!(replica.capacity("acme").await, 10);
    // The clock of another process may be slow.
    replica.overrides.set(bob.clone()).await.unwrap_err();
    clock.set(start + 11 * 60 * SECOND);
    replica.overrides.set(bob).await.unwrap();
    assert_eq!(replica.overrides.list().await.unwrap().len(), 100_000);
    assert_eq!(replica.capacity("99999").await, 20);
    let gone: Option<String> = server.connection().hget(HASH, "acme api").unwrap();
    assert_eq!(gone, None, "it has ended");
}

#[test]
fn ended_override_that_is_renewed_before_it_is_removed_stays() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let change = |text: &str, only_if: &str| {
        let mut eval = redis::cmd("EVAL");
        eval.arg(include_str!("../../scripts/overrides.lua"));
        eval.arg(1).arg(HASH).arg("channel").arg(100_000);
        eval.arg("acme api").arg(text).arg(only_if);
        eval
    };
    let [ended, renewed] =
        ["2026-01-01", "2027-01-01"].map(|end| format!(r#"{{"quota":"20/min","until":"{end}"}}"#));
    for (text, only_if, changed) in [
        (&*ended, "", 1),
        (&*renewed, "", 1),
        ("", &*ended, 0),
        ("", &*renewed, 1),
        ("", &*renewed, 0),
    ] {
        let answer: i64 = change(text, only_if).query(&mut connection).unwrap();
        assert_eq!(answer, changed, "{text} if {only_if}");
    }
}

#[tokio::test]
async fn malformed_version_is_mended_by_the_next_change() {
    let versions: [&[u8]; 8] = [
        b"X",
        b"",
        b"inf",
        b"nan",
        b"-5",
        b"1e300",
        b"\xff",
        b"9007199254740993",
    ];
    for malformed in versions {
        let server = RedisServer::start();
        let replica = Replica::of(&server).await;
        let operator = Replica::of(&server).await;
        operator.overrides.set(raised("acme", 100)).await.unwrap();
        until(|| replica.has("acme")).await;
        let mut connection = server.connection();
        let () = connection.hset(HASH, "version", malformed).unwrap();
        assert_eq!(replica.overrides.list().await.unwrap().len(), 1);
        operator.overrides.set(raised("bob", 50)).await.unwrap();
        until(|| replica.has("bob")).await;
        operator.overrides.remove("api", "acme").await.unwrap();
        until(|| !replica.has("acme")).await;
        let version: String = connection.hget(HASH, "version").unwrap();
        let version: u64 = version.parse().unwrap();
        assert!(version < 1 << 53, "{malformed:?}: {version}");
    }
}

#[tokio::test]
async fn store_with_a_pool_reads_the_version_each_second() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(server.url());
    let pool = pool
        .create_pool(Some(deadpool_redis::Runtime::Tokio1))
        .unwrap();
    let store = RedisStore::builder("tollgate").pool(pool);
    let replica = Replica::new(store.connect().await.unwrap());
    let operator = Replica::of(&server).await;
    operator.overrides.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    assert_eq!(replica.capacity("acme").await, 100);
}

#[tokio::test]
async fn documented_rights_are_enough_for_a_replica_and_for_an_operator() {
    let server = RedisServer::start();
    let mut admin = server.connection();
    let documented = |user: &str, further: &[&str]| {
        let rights = "+evalsha +eval +script|load +time +mget +exists +psetex +del +getrange +set \
                      +setrange +strlen +pexpire +pttl +ping +unwatch";
        let mut set = redis::cmd("ACL");
        set.arg("SETUSER").arg(user).arg("on").arg(">secret");
        set.arg("~tollgate:*")
            .arg("resetchannels")
            .arg("&tollgate-config:*")
            .arg("-@all");
        for right in rights.split(' ').chain(further.iter().copied()) {
            set.arg(right);
        }
        set
    };
    // Redis 6 has no rights to read alone.
    let has_reading_rights = server.version() >= 7;
    let readable = match has_reading_rights {
        true => "%R~tollgate-config:*",
        false => "~tollgate-config:*",
    };
    let replica = documented(
        "replica",
        &[readable, "+subscribe", "+hget", "+hmget", "+hscan"],
    );
    let operator = documented(
        "operator",
        &[
            "~tollgate-config:*",
            "+hget",
            "+hscan",
            "+hset",
            "+hdel",
            "+hlen",
            "+publish",
        ],
    );
    let () = replica.query(&mut admin).unwrap();
    let () = operator.query(&mut admin).unwrap();
    let store_of = async |user: &str| {
        let url = format!("redis://{user}:secret@127.0.0.1:{}/", server.port());
        let store = RedisStore::builder("tollgate")
            .url(url)
            .deadline(20 * SECOND);
        store.connect().await.unwrap()
    };
    let replica = Replica::new(store_of("replica").await);
    let operator = Overrides::in_redis(&store_of("operator").await).unwrap();
    operator.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    let error = replica.overrides.set(raised("bob", 100)).await.unwrap_err();
    let missing = match has_reading_rights {
        true => "add `~tollgate-config:*`",
        false => "can't run this command",
    };
    assert!(
        error.is_misuse() && error.to_string().contains(missing),
        "{error}"
    );
    assert!(operator.remove("api", "acme").await.unwrap());
    until(|| !replica.has("acme")).await;
}

#[test]
fn overrides_in_redis_need_a_runtime() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(server.store().connect()).unwrap();
    let error = Overrides::in_redis(&store).unwrap_err();
    assert!(
        error.to_string().contains("inside of a tokio runtime"),
        "{error}"
    );
}

#[tokio::test]
async fn key_without_an_override_costs_no_call() {
    let server = RedisServer::start();
    let replica = Replica::of(&server).await;
    replica.overrides.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    let api = Limit::gcra("api", Quota::per_minute(1_000)).unwrap();
    for key in ["acme", "bob"] {
        drop(replica.limiter.check(&api, key).await.unwrap());
        server.reset_calls();
        for _ in 0..20 {
            drop(replica.limiter.check(&api, key).await.unwrap());
        }
        assert_eq!(server.calls("evalsha"), 20, "{key}");
        // The announcement of what it has set itself may come late.
        let read = server.calls("hget") + server.calls("hmget");
        assert!(read <= 2, "{key}: {read}");
    }
}

/// As after a failover that lost the last write.
#[tokio::test]
async fn replica_that_has_read_a_lost_change_reads_the_next_one() {
    let server = RedisServer::start();
    let replica = Replica::of(&server).await;
    let operator = Replica::of(&server).await.overrides;
    until(|| subscriptions(&server) == 1).await;
    operator.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    let mut cli = server.connection();
    let dump: Vec<u8> = redis::cmd("DUMP").arg(HASH).query(&mut cli).unwrap();
    operator
        .set(Override::unlimited("api", "lost"))
        .await
        .unwrap();
    until(|| replica.has("lost")).await;
    let mut restore = redis::cmd("RESTORE");
    restore.arg(HASH).arg(0).arg(dump).arg("REPLACE");
    let () = restore.query(&mut cli).unwrap();
    let denied = Override::denied("api", "mallory", "suspended");
    operator.set(denied).await.unwrap();
    until(|| replica.has("mallory") && !replica.has("lost")).await;
    assert!(replica.has("acme"));
}

#[tokio::test]
async fn override_without_a_possible_end_does_not_end() {
    let server = RedisServer::start();
    let replica = Replica::of(&server).await;
    let century = 100 * 366 * 24 * 60 * 60 * SECOND;
    for centuries in [70, 80, 90, 1_000_000] {
        let long = raised("acme", 100).lasting(century * centuries);
        replica.overrides.set(long.clone()).await.unwrap();
        assert_eq!(replica.overrides.get("api", "acme"), Some(long));
    }
}

#[tokio::test]
async fn forged_announcement_hides_no_override() {
    let server = RedisServer::start();
    let replica = Replica::of(&server).await;
    let operator = Replica::of(&server).await.overrides;
    until(|| subscriptions(&server) == 1).await;
    operator.set(raised("acme", 100)).await.unwrap();
    until(|| replica.has("acme")).await;
    let mut cli = server.connection();
    for (field, key) in [("bob api", "carol"), ("no-name", "dave")] {
        let version: u64 = cli.hget(HASH, "version").unwrap();
        let forged = format!("{version} {} {field}", version + 60_000_000);
        let () = cli.publish(HASH, forged).unwrap();
        operator.set(raised(key, 100)).await.unwrap();
        until(|| replica.has(key)).await;
    }
    assert!(replica.has("acme") && !replica.has("bob"));
}
