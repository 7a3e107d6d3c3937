//! Sends two requests. The second is denied, and the middleware's retry after the wait is allowed.
//!
//! reqwest-client URL

use reessaie::{RetryAfterMiddleware, RetryAfterPolicy};
use reqwest_middleware::ClientBuilder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: reqwest-client URL")? + "/default";
    let middleware = RetryAfterMiddleware::new_with_policy(RetryAfterPolicy::with_max_retries(1));
    let client = ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
    for _ in 0..2 {
        let response = client.get(&url).header("x-client", "reqwest").send().await?;
        response.error_for_status()?;
    }
    println!("reqwest with reessaie 5.0.0");
    Ok(())
}
