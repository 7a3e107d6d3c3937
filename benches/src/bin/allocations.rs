//! How often a request through the layer allocates, beyond what the request and the handler do.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::Duration;

use http::{Request, Response};
use tollgate::key::Header;
use tollgate::store::Store;
use tollgate::{Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::{Layer, Service, ServiceExt, service_fn};

#[path = "../../../tests/support/redis_server.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const REQUESTS: u64 = 1_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = support::RedisServer::start();
    let _profiler = dhat::Profiler::builder().testing().build();
    let bare = per_request(service_fn(handler)).await;
    println!("| request | allocations |\n|---|--:|");
    for (what, burst) in [("admitted", 500), ("refused", 1)] {
        let memory = limited(MemoryStore::new(), "limit", burst)?;
        println!("| {what}, in memory | {:.1} |", per_request(memory).await - bare);
    }
    let store = || RedisStore::builder().url(server.url());
    let admitted = limited(store().connect().await?, "plenty", 500)?;
    println!("| admitted, on Redis | {:.1} |", per_request(admitted).await - bare);
    let asked = limited(store().deny_for(Duration::ZERO).connect().await?, "scarce", 1)?;
    println!("| refused by Redis | {:.1} |", per_request(asked).await - bare);
    let remembered = limited(store().connect().await?, "known", 1)?;
    println!("| refused by the deny cache | {:.1} |", per_request(remembered).await - bare);
    Ok(())
}

fn handler(_: Request<()>) -> Ready<Result<Response<axum::body::Body>, Infallible>> {
    ready(Ok(Response::new(axum::body::Body::empty())))
}

fn limited(
    store: impl Store,
    name: &str,
    burst: u64,
) -> Result<
    impl Service<Request<()>, Response = impl Sized, Error = Infallible> + Clone,
    tollgate::ConfigError,
> {
    // As much as nobody uses up, or next to nothing.
    let rate = if burst > 1 { 1_000_000_000 } else { 1 };
    let limit = Limit::token_bucket(name, Quota::new(rate, Duration::from_secs(60)).burst(burst))?;
    let layer = RateLimitLayer::builder(RateLimiter::new(store));
    Ok(layer.limit(limit, Header::new("x-user")?).build()?.layer(service_fn(handler)))
}

/// One request after another, after some that warm up.
async fn per_request<S, R>(mut service: S) -> f64
where
    S: Service<Request<()>, Response = R, Error = Infallible>,
{
    let mut before = 0;
    for number in 0..2 * REQUESTS {
        if number == REQUESTS {
            before = dhat::HeapStats::get().total_blocks;
        }
        let mut request = Request::new(());
        request.headers_mut().insert("x-user", http::HeaderValue::from_static("alice"));
        let Ok(service) = service.ready().await;
        let Ok(_) = service.call(request).await;
    }
    (dhat::HeapStats::get().total_blocks - before) as f64 / REQUESTS as f64
}
