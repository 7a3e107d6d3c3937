//! A quota for each plan: the plan of an account is in a database, and is looked up.
//!
//! ```sh
//! cargo run --example plans
//! REDIS_URL=redis://127.0.0.1/ cargo run --example plans   # shared by all replicas
//! ```
//!
//! `PORT` is the port to listen on, 3000 if it is not set.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::request::Parts;
use http::{StatusCode, header};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tollgate::decision::Usage;
use tollgate::layer::{ChosenLimits, Lookup, LookupResult, OnMissingKey};
use tollgate::{Check, ConfigError, Limit, Quota, RateLimitLayer, RateLimiter};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    Free,
    Pro,
    Internal,
    Unpaid,
}

/// The application's accounts. In a real service, a table.
#[derive(Default)]
struct Accounts {
    plans: Mutex<HashMap<String, Plan>>,
}

impl Accounts {
    fn new() -> Self {
        let plans = [
            ("alice", Plan::Free),
            ("bob", Plan::Pro),
            ("robot", Plan::Internal),
            ("mallory", Plan::Unpaid),
        ];
        let plans = plans
            .into_iter()
            .map(|(name, plan)| (name.to_owned(), plan))
            .collect();
        Self {
            plans: Mutex::new(plans),
        }
    }

    /// As slow as a query.
    async fn plan_of(&self, account: &str) -> io::Result<Option<Plan>> {
        sleep(Duration::from_millis(20)).await;
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(plans.get(account).copied())
    }

    fn change(&self, account: String, plan: Plan) {
        self.plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(account, plan);
    }
}

/// The account of a request. In a real service, authentication puts it into the request's
/// extensions.
fn account(request: &Parts) -> Option<String> {
    let name = request.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The layer: each account has the limit of its plan.
fn limit(limiter: &RateLimiter, accounts: Arc<Accounts>) -> Result<RateLimitLayer, ConfigError> {
    // One name: an account that changes its plan keeps what it used.
    let free = Limit::token_bucket("requests", Quota::per_minute(5))?;
    let pro = Limit::token_bucket("requests", Quota::per_minute(60).burst(20))?;
    // While the database is away. In the budget of the plans, an account that used more would be
    // locked out.
    let fallback = Limit::token_bucket("fallback", Quota::per_minute(30))?;
    // Plans are cached. An upgrade counts after 2 seconds at most.
    let plans = Lookup::builder(account, move |account: String| {
        let accounts = Arc::clone(&accounts);
        async move { accounts.plan_of(&account).await }
    })
    .ttl(Duration::from_secs(2))
    .unknown_ttl(Duration::from_secs(2))
    .build()?;

    RateLimitLayer::from_lookup(limiter, plans, move |_, account, plan| match plan {
        LookupResult::Known(Plan::Free) => Check::new(&free, &**account).into(),
        LookupResult::Known(Plan::Pro) => Check::new(&pro, &**account).into(),
        LookupResult::Known(Plan::Internal) => ChosenLimits::Unlimited,
        LookupResult::Known(Plan::Unpaid) => {
            ChosenLimits::reject_with(StatusCode::PAYMENT_REQUIRED, "the last invoice is not paid")
        }
        LookupResult::Unknown => ChosenLimits::reject("no such account"),
        _ => Check::new(&fallback, &**account).into(),
    })?
    // A request without an account.
    .on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED))
}

/// Answers with the remaining budgets of an account, and charges nothing.
async fn my_limits(
    State(layer): State<RateLimitLayer>,
    request: Parts,
) -> Result<Json<Vec<Usage>>, StatusCode> {
    let usage = layer.usage(&request).await;
    usage.map(Json).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

/// Changes the plan of an account.
async fn change_plan(
    State(accounts): State<Arc<Accounts>>,
    Path((account, plan)): Path<(String, String)>,
) -> Result<&'static str, (StatusCode, &'static str)> {
    let plan = match &*plan {
        "free" => Plan::Free,
        "pro" => Plan::Pro,
        _ => return Err((StatusCode::NOT_FOUND, "plans are free and pro\n")),
    };
    accounts.change(account, plan);
    Ok("changed\n")
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plans: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "plans").await?,
        _ => RateLimiter::in_memory(),
    };
    let accounts = Arc::new(Accounts::new());
    let layer = limit(&limiter, Arc::clone(&accounts))?;
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(layer.clone())
        .route("/me/limits", get(my_limits).with_state(layer))
        .route("/plan/{account}/{plan}", post(change_plan))
        .with_state(accounts);

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
    println!(
        "5 requests a minute for alice, 60 a minute and 20 at once for bob, on {url}. Try it:"
    );
    println!();
    println!("  for i in $(seq 7); do curl -si -H 'Authorization: alice' {url}/ | head -1; done");
    println!("  curl -s -H 'Authorization: alice' {url}/me/limits     # what is left");
    println!("  curl -X POST {url}/plan/alice/pro; sleep 2");
    println!("  curl -i -H 'Authorization: alice' {url}/     # and what was used counts");
    println!("  curl -i -H 'Authorization: robot' {url}/     # unlimited");
    println!("  curl -i -H 'Authorization: mallory' {url}/   # 402");
    println!("  curl -i -H 'Authorization: nobody' {url}/    # 403");
    axum::serve(listener, app).await?;
    Ok(())
}
