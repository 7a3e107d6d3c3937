use std::error::Error;
use std::time::Duration;

use tollgate::{Key, Limit, RateLimiter};

async fn get(
    limiter: &RateLimiter,
    limit: &Limit,
    client: &reqwest::Client,
    url: &str,
) -> Result<reqwest::Response, Box<dyn Error>> {
    let turn = limiter
        .acquire(limit, &Key::new("provider"), 1, Duration::from_secs(10))
        .await?;
    if !turn.allowed() {
        return Err(format!("too many requests: {:?}", turn.retry_after()).into());
    }
    Ok(client.get(url).send().await?)
}

mod tests {
    use super::*;
    use axum::Router;
    use tokio::net::TcpListener;
    use tollgate::Quota;

    const SOURCE: &str = include_str!("reqwest_client.rs");
    const GUIDE: &str = include_str!("../../../src/guide/waiting.md");

    #[test]
    fn guide_shows_this_example() {
        let start = SOURCE.find("async fn get").unwrap();
        let end = SOURCE.find("\nmod tests").unwrap();
        assert!(GUIDE.contains(&format!("```text\n{}```", &SOURCE[start..end])));
    }

    #[tokio::test]
    async fn requests_beyond_the_rate_wait_for_their_turns() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let app = Router::new().route("/", axum::routing::get(|| async { "hello" }));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let limiter = RateLimiter::in_memory();
        let limit = Limit::token_bucket("provider", Quota::per_second(20).burst(1)).unwrap();
        let client = reqwest::Client::new();
        let start = std::time::Instant::now();
        for _ in 0..5 {
            assert_eq!(
                super::get(&limiter, &limit, &client, &url)
                    .await
                    .unwrap()
                    .status(),
                200
            );
        }
        assert!(
            start.elapsed() >= Duration::from_millis(200),
            "four waits of 50 ms"
        );
    }
}
