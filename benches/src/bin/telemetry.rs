//! The cost of metrics, spans and the summary of denied keys: decisions a second, against the same
//! layer without them. Each setting is a process of its own, because a process has one recorder and
//! one subscriber. They take turns in one run.

use std::convert::Infallible;
use std::error::Error;
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tollgate::denied_keys::DeniedKeys;
use tollgate::key::Header;
use tollgate::store::Store;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use turns::{Sample, Service, USER};

#[path = "../../../tests/support/redis_server.rs"]
mod support;
#[path = "../turns.rs"]
mod turns;

const TURNS: usize = 7;

/// What is on. The first is what the others are compared with.
const SETTINGS: [&str; 5] = [
    "nothing",
    "metrics",
    "denied keys",
    "metrics and denied keys",
    "spans",
];

/// Where it is measured: `memory` or the URL of a server, whether all requests are denied, and how
/// many are sent at once.
type Place = (String, &'static str, usize);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [setting, store, quota, at_once] = &*arguments {
        return take_turns(setting, store, quota, at_once.parse()?).await;
    }
    let server = support::RedisServer::start();
    let stores = ["memory".to_owned(), server.url()];
    let wanted = |store: &&String| arguments.first().is_none_or(|part| store.contains(part));
    for store in stores.iter().filter(wanted) {
        for quota in ["allowed", "denied"] {
            for at_once in [64, 256] {
                compare((store.clone(), quota, at_once)).await?;
            }
        }
    }
    Ok(())
}

/// Lets the settings take turns, and prints their medians.
async fn compare((store, quota, at_once): Place) -> Result<(), Box<dyn Error>> {
    let mut processes = Vec::new();
    for setting in SETTINGS {
        let arguments = [setting, &store, quota, &at_once.to_string()].map(str::to_owned);
        processes.push((setting, Process::start(&arguments)?, Vec::new()));
    }
    for _ in 0..TURNS {
        for (_, process, turns) in &mut processes {
            turns.push(process.turn().await?);
        }
    }
    let place = if store == "memory" {
        "in memory"
    } else {
        "on Redis"
    };
    println!("\n{place}, requests {quota}, {at_once} at once, medians of {TURNS} turns\n");
    println!("| on | requests/s | of nothing | CPU us | p99 us |\n|---|--:|--:|--:|--:|");
    let base = turns::median(&processes[0].2, |turn: &Sample| turn.rate);
    for (setting, process, turns) in processes {
        let rate = turns::median(&turns, |turn| turn.rate);
        let [cpu, p99] = [|turn: &Sample| turn.cpu_us, |turn: &Sample| turn.p99_us]
            .map(|figure| turns::median(&turns, figure));
        println!(
            "| {setting} | {rate:.0} | {:.3} | {cpu:.2} | {p99:.1} |",
            rate / base
        );
        process.end().await?;
    }
    Ok(())
}

/// A process of this program that measures one setting.
struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(arguments: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().ok_or("it is piped")?;
        let output = child.stdout.take().ok_or("it is piped")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    async fn turn(&mut self) -> Result<Sample, Box<dyn Error>> {
        self.input.write_all(b"\n").await?;
        let line = self
            .output
            .next_line()
            .await?
            .ok_or("the process ended: its error is above")?;
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [rate, cpu_us, p50_us, p99_us] = numbers[..] else {
            return Err("four numbers".into());
        };
        Ok(Sample {
            rate,
            cpu_us,
            p50_us,
            p99_us,
        })
    }

    async fn end(mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.child.kill().await?)
    }
}

/// Measures a turn for each line of the input.
async fn take_turns(
    setting: &str,
    store: &str,
    quota: &str,
    at_once: usize,
) -> Result<(), Box<dyn Error>> {
    let store: Arc<dyn Store> = match store {
        "memory" => Arc::new(MemoryStore::new()),
        url => Arc::new(RedisStore::connect(url, "tollgate").await?),
    };
    let mut limiter = RateLimiter::builder(store);
    if setting.contains("metrics") {
        // With its upkeep, as a service has it.
        PrometheusBuilder::new()
            .with_http_listener(([127, 0, 0, 1], 0))
            .install()?;
    }
    if setting.contains("denied keys") {
        limiter = limiter.count_denied_keys(&DeniedKeys::new());
    }
    let limiter = limiter.build()?;
    if setting == "spans" {
        // A subscriber that keeps spans and their fields, and writes nothing.
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::sink);
        tracing_subscriber::registry()
            .with(layer.with_filter(LevelFilter::DEBUG))
            .init();
    }
    let service = service(&limiter, &format!("{setting}-{quota}-{at_once}"), quota)?;
    turns::load(&service, at_once).await;
    for line in std::io::stdin().lock().lines() {
        line?;
        let Sample {
            rate,
            cpu_us,
            p50_us,
            p99_us,
        } = turns::load(&service, at_once).await;
        println!("{rate} {cpu_us} {p50_us} {p99_us}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn service(limiter: &RateLimiter, name: &str, quota: &str) -> Result<Service, Box<dyn Error>> {
    let quota = match quota {
        "allowed" => Quota::per_second(1_000_000).burst(1_000_000_000),
        _ => Quota::per_day(1),
    };
    let name = name.replace(' ', "-");
    let layer = RateLimitLayer::token_bucket(limiter, &name, quota, Header::new(USER)?)?;
    let handler = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(handler));
    Ok(Service::new(
        service.map_response(|response| response.map(Body::new)),
    ))
}
