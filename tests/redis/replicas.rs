//! Processes that decide without waiting for Redis, for the tests of both kinds of asynchronous
//! limits.
#![cfg(feature = "redis")]

use std::time::Duration;

use tokio::task::yield_now;
use tollgate::decision::Source;
use tollgate::{Decision, Key, Limit, RateLimiter};

use crate::support::RedisServer;

const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn alice() -> Key {
    Key::new("alice")
}

/// A process. On a slow machine, no answer comes after its deadline.
pub(crate) async fn limiter_of(server: &RedisServer) -> RateLimiter {
    let store = server.store().deadline(TIMEOUT / 2).connect();
    RateLimiter::new(store.await.unwrap())
}

/// The units that Redis has charged, as a process without units sees it.
pub(crate) async fn used(server: &RedisServer, limit: &Limit) -> u64 {
    let limiter = limiter_of(server).await;
    let peeked = limiter.peek(limit, &alice(), 0).await.unwrap();
    limit.quota().capacity() - peeked.remaining()
}

pub(crate) fn is_decided_here(decision: &Decision) -> bool {
    decision.source() == Source::Asynchronous
}

/// Checks one unit at a time until a check is denied. Returns the allowed checks, and those among
/// them that this process decided by itself.
pub(crate) async fn spend(limiter: &RateLimiter, limit: &Limit) -> (u64, u64) {
    let (mut allowed, mut here) = (0, 0);
    loop {
        let decision = limiter.check(limit, &alice()).await.unwrap();
        if !decision.allowed() {
            return (allowed, here);
        }
        allowed += 1;
        here += u64::from(is_decided_here(&decision));
        yield_now().await;
    }
}

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future)
        .await
        .expect("it ends in a minute")
}
