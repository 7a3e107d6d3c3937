//! A limit for each client address: 10 requests at once, then 1 a second.
//!
//! ```sh
//! cargo run --example quickstart
//! REDIS_URL=redis://127.0.0.1/ cargo run --example quickstart   # shared by all replicas
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::key::PeerIp;
use tollgate::{Quota, RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();

    let (limiter, store) = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => (RateLimiter::redis(&url, "quickstart").await?, "Redis"),
        _ => (RateLimiter::in_memory(), "the embedded store"),
    };
    let app =
        Router::new()
            .route("/", get(|| async { "hello\n" }))
            .layer(RateLimitLayer::token_bucket(
                &limiter,
                "quickstart",
                Quota::per_second(1).burst(10),
                PeerIp,
            )?);

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
    let port = listener.local_addr()?.port();
    println!("10 requests at once, then 1 a second, on {store}. Try it:");
    println!();
    println!("  for i in $(seq 12); do curl -si http://127.0.0.1:{port}/ | head -1; done");
    println!("  curl -i http://127.0.0.1:{port}/");
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
