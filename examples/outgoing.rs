//! A limit on the requests that this service sends: 5 a second to a provider, over all of its
//! processes. The layer is around the HTTP client. Requests wait for their turn, and the processes
//! take turns.
//!
//! ```sh
//! cargo run --example outgoing http://127.0.0.1:3000/ 10
//! # In three terminals, 5 a second together:
//! REDIS_URL=redis://127.0.0.1/ cargo run --example outgoing http://127.0.0.1:3000/ 10
//! ```

use std::env;
use std::error::Error;
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tollgate::key::from_fn;
use tollgate::layer::OnStoreFailure;
use tollgate::{Key, Quota, RateLimitLayer, RateLimiter};
use tower::{ServiceBuilder, ServiceExt};

const USAGE: &str = "usage: outgoing http://HOST/PATH [REQUESTS]";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outgoing: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url: Uri = env::args().nth(1).ok_or(USAGE)?.parse()?;
    if url.scheme().is_none() || url.host().is_none() {
        return Err(format!("`{url}` names no host: {USAGE}").into());
    }
    let requests: u32 = match env::args().nth(2) {
        Some(requests) => requests.parse().map_err(|_| USAGE)?,
        None => 10,
    };
    // The Redis that all processes share. Without it, the budgets are in memory.
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "outgoing").await?,
        _ => RateLimiter::in_memory(),
    };

    // A budget for each host.
    let host = from_fn(|parts: &http::request::Parts| parts.uri.host().map(Key::new));
    let limit =
        RateLimitLayer::token_bucket(limiter, "provider", Quota::per_second(5).burst(1), host)?
            // While Redis is away, each of three processes sends 5 in three seconds. By default,
            // all would be sent at once.
            .on_store_failure(OnStoreFailure::local(3))?
            // A request that would wait for longer gets a 429 from the layer, at once.
            .wait_up_to(Duration::from_secs(60))?
            // The provider's own headers stay.
            .report_nothing();
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let provider = ServiceBuilder::new().layer(limit).service(client);

    let start = Instant::now();
    let mut answers = JoinSet::new();
    for number in 1..=requests {
        let (provider, request) = (provider.clone(), Request::get(&url).body(Empty::new())?);
        answers.spawn(async move { (number, provider.oneshot(request).await) });
    }
    while let Some(answer) = answers.join_next().await {
        let (number, response) = answer?;
        let (status, after) = (response?.status(), start.elapsed().as_secs_f32());
        println!(
            "process {}, request {number}: {status} after {after:.1} s",
            process::id()
        );
    }
    Ok(())
}
