//! What teams write by hand: a middleware function and one EVALSHA for each request.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use redis::aio::ConnectionLike;
use redis::{RedisResult, Script};
use tokio::time::timeout;
use tower::{Service, service_fn};

use super::{Allowance, Contender};
use crate::load::send;
use crate::redis_server::Server;
use crate::users::{tenant_of, user};

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("by_hand.lua")));

/// allowed, remaining, retry after in us
type Reply = (i64, u64, u64);

pub(super) fn multiplexed(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("by hand, multiplexed", move |load, allowance| {
        let server = server.clone();
        async move {
            let connection = server.connection().await;
            let service = middleware(move |request| {
                let (mut connection, key) = (connection.clone(), key("user", request));
                async move { check(&mut connection, &key, allowance).await }
            });
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

pub(super) fn three_multiplexed(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("3 x by hand, multiplexed", move |load, allowance| {
        let server = server.clone();
        async move {
            let connection = server.connection().await;
            let service = middleware(move |request| {
                let mut connection = connection.clone();
                let tenant = tenant_of(user(request.headers()).unwrap_or_default());
                let keys = [key("user", request), format!("tenant:{tenant}"), "all".to_owned()];
                async move {
                    for key in &keys[..2] {
                        let reply = check(&mut connection, key, allowance).await;
                        if reply.0 == 0 {
                            return reply;
                        }
                    }
                    check(&mut connection, &keys[2], allowance).await
                }
            });
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

pub(super) fn pooled(server: &Server) -> Contender {
    let server = server.clone();
    Contender::peer("by hand, deadpool-redis", move |load, allowance| {
        let server = server.clone();
        async move {
            let config = deadpool_redis::Config::from_url(server.url());
            let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1));
            let pool = pool.expect("the URL is one");
            let service = middleware(move |request| {
                let (pool, key) = (pool.clone(), key("user", request));
                async move {
                    let mut connection = pool.get().await.expect("the pool has one");
                    check(&mut connection, &key, allowance).await
                }
            });
            send(service, load, Some(&mut server.connection().await)).await
        }
    })
}

fn key<B>(prefix: &str, request: &Request<B>) -> String {
    format!("{prefix}:{}", user(request.headers()).unwrap_or_default())
}

async fn check(connection: &mut impl ConnectionLike, key: &str, allowance: Allowance) -> Reply {
    let mut invocation = SCRIPT.key(key);
    invocation.arg(allowance.every_ms * 1000).arg(allowance.burst);
    let reply: RedisResult<Reply> =
        timeout(Duration::from_secs(5), invocation.invoke_async(connection))
            .await
            .expect("in time");
    reply.expect("Redis answers")
}

fn middleware<F>(
    check: impl Fn(&Request<()>) -> F + Send + Sync + 'static,
) -> impl Service<Request<()>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static
where
    F: Future<Output = Reply> + Send,
{
    let check = Arc::new(check);
    service_fn(move |request: Request<()>| {
        let decision = check(&request);
        async move {
            let (allowed, remaining, retry_after) = decision.await;
            let mut response = Response::new(Body::empty());
            if allowed == 0 {
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                let seconds = retry_after.div_ceil(1_000_000);
                response.headers_mut().insert("retry-after", HeaderValue::from(seconds));
            }
            response.headers_mut().insert("x-ratelimit-remaining", HeaderValue::from(remaining));
            Ok(response)
        }
    })
}
