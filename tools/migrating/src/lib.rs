//! The examples of other crates in the guide's page about migrating: the page shows what compiles here, and each allows what
//! the page says.

#![cfg(test)]

mod axum_governor;
mod tower_governor;
mod tower_rate_tier;

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, StatusCode};
use tower::ServiceExt;

const GUIDE: &str = include_str!("../../../src/guide/migrating.md");

/// The lines of an example, without what surrounds it.
fn example(source: &str) -> String {
    let body = source.lines().skip_while(|line| !line.starts_with("pub(crate) fn")).skip(1);
    let body = body.take_while(|line| *line != "    // The example ends here.");
    body.map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect()
}

#[test]
fn guide_shows_these_examples_and_no_other() {
    let blocks: Vec<_> = GUIDE
        .split("```text\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect();
    let examples = [
        include_str!("tower_governor.rs"),
        include_str!("axum_governor.rs"),
        include_str!("tower_rate_tier.rs"),
    ];
    assert_eq!(blocks, examples.map(example));
}

/// 25 requests of an address at once: how many pass, and what `retry-after` says to the last one.
async fn send(app: &Router, address: [u8; 4]) -> (usize, Option<HeaderValue>) {
    let (mut allowed, mut retry_after) = (0, None);
    for _ in 0..25 {
        let peer = SocketAddr::from((address, 4_000));
        let request = Request::get("/")
            .header("x-peer-ip", peer.ip().to_string())
            .extension(ConnectInfo(peer))
            .body(Body::empty())
            .unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        allowed += usize::from(response.status() == StatusCode::OK);
        retry_after = response.headers().get("retry-after").cloned();
    }
    (allowed, retry_after)
}

#[tokio::test]
async fn each_allows_20_at_once_for_each_address() {
    for app in [tower_governor::app(), axum_governor::app(), tower_rate_tier::app()] {
        for address in [[203, 0, 113, 1], [203, 0, 113, 2]] {
            let (allowed, _) = send(&app, address).await;
            // One more for each 100 ms that the machine takes.
            assert!((20..25).contains(&allowed), "{allowed}");
        }
    }
}

#[tokio::test]
async fn they_round_retry_after_down() {
    for (app, retry_after) in [(tower_governor::app(), "0"), (axum_governor::app(), "1")] {
        // For 100 ms.
        assert_eq!(send(&app, [203, 0, 113, 1]).await.1.unwrap(), retry_after);
    }
}
