//! tower-rate-tier, on Redis and in memory.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use redis::aio::ConnectionManagerConfig;
use tower::{Layer, ServiceBuilder};
use tower_rate_tier::{Quota, RateTier, RedisStorage, TierIdentity, TierLimitLayer};

use super::{Allowance, Contender, Setup, Side, handler};
use crate::users::{tenant_of, user};

const TIER: &str = "all";

pub(super) fn on_redis() -> Contender {
    Contender::new(Side::Peer, "tower-rate-tier", |setup| async move {
        on_redis_by(&setup, "user")
            .await
            .identifier_fn(by_user)
            .layer(handler())
    })
}

pub(super) fn three_on_redis() -> Contender {
    Contender::new(Side::Peer, "3 x tower-rate-tier", |setup| async move {
        let by_tenant =
            |headers: &HeaderMap| Some(TierIdentity::new(tenant_of(user(headers)?), TIER));
        let everybody = |_: &HeaderMap| Some(TierIdentity::new("everybody", TIER));
        ServiceBuilder::new()
            .layer(on_redis_by(&setup, "user").await.identifier_fn(by_user))
            .layer(on_redis_by(&setup, "tenant").await.identifier_fn(by_tenant))
            .layer(on_redis_by(&setup, "all").await.identifier_fn(everybody))
            .service(handler())
    })
}

pub(super) fn in_memory() -> Contender {
    Contender::new(
        Side::Peer,
        "tower-rate-tier, in memory",
        |setup| async move { layer(&setup, None).identifier_fn(by_user).layer(handler()) },
    )
    .in_memory()
}

fn by_user(headers: &HeaderMap) -> Option<TierIdentity> {
    Some(TierIdentity::new(user(headers)?, TIER))
}

async fn on_redis_by(setup: &Setup, prefix: &str) -> TierLimitLayer {
    let config = ConnectionManagerConfig::new().set_response_timeout(None);
    let client = redis::Client::open(&*setup.redis_url).expect("the URL is valid");
    let manager = client.get_connection_manager_with_config(config).await;
    let storage = RedisStorage::new(manager.expect("Redis is up"))
        .key_prefix(format!("trt:{prefix}:"))
        .timeout(Duration::from_secs(5))
        .plain_user_ids();
    layer(setup, Some(storage))
}

fn layer(setup: &Setup, storage: Option<RedisStorage>) -> TierLimitLayer {
    let Allowance { burst, every_ms } = setup.allowance;
    // The greatest burst that it supports, at the same rate.
    let burst = burst.min(1_000_000_000);
    let window = Duration::from_millis(every_ms.into()) * burst;
    let mut tiers = RateTier::builder()
        .tier(TIER, Quota::with_window(burst, window))
        .default_tier(TIER);
    if let Some(storage) = storage {
        tiers = tiers.storage(Arc::new(storage));
    }
    TierLimitLayer::new(tiers.build())
}
