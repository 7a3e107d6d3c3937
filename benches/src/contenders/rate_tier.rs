//! tower-rate-tier, on Redis and in memory.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use redis::aio::ConnectionManagerConfig;
use tower::{Layer, ServiceBuilder};
use tower_rate_tier::{Quota, RateTier, RedisStorage, TierIdentity, TierLimitLayer};

use super::{Allowance, Contender, handler};
use crate::load::send;
use crate::redis_server::Server;
use crate::users::{tenant_of, user};

const TIER: &str = "all";

pub(super) fn on_redis(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("tower-rate-tier", move |load, allowance| {
        let server = server.clone();
        async move {
            let layer = layer(Some(&server), allowance, "user").await.identifier_fn(by_user);
            send(layer.layer(handler()), load, Some(&mut server.connection().await)).await
        }
    })
}

pub(super) fn three_on_redis(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("3 x tower-rate-tier", move |load, allowance| {
        let server = server.clone();
        async move {
            let by_tenant =
                |headers: &HeaderMap| Some(TierIdentity::new(tenant_of(user(headers)?), TIER));
            let everybody = |_: &HeaderMap| Some(TierIdentity::new("everybody", TIER));
            let service = ServiceBuilder::new()
                .layer(layer(Some(&server), allowance, "user").await.identifier_fn(by_user))
                .layer(layer(Some(&server), allowance, "tenant").await.identifier_fn(by_tenant))
                .layer(layer(Some(&server), allowance, "all").await.identifier_fn(everybody))
                .service(handler());
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

pub(super) fn in_memory() -> Contender {
    Contender::peer("tower-rate-tier", |load, allowance| async move {
        let layer = layer(None, allowance, "user").await.identifier_fn(by_user);
        send(layer.layer(handler()), load, None).await
    })
}

fn by_user(headers: &HeaderMap) -> Option<TierIdentity> {
    Some(TierIdentity::new(user(headers)?, TIER))
}

async fn layer(server: Option<&Server>, allowance: Allowance, prefix: &str) -> TierLimitLayer {
    // As many as fit into its numbers, at the same rate.
    let burst = allowance.burst.min(1_000_000_000);
    let window = Duration::from_millis(allowance.every_ms.into()) * burst;
    let mut tiers =
        RateTier::builder().tier(TIER, Quota::with_window(burst, window)).default_tier(TIER);
    if let Some(server) = server {
        let config = ConnectionManagerConfig::new().set_response_timeout(None);
        let manager = server.client().get_connection_manager_with_config(config).await;
        let manager = manager.expect("Redis is there");
        let storage = RedisStorage::new(manager)
            .key_prefix(format!("trt:{prefix}:"))
            .timeout(Duration::from_secs(5))
            .plain_user_ids();
        tiers = tiers.storage(Arc::new(storage));
    }
    TierLimitLayer::new(tiers.build())
}
