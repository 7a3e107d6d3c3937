//! A limit on the requests that this service sends: one at a time to a provider, 5 a second. The layer is
//! around the HTTP client, and delays requests until it is their turn.
//!
//! ```sh
//! cargo run --example outgoing_http http://127.0.0.1:3000/
//! ```

use std::env;
use std::error::Error;
use std::time::Instant;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tollgate::key::from_fn;
use tollgate::layer::ReportOn;
use tollgate::{Key, Quota, RateLimitLayer, RateLimiter};
use tower::{Service, ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).ok_or("usage: outgoing_http URL")?;

    // A budget for each host. A queue of 20: requests beyond it get a 429 from the layer.
    let host = from_fn(|parts: &http::request::Parts| parts.uri.host().map(Key::new));
    let quota = Quota::per_second(5).burst(20);
    // The Redis that all replicas share. Without it, the budgets are in memory.
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url).await?,
        _ => RateLimiter::in_memory(),
    };
    let limit = RateLimitLayer::leaky_bucket(limiter, "provider", quota).key(host)?;
    // The provider's own headers stay.
    let limit = limit.report_on(ReportOn::Never);
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut provider = ServiceBuilder::new().layer(limit).service(client);

    let start = Instant::now();
    for number in 1..=10 {
        let request = Request::get(&url).body(Empty::new())?;
        let response = provider.ready().await?.call(request).await?;
        println!("{number}: {} after {:.1} s", response.status(), start.elapsed().as_secs_f32());
    }
    Ok(())
}
