//! What is behind an address: several servers, a proxy that knows few commands, a server that turns
//! new connections away, a connection that others have used.

#![cfg(feature = "redis")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redis::Commands;
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::fake_redis::{FakeRedis, greeting};
use crate::support::log::Log;
use crate::support::pass_on::Upstream;

fn ten() -> Limit {
    Limit::fixed_window("api", Quota::per_hour(10)).unwrap()
}

/// A proxy that sends each command to the server of its first key, and answers others itself.
fn spreading(servers: &[RedisServer]) -> FakeRedis {
    let servers: Vec<_> = servers.iter().map(Upstream::of).collect();
    FakeRedis::start(move |command, arguments| match command {
        "EVAL" | "EVALSHA" => {
            let mut hasher = DefaultHasher::new();
            arguments[2].hash(&mut hasher);
            let server = &servers[hasher.finish() as usize % servers.len()];
            Some(server.pass_on(command, arguments))
        }
        "SCRIPT" => {
            let replies = servers
                .iter()
                .map(|server| server.pass_on(command, arguments));
            replies.last()
        }
        _ => greeting(command, arguments),
    })
}

#[tokio::test]
async fn proxy_that_spreads_keys_over_servers_is_rejected_with_the_reason() {
    let servers = [(); 3].map(|()| RedisServer::start());
    for number in 2..=servers.len() {
        let proxy = spreading(&servers[..number]);
        for _ in 0..20 {
            let rejected = RedisStore::connect(&proxy.url(), "shop").await.unwrap_err();
            let rejected = rejected.to_string();
            assert!(
                rejected.contains("this address leads to several servers"),
                "{rejected}"
            );
        }
    }
    let proxy = spreading(&servers[..1]);
    let limiter = RateLimiter::redis(&proxy.url(), "shop").await.unwrap();
    assert!(
        limiter
            .check(&ten(), &Key::new("alice"))
            .await
            .unwrap()
            .allowed()
    );
}

#[tokio::test]
async fn check_of_whether_an_address_is_one_server_leaves_no_key() {
    let server = RedisServer::start();
    drop(server.limiter().await);
    let keys: Vec<String> = server.connection().keys("*").unwrap();
    assert_eq!(keys, [""; 0]);
}

#[tokio::test]
async fn server_without_lua_is_named_as_that() {
    let server = FakeRedis::start(|command, arguments| match command {
        "EVAL" | "EVALSHA" | "SCRIPT" => {
            Some(b"-ERR Could not find scripting engine 'lua'\r\n".to_vec())
        }
        _ => greeting(command, arguments),
    });
    let error = RedisStore::connect(&server.url(), "shop")
        .await
        .unwrap_err();
    let error = error.to_string();
    assert!(error.contains("this server runs without Lua"), "{error}");
}

/// Everything that is not needed to decide is unknown here: `CLIENT`, `INFO`, `TIME`, and `SCRIPT`.
#[tokio::test]
async fn proxy_that_knows_few_commands_is_used_if_it_can_decide() {
    let server = RedisServer::start();
    let upstream = Upstream::of(&server);
    let flushed = Arc::new(AtomicBool::new(false));
    let flush = Arc::clone(&flushed);
    let proxy = FakeRedis::start(move |command, arguments| {
        if flush.swap(false, Ordering::SeqCst) {
            upstream.pass_on("SCRIPT", &[b"FLUSH".to_vec()]);
        }
        match command {
            "EVAL" | "EVALSHA" | "PING" => Some(upstream.pass_on(command, arguments)),
            "AUTH" => Some(b"+OK\r\n".to_vec()),
            _ => Some(format!("-ERR unknown command '{command}'\r\n").into_bytes()),
        }
    });
    let store = RedisStore::builder("shop")
        .url(proxy.url())
        .client_name("shop-1");
    let store = store
        .deadline(Duration::from_secs(20))
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let alice = Key::new("alice");
    for left in (0..10).rev() {
        // The server forgets the script, which cannot be loaded.
        flushed.store(left % 3 == 0, Ordering::SeqCst);
        let decision = limiter.check(&ten(), &alice).await.unwrap();
        assert_eq!((decision.allowed(), decision.remaining()), (true, left));
    }
    assert!(!limiter.check(&ten(), &alice).await.unwrap().allowed());
}

#[tokio::test]
async fn sentence_of_a_server_that_turns_connections_away_is_in_the_error_and_the_event() {
    let (log, _guard) = Log::start();
    let server = RedisServer::start_with(&["--maxclients", "1"]);
    let _only_one = server.connection();
    let error = RedisStore::connect(&server.url(), "shop")
        .await
        .unwrap_err();
    let sentence = "the server closes new connections: ERR max number of clients reached";
    assert!(error.to_string().contains(sentence), "{error}");
    let lazy = RateLimiter::redis_lazy(&server.url(), "shop").unwrap();
    let error = lazy.check(&ten(), &Key::new("alice")).await.unwrap_err();
    assert!(error.to_string().contains(sentence), "{error}");
    let lines = log.lines();
    assert!(
        lines.iter().any(|line| line.contains(sentence)),
        "{lines:?}"
    );
}

/// Redis in protected mode answers connections from other machines so.
#[tokio::test]
async fn server_in_protected_mode_is_reported_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            drop(stream.write_all(b"-DENIED Redis is running in protected mode because\r\n"));
        }
    });
    let error = RedisStore::connect(&url, "shop")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("DENIED Redis is running in protected mode"),
        "{error}"
    );
    assert!(!error.contains("check the host"), "{error}");
}

#[tokio::test]
async fn server_of_another_protocol_is_named_as_what_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut asked = [0; 512];
            drop(stream.read(&mut asked));
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
        }
    });
    let error = RedisStore::connect(&url, "shop").await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("does not speak the Redis protocol"),
        "{error}"
    );
}

#[tokio::test]
async fn pooled_connection_on_another_database_is_brought_back_to_that_of_the_pool() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(format!("{}3", server.url()));
    let pool = pool.builder().unwrap().max_size(2).build().unwrap();
    {
        let mut connection = pool.get().await.unwrap();
        let select = redis::cmd("SELECT").arg(5).to_owned();
        select.query_async::<()>(&mut connection).await.unwrap();
    }
    let limiter = RateLimiter::new(RedisStore::builder("shop").pool(pool).build().unwrap());
    assert!(
        limiter
            .check(&ten(), &Key::new("alice"))
            .await
            .unwrap()
            .allowed()
    );
    let mut connection = server.connection();
    let keys = |database: u32, connection: &mut redis::Connection| -> Vec<String> {
        let () = redis::cmd("SELECT")
            .arg(database)
            .query(connection)
            .unwrap();
        connection.keys("*").unwrap()
    };
    assert_eq!(keys(5, &mut connection), [""; 0]);
    assert_eq!(keys(3, &mut connection), ["shop:{alice}:w:api"]);
}
