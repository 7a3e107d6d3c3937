//! A complete service: a limit for each user, one for a costly route, one for the whole service,
//! rejected requests answered in JSON, and metrics for Prometheus.
//!
//! ```sh
//! cargo run --example service --features metrics
//! curl -i http://127.0.0.1:3000/search -H 'authorization: alice'
//! curl -i http://127.0.0.1:3000/health
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! `REDIS_URL` names the Redis that replicas share, `REPLICAS` how many there are, and `PROXIES`
//! the networks of the load balancers, separated by commas, whose `X-Forwarded-For` counts. `HOST`,
//! `PORT` and `METRICS_PORT` set where it listens. While Redis does not answer, also at the start,
//! each replica allows its share of the limits, and says so to its health check.
//!
//! The folder `deploy` starts two replicas with Redis, Prometheus and Grafana.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::time::interval;
use tollgate::denied_keys::DeniedKeys;
use tollgate::key::{self, ClientIp, Global, KeyExtractor};
use tollgate::layer::{OnStoreFailure, Rejection, original_path};
use tollgate::store::{BreakerState, Store};
use tollgate::{Decision, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore};

#[derive(Clone)]
struct UserId(String);

/// A stand-in for real authentication: accepts any name.
async fn authenticate(mut request: Request, next: Next) -> Response<axum::body::Body> {
    let user = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|it| it.to_str().ok());
    if let Some(user) = user.map(|user| UserId(user.to_owned())) {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// The handler sees the decision.
async fn search(decision: Option<Extension<Decision>>) -> String {
    match decision {
        Some(Extension(decision)) => format!("found it, {} more searches\n", decision.remaining()),
        None => "found it\n".to_owned(),
    }
}

/// Rejected requests are answered in JSON.
fn in_json(rejection: &Rejection<'_>, mut response: Response<Bytes>) -> Response<String> {
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    let limit = rejection.limit().map(Limit::name);
    let body = serde_json::json!({ "error": rejection.message(), "limit": limit });
    response.map(|_text| format!("{body}\n"))
}

/// The service stays healthy while Redis is down. Otherwise the load balancer would remove all
/// replicas at once.
fn health(redis: Option<&RedisStore>) -> &'static str {
    match redis.map(RedisStore::breaker_state) {
        None | Some(BreakerState::Closed) => "fine\n",
        Some(BreakerState::Open) => "fine, and with local limits: Redis does not answer\n",
        Some(_) => "fine, and with local limits in part: Redis answers again\n",
    }
}

fn app(
    limiter: &RateLimiter,
    redis: Option<RedisStore>,
    replicas: u32,
    address: ClientIp,
) -> Result<Router, Box<dyn Error>> {
    let on_failure = OnStoreFailure::local(replicas);
    // A request without a user counts under the client's address.
    let user = key::Extension::new(|user: &UserId| user.0.clone()).or(address);

    // Both limits are charged, or neither.
    let every_request = RateLimitLayer::new(
        limiter,
        Limit::token_bucket("user", Quota::per_second(5).burst(10))?,
        user,
    )?
    .limit(
        Limit::sliding_window("everyone", Quota::per_minute(10_000))?,
        Global,
    )?
    .on_store_failure(on_failure)?
    .skip(|parts| original_path(parts) == "/health")
    .insert_decision()
    .respond_with(in_json);
    // A route's own limit is a layer on its method router.
    let exports = RateLimitLayer::fixed_window(limiter, "exports", Quota::per_hour(2), Global)?
        .on_store_failure(on_failure)?
        .respond_with(in_json);

    Ok(Router::new()
        .route(
            "/health",
            get(move || async move { health(redis.as_ref()) }),
        )
        .route("/search", get(search))
        .route("/export", post(|| async { "exported\n" }).layer(exports))
        .layer(every_request)
        // The layer added last is the outermost: it runs before the limits and identifies the user.
        .layer(from_fn(authenticate)))
}

/// Records metrics. Histograms have buckets, so that they can be added up over replicas.
fn recorder() -> Result<PrometheusHandle, Box<dyn Error>> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in tollgate::metrics::HISTOGRAMS {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
    }
    let metrics = builder.install_recorder()?;
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        let mut every = interval(Duration::from_secs(5));
        loop {
            every.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(metrics)
}

/// Listens on a port from the environment.
async fn listen(variable: &str, default: &str) -> Result<TcpListener, Box<dyn Error>> {
    let host = env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = env::var(variable).unwrap_or_else(|_| default.to_owned());
    let port: u16 = port
        .parse()
        .map_err(|_| format!("{variable} is not a port number: `{port}`"))?;
    let listener = TcpListener::bind((&*host, port)).await;
    Ok(listener.map_err(|error| format!("cannot listen on {host}:{port}: {error}"))?)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let metrics = recorder()?;
    let redis = match env::var("REDIS_URL") {
        // Without connecting: a replica that starts in an outage must not fail.
        Ok(url) if !url.is_empty() => Some(RedisStore::builder("service").url(url).build()?),
        _ => None,
    };
    let store: Arc<dyn Store> = match redis.clone() {
        Some(redis) => Arc::new(redis),
        None => Arc::new(MemoryStore::new()),
    };
    // The most denied keys are logged once a minute.
    let limiter = RateLimiter::builder(store)
        .count_denied_keys(&DeniedKeys::new())
        .build()?;
    let replicas = env::var("REPLICAS").unwrap_or_else(|_| "1".to_owned());
    let replicas = replicas
        .parse()
        .map_err(|_| format!("REPLICAS is not a number: `{replicas}`"))?;
    let address = match env::var("PROXIES") {
        Ok(networks) if !networks.is_empty() => {
            ClientIp::behind(networks.split(',').collect::<Vec<_>>())?
        }
        _ => ClientIp::direct(),
    };
    let listener = listen("PORT", "3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Metrics have a port of their own, which clients do not reach.
    let for_prometheus = listen("METRICS_PORT", "9464").await?;
    println!("metrics on http://{}/metrics", for_prometheus.local_addr()?);
    let operations = Router::new().route("/metrics", get(move || async move { metrics.render() }));
    tokio::spawn(async { axum::serve(for_prometheus, operations).await });
    let service = app(&limiter, redis, replicas, address)?
        .into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
