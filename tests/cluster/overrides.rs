//! Overrides on a real Redis Cluster.

#![cfg(all(feature = "redis", feature = "config"))]

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tollgate::overrides::{Override, Overrides};
use tollgate::{Limit, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;

/// More than a failover takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn replica(cluster: &Cluster) -> (RateLimiter, Overrides) {
    let store = RedisStore::builder("tollgate").url(cluster.url());
    let store = store.deadline(Duration::from_secs(20));
    let store = store.connect().await.unwrap();
    let overrides = Overrides::in_redis(&store).unwrap();
    let limiter = RateLimiter::builder(store).overrides(&overrides);
    (limiter.build().unwrap(), overrides)
}

async fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it becomes so");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_are_followed_on_a_cluster_and_after_their_master_is_lost() {
    let mut cluster = Cluster::that_fails_over();
    let (limiter, overrides) = replica(&cluster).await;
    let (_, operator) = replica(&cluster).await;
    let raise = |units| Override::quota("api", "acme", Quota::per_minute(units));
    let api = Limit::gcra("api", Quota::per_minute(10)).unwrap();
    let capacity = async |key: &'static str| {
        let peeked = limiter.peek(&api, key, 0).await;
        peeked.map(|it| it.capacity())
    };
    operator.set(raise(100)).await.unwrap();
    until(|| overrides.get("api", "acme").is_some()).await;
    assert_eq!(capacity("acme").await.unwrap(), 100);
    // Keys of other partitions have their own limit.
    for key in ["bob", "carol", "dave"] {
        assert_eq!(capacity(key).await.unwrap(), 10);
    }

    // The master with the hash is lost, and its replica takes over.
    let holds = |node: usize| {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("tollgate-config:*overrides")
            .query(&mut cluster.nodes[node].connection())
            .unwrap();
        !keys.is_empty()
    };
    let master = (0..3).find(|master| holds(*master)).unwrap();
    cluster.nodes[master].kill();
    assert!(overrides.get("api", "acme").is_some(), "it is in memory");
    let began = Instant::now();
    while operator.set(raise(200)).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "the replica takes over");
        sleep(Duration::from_millis(50)).await;
    }
    let is_raised = || {
        let raised = overrides.get("api", "acme");
        raised.is_some_and(|it| it == raise(200))
    };
    until(is_raised).await;
}
