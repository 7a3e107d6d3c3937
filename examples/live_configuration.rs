//! Limits from a file, or from a key of Redis, which change while the service runs, and overrides
//! for single users.
//!
//! ```sh
//! cargo run --example live_configuration --features yaml
//! LIMITS=examples/limits.yaml cargo run --example live_configuration --features yaml
//! # The limits in a key of Redis, for all replicas. Without such a key, the limits of
//! # `examples/limits.toml` are written to it.
//! REDIS_URL=redis://127.0.0.1/ LIMITS=redis cargo run --example live_configuration --features yaml
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set. `RUST_LOG=debug` shows which limits
//! apply to which routes.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use http::request::Parts;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tollgate::config::{FileSource, Format, LimitSet, Names, RedisSource};
use tollgate::decision::Usage;
use tollgate::key::{ClientIp, Header};
use tollgate::overrides::{Override, Overrides};
use tollgate::{ConfigError, Error as StoreError, MemoryStore, Quota};
use tollgate::{RateLimitLayer, RateLimiter, RedisStore};
use tracing_subscriber::filter::LevelFilter;

const FILE: &str = "examples/limits.toml";

/// The keys and plans that the file may name. In a real service, authentication puts the account
/// into the request's extensions.
fn names() -> Result<Names, ConfigError> {
    let plan = |request: &Parts| {
        let plan = request.headers.get("x-plan")?.to_str().ok()?;
        Some(plan.to_owned())
    };
    Ok(Names::new()
        .key("client_ip", ClientIp::behind(["10.0.0.0/8"])?)
        .key("user", Header::new("x-user")?)
        .plan("account", plan))
}

/// The limits, which follow a file from here on.
fn from_file(path: &str) -> Result<LimitSet, ConfigError> {
    let mut source = FileSource::new(path)?;
    let limits = LimitSet::new(source.read()?, names()?)?;
    limits.follow(source);
    Ok(limits)
}

/// The limits, which follow a key of Redis from here on.
async fn from_redis(store: &RedisStore) -> Result<LimitSet, Box<dyn Error>> {
    let mut source = RedisSource::new(store, "limits", Format::Toml)?;
    let config = match source.read().await {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            eprintln!("writing {FILE} to it");
            source.publish(&std::fs::read_to_string(FILE)?).await?
        }
    };
    let limits = LimitSet::new(config, names()?)?;
    limits.follow(source);
    Ok(limits)
}

/// A slow endpoint.
async fn export() -> &'static str {
    sleep(Duration::from_secs(5)).await;
    "exported\n"
}

/// Gives a user another quota for searches, for an hour.
async fn raise(
    State(overrides): State<Overrides>,
    Path((user, quota)): Path<(String, u64)>,
) -> Result<String, String> {
    let raised = Override::quota("search", user, Quota::per_minute(quota))
        .lasting(Duration::from_secs(60 * 60))
        .with_author("the example");
    let answer = format!("{raised}, for an hour\n");
    let wrong = |error: StoreError| format!("{error}\n");
    overrides.set(raised).await.map_err(wrong)?;
    Ok(answer)
}

/// Answers with what a user has left under each limit, and charges nothing.
async fn my_limits(
    State((limits, limiter)): State<(LimitSet, RateLimiter)>,
    request: Parts,
) -> Result<Json<Vec<Usage>>, StatusCode> {
    let usage = limits.usage(&limiter, &request).await;
    usage.map(Json).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

/// What is in force, for operators.
async fn status(State(limits): State<LimitSet>) -> Json<Value> {
    Json(json!({
        "version": limits.version(),
        "followed": limits.is_followed(),
        "rejected": limits.rejected().map(|error| error.to_string()),
        "limits": limits.config(),
    }))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("live_configuration: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let level = env::var("RUST_LOG")
        .ok()
        .and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .init();

    let store = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => Some(RedisStore::connect(&url, "live-configuration").await?),
        _ => None,
    };
    let path = env::var("LIMITS").unwrap_or_else(|_| FILE.to_owned());
    let limits = match (&*path, &store) {
        ("redis", Some(store)) => from_redis(store).await?,
        ("redis", None) => return Err("LIMITS=redis needs REDIS_URL".into()),
        (path, _) => from_file(path)?,
    };
    // In Redis, all replicas have them.
    let overrides = match &store {
        Some(store) => Overrides::in_redis(store)?,
        None => Overrides::new(),
    };
    let limiter = match store {
        Some(store) => RateLimiter::builder(store),
        None => RateLimiter::builder(MemoryStore::new()),
    };
    let limiter = limiter.overrides(&overrides).build()?;
    let layer = RateLimitLayer::from_config(&limiter, &limits)?;

    let app = Router::new()
        .route("/search", get(|| async { "found\n" }))
        .route("/items/{id}", get(|| async { "an item\n" }))
        .route("/orders", post(|| async { "ordered\n" }))
        .route("/health", get(|| async { "well\n" }))
        .route("/export", get(export))
        .layer(layer)
        .route(
            "/me/limits",
            get(my_limits).with_state((limits.clone(), limiter)),
        )
        // For operators alone.
        .route("/limits", get(status).with_state(limits.clone()))
        .route("/raise/{user}/{quota}", post(raise).with_state(overrides));

    let port: u16 = match env::var("PORT") {
        Ok(port) if !port.is_empty() => port
            .parse()
            .map_err(|_| format!("PORT is not a port number: `{port}`"))?,
        _ => 3000,
    };
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| {
            format!("cannot listen on 127.0.0.1:{port}: {error}; set PORT to another port")
        })?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("The limits of {path}, on {url}:");
    println!();
    println!("{limits}");
    println!();
    println!("Try it:");
    println!();
    println!("  for i in $(seq 7); do curl -si {url}/search | head -1; done");
    println!("  curl -si -H 'x-plan: pro' {url}/search | head -1     # and what was used counts");
    println!("  curl -si -H 'x-plan: closed' {url}/search            # 403");
    println!("  for i in 1 2 3; do curl -si {url}/export | head -1 & done; wait   # two at once");
    println!("  curl -X POST {url}/raise/acme/30                     # an override for a user");
    println!("  curl -si -H 'x-user: acme' {url}/search | grep x-ratelimit");
    println!(
        "  curl -s -H 'x-user: acme' {url}/me/limits             # what is left, and overridden"
    );
    if path == "redis" {
        println!("  redis-cli -x SET live-configuration-config:limits < examples/limits.toml");
        println!("  redis-cli PUBLISH live-configuration-config:limits changed");
    } else {
        println!(
            "  sed -i 's|5/10s|10/10s|' {path}                      # in force within a second"
        );
    }
    println!(
        "  curl -s {url}/limits                                 # the version, and its limits"
    );
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
