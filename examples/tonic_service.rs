//! A limit in front of a gRPC server: 10 calls at once for each client address, then 1 a second. A
//! denied call has the status `RESOURCE_EXHAUSTED`, and says when to retry.
//!
//! ```sh
//! cargo run --example tonic_service --features grpc
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set. `REDIS_URL` is the Redis that replicas
//! share. The service is gRPC's health checking.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::key::PeerIp;
use tollgate::{Quota, RateLimitLayer, RateLimiter};
use tonic::transport::Server;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tonic_service: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let quota = Quota::per_second(1).burst(10);
    // The Redis that all replicas share. Without it, the budgets are in memory.
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "tonic-service").await?,
        _ => RateLimiter::in_memory(),
    };
    let limit = RateLimitLayer::token_bucket(limiter, "grpc", quota, PeerIp)?;
    let (_reporter, health) = tonic_health::server::health_reporter();

    let port: u16 = env::var("PORT")
        .unwrap_or_else(|_| "3000".to_owned())
        .parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let connections = TcpListenerStream::new(listener);
    Server::builder()
        .layer(limit)
        .add_service(health)
        .serve_with_incoming(connections)
        .await?;
    Ok(())
}
