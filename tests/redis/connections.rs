//! The Redis store on a real server: shared budgets, keys, scripts, connections, permissions and
//! settings.

#![cfg(feature = "redis")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::delay::delaying;
use crate::support::limits::limits;
use crate::support::{RedisServer, free_port};
use redis::Commands;
use tollgate::store::Operation;
use tollgate::{Check, Key, Limit, Quota, RateLimiter, RedisStore};

#[tokio::test]
async fn services_with_other_prefixes_share_no_budgets_and_start_without_redis() {
    let server = RedisServer::start();
    let [rest, grpc] =
        ["rest", "grpc"].map(|prefix| RateLimiter::redis_lazy(&server.url(), prefix).unwrap());
    let alice = Key::new("alice");
    let hundred = Limit::token_bucket("api", Quota::per_minute(100)).unwrap();
    let five = Limit::token_bucket("api", Quota::per_minute(5)).unwrap();
    assert!(rest.check_n(&hundred, &alice, 100).await.unwrap().allowed());
    assert_eq!(grpc.check(&five, &alice).await.unwrap().remaining(), 4);
    let away = RateLimiter::redis_lazy("redis://127.0.0.1:1/", "rest").unwrap();
    assert!(
        away.check(&five, &alice)
            .await
            .unwrap_err()
            .is_unavailable()
    );
}

#[tokio::test]
async fn error_tells_a_server_that_is_down_from_a_wrong_setting() {
    let connect = async |url: &str, prefix| RateLimiter::redis(url, prefix).await.unwrap_err();
    let down = format!("redis://127.0.0.1:{}/", free_port());
    assert!(connect(&down, "shop").await.is_of_server());
    let unresolved = connect("redis://no-such-host.invalid/", "shop").await;
    assert!(unresolved.is_of_server(), "{unresolved}");
    let scheme = connect("http://127.0.0.1/", "shop").await;
    assert!(!scheme.is_of_server(), "{scheme}");
    let prefix = connect(&down, "two words").await;
    assert!(!prefix.is_of_server(), "{prefix}");
}

#[tokio::test]
async fn replicas_on_one_redis_share_budgets() {
    let server = RedisServer::start();
    let (one, other) = (server.limiter().await, server.limiter().await);
    let key = Key::new("alice");
    for limit in limits() {
        assert_eq!(one.check_n(&limit, &key, 2).await.unwrap().remaining(), 3);
        assert_eq!(other.check_n(&limit, &key, 2).await.unwrap().remaining(), 1);
        assert!(
            !one.check_n(&limit, &key, 2).await.unwrap().allowed(),
            "{limit}"
        );
    }
}

#[tokio::test]
async fn hostile_keys_stay_in_their_own_budget() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let limit = Limit::fixed_window("api", Quota::per_minute(1)).unwrap();
    let hostile = [
        "}{",
        "a}:api",
        "{a}",
        "a\r\nDEL *",
        "\0",
        "*",
        "",
        "ä",
        "a:b",
        "%00",
    ];
    let keys: Vec<Key> = hostile
        .iter()
        .map(Key::new)
        .chain([Key::new("x".repeat(1 << 20))])
        .collect();
    for key in &keys {
        assert!(
            limiter.check(&limit, key).await.unwrap().allowed(),
            "{key:?}"
        );
        assert!(
            !limiter.check(&limit, key).await.unwrap().allowed(),
            "{key:?}"
        );
    }
    let stored: Vec<String> = connection.keys("*").unwrap();
    assert_eq!(stored.len(), keys.len());
    assert!(
        stored
            .iter()
            .all(|key| key.len() < 160 && key.ends_with("}:w:api"))
    );
}

#[tokio::test]
async fn limits_of_a_key_share_a_hash_slot() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let key = Key::from_parts(["10.0.0.1", "GET /search"]);
    for limit in limits() {
        drop(limiter.check(&limit, &key).await.unwrap());
    }
    let stored: Vec<String> = connection.keys("*").unwrap();
    let tag = format!("{{{}}}", key.as_str());
    assert_eq!(stored.len(), limits().len());
    assert!(stored.iter().all(|key| key.matches(&tag).count() == 1));
}

#[tokio::test]
async fn flushed_script_is_loaded_within_the_same_check() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut connection = server.connection();
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    for left in (0..5).rev() {
        let () = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query(&mut connection)
            .unwrap();
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), left);
    }
}

#[tokio::test]
async fn flushed_script_costs_a_distant_server_one_more_round_trip() {
    let server = RedisServer::start();
    let delay = Arc::new(AtomicU64::new(0));
    let port = delaying(server.port(), Arc::clone(&delay)).await;
    let store = RedisStore::builder("tollgate").url(format!("redis://127.0.0.1:{port}/"));
    let limiter = RateLimiter::new(
        store
            .deadline(Duration::from_secs(3))
            .connect()
            .await
            .unwrap(),
    );
    let () = redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query(&mut server.connection())
        .unwrap();
    // Three round trips are later than the deadline.
    delay.store(1_200, Ordering::Relaxed);
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    assert_eq!(
        limiter
            .check(&limit, &Key::new("alice"))
            .await
            .unwrap()
            .remaining(),
        4
    );
}

#[tokio::test]
async fn user_that_must_not_load_scripts_is_told_so_when_the_script_was_flushed() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let acl = |rules: &[&str], connection: &mut redis::Connection| {
        let () = redis::cmd("ACL")
            .arg("SETUSER")
            .arg("limiter")
            .arg(rules)
            .query(connection)
            .unwrap();
    };
    acl(&["on", ">secret", "~*", "+@all"], &mut connection);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let limiter = RateLimiter::redis(&url, "tollgate").await.unwrap();
    acl(&["-script"], &mut connection);
    let () = redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query(&mut connection)
        .unwrap();
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let error = limiter.check(&limit, &Key::new("alice")).await.unwrap_err();
    // Redis 6 does not name the part of the command.
    let command = match server.version() {
        ..7 => "'script' command",
        _ => "script|load",
    };
    assert!(error.to_string().contains(command), "{error}");
    assert!(
        error.is_unavailable() && !error.may_have_charged(),
        "{error}"
    );
}

#[tokio::test]
async fn checks_send_pings_only_after_idle_time() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    server.reset_calls();
    let limit = Limit::gcra("api", Quota::per_minute(500)).unwrap();
    for _ in 0..50 {
        drop(limiter.check(&limit, &Key::new("alice")).await.unwrap());
    }
    let pings = server.calls("ping");
    assert!(
        pings < 5,
        "{pings} pings: only after the connection was idle"
    );
    assert_eq!(server.calls("evalsha"), 50, "one for each check");
}

#[tokio::test]
async fn store_takes_one_connection_of_a_shared_pool() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(server.url())
        .builder()
        .unwrap()
        .max_size(2)
        .build()
        .unwrap();
    let store = RedisStore::builder("shop").pool(pool.clone());
    let store = store.deadline(Duration::from_secs(20)).build().unwrap();
    let limiter = RateLimiter::new(store);
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    let checks = (0..20).map(|_| limiter.check(&limit, &key));
    let mut allowed = 0;
    for check in checks {
        allowed += u32::from(check.await.unwrap().allowed());
    }
    assert_eq!(allowed, 5);
    let mut own = pool.get().await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(&mut own)
        .await
        .unwrap();
    assert_eq!(keys, ["shop:{alice}:b:api"]);
}

#[tokio::test]
async fn check_dropped_before_its_first_poll_consumes_nothing() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    drop(limiter.apply(Operation::Charge(Check::new(&limit, &key).into())));
    assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 5);
}

#[tokio::test]
async fn invalid_settings_are_errors_of_the_builder() {
    let port = free_port();
    let error = RedisStore::connect(&format!("redis://127.0.0.1:{port}/"), "tollgate")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("check that Redis runs"),
        "{error}"
    );

    for (url, advice) in [
        ("", "is empty"),
        ("localhost", "put `redis://`"),
        (":hunter2@localhost:6379", "put `redis://`"),
        ("http://127.0.0.1/", "redis://[user:password@]host"),
        ("redis://:hunter2@/", ""),
    ] {
        let error = RedisStore::builder("tollgate").url(url).build();
        let error = error
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            !error.contains("hunter2") && error.contains(advice),
            "{error}"
        );
    }
    for prefix in ["", "a b", "a{b", "ä", "redis://127.0.0.1/", "shop:"] {
        let error = RedisStore::builder(prefix).build().unwrap_err();
        assert!(
            error.to_string().starts_with("the key prefix is "),
            "{error}"
        );
    }
    let error = RedisStore::builder("tollgate")
        .deadline(Duration::MAX)
        .build()
        .unwrap_err();
    assert!(error.to_string().ends_with("; use 1ms to 60s"), "{error}");
    let one = deadpool_redis::Config::from_url("redis://127.0.0.1/")
        .builder()
        .unwrap();
    let error = RedisStore::builder("tollgate")
        .pool(one.max_size(1).build().unwrap())
        .build()
        .unwrap_err();
    assert!(
        error.to_string().contains("a max_size of at least 2"),
        "{error}"
    );
    let error = RedisStore::builder("tollgate")
        .deadline(Duration::ZERO)
        .build()
        .unwrap_err();
    assert_eq!(error.to_string(), "`deadline` is 0ns; use 1ms to 60s");
}

#[tokio::test]
async fn unknown_setting_of_a_url_is_an_error_that_repeats_nothing_of_it() {
    for url in [
        "redis://127.0.0.1/?db=1",
        "redis://127.0.0.1/?hunter2=1",
        "redis+unix:///run/redis.sock?db=1&pass=a&hunter2",
        "redis-cluster://127.0.0.1,127.0.0.2/?db=1",
        "redis-sentinel://127.0.0.1/mymaster?db=1",
        "redis-sentinel://127.0.0.1/mymaster?sentinel_hunter2=1",
    ] {
        let error = RedisStore::builder("tollgate")
            .url(url)
            .build()
            .unwrap_err();
        let error = error.to_string();
        assert!(error.contains("unknown setting"), "{url}: {error}");
        assert!(!error.contains("hunter2"), "{url}: {error}");
    }
    for url in [
        "redis://127.0.0.1/1?protocol=resp3",
        "redis+unix:///run/redis.sock?db=1&user=limiter&pass=a&protocol=resp3",
        "redis-cluster://127.0.0.1/?protocol=resp3",
        "redis-sentinel://127.0.0.1/mymaster/1?protocol=resp3&sentinel_username=a&sentinel_password=b",
    ] {
        let store = RedisStore::builder("tollgate").url(url).build();
        assert!(store.is_ok(), "{url}: {:?}", store.err());
    }
}

#[tokio::test]
async fn wrong_or_missing_password_is_an_error_when_the_store_connects() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "open sesame"])
        .query(&mut connection)
        .unwrap();
    let url = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let error = RedisStore::connect(&url, "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("WRONGPASS") || error.to_lowercase().contains("password"),
        "{error}"
    );
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let error = RedisStore::connect(&url, "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("NOAUTH"), "{error}");
}

#[tokio::test]
async fn connections_have_the_name_that_is_set() {
    let server = RedisServer::start();
    let names = || {
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut server.connection())
            .unwrap();
        list.matches("name=orders-api ").count()
    };
    let named = |name: &str| server.store().client_name(name).lanes(2);
    let _store = named("orders-api").connect().await.unwrap();
    assert_eq!(names(), 2);
    for name in ["", "orders api", "orders\n", &"x".repeat(65)] {
        let error = named(name).build().unwrap_err().to_string();
        assert!(
            error.starts_with("`client_name` is ") && error.contains("use 1 to 64"),
            "{error}"
        );
    }
    let mut forbid = redis::cmd("ACL");
    // Redis 6.2 cannot forbid a subcommand alone, and its error names the command.
    forbid.arg(&["SETUSER", "default", "-client"]);
    let () = forbid.query(&mut server.connection()).unwrap();
    let error = named("orders-api").connect().await.unwrap_err().to_string();
    assert!(
        error.contains("add `+client|setname`") || error.contains("add `+client`"),
        "{error}"
    );
}

#[tokio::test]
async fn script_error_names_the_line_of_its_file() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let mut forbid = redis::cmd("ACL");
    forbid.arg(&["SETUSER", "default", "-psetex"]);
    let () = forbid.query(&mut server.connection()).unwrap();
    let error = limiter
        .check(&limits()[0], &Key::new("alice"))
        .await
        .unwrap_err()
        .to_string();
    let (_, rest) = error.split_once("scripts/stored.lua:").expect(&error);
    let line: usize = rest
        .split(|it: char| !it.is_ascii_digit())
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let file = include_str!("../../scripts/stored.lua")
        .lines()
        .nth(line - 1)
        .unwrap();
    assert!(file.contains("PSETEX"), "{error}: {file}");
}
