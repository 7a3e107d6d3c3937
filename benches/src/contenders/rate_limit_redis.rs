//! tower-rate-limit-redis.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, ServiceBuilder};
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{Allowance, Contender, Setup, Side, handler};
use crate::users::{tenant_of, user};

/// The owner of the budget.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Users,
    Tenants,
    Everybodys,
}

impl KeyResolver for Whose {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        let user = user(request.headers()).unwrap_or_default();
        Ok(match self {
            Self::Users => format!("user:{user}"),
            Self::Tenants => format!("tenant:{}", tenant_of(user)),
            Self::Everybodys => "everybody".to_owned(),
        })
    }
}

pub(super) fn on_redis() -> Contender {
    Contender::new(Side::Peer, "tower-rate-limit-redis", |setup| async move {
        layer(&setup, Whose::Users).await.layer(handler())
    })
}

pub(super) fn three_on_redis() -> Contender {
    Contender::new(
        Side::Peer,
        "3 x tower-rate-limit-redis",
        |setup| async move {
            ServiceBuilder::new()
                .layer(layer(&setup, Whose::Users).await)
                .layer(layer(&setup, Whose::Tenants).await)
                .layer(layer(&setup, Whose::Everybodys).await)
                .service(handler())
        },
    )
}

async fn layer(setup: &Setup, whose: Whose) -> RateLimitLayer<Whose> {
    let Allowance { burst, every_ms } = setup.allowance;
    let client = redis_0_32::Client::open(&*setup.redis_url).expect("the URL is valid");
    let connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("Redis is up");
    RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(whose)
        // The greatest burst that it supports.
        .capacity(u16::try_from(burst).unwrap_or(u16::MAX))
        .emission_interval(Duration::from_millis(every_ms.into()))
        .timeout(Duration::from_secs(5))
        .build()
}
