//! A page to play with limits: six algorithms race on the same requests.
//!
//! ```sh
//! cargo run --example playground
//! ```
//!
//! Open <http://127.0.0.1:3000>. Choose a limit, press a button or hold a key, or start synthetic
//! traffic. Every request passes through real `RateLimitLayer`s, and the page shows their
//! responses.
//!
//! A second tab is a second client. With `REDIS_URL=redis://127.0.0.1/`, budgets are in Redis, and
//! two processes are two replicas: start the second one with `PORT=3001`, and open it with the same
//! client's name. `HOST` and `PORT` set where it listens.
//!
//! A switch cuts a tab off from its budgets, as an outage of Redis would, and a second replica
//! decides every other request.

mod code;
mod limited;
mod message;
mod outage;
mod session;
mod traffic;

use std::env;
use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::extract::{State, WebSocketUpgrade};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode, header};
use tokio::net::TcpListener;
use tollgate::store::Store;
use tollgate::{MemoryStore, RedisStore};

/// What all tabs share.
#[derive(Clone)]
struct Playground {
    budgets: Arc<dyn Store>,
    /// Where the budgets are, in words.
    store: &'static str,
}

async fn page() -> impl IntoResponse {
    // The page needs nothing from elsewhere, and nothing may frame it.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'";
    (
        [(header::CONTENT_SECURITY_POLICY, policy)],
        Html(include_str!("page.html")),
    )
}

async fn connect(
    State(playground): State<Playground>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    // Browsers let the pages of any site open a WebSocket, and name that site.
    if !is_same_origin(&headers) {
        return (StatusCode::FORBIDDEN, "open the page of this server").into_response();
    }
    let upgrade = upgrade.max_message_size(4_096);
    upgrade.on_upgrade(move |socket| session::run(socket, playground.budgets, playground.store))
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|it| it.to_str().ok());
    match (text(header::ORIGIN), text(header::HOST)) {
        (Some(origin), Some(host)) => {
            let page = ["http://", "https://"]
                .iter()
                .find_map(|it| origin.strip_prefix(it));
            page == Some(host) && is_address(host)
        }
        _ => false,
    }
}

/// Whether a host is an address. A site can make its own name an alias of this machine, and would
/// then be of the same origin.
fn is_address(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("playground: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let playground = match env::var("REDIS_URL").as_deref() {
        Err(_) | Ok("") => Playground {
            // A tab chooses the names of its clients.
            budgets: Arc::new(MemoryStore::builder().max_keys(100_000).build()),
            store: "the embedded store of this process",
        },
        Ok(url) => {
            // Away from the budgets of services.
            let redis = RedisStore::builder("playground").url(url).connect().await?;
            Playground {
                budgets: Arc::new(redis),
                store: "Redis",
            }
        }
    };
    let host = env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    let port: u16 = port
        .parse()
        .map_err(|_| format!("PORT is `{port}`; use 0 to 65535"))?;
    let listener = TcpListener::bind((host.as_str(), port))
        .await
        .map_err(|error| format!("cannot listen on {host}:{port}: {error}; set PORT"))?;
    println!(
        "open http://{} (the budgets are in {})",
        listener.local_addr()?,
        playground.store
    );
    let app = Router::new()
        .route("/", get(page))
        .route("/tab", get(connect));
    axum::serve(listener, app.with_state(playground)).await?;
    Ok(())
}
