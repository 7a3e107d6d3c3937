//! A gateway to a language model: each user has requests a minute and tokens a minute. A request is
//! charged one request and an estimate of its tokens, both or none. The answer is a stream, and its
//! tokens are settled at the end.
//!
//! ```sh
//! cargo run --example llm_gateway
//! REDIS_URL=redis://127.0.0.1/ cargo run --example llm_gateway   # shared by all replicas
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set.

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::get;
use http::StatusCode;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::decision::Decision;
use tollgate::key::Header;
use tollgate::layer::Settlement;
use tollgate::{ConfigError, Limit, Quota, RateLimitLayer, RateLimiter};

/// What an answer probably needs. In a real gateway: the tokens of the prompt, and `max_tokens`.
const ESTIMATE: u32 = 100;

/// The tokens of a model's answer.
#[derive(Deserialize)]
struct Prompt {
    #[serde(default = "few")]
    tokens: u32,
}

const fn few() -> u32 {
    20
}

/// The layer: two limits, charged both or none.
fn limits(limiter: &RateLimiter) -> Result<RateLimitLayer, ConfigError> {
    let user = Header::new("x-user")?;
    let layer = RateLimitLayer::new(
        limiter,
        Limit::token_bucket("requests", Quota::per_minute(10))?,
        user.clone(),
    )?
    .limit_with_cost(
        Limit::token_bucket("tokens", Quota::per_minute(1_000))?,
        user,
        |_| ESTIMATE,
    )?
    .insert_settlement()
    .insert_decision()
    // A model that fails costs nothing.
    .refund_when(|response| response.status.is_server_error());
    Ok(layer)
}

/// Streams the answer. The settlement moves into the task that makes the answer.
async fn chat(
    Query(Prompt { tokens }): Query<Prompt>,
    decision: Decision,
    settlement: Settlement,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, StatusCode> {
    if tokens == 0 {
        return Err(StatusCode::BAD_GATEWAY);
    }
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let left = decision
            .verdicts()
            .iter()
            .map(|it| (it.limit().name(), it.remaining()));
        println!(
            "charged 1 request and {ESTIMATE} tokens, left: {:?}",
            left.collect::<Vec<_>>()
        );
        // Settles what was sent, also if the client disconnects.
        let mut meter = settlement.meter("tokens");
        while meter.cost() < tokens {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let token = Event::default().data(format!("token {}", meter.cost() + 1));
            if sender.send(Ok(token)).await.is_err() {
                println!("the client disconnected");
                break;
            }
            meter.add(1);
        }
        println!("settled at {} tokens", meter.cost());
    });
    Ok(Sse::new(ReceiverStream::new(receiver)))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("llm_gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "llm-gateway").await?,
        _ => RateLimiter::in_memory(),
    };
    let app = Router::new()
        .route("/chat", get(chat))
        .layer(limits(&limiter)?);

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
    let url = format!("http://{}", listener.local_addr()?);
    println!("10 requests and 1,000 tokens a minute for each user, on {url}. Try it:");
    println!();
    println!("  curl -iN -H 'x-user: alice' '{url}/chat?tokens=20'");
    println!("  curl -iN -H 'x-user: alice' '{url}/chat?tokens=1500'   # a debt");
    println!("  curl -i -H 'x-user: alice' '{url}/chat'                # 429 until it is repaid");
    println!("  curl -i -H 'x-user: bob' '{url}/chat?tokens=0'         # a failure, which is free");
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown())
        .await?;
    // Otherwise the costs of the last requests are not settled.
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
