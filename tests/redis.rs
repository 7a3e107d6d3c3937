//! The Redis store against a real server: what it keeps, what heals, and what happens when the
//! server does not answer.

#![cfg(feature = "redis")]

mod support;

use std::time::{Duration, Instant};

use redis::Commands;
use support::{RedisServer, free_port};
use tollgate::clock::ManualClock;
use tollgate::decision::Receipt;
use tollgate::store::Op;
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter, RedisStore};

/// One limit under each algorithm, 5 units a minute.
fn limits() -> Vec<Limit> {
    let quota = Quota::per_minute(5);
    vec![
        Limit::token_bucket("token_bucket", quota).unwrap(),
        Limit::leaky_bucket("leaky_bucket", quota).unwrap(),
        Limit::gcra("gcra", quota).unwrap(),
        Limit::fixed_window("fixed_window", quota).unwrap(),
        Limit::sliding_window_with("sliding_window", quota, 4).unwrap(),
        Limit::sliding_log("sliding_log", quota).unwrap(),
    ]
}

async fn limiter(server: &RedisServer) -> RateLimiter {
    RateLimiter::new(server.store().connect().await.unwrap())
}

#[tokio::test]
async fn replicas_on_one_redis_share_budgets() {
    let server = RedisServer::start();
    let (one, other) = (limiter(&server).await, limiter(&server).await);
    let key = Key::new("alice");
    for limit in limits() {
        assert_eq!(one.check_n(&limit, &key, 2).await.unwrap().remaining(), 3);
        assert_eq!(other.check_n(&limit, &key, 2).await.unwrap().remaining(), 1);
        assert!(!one.check_n(&limit, &key, 2).await.unwrap().allowed(), "{limit}");
    }
}

#[tokio::test]
async fn peek_changes_neither_value_nor_ttl() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let key = Key::new("alice");
    for limit in limits() {
        limiter.check_n(&limit, &key, 2).await.unwrap();
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        // An expiry that no check would write.
        let _: bool = behind.expire(&redis_key, 1_000_000).unwrap();
        let before: Vec<u8> = behind.get(&redis_key).unwrap();
        assert!(limiter.peek(&limit, &key, 3).await.unwrap().allowed());
        assert!(!limiter.peek(&limit, &key, 4).await.unwrap().allowed());
        assert!(limiter.check_n(&limit, &key, 0).await.unwrap().allowed());
        assert_eq!(behind.get::<_, Vec<u8>>(&redis_key).unwrap(), before, "{limit}");
        assert!(behind.ttl::<_, i64>(&redis_key).unwrap() > 900_000, "{limit}");
    }
}

#[tokio::test]
async fn denied_check_writes_nothing() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let key = Key::new("alice");
    for limit in limits() {
        limiter.check_n(&limit, &key, 5).await.unwrap();
        let changes =
            || ["set", "psetex", "setrange", "pexpire", "del"].map(|command| server.calls(command));
        let before = changes();
        assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
        assert_eq!(changes(), before, "{limit}");
    }
}

#[tokio::test]
async fn reset_and_full_refund_leave_no_key() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    for limit in limits() {
        let (clock, key) = (ManualClock::new(), Key::new("bob"));
        clock.set(Duration::from_secs(1_790_000_000));
        let store = server.store().clock(clock.clone()).build().unwrap();
        let stopped = RateLimiter::new(store);
        let receipt = stopped.check_n(&limit, &key, 5).await.unwrap().receipt().unwrap();
        let refund = async |units| stopped.refund(&limit, &key, units, receipt).await.unwrap();
        assert_eq!(refund(2).await.remaining(), 2, "{limit}");
        assert_eq!(refund(900).await.remaining(), 5, "{limit}");
        let key = Key::new("alice");
        limiter.check_n(&limit, &key, 5).await.unwrap();
        assert_eq!(limiter.reset(&limit, &key).await.unwrap().remaining(), 5, "{limit}");
    }
    assert_eq!(behind.keys::<_, Vec<String>>("*").unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn unreadable_values_count_as_full_budgets_and_are_replaced() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let key = Key::new("alice");
    // With two entries a log has a ring.
    for (limit, entries) in limits().into_iter().flat_map(|limit| [(limit.clone(), 1), (limit, 2)])
    {
        let redis_key = format!("tollgate:{{alice}}:{}:{}", limit.kind(), limit.name());
        limiter.reset(&limit, &key).await.unwrap();
        for _ in 0..entries {
            limiter.check(&limit, &key).await.unwrap();
        }
        let good: Vec<u8> = behind.get(&redis_key).unwrap();
        let mut garbage: Vec<Vec<u8>> = vec![
            Vec::new(),
            b"42".to_vec(),
            good[..good.len() - 1].to_vec(),
            [&good[..], b"x"].concat(),
            vec![0xff; good.len()],
            vec![0; good.len()],
            // More cells than any window has.
            [&good[..2], &[0; 20 + 7 * 9_000]].concat(),
        ];
        // Every single byte wrong, of a value of the right size.
        for place in 0..good.len() {
            let mut value = good.clone();
            value[place] ^= 0xff;
            garbage.push(value);
        }
        for value in garbage {
            let () = behind.set(&redis_key, &value).unwrap();
            let decision = limiter.check(&limit, &key).await;
            let decision = decision.unwrap_or_else(|error| panic!("{limit} {value:?}: {error}"));
            assert!(decision.remaining() <= 5, "{limit} {value:?}");
            let receipt = Receipt::new(decision.decided_at(), 1);
            limiter.refund(&limit, &key, 1, receipt).await.unwrap();
            limiter.peek(&limit, &key, 1).await.unwrap();
            limiter.check_n(&limit, &key, 5).await.unwrap();
        }
        for foreign in ["LPUSH", "SADD"] {
            let () = behind.del(&redis_key).unwrap();
            let () = redis::cmd(foreign).arg(&redis_key).arg("x").query(&mut behind).unwrap();
            assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 5, "{limit}");
            let refund = limiter.refund(&limit, &key, 1, Receipt::new(0, 1)).await.unwrap();
            assert_eq!(refund.remaining(), 5, "{limit}");
            assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 4, "{limit}");
            assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 3, "{limit}");
        }
    }
}

#[tokio::test]
async fn log_with_appended_bytes_is_replaced() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let limit = Limit::sliding_log("log", Quota::per_minute(40)).unwrap();
    // A ring of 32 slots is longer than what is read of a log at first.
    for requests in [1, 5, 35] {
        let key = Key::from(requests);
        for _ in 0..requests {
            limiter.check(&limit, &key).await.unwrap();
        }
        let redis_key = format!("tollgate:{{{requests}}}:l:log");
        let () = behind.append(&redis_key, "junk").unwrap();
        assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 40, "{requests}");
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 39, "{requests}");
        assert_eq!(behind.strlen::<_, usize>(&redis_key).unwrap(), 76, "{requests}");
        assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 39, "{requests}");
    }
}

#[tokio::test]
async fn hostile_keys_stay_in_their_own_budget() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let limit = Limit::fixed_window("api", Quota::per_minute(1)).unwrap();
    let hostile = ["}{", "a}:api", "{a}", "a\r\nDEL *", "\0", "*", "", "ä", "a:b", "%00"];
    let keys: Vec<Key> =
        hostile.iter().map(Key::new).chain([Key::new("x".repeat(1 << 20))]).collect();
    for key in &keys {
        assert!(limiter.check(&limit, key).await.unwrap().allowed(), "{key:?}");
        assert!(!limiter.check(&limit, key).await.unwrap().allowed(), "{key:?}");
    }
    let stored: Vec<String> = behind.keys("*").unwrap();
    assert_eq!(stored.len(), keys.len());
    assert!(stored.iter().all(|key| key.len() < 160 && key.ends_with("}:w:api")));
}

#[tokio::test]
async fn limits_of_a_key_share_a_hash_slot() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let key = Key::from_parts(["10.0.0.1", "GET /search"]);
    for limit in limits() {
        limiter.check(&limit, &key).await.unwrap();
    }
    let stored: Vec<String> = behind.keys("*").unwrap();
    let tag = format!("{{{}}}", key.as_str());
    assert_eq!(stored.len(), limits().len());
    assert!(stored.iter().all(|key| key.matches(&tag).count() == 1));
}

#[tokio::test]
async fn flushed_script_is_loaded_within_the_same_check() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut behind = server.connection();
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    for left in (0..5).rev() {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut behind).unwrap();
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), left);
    }
}

#[tokio::test]
async fn checks_send_pings_only_after_idle_time() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    server.forget_calls();
    let limit = Limit::gcra("api", Quota::per_minute(500)).unwrap();
    for _ in 0..50 {
        limiter.check(&limit, &Key::new("alice")).await.unwrap();
    }
    let pings = server.calls("ping");
    assert!(pings < 5, "{pings} pings: only where the connection was silent for long");
    assert_eq!(server.calls("evalsha"), 50, "one a check");
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
    let store = RedisStore::builder().pool(pool.clone()).prefix("shop");
    let store = store.deadline(Duration::from_secs(20)).build().unwrap();
    let limiter = RateLimiter::new(store);
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    let checks = (0..20).map(|_| limiter.check(&limit, &key));
    let mut admitted = 0;
    for check in checks {
        admitted += u32::from(check.await.unwrap().allowed());
    }
    assert_eq!(admitted, 5);
    let mut own = pool.get().await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut own).await.unwrap();
    assert_eq!(keys, ["shop:{alice}:b:api"]);
}

#[tokio::test]
async fn hung_server_fails_checks_at_the_deadline() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(100);
    let store = RedisStore::builder().url(server.url()).deadline(deadline).connect().await.unwrap();
    let limiter = RateLimiter::new(store);
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    limiter.check(&limit, &key).await.unwrap();

    server.pause(true);
    let started = Instant::now();
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(error.may_have_charged());
    // A server that accepts connections and says nothing is no different.
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.is_timeout() || error.is_unreachable(), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10), "it does not hang");

    server.pause(false);
    let decision = decide_again(&limiter, &limit, &key).await;
    // The charges whose answers were lost happened at most once each: none was sent again.
    assert!((1..=3).contains(&decision.remaining()), "{decision:?}");
}

/// Checks until the store has recovered; the checks that fail meanwhile must not charge.
async fn decide_again(limiter: &RateLimiter, limit: &Limit, key: &Key) -> tollgate::Decision {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        match limiter.check(limit, key).await {
            Ok(decision) => return decision,
            Err(error) => assert!(!error.is_misuse(), "{error}"),
        }
        tokio::task::yield_now().await;
    }
    panic!("the store did not recover");
}

#[tokio::test]
async fn stopped_server_fails_checks_at_once_until_it_returns() {
    let mut server = RedisServer::start();
    let limiter = limiter(&server).await;
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());

    server.kill();
    while limiter.check(&limit, &key).await.is_err_and(|error| error.may_have_charged()) {}
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");

    let _again = RedisServer::start_on(server.port()).expect("the port is free again");
    let decision = decide_again(&limiter, &limit, &key).await;
    assert_eq!(decision.remaining(), 4, "the new server knows nothing, not even the script");
}

#[tokio::test]
async fn closed_idle_connection_is_replaced_within_the_same_check() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let limit = Limit::gcra("api", Quota::per_minute(50)).unwrap();
    let key = Key::new("alice");
    let mut behind = server.connection();
    for left in (40..50).rev() {
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), left);
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut behind).unwrap();
        let list = |behind: &mut redis::Connection| -> String {
            redis::cmd("CLIENT").arg("LIST").query(behind).unwrap()
        };
        while list(&mut behind).lines().count() > 1 {}
        // The subject is a connection that was silent for longer than this.
        tokio::time::sleep(Duration::from_millis(110)).await;
    }
}

#[tokio::test]
async fn concurrent_checks_make_one_connection_after_an_outage() {
    let mut server = RedisServer::start();
    let limiter = limiter(&server).await;
    let limit = Limit::gcra("api", Quota::per_minute(500)).unwrap();
    let key = Key::new("alice");
    server.kill();
    let storm = |limiter: RateLimiter| {
        let (limit, key) = (limit.clone(), key.clone());
        async move {
            let mut checks = tokio::task::JoinSet::new();
            for _ in 0..100 {
                let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
                checks.spawn(async move { limiter.check(&limit, &key).await });
            }
            checks.join_all().await
        }
    };
    assert!(storm(limiter.clone()).await.iter().all(Result::is_err));

    let again = RedisServer::start_on(server.port()).expect("the port is free again");
    decide_again(&limiter, &limit, &key).await;
    assert!(storm(limiter.clone()).await.iter().all(Result::is_ok));
    let mut behind = again.connection();
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut behind).unwrap();
    assert_eq!(clients.lines().count(), 2, "the store's and this one:\n{clients}");
}

#[tokio::test]
async fn check_dropped_before_its_first_poll_consumes_nothing() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    drop(limiter.apply(Op::Charge, &[Check::new(&limit, &key)]));
    assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 5);
}

#[tokio::test]
async fn invalid_settings_are_errors_of_the_builder() {
    let nobody = free_port();
    let error = RedisStore::connect(&format!("redis://127.0.0.1:{nobody}/")).await.unwrap_err();
    assert!(error.to_string().contains("check that Redis runs"), "{error}");

    for url in ["", "localhost", "http://127.0.0.1/", "redis://:hunter2@/"] {
        let error = RedisStore::builder().url(url).build();
        let error = error.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(
            url.contains("hunter2") || error.contains("redis://[user:password@]host"),
            "{error}"
        );
    }
    for prefix in ["", "a b", "a{b", "ä"] {
        let error = RedisStore::builder().prefix(prefix).build().unwrap_err();
        assert!(error.to_string().starts_with("the key prefix"), "{error}");
    }
    let error = RedisStore::builder().deadline(Duration::MAX).build().unwrap_err();
    assert!(error.to_string().ends_with("; use more than 0 and at most 60s"), "{error}");
    let one = deadpool_redis::Config::from_url("redis://127.0.0.1/").builder().unwrap();
    let error = RedisStore::builder().pool(one.max_size(1).build().unwrap()).build().unwrap_err();
    assert!(error.to_string().contains("a max_size of at least 2"), "{error}");
    let error = RedisStore::builder().deadline(Duration::ZERO).build().unwrap_err();
    assert_eq!(error.to_string(), "`deadline` is 0ns; use more than 0 and at most 60s");
}

#[tokio::test]
async fn wrong_or_missing_password_is_an_error_when_the_store_connects() {
    let server = RedisServer::start();
    let mut behind = server.connection();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "open sesame"])
        .query(&mut behind)
        .unwrap();
    let url = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let error = RedisStore::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains("WRONGPASS") || error.to_lowercase().contains("password"), "{error}");
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let error = RedisStore::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains("NOAUTH"), "{error}");
}

#[tokio::test]
async fn documented_permissions_are_enough() {
    let server = RedisServer::start();
    let mut behind = server.connection();
    let rules = "on >secret resetkeys ~tollgate:* resetchannels -@all +evalsha +eval +script|load +time \
                 +mget +exists +get +psetex +del +getrange +set +setrange +strlen +pexpire +ping \
                 +unwatch";
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("limiter");
    for rule in rules.split_whitespace() {
        command.arg(rule);
    }
    let () = command.query(&mut behind).unwrap();
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let limiter = RateLimiter::redis(&url).await.unwrap();
    let key = Key::new("alice");
    for limit in limits() {
        let receipt = limiter.check(&limit, &key).await.unwrap().receipt().unwrap();
        for cost in [1, 9] {
            limiter.check_n(&limit, &key, cost).await.unwrap();
        }
        limiter.refund(&limit, &key, 1, receipt).await.unwrap();
        limiter.reset(&limit, &key).await.unwrap();
    }
    // Several budgets are read with another command than one.
    let (daily, tenant) = (&limits()[0], Key::new("acme"));
    let group = [Check::new(&daily, &key).cost(1), Check::new(&daily, &tenant)];
    assert!(limiter.apply(Op::Charge, &group).await.unwrap().allowed());
}

#[tokio::test]
async fn script_error_names_the_line_of_its_file() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut forbid = redis::cmd("ACL");
    forbid.arg(&["SETUSER", "default", "-psetex"]);
    let () = forbid.query(&mut server.connection()).unwrap();
    let error = limiter.check(&limits()[0], &Key::new("alice")).await.unwrap_err().to_string();
    let (_, rest) = error.split_once("scripts/stored.lua:").expect(&error);
    let line: usize = rest.split(|it: char| !it.is_ascii_digit()).next().unwrap().parse().unwrap();
    let file = include_str!("../scripts/stored.lua").lines().nth(line - 1).unwrap();
    assert!(file.contains("PSETEX"), "{error}: {file}");
}

#[tokio::test]
async fn log_of_a_thousand_requests_is_small() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let limit = Limit::sliding_log("log", Quota::per_minute(1_000)).unwrap();
    let key = Key::new("k");
    for _ in 0..1_000 {
        clock.advance(Duration::from_micros(40_017));
        assert!(limiter.check(&limit, &key).await.unwrap().allowed());
    }
    let usage: u64 = redis::cmd("MEMORY")
        .arg(&["USAGE", "tollgate:{k}:l:log"])
        .query(&mut server.connection())
        .unwrap();
    assert!(usage <= 7_000, "{usage} bytes");
}

#[tokio::test]
async fn cost_of_a_thousand_is_one_log_entry() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let limit = Limit::sliding_log("log", Quota::per_minute(100_000)).unwrap();
    let key = Key::new("k");
    for _ in 0..5 {
        assert!(limiter.check_n(&limit, &key, 1_000).await.unwrap().allowed());
    }
    let size: usize = server.connection().strlen("tollgate:{k}:l:log").unwrap();
    assert!(size < 200, "{size} bytes");
}

#[tokio::test]
async fn growing_log_doubles_and_decides_as_the_embedded_store() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let redis = RateLimiter::new(store.connect().await.unwrap());
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let key = Key::new("k");
    let log = |limit, minutes: u64| {
        Limit::sliding_log("log", Quota::new(limit, Duration::from_secs(60 * minutes))).unwrap()
    };
    let mut limit = log(4_000, 1);
    let mut receipts = Vec::new();
    for step in 0..9_000_u32 {
        clock.advance(Duration::from_micros(11_003));
        match step {
            // Sums need three bytes, then clocks five.
            3_000 => limit = log(70_000, 1),
            5_000 => limit = log(70_000, 90),
            _ => {}
        }
        let cost = if step % 100 == 0 { 7 } else { 1 };
        let expected = memory.check_n(&limit, &key, cost).await.unwrap();
        assert_eq!(redis.check_n(&limit, &key, cost).await.unwrap(), expected, "step {step}");
        receipts.extend(expected.receipt());
        if step % 500 == 499 {
            // Newest, with some newer ones, and with so many that the oldest entries are changed.
            for place in
                [receipts.len() - 1, receipts.len() - 100, receipts.len().max(1_500) - 1_500]
            {
                let receipt = receipts[place];
                let expected = memory.refund(&limit, &key, 5, receipt).await.unwrap();
                let refunded = redis.refund(&limit, &key, 5, receipt).await.unwrap();
                assert_eq!(refunded, expected, "step {step}");
            }
        }
    }
    let rings = server.calls("set");
    assert!(rings < 40, "the ring was written anew {rings} times");
}

#[tokio::test]
async fn log_of_alternating_quotas_is_bounded_by_the_larger_limit() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let log = |limit, seconds| {
        Limit::sliding_log("log", Quota::new(limit, Duration::from_secs(seconds))).unwrap()
    };
    let (long, short) = (log(10, 1_000), log(100, 1));
    let key = Key::new("k");
    let (mut passed, mut longest) = (0, 0);
    for _ in 0..3_000 {
        clock.advance(Duration::from_millis(11));
        passed += u32::from(limiter.check(&short, &key).await.unwrap().allowed());
        assert!(!limiter.check(&long, &key).await.unwrap().allowed() || passed <= 10);
        let length: usize = server.connection().strlen("tollgate:{k}:l:log").unwrap();
        longest = longest.max(length);
    }
    assert!(passed > 2_500, "{passed}");
    assert!(longest <= 76 + 200 * 6, "{longest} bytes for {passed} requests in the long period");
}

#[tokio::test]
async fn log_restarts_its_sums_before_they_lose_precision() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let limit = Limit::sliding_log("log", Quota::per_minute(1_000)).unwrap();
    let key = Key::new("k");
    let redis_key = "tollgate:{k}:l:log";
    for _ in 0..3 {
        clock.advance(Duration::from_millis(1));
        limiter.check(&limit, &key).await.unwrap();
    }
    // Both sums of the head, `before` and `sum`, as after 2^52 units: a multiple of the ring's.
    let mut behind = server.connection();
    for (place, sum) in [(41, 0), (69, 3)] {
        let sum: u64 = (1 << 52) + sum;
        let bytes = &sum.to_be_bytes()[1..];
        let () = behind.setrange(redis_key, place, bytes).unwrap();
    }
    for left in (900..997).rev() {
        clock.advance(Duration::from_millis(1));
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), left);
    }
    let head: Vec<u8> = behind.getrange(redis_key, 69, 75).unwrap();
    assert_eq!(head, 100_u64.to_be_bytes()[1..], "it counts from the beginning again");
}

#[tokio::test]
async fn server_turned_replica_gets_a_new_connection() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    let mut behind = server.connection();
    let mut store_connection = || -> String {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut behind).unwrap();
        let others = clients.lines().filter(|line| !line.contains("cmd=client"));
        others.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    limiter.check(&limit, &key).await.unwrap();
    let before = store_connection();

    let mut control = server.connection();
    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut control).unwrap();
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("read"), "{error}");
    let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut control).unwrap();
    drop(control);
    assert_eq!(decide_again(&limiter, &limit, &key).await.remaining(), 3);
    assert_ne!(store_connection(), before);
}

#[tokio::test]
async fn concurrent_checks_share_one_connection_attempt() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let accepted = std::thread::spawn(move || {
        // Hangs up on everyone, and counts them; told to stop by one who says so.
        let mut accepted = 0;
        for stream in listener.incoming() {
            let mut start = [0; 4];
            let read = std::io::Read::read_exact(&mut stream.unwrap(), &mut start);
            if read.is_ok() && start == *b"stop" {
                break;
            }
            accepted += 1;
        }
        accepted
    });
    let limiter = RateLimiter::new(RedisStore::builder().url(&url).build().unwrap());
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let mut checks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move { limiter.check(&limit, &Key::new("k")).await });
    }
    assert!(checks.join_all().await.iter().all(Result::is_err));
    let address = url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let mut stop = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stop, b"stop").unwrap();
    let accepted = accepted.join().unwrap();
    assert!(accepted < 10, "{accepted} connections for 100 checks");
}

#[tokio::test]
async fn impossible_values_count_as_full_budgets() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let store = server.store().clock(clock.clone());
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let mut behind = server.connection();
    let key = Key::new("k");
    let packed = |kind: u8, numbers: &[(u64, usize)]| -> Vec<u8> {
        let bytes =
            numbers.iter().flat_map(|(number, size)| number.to_be_bytes()[8 - size..].to_vec());
        std::iter::once(kind).chain(bytes).collect()
    };
    let (now, huge) = (1_790_000_000_000_000, (1 << 53) - 1);
    let quota = Quota::per_minute(5);
    for (limit, value) in [
        // It would take 285 years to drain.
        (
            Limit::token_bucket("limit", quota).unwrap(),
            packed(4, &[(now, 7), (huge, 7), (1, 7), (1, 6), (now, 7)]),
        ),
        // It would end in 150 years.
        (
            Limit::fixed_window("limit", quota).unwrap(),
            packed(1, &[(5, 7), (now, 7), (now + (1 << 52), 7), (120_000_000, 6), (now, 7)]),
        ),
        // Two cells' counts could not be added exactly.
        (
            Limit::sliding_window("limit", quota).unwrap(),
            packed(2, &[(2, 1), (60_000_000, 6), (now, 7), (now, 7), (huge, 7), (huge, 7)]),
        ),
    ] {
        let () = behind.set(format!("tollgate:{{k}}:{}:limit", limit.kind()), value).unwrap();
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), 4, "{limit}");
    }
}

#[tokio::test]
async fn stored_values_have_the_format_of_their_kind() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let limiter = RateLimiter::new(server.store().clock(clock.clone()).connect().await.unwrap());
    let quota = Quota::per_minute(5);
    let mut behind = server.connection();
    // A value that another version of this crate reads has to look the same. If this fails, the
    // format changed: give the kind another letter (`Algorithm::kind`), and this list the new value.
    for (limit, expected) in [
        (
            Limit::gcra("limit", quota),
            ("b", "04065bfeda25e001000000022550ff00000000000001000000b71b00065bfeda25e000"),
        ),
        (
            Limit::fixed_window("limit", quota),
            ("w", "0100000000000003065bfeda25e001065bfeddb96700000007270e00065bfeda25e000"),
        ),
        (
            Limit::sliding_window("limit", quota),
            ("s", "0202000003938700065bfeda25e001065bfeda25e0000000000000000300000000000000"),
        ),
        (
            Limit::sliding_log("limit", quota),
            (
                "l",
                "03000003938700000000000005065bfeddb96701065bfeda25e00004010000000500000000000000010000000000000000000000000000065bfeda25e001000000000000010000000000000300000000010000000000000000000000000000000000000000",
            ),
        ),
    ] {
        let limit = limit.unwrap();
        let key = Key::new("k");
        limiter.check(&limit, &key).await.unwrap();
        clock.advance(Duration::from_micros(1));
        limiter.check_n(&limit, &key, 2).await.unwrap();
        let value: Vec<u8> = behind.get(format!("tollgate:{{k}}:{}:limit", limit.kind())).unwrap();
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((limit.kind(), &*hex), expected, "{limit}");
        clock.set(Duration::from_secs(1_790_000_000));
    }
}
