//! A limit in front of a service of hyper, without axum: 10 requests at once for each client
//! address, then 1 a second.
//!
//! ```sh
//! cargo run --example hyper_service
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set. `REDIS_URL` is the Redis that replicas
//! share.

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tollgate::key::PeerIp;
use tollgate::{Quota, RateLimitLayer, RateLimiter};
use tower::{ServiceBuilder, service_fn};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new("hello\n".into()))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hyper_service: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let quota = Quota::per_second(1).burst(10);
    // The Redis that all replicas share. Without it, the budgets are in memory.
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "hyper-service").await?,
        _ => RateLimiter::in_memory(),
    };
    let limit = RateLimitLayer::token_bucket(limiter, "hyper", quota, PeerIp)?;
    let service = ServiceBuilder::new()
        .layer(limit)
        .service(service_fn(hello));

    let port: u16 = env::var("PORT")
        .unwrap_or_else(|_| "3000".to_owned())
        .parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client may be gone, or the process may have no file left. Others are still
            // served.
            Err(error) => {
                eprintln!("{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = service.clone();
        tokio::spawn(async move {
            // The layer reads the peer's address from the request's extensions.
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert::<SocketAddr>(peer);
                    request
                })
                .service(service);
            let connection = Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(service);
            if let Err(error) = connection
                .serve_connection(TokioIo::new(stream), service)
                .await
            {
                eprintln!("{peer}: {error}");
            }
        });
    }
}
