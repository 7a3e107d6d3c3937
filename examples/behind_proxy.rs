//! A limit for each client behind a proxy: 5 requests at once, then 5 a minute.
//!
//! ```sh
//! TRUSTED=127.0.0.1,10.0.0.0/8 cargo run --example behind_proxy
//! curl -i -H 'X-Forwarded-For: 203.0.113.7' http://127.0.0.1:3000/
//! ```
//!
//! `GET /` answers with the address that was counted.
//!
//! - `TRUSTED`: the networks of the proxies, separated by commas. Without it, no header counts.
//! - `FORWARDED=1`: read `Forwarded` (RFC 7239) in place of `X-Forwarded-For`.
//! - `HEADER`: the name of a header with one address to read instead, such as `X-Real-IP`.
//! - `REDIS_URL`: the Redis that all replicas share. Without it, the budgets are in memory.
//! - `PORT`: the port to listen on, 3000 if it is not set.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::key::ClientIp;
use tollgate::{ConfigError, Quota, RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("behind_proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();

    let client = client_ip()?;
    let limiter = match setting("REDIS_URL") {
        Some(url) => RateLimiter::redis(&url, "behind-proxy").await?,
        None => RateLimiter::in_memory(),
    };
    let layer = RateLimitLayer::token_bucket(
        &limiter,
        "behind_proxy",
        Quota::per_minute(5),
        client.clone(),
    )?;
    let app = Router::new()
        .route("/", get(counted))
        .with_state(client)
        .layer(layer);

    let port = setting("PORT").unwrap_or_else(|| "3000".to_owned());
    let port: u16 = port
        .parse()
        .map_err(|_| format!("PORT is not a port number: `{port}`"))?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| {
            format!("cannot listen on 127.0.0.1:{port}: {error}; set PORT to another port")
        })?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

/// The extractor that the settings describe.
fn client_ip() -> Result<ClientIp, ConfigError> {
    let trusted = setting("TRUSTED").unwrap_or_default();
    let networks: Vec<&str> = trusted
        .split(',')
        .filter(|it| !it.trim().is_empty())
        .collect();
    let client = ClientIp::behind(networks)?;
    match setting("HEADER") {
        Some(header) => client.header(&header),
        None if setting("FORWARDED").as_deref() == Some("1") => Ok(client.forwarded()),
        None => Ok(client),
    }
}

/// Answers with the address, or the IPv6 network, that the limit counted.
async fn counted(State(client): State<ClientIp>, parts: Parts) -> Result<String, StatusCode> {
    let network = client
        .network(&parts)
        .map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok(format!("{network}\n"))
}

/// An environment variable that is set and not empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
