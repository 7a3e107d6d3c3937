//! The examples with other crates in the guide: the pages show what compiles here, and each allows
//! what its page says.

#![cfg(test)]

mod axum_governor;
mod reqwest_client;
mod tower_governor;
mod tower_rate_tier;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, StatusCode};
use tower::ServiceExt;

const GUIDE: &str = include_str!("../../../src/guide/migrating.md");

/// The lines of an example, without what surrounds it.
fn example(source: &str) -> String {
    let body = source
        .lines()
        .skip_while(|line| !line.starts_with("pub(crate) fn"))
        .skip(1);
    let body = body.take_while(|line| *line != "    // The example ends here.");
    body.map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n")
        .collect()
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

/// Requests of an address until one is denied: how many pass, the time that they took, and what
/// `retry-after` says.
async fn send(app: &Router, address: [u8; 4]) -> (u32, Duration, Option<HeaderValue>) {
    let start = Instant::now();
    for allowed in 0..1_000 {
        let peer = SocketAddr::from((address, 4_000));
        let request = Request::get("/")
            .header("x-peer-ip", peer.ip().to_string())
            .extension(ConnectInfo(peer))
            .body(Body::empty())
            .unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            return (
                allowed,
                start.elapsed(),
                response.headers().get("retry-after").cloned(),
            );
        }
    }
    panic!("none of 1,000 requests was denied");
}

#[tokio::test]
async fn each_allows_20_at_once_for_each_address() {
    for app in [
        tower_governor::app(),
        axum_governor::app(),
        tower_rate_tier::app(),
    ] {
        for address in [[203, 0, 113, 1], [203, 0, 113, 2]] {
            let (allowed, took, _) = send(&app, address).await;
            let replenished = took.as_millis() as u32 / 100 + 1;
            assert!(
                (20..=20 + replenished).contains(&allowed),
                "{allowed} in {took:?}"
            );
        }
    }
}

#[tokio::test]
async fn they_round_retry_after_down() {
    let address = [203, 0, 113, 1];
    // After a wait of at most 100 ms.
    let (.., retry_after) = send(&tower_governor::app(), address).await;
    assert_eq!(retry_after.unwrap(), "0");
    let (.., retry_after) = send(&axum_governor::app(), address).await;
    assert_eq!(retry_after.unwrap(), "1");
    // After a wait of almost 1.9 seconds.
    let (.., retry_after) = send(&axum_governor::slow(), address).await;
    assert_eq!(retry_after.unwrap(), "1");
}
