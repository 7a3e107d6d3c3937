//! Real HTTP clients, by exact version: each is denied, waits until `Retry-After` is over, and is
//! allowed on its next try.
//!
//! `make clients` installs them and runs these tests.

#![cfg(feature = "axum")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::key::Header;
use tollgate::layer::IetfDraft;
use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};

/// An answer to a client: its time, its status, and its `Retry-After` in seconds.
type Answer = (Instant, u16, Option<u64>);

#[derive(Clone, Default)]
struct Answers(Arc<Mutex<BTreeMap<String, Vec<Answer>>>>);

async fn record(State(answers): State<Answers>, request: Request, next: Next) -> Response {
    let client = request.headers()["x-client"].to_str().unwrap().to_owned();
    let response = next.run(request).await;
    let header = response.headers().get("retry-after");
    let retry_after = header.map(|it| it.to_str().unwrap().parse().unwrap());
    let answer = (Instant::now(), response.status().as_u16(), retry_after);
    answers
        .0
        .lock()
        .unwrap()
        .entry(client)
        .or_default()
        .push(answer);
    response
}

/// A server that allows one request in two seconds to each client, with a path for each family of
/// headers.
async fn serve() -> (SocketAddr, Answers) {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::fixed_window("api", Quota::new(1, Duration::from_secs(2))).unwrap();
    let layer = RateLimitLayer::new(&limiter, limit, Header::new("x-client").unwrap()).unwrap();
    let hello = || get(|| async { "hello" });
    let answers = Answers::default();
    let app = Router::new()
        .route("/default", hello().layer(layer.clone()))
        .route(
            "/draft6",
            hello().layer(layer.clone().ietf_headers(IetfDraft::Draft6)),
        )
        .route(
            "/draft7",
            hello().layer(layer.ietf_headers(IetfDraft::Draft7)),
        )
        .layer(middleware::from_fn_with_state(answers.clone(), record));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, answers)
}

fn installed(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/clients")).join(path)
}

/// Runs a program with the server's URL, and then verifies what its clients did.
async fn run(program: &str, script: Option<&str>, clients: usize) {
    let (server, answers) = serve().await;
    let mut command = Command::new(installed(program));
    command
        .args(script.map(installed))
        .arg(format!("http://{server}"));
    let output = tokio::task::spawn_blocking(move || command.output().expect("run `make clients`"));
    let output = output.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    print!("{text}");

    let answers = answers.0.lock().unwrap();
    assert_eq!(answers.len(), clients, "{:?}", answers.keys());
    for (client, answers) in answers.iter() {
        let statuses: Vec<_> = answers.iter().map(|(_, status, _)| *status).collect();
        assert_eq!(statuses, [200, 429, 200], "{client}");
        let [_, (denied_at, _, retry_after), (allowed_at, ..)] = answers[..] else {
            unreachable!()
        };
        let retry_after = Duration::from_secs(retry_after.unwrap());
        let waited = allowed_at - denied_at;
        println!("{client}: Retry-After {retry_after:?}, retried after {waited:.2?}");
        // A timer of a client may fire some milliseconds early.
        assert!(
            waited + Duration::from_millis(20) >= retry_after,
            "{client}: Retry-After {retry_after:?}, retried after {waited:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs clients: make clients"]
async fn clients_from_npm_retry_after_the_wait() {
    run("npm/node_modules/.bin/node", Some("npm/clients.mjs"), 8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs clients: make clients"]
async fn clients_from_pypi_retry_after_the_wait() {
    run("bin/python", Some("clients.py"), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs clients: make clients"]
async fn client_from_crates_io_retries_after_the_wait() {
    run("reqwest/debug/reqwest-client", None, 1).await;
}

/// The guide names the versions that the tests install.
#[test]
fn guide_names_the_versions_that_are_tested() {
    let guide = include_str!("../../src/guide/clients.md");
    let npm: serde_json::Value =
        serde_json::from_str(include_str!("../clients/package.json")).unwrap();
    let npm = npm["dependencies"].as_object().unwrap().iter();
    let npm = npm.map(|(name, version)| (name.as_str(), version.as_str().unwrap()));
    let pypi = include_str!("../clients/requirements.txt").lines();
    let pypi = pypi.map(|line| line.split_once("==").unwrap());
    // These are parts of the others.
    let parts = [
        "@bufbuild/protobuf",
        "@connectrpc/connect",
        "@octokit/core",
        "axios",
        "httpx",
        "node",
    ];
    for (name, version) in npm.chain(pypi).filter(|(name, _)| !parts.contains(name)) {
        let row = guide
            .lines()
            .find(|row| row.starts_with('|') && row.contains(name));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        assert!(row.contains(version), "{name} {version}: {row}");
    }
}
