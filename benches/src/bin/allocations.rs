//! Allocations a request, beyond those of the request and the handler: tollgate's layer, and
//! tower_governor's.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response};
use tollgate::key::Header;
use tollgate::store::Store;
use tollgate::{ConfigError, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

#[path = "../../../tests/support/redis_server.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const REQUESTS: u64 = 1_000;

/// The header with the key.
const USER: &str = "x-user";

/// A burst, and the time between two units.
type Allowance = (u32, Duration);

/// Remaining units of up to three digits, of six digits, and none.
const HUNDREDS: Allowance = (900, Duration::from_micros(1));
const PLENTY: Allowance = (1_000_000, Duration::from_secs(60));
const SCARCE: Allowance = (1, Duration::from_secs(60));

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = support::RedisServer::start();
    let _profiler = dhat::Profiler::builder().testing().build();
    let bare = per_request(service_fn(handler)).await;
    println!("| request | allocations |\n|---|--:|");
    let row = |what: &str, allocations: f64| println!("| {what} | {:.1} |", allocations - bare);

    for (what, allowance) in [
        ("allowed, 3 digits left", HUNDREDS),
        ("allowed, 6 digits left", PLENTY),
        ("denied", SCARCE),
    ] {
        let service = tollgate(MemoryStore::new(), "limit", allowance)?;
        row(
            &format!("tollgate, in memory, {what}"),
            per_request(service).await,
        );
        let mut governor = governor(allowance);
        let plain = governor.finish().ok_or("the numbers are not 0")?;
        let service = GovernorLayer::<_, _, Body>::new(plain).layer(service_fn(handler));
        row(
            &format!("tower_governor, {what}"),
            per_request(service).await,
        );
        let headers = governor
            .use_headers()
            .finish()
            .ok_or("the numbers are not 0")?;
        let service = GovernorLayer::<_, _, Body>::new(headers).layer(service_fn(handler));
        row(
            &format!("tower_governor, headers, {what}"),
            per_request(service).await,
        );
    }
    let store = || RedisStore::builder("tollgate").url(server.url());
    let service = tollgate(store().connect().await?, "plenty", PLENTY)?;
    row(
        "tollgate, on Redis, allowed, 6 digits left",
        per_request(service).await,
    );
    let asking = store().deny_for(Duration::ZERO).connect().await?;
    row(
        "tollgate, on Redis, denied",
        per_request(tollgate(asking, "scarce", SCARCE)?).await,
    );
    let service = tollgate(store().connect().await?, "cached", SCARCE)?;
    row(
        "tollgate, denied by its deny cache",
        per_request(service).await,
    );
    Ok(())
}

fn handler(_: Request<()>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

fn tollgate(
    store: impl Store,
    name: &str,
    (burst, every): Allowance,
) -> Result<impl Service<Request<()>, Response = impl Sized, Error = Infallible> + Clone, ConfigError>
{
    let quota = Quota::new(1, every).burst(burst.into());
    let limiter = RateLimiter::new(store);
    let layer = RateLimitLayer::token_bucket(limiter, name, quota, Header::new(USER)?)?;
    Ok(layer.layer(service_fn(handler)))
}

type Governor = GovernorConfigBuilder<
    User,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
>;

fn governor((burst, every): Allowance) -> Governor {
    let mut builder = GovernorConfigBuilder::default().key_extractor(User);
    builder.period(every).burst_size(burst);
    builder
}

#[derive(Clone, Copy, Debug)]
struct User;

impl KeyExtractor for User {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let user = request
            .headers()
            .get(USER)
            .and_then(|user| user.to_str().ok());
        user.map(str::to_owned)
            .ok_or(GovernorError::UnableToExtractKey)
    }
}

/// Sends requests one after another, after as many to warm up.
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
        request
            .headers_mut()
            .insert(USER, HeaderValue::from_static("alice"));
        let Ok(service) = service.ready().await;
        let Ok(_) = service.call(request).await;
    }
    (dhat::HeapStats::get().total_blocks - before) as f64 / REQUESTS as f64
}
