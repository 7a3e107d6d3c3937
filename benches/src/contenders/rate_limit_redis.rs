//! tower-rate-limit-redis.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, ServiceBuilder};
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{Allowance, Contender, handler};
use crate::load::send;
use crate::redis_server::Server;
use crate::users::{tenant_of, user};

/// Whose budget it is.
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

pub(super) fn on_redis(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("tower-rate-limit-redis", move |load, allowance| {
        let server = server.clone();
        async move {
            let service = layer(&server, allowance, Whose::Users).await.layer(handler());
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

pub(super) fn three_on_redis(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("3 x tower-rate-limit-redis", move |load, allowance| {
        let server = server.clone();
        async move {
            let service = ServiceBuilder::new()
                .layer(layer(&server, allowance, Whose::Users).await)
                .layer(layer(&server, allowance, Whose::Tenants).await)
                .layer(layer(&server, allowance, Whose::Everybodys).await)
                .service(handler());
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

async fn layer(server: &Server, allowance: Allowance, whose: Whose) -> RateLimitLayer<Whose> {
    let client = redis_0_32::Client::open(server.url()).expect("the URL is one");
    let connection = client.get_multiplexed_async_connection().await.expect("Redis is there");
    RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(whose)
        // It counts no higher.
        .capacity(u16::try_from(allowance.burst).unwrap_or(u16::MAX))
        .emission_interval(Duration::from_millis(allowance.every_ms.into()))
        .timeout(Duration::from_secs(5))
        .build()
}
