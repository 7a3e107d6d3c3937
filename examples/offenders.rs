//! A login that shuts out addresses which keep trying, and an operator who blocks and unblocks
//! them.
//!
//! ```sh
//! cargo run --example offenders
//! REDIS_URL=redis://127.0.0.1/ cargo run --example offenders   # shared by all replicas
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set. A real service lets only its operators
//! ask for `/admin`.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::routing::{get, post};
use http::StatusCode;
use serde::Deserialize;
use tokio::net::TcpListener;
use tollgate::key::PeerIp;
use tollgate::limit::{BlockPolicy, OnStoreFailure};
use tollgate::{ConfigError, Key, Limit, Quota, RateLimitLayer, RateLimiter};

/// What operators need: the limiter, and the limit under which keys are blocked.
#[derive(Clone)]
struct Blocks {
    limiter: RateLimiter,
    login: Limit,
}

/// What an operator asks for: a key as the event shows it, and for how long it is blocked.
#[derive(Deserialize)]
struct Asked {
    key: String,
    seconds: Option<u64>,
}

type Answer = Result<String, (StatusCode, String)>;

impl Blocks {
    async fn state(&self, key: &Key) -> Answer {
        let peeked = self.limiter.peek(&self.login, key, 1).await;
        let decision = peeked.map_err(failed)?;
        Ok(match decision.deciding().blocked_for() {
            Some(left) => format!("blocked for {} s more\n", left.as_secs_f64().ceil()),
            None => "not blocked\n".to_owned(),
        })
    }
}

async fn show(State(blocks): State<Blocks>, Query(asked): Query<Asked>) -> Answer {
    blocks.state(&parse(&asked.key)?).await
}

async fn block(State(blocks): State<Blocks>, Query(asked): Query<Asked>) -> Answer {
    let length = Duration::from_secs(asked.seconds.unwrap_or(600));
    let key = parse(&asked.key)?;
    let done = blocks.limiter.block(&blocks.login, &key, length).await;
    done.map_err(failed)?;
    blocks.state(&key).await
}

async fn unblock(State(blocks): State<Blocks>, Query(asked): Query<Asked>) -> Answer {
    // A reset also fills the budget: the client can log in at once.
    let key = parse(&asked.key)?;
    let done = blocks.limiter.reset(&blocks.login, &key).await;
    done.map_err(failed)?;
    blocks.state(&key).await
}

fn parse(key: &str) -> Result<Key, (StatusCode, String)> {
    Key::from_encoded(key).map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))
}

fn failed(error: tollgate::Error) -> (StatusCode, String) {
    let status = match error.is_misuse() {
        true => StatusCode::BAD_REQUEST,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, format!("{error}\n"))
}

fn app(limiter: &RateLimiter) -> Result<Router, ConfigError> {
    let policy = BlockPolicy::after(10, Duration::from_secs(60))
        .lasting(Duration::from_secs(30))
        .growing(2, Duration::from_secs(3600));
    // While Redis is away, nobody guesses passwords.
    let login = Limit::fixed_window("login", Quota::new(5, Duration::from_secs(10)))?
        .with_on_store_failure(OnStoreFailure::FailClosed)?
        .with_block_policy(policy)?;
    let layer = RateLimitLayer::new(limiter, login.clone(), PeerIp)?;
    let admin = Router::new()
        .route("/admin/block", get(show).put(block).delete(unblock))
        .with_state(Blocks {
            limiter: limiter.clone(),
            login,
        });
    Ok(Router::new()
        .route("/login", post(|| async { "wrong password\n" }))
        .layer(layer)
        .merge(admin))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("offenders: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "offenders").await?,
        _ => RateLimiter::in_memory(),
    };
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
    println!("5 logins in 10 s, and 30 s without any after 10 denials, on {url}. Try it:");
    println!();
    println!("  for i in $(seq 16); do curl -s -X POST {url}/login; done");
    println!("  curl -G {url}/admin/block --data-urlencode key=127.0.0.1");
    println!("  curl -G -X DELETE {url}/admin/block --data-urlencode key=127.0.0.1");
    println!("  curl -G -X PUT {url}/admin/block --data-urlencode key=127.0.0.1 -d seconds=60");
    let app = app(&limiter)?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
