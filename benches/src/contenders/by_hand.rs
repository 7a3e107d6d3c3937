//! A limiter written by hand: a middleware function and one EVALSHA for each request.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use redis::aio::ConnectionLike;
use redis::{RedisResult, Script};
use tokio::time::timeout;
use tower::{Service, service_fn};

use super::{Allowance, Contender, Side};
use crate::redis_server::connection;
use crate::users::{tenant_of, user};

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("by_hand.lua")));

/// allowed, remaining, retry after in us
type Reply = (i64, u64, u64);

pub(super) fn multiplexed() -> Contender {
    Contender::new(Side::Peer, "by hand, multiplexed", |setup| async move {
        let connection = connection(&setup.redis_url).await;
        middleware(move |request| {
            let (mut connection, key) = (connection.clone(), key("user", request));
            async move { check(&mut connection, &key, setup.allowance).await }
        })
    })
}

pub(super) fn three_multiplexed() -> Contender {
    Contender::new(Side::Peer, "3 x by hand, multiplexed", |setup| async move {
        let connection = connection(&setup.redis_url).await;
        middleware(move |request| {
            let mut connection = connection.clone();
            let tenant = tenant_of(user(request.headers()).unwrap_or_default());
            let keys = [
                key("user", request),
                format!("tenant:{tenant}"),
                "all".to_owned(),
            ];
            async move {
                for key in &keys[..2] {
                    let reply = check(&mut connection, key, setup.allowance).await;
                    if reply.0 == 0 {
                        return reply;
                    }
                }
                check(&mut connection, &keys[2], setup.allowance).await
            }
        })
    })
}

pub(super) fn pooled() -> Contender {
    Contender::new(Side::Peer, "by hand, deadpool-redis", |setup| async move {
        let config = deadpool_redis::Config::from_url(setup.redis_url);
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1));
        let pool = pool.expect("the URL is valid");
        middleware(move |request| {
            let (pool, key) = (pool.clone(), key("user", request));
            async move {
                let mut connection = pool.get().await.expect("the pool has a connection");
                check(&mut connection, &key, setup.allowance).await
            }
        })
    })
}

fn key<B>(prefix: &str, request: &Request<B>) -> String {
    format!("{prefix}:{}", user(request.headers()).unwrap_or_default())
}

async fn check(connection: &mut impl ConnectionLike, key: &str, allowance: Allowance) -> Reply {
    let mut invocation = SCRIPT.key(key);
    invocation
        .arg(allowance.every_ms * 1000)
        .arg(allowance.burst);
    let reply: RedisResult<Reply> =
        timeout(Duration::from_secs(5), invocation.invoke_async(connection))
            .await
            .expect("in time");
    reply.expect("Redis answers")
}

fn middleware<F>(
    check: impl Fn(&Request<Body>) -> F + Send + Sync + 'static,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ Sync
+ 'static
where
    F: Future<Output = Reply> + Send + 'static,
{
    let check = Arc::new(check);
    service_fn(move |request: Request<Body>| {
        let decision = check(&request);
        async move {
            let (allowed, remaining, retry_after) = decision.await;
            let mut response = Response::new(Body::empty());
            if allowed == 0 {
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                let seconds = retry_after.div_ceil(1_000_000);
                response
                    .headers_mut()
                    .insert("retry-after", HeaderValue::from(seconds));
            }
            response
                .headers_mut()
                .insert("x-ratelimit-remaining", HeaderValue::from(remaining));
            Ok(response)
        }
    })
}
