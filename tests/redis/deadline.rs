//! The deadline bounds every phase of a check: whatever hangs on the way to Redis, its caller
//! returns.
//!
//! In most tests the clock is paused. When nothing is left but to wait, it jumps to the next timer.
//! So the time that has passed is exactly the deadline, however busy the machine is.

#![cfg(feature = "redis")]

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tollgate::store::{Credentials, RedisStoreBuilder};
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::fake_redis::{FakeRedis, greeting};

const DEADLINE: Duration = Duration::from_millis(250);

/// Asserts that checks fail at their deadline, and not later: alone, and many at once.
async fn assert_bounded(store: RedisStoreBuilder, phase: &str) {
    let store = store
        .deadline(DEADLINE)
        .without_circuit_breaker()
        .build()
        .unwrap();
    let limiter = RateLimiter::new(store);
    let limit = Limit::gcra("api", Quota::per_second(10)).unwrap();
    for checks in [1, 100] {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for key in 0..checks {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tasks.spawn(async move { limiter.check(&limit, &Key::from(key)).await });
        }
        while let Some(answer) = tasks.join_next().await {
            let error = answer.unwrap().unwrap_err();
            assert!(error.is_unavailable(), "{phase}: {error}");
        }
        // tokio's timers have a resolution of a millisecond.
        let elapsed = start.elapsed();
        assert!(
            elapsed >= DEADLINE,
            "{phase}: {checks} in {elapsed:?}: it does not hang there"
        );
        assert!(
            elapsed <= DEADLINE + Duration::from_millis(2),
            "{phase}: {checks} in {elapsed:?}"
        );
    }
}

/// A peer that accepts connections and never speaks.
async fn silent() -> TcpListener {
    TcpListener::bind(("127.0.0.1", 0)).await.unwrap()
}

fn to(scheme: &str, listener: &TcpListener) -> RedisStoreBuilder {
    let address = listener.local_addr().unwrap();
    RedisStore::builder("tollgate").url(format!("{scheme}://limiter:hunter2@{address}/"))
}

#[tokio::test(start_paused = true)]
async fn provider_of_credentials_that_never_returns_is_bounded() {
    let store =
        RedisStore::builder("tollgate").credentials(pending::<Result<Credentials, Infallible>>);
    assert_bounded(store, "credentials").await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_never_accepts_is_bounded() {
    let full = silent().await;
    let address = full.local_addr().unwrap();
    // As many as the backlog holds, and more: the next handshake gets no answer.
    let mut backlog = JoinSet::new();
    for _ in 0..5_000 {
        backlog.spawn(TcpStream::connect(address));
    }
    tokio::task::yield_now().await;
    assert_bounded(to("redis", &full), "TCP").await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_accepts_and_never_speaks_is_bounded() {
    let silent = silent().await;
    assert_bounded(to("redis", &silent), "AUTH").await;
}

#[cfg(feature = "tls")]
#[tokio::test(start_paused = true)]
async fn tls_handshake_without_an_answer_is_bounded() {
    let silent = silent().await;
    assert_bounded(to("rediss", &silent), "TLS").await;
}
#[tokio::test(start_paused = true)]
async fn sentinels_that_never_speak_are_bounded() {
    let silent = silent().await;
    let address = silent.local_addr().unwrap();
    let url = format!("redis-sentinel://{address},{address}/mymaster");
    assert_bounded(RedisStore::builder("tollgate").url(url), "sentinels").await;
}

/// In real time, because the server has to get so far.
#[tokio::test(flavor = "multi_thread")]
async fn validation_and_script_without_an_answer_are_bounded() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let mut phases = JoinSet::new();
    for about in ["AUTH", "PING", "EVAL", "SCRIPT", "EVALSHA"] {
        phases.spawn(async move {
            // It answers everything but one command.
            let asked = Arc::new(AtomicBool::new(false));
            let was_asked = Arc::clone(&asked);
            let server = FakeRedis::start(move |command, arguments| {
                if command == about {
                    asked.store(true, Ordering::SeqCst);
                    std::thread::park_timeout(Duration::from_secs(3_600));
                }
                greeting(command, arguments)
            });
            let store = RedisStore::builder("tollgate")
                .url(server.url())
                .without_circuit_breaker();
            let limiter = RateLimiter::new(store.deadline(Duration::from_secs(1)).build().unwrap());
            let limit = Limit::gcra("api", Quota::per_second(10)).unwrap();
            let answer = timeout(PATIENCE, limiter.check(&limit, &Key::new("alice"))).await;
            let error = answer
                .unwrap_or_else(|_| panic!("{about}: it hangs"))
                .unwrap_err();
            assert!(error.is_unavailable(), "{about}: {error}");
            assert!(was_asked.load(Ordering::SeqCst), "{about} was not sent");
        });
    }
    phases.join_all().await;
}
