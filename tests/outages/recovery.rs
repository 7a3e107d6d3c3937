//! The Redis store while a server hangs, stops or closes connections, and after it has recovered.

#![cfg(feature = "redis")]

use std::time::{Duration, Instant};

use crate::support::RedisServer;
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

/// Checks until the store has recovered.
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
async fn hung_server_fails_checks_at_the_deadline() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(100);
    let store = RedisStore::builder("tollgate")
        .url(server.url())
        .deadline(deadline)
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    drop(limiter.check(&limit, &key).await.unwrap());

    server.pause(true);
    let started = Instant::now();
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(error.may_have_charged());
    // A server that accepts connections and does not answer makes no difference.
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.is_timeout() || error.is_unreachable(), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "it does not hang"
    );

    server.pause(false);
    let decision = decide_again(&limiter, &limit, &key).await;
    // The charges whose answers were lost happened at most once each: none was sent again.
    assert!((1..=3).contains(&decision.remaining()), "{decision:?}");
}

#[tokio::test]
async fn stopped_server_fails_checks_at_once_until_it_returns() {
    let mut server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());

    server.kill();
    while limiter
        .check(&limit, &key)
        .await
        .is_err_and(|error| error.may_have_charged())
    {}
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.is_unreachable() || error.is_circuit_open(), "{error}");

    let _restarted = RedisServer::start_on(server.port()).expect("the port is free again");
    let decision = decide_again(&limiter, &limit, &key).await;
    assert_eq!(
        decision.remaining(),
        4,
        "the new server has neither keys nor the script"
    );
}

#[tokio::test]
async fn closed_idle_connection_is_replaced_within_the_same_check() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_day(50)).unwrap();
    let key = Key::new("alice");
    let mut connection = server.connection();
    for left in (40..50).rev() {
        assert_eq!(limiter.check(&limit, &key).await.unwrap().remaining(), left);
        let () = redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal"])
            .query(&mut connection)
            .unwrap();
        let list = |connection: &mut redis::Connection| -> String {
            redis::cmd("CLIENT").arg("LIST").query(connection).unwrap()
        };
        while list(&mut connection).lines().count() > 1 {}
        // A connection counts as idle after 100 ms.
        tokio::time::sleep(Duration::from_millis(110)).await;
    }
}

#[tokio::test]
async fn concurrent_checks_make_one_connection_after_an_outage() {
    let mut server = RedisServer::start();
    let limiter = server.limiter().await;
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

    let restarted = RedisServer::start_on(server.port()).expect("the port is free again");
    drop(decide_again(&limiter, &limit, &key).await);
    assert!(storm(limiter.clone()).await.iter().all(Result::is_ok));
    let mut connection = restarted.connection();
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut connection)
        .unwrap();
    assert_eq!(
        clients.lines().count(),
        2,
        "the store's and this one:\n{clients}"
    );
}

#[tokio::test]
async fn server_turned_replica_gets_a_new_connection() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let key = Key::new("alice");
    let mut connection = server.connection();
    let mut store_connection = || -> String {
        let clients: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut connection)
            .unwrap();
        let others = clients.lines().filter(|line| !line.contains("cmd=client"));
        others
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect()
    };
    drop(limiter.check(&limit, &key).await.unwrap());
    let before = store_connection();

    let mut control = server.connection();
    let () = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(1)
        .query(&mut control)
        .unwrap();
    let error = limiter.check(&limit, &key).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("read"), "{error}");
    let () = redis::cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .query(&mut control)
        .unwrap();
    drop(control);
    assert_eq!(decide_again(&limiter, &limit, &key).await.remaining(), 3);
    assert_ne!(store_connection(), before);
}

#[tokio::test]
async fn concurrent_checks_share_one_connection_attempt() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let accepted = std::thread::spawn(move || {
        // Closes and counts all connections, until one of them sends `stop`.
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
    let limiter = RateLimiter::new(RedisStore::builder("tollgate").url(&url).build().unwrap());
    let limit = Limit::gcra("api", Quota::per_minute(5)).unwrap();
    let mut checks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        checks.spawn(async move { limiter.check(&limit, &Key::new("k")).await });
    }
    assert!(checks.join_all().await.iter().all(Result::is_err));
    let address = url
        .trim_start_matches("redis://")
        .trim_end_matches('/')
        .to_owned();
    let stop = move || {
        let mut stop = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stop, b"stop").unwrap();
        accepted.join().unwrap()
    };
    // The runtime goes on: the attempts to connect end by their timeouts.
    let accepted = tokio::task::spawn_blocking(stop).await.unwrap();
    assert!(accepted < 10, "{accepted} connections for 100 checks");
}
