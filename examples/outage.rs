//! An outage, second by second: a service under load, and a Redis that this program stops and
//! starts.
//!
//! ```sh
//! cargo run --example outage
//! POLICY=fail_open cargo run --example outage      # or fail_closed
//! ```
//!
//! The service has a limit of 200 requests a second. Two replicas share it, and each gets 300
//! requests a second. Every second it prints what both together allowed, and who decided it. Redis
//! hangs from second 5 to 10, and is gone from second 15 to 20. `REDIS_SERVER` names the
//! `redis-server` to start, if it is not on the path.

use std::env;
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tollgate::decision::Source;
use tollgate::key::Global;
use tollgate::layer::OnStoreFailure;
use tollgate::store::{Group, Operation, Store};
use tollgate::{Check, Decision, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::ServiceExt;

const LIMIT: u64 = 200;

const REPLICAS: u32 = 2;

/// Requests a second to each replica.
const LOAD: u32 = 300;

/// A `redis-server` that ends with this program.
struct Redis(Child);

impl Redis {
    fn start(port: u16) -> Result<Self, Box<dyn Error>> {
        let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let process = Command::new(&program)
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start `{program}`: {error}; set REDIS_SERVER"))?;
        Ok(Self(process))
    }

    fn signal(&self, signal: &str) -> Result<(), Box<dyn Error>> {
        Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status()?;
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What happened in one second, on all replicas.
#[derive(Default)]
struct Second {
    by_redis: u32,
    locally: u32,
    unlimited: u32,
    denied: u32,
    unavailable: u32,
    latencies: Vec<Duration>,
}

impl Second {
    fn add(&mut self, status: u16, source: Option<Source>, latency: Duration) {
        let count = match (status, source) {
            (200, Some(Source::Local)) => &mut self.locally,
            (200, Some(Source::FailOpen)) => &mut self.unlimited,
            (200, _) => &mut self.by_redis,
            (429, _) => &mut self.denied,
            _ => &mut self.unavailable,
        };
        *count += 1;
        self.latencies.push(latency);
    }
}

/// A service that sends itself requests, as a replica would get them.
fn replica(
    store: &RedisStore,
    policy: OnStoreFailure,
    now: Arc<Mutex<Second>>,
) -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::token_bucket(&limiter, "outage", Quota::per_second(LIMIT), Global)?
        .on_store_failure(policy)?
        .insert_decision();
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(layer);
    tokio::spawn(async move {
        let mut due = interval(Duration::from_secs(1) / LOAD);
        due.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            due.tick().await;
            let (app, now) = (app.clone(), Arc::clone(&now));
            tokio::spawn(async move {
                let asked = Instant::now();
                let Ok(response) = app.oneshot(Request::new(Body::empty())).await;
                let source = response
                    .extensions()
                    .get::<Decision>()
                    .map(Decision::source);
                if let Ok(mut now) = now.lock() {
                    now.add(response.status().as_u16(), source, asked.elapsed());
                }
            });
        }
    });
    Ok(())
}

fn policy() -> Result<OnStoreFailure, String> {
    match env::var("POLICY").as_deref() {
        Err(_) | Ok("" | "local") => Ok(OnStoreFailure::local(REPLICAS)),
        Ok("fail_open") => Ok(OnStoreFailure::FailOpen),
        Ok("fail_closed") => Ok(OnStoreFailure::FailClosed),
        Ok(other) => Err(format!(
            "POLICY is `{other}`; use local, fail_open or fail_closed"
        )),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outage: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let policy = policy()?;
    let free = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let mut redis = Some(Redis::start(free)?);
    let now = Arc::new(Mutex::new(Second::default()));
    let probe = Check::new(&Limit::gcra("probe", Quota::per_second(1))?, "probe");
    let mut stores = Vec::new();
    for _ in 0..REPLICAS {
        stores.push(
            RedisStore::builder("outage")
                .url(format!("redis://127.0.0.1:{free}/"))
                .build()?,
        );
    }
    for store in &stores {
        // Redis starts beside this program.
        while store
            .apply(Operation::Peek(Group::from(probe.clone())))
            .await
            .is_err()
        {
            sleep(Duration::from_millis(50)).await;
        }
        replica(store, policy, Arc::clone(&now))?;
    }
    println!(
        "second  Redis  by Redis  locally  unlimited  denied  unavailable  p50 ms  p99 ms  breakers"
    );
    let mut due = interval(Duration::from_secs(1));
    due.tick().await;
    let mut state = "up";
    for second in 1..=25 {
        due.tick().await;
        let mut ended = std::mem::take(&mut *now.lock().map_err(|error| error.to_string())?);
        ended.latencies.sort();
        let at = |percent: usize| {
            let index = ended.latencies.len().saturating_sub(1) * percent / 100;
            ended
                .latencies
                .get(index)
                .map_or(0.0, |it| it.as_secs_f64() * 1_000.0)
        };
        let breakers: Vec<_> = stores
            .iter()
            .map(|store| format!("{:?}", store.breaker_state()))
            .collect();
        let Second {
            by_redis,
            locally,
            unlimited,
            denied,
            unavailable,
            ..
        } = ended;
        println!(
            "{second:6}  {state:5}  {by_redis:8}  {locally:7}  {unlimited:9}  {denied:6}  \
             {unavailable:11}  {:6.1}  {:6.1}  {}",
            at(50),
            at(99),
            breakers.join(", ")
        );
        match (second, &redis) {
            (5, Some(redis)) => {
                redis.signal("-STOP")?;
                state = "hangs";
            }
            (10, Some(redis)) => {
                redis.signal("-CONT")?;
                state = "up";
            }
            (15, Some(_)) => {
                redis = None;
                state = "gone";
            }
            (20, None) => {
                redis = Some(Redis::start(free)?);
                state = "up";
            }
            _ => {}
        }
    }
    drop(redis);
    Ok(())
}
