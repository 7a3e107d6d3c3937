//! Prefetching on a real Redis: replicas that share a limit, refunds of unspent units, and an
//! outage.
#![cfg(feature = "redis")]

use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tollgate::decision::Source;
use tollgate::store::Prefetch;
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A replica of a service, with a Redis connection of its own.
struct Replica {
    store: Prefetch<RedisStore>,
    limiter: RateLimiter,
}

impl Replica {
    async fn start(server: &RedisServer, limit: &Limit) -> Self {
        let redis = server
            .store()
            .without_circuit_breaker()
            .connect()
            .await
            .unwrap();
        // The longest `max_age`: a slow machine must not make a block stale.
        let prefetch = Prefetch::builder(redis)
            .limit(limit)
            .max_age(Duration::from_secs(10));
        let store = prefetch.build().unwrap();
        Self {
            limiter: RateLimiter::new(store.clone()),
            store,
        }
    }

    /// Checks one unit at a time until a check is denied. Returns the allowed checks, and those
    /// among them that prefetched units answered.
    async fn spend(&self, limit: &Limit) -> (u64, u64) {
        let (mut allowed, mut prefetched) = (0, 0);
        loop {
            let decision = self.limiter.check(limit, &Key::global()).await.unwrap();
            if !decision.allowed() {
                return (allowed, prefetched);
            }
            allowed += 1;
            prefetched += u64::from(decision.source() == Source::Prefetched);
            yield_now().await;
        }
    }

    /// Checks one unit at a time until prefetched units answer. Returns the allowed checks.
    async fn heat(&self, limit: &Limit) -> u64 {
        for allowed in 1.. {
            let decision = self.limiter.check(limit, &Key::global()).await.unwrap();
            assert!(decision.allowed());
            if decision.source() == Source::Prefetched {
                return allowed;
            }
            yield_now().await;
        }
        unreachable!("a test does not check forever")
    }
}

fn per_day(units: u64) -> Limit {
    Limit::fixed_window("all", Quota::per_day(units)).unwrap()
}

/// The units that Redis has charged.
async fn used(server: &RedisServer, limit: &Limit) -> u64 {
    let limiter = RateLimiter::new(server.store().connect().await.unwrap());
    let peeked = limiter.peek(limit, &Key::global(), 0).await.unwrap();
    limit.quota().capacity() - peeked.remaining()
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future)
        .await
        .expect("it ends in a minute")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_on_one_redis_allow_exactly_the_limit_together() {
    let (server, limit) = (RedisServer::start(), per_day(20_000));
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&server, &limit).await);
    }
    let (mut allowed, mut prefetched) = (0, 0);
    // A replica may be denied while another holds units: those are spent in a later round.
    let spend_all = async {
        while allowed < limit.quota().capacity() {
            let mut spending = JoinSet::new();
            for replica in replicas.drain(..) {
                let limit = limit.clone();
                spending.spawn(async move {
                    let spent = replica.spend(&limit).await;
                    replica.store.release().await.unwrap();
                    (replica, spent)
                });
            }
            for (replica, spent) in spending.join_all().await {
                replicas.push(replica);
                allowed += spent.0;
                prefetched += spent.1;
            }
            assert!(allowed <= used(&server, &limit).await);
        }
    };
    in_time(spend_all).await;
    assert_eq!(allowed, 20_000);
    assert!(prefetched > 0, "some of them were prefetched");
    for replica in &replicas {
        assert_eq!(replica.spend(&limit).await, (0, 0));
    }
}

#[tokio::test]
async fn release_and_drop_refund_the_block_on_redis() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let replica = Replica::start(&server, &limit).await;
    let mut allowed = in_time(replica.heat(&limit)).await;
    assert!(
        used(&server, &limit).await > allowed,
        "units are prefetched"
    );
    replica.store.release().await.unwrap();
    assert_eq!(used(&server, &limit).await, allowed);

    allowed += in_time(replica.heat(&limit)).await;
    drop(replica);
    // A background task refunds the units.
    in_time(async { while used(&server, &limit).await != allowed {} }).await;
}

#[tokio::test]
async fn outage_allows_only_prefetched_units_until_redis_returns() {
    let (mut server, limit) = (RedisServer::start(), per_day(10_000));
    let replica = Replica::start(&server, &limit).await;
    let mut allowed = in_time(replica.heat(&limit)).await;
    let charged = used(&server, &limit).await;
    server.kill();

    let spend_block = async {
        loop {
            match replica.limiter.check(&limit, &Key::global()).await {
                Ok(decision) => {
                    assert_eq!(
                        (decision.allowed(), decision.source()),
                        (true, Source::Prefetched)
                    );
                    allowed += 1;
                }
                Err(error) => break error,
            }
        }
    };
    let error = in_time(spend_block).await;
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(allowed, charged, "only prefetched units can be spent");
    let error = replica
        .limiter
        .check(&limit, &Key::global())
        .await
        .unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    let _server = RedisServer::start_on(server.port()).expect("the port is free again");
    // Attempts to connect are spaced out.
    let recover = async {
        while replica.limiter.check(&limit, &Key::global()).await.is_err() {
            yield_now().await;
        }
    };
    in_time(recover).await;
    in_time(replica.heat(&limit)).await;
}

/// A rolling change of a limit: each replica prefetches under the quota that it knows, and checks
/// under both.
#[tokio::test(flavor = "multi_thread")]
async fn quotas_that_change_while_units_are_prefetched_allow_no_more_than_the_larger_one() {
    let server = RedisServer::start();
    let quotas =
        [10_000, 6_000].map(|units| Limit::token_bucket("api", Quota::per_day(units)).unwrap());
    let replicas = [
        Replica::start(&server, &quotas[0]).await,
        Replica::start(&server, &quotas[1]).await,
    ];
    let (mut allowed, mut denied, mut prefetched, mut random) = (0_u64, 0, 0, 1_u64);
    while denied < 5_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let replica = &replicas[(random >> 33) as usize % 2];
        let limit = &quotas[(random >> 40) as usize % 2];
        let decision = in_time(replica.limiter.check(limit, &Key::global()))
            .await
            .unwrap();
        allowed += u64::from(decision.allowed());
        denied += u64::from(!decision.allowed());
        prefetched += u64::from(decision.source() == Source::Prefetched);
        yield_now().await;
    }
    assert!(prefetched > 0, "some of them were prefetched");
    for replica in &replicas {
        in_time(replica.store.release()).await.unwrap();
    }
    let charged = used(&server, &quotas[0]).await;
    println!("{charged} charged, {allowed} allowed, {prefetched} of them prefetched");
    // A unit refills in nine seconds.
    assert!((6_000..=10_005).contains(&allowed), "{allowed}");
    assert!(
        charged + 5 >= allowed,
        "{charged} charged, {allowed} allowed"
    );
}
