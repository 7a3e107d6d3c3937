//! Slow exports and imports: at most two of a tenant at once, on all replicas, whether they take a
//! second or an hour.
//!
//! ```sh
//! cargo run --example in_flight
//! REDIS_URL=redis://127.0.0.1/ cargo run --example in_flight   # shared by all replicas
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set.

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use http::StatusCode;
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tollgate::key::Header;
use tollgate::layer::InFlight;
use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};

/// An export that sends a part each second.
async fn export(Path(seconds): Path<usize>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let parts = IntervalStream::new(interval(Duration::from_secs(1))).take(seconds);
    Sse::new(parts.map(|_| Ok(Event::default().data("a part of the export"))))
}

/// An import that goes on after its response. It holds its permit until it is done.
async fn import(Path(seconds): Path<u64>, permits: InFlight) -> StatusCode {
    tokio::spawn(async move {
        sleep(Duration::from_secs(seconds)).await;
        drop(permits);
    });
    StatusCode::ACCEPTED
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("in_flight: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "in-flight").await?,
        _ => RateLimiter::in_memory(),
    };
    let port: u16 = match env::var("PORT") {
        Ok(port) if !port.is_empty() => port
            .parse()
            .map_err(|_| format!("PORT is not a port number: `{port}`"))?,
        _ => 3000,
    };
    let tenant = Header::new("x-tenant")?;
    let layer = RateLimitLayer::new(
        &limiter,
        Limit::token_bucket("transfers-a-minute", Quota::per_minute(30))?,
        tenant.clone(),
    )?
    .limit(Limit::concurrency("transfers", 2)?, tenant)?
    .insert_permits();
    let app = Router::new()
        .route("/export/{seconds}", get(export))
        .route("/import/{seconds}", post(import))
        .layer(layer);
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| {
            format!("cannot listen on 127.0.0.1:{port}: {error}; set PORT to another port")
        })?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("2 exports and imports of a tenant at once, and 30 a minute, on {url}. Try it:");
    println!();
    println!("  for i in 1 2; do curl -sN -H 'x-tenant: acme' {url}/export/5 & done; sleep 1");
    println!("  curl -i -H 'x-tenant: acme' {url}/export/1     # 429: two are in flight");
    println!("  curl -i -H 'x-tenant: globex' {url}/export/1   # another tenant");
    println!("  sleep 5; curl -i -H 'x-tenant: acme' {url}/export/1");
    println!(
        "  curl -i -X POST -H 'x-tenant: acme' {url}/import/9     # 202, and in flight for 9 s"
    );
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown())
        .await?;
    // Otherwise the last permits count until their lease is over.
    limiter.flush().await;
    Ok(())
}

/// Ends when the process is asked to end: by Ctrl+C, or by an orchestrator, which sends SIGTERM.
async fn shutdown() {
    #[cfg(unix)]
    if let Ok(mut terminate) = signal(SignalKind::terminate()) {
        tokio::select! {
            _ = ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        return;
    }
    drop(ctrl_c().await);
}
