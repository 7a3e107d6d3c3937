//! Four replicas that decide without waiting for Redis, and together allow at most the limit.
//!
//! ```sh
//! redis-server &
//! cargo run --example asynchronous
//! cargo run --example asynchronous -- overshoot
//! ```
//!
//! The limit is 1,000 requests in each window of 5 seconds, for all replicas together. With
//! `overshoot`, it is a bucket of 200 requests that refills 200 a second, and at most a tenth of
//! the bucket passes above that. Each replica is a process, and gets 100 requests a second. In the
//! second window, one of them is killed. In the third one, another takes its place. For each window
//! the program prints what passed, and for how many requests a replica waited for Redis.
//! `REDIS_URL` names another Redis.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::time::{MissedTickBehavior, interval};
use tollgate::decision::Source;
use tollgate::{Key, Limit, Quota, RateLimiter};

const LIMIT: u64 = 1_000;

const WINDOW: Duration = Duration::from_secs(5);

const WINDOWS: u64 = 4;

const REPLICAS: usize = 4;

/// Between two requests to a replica.
const EVERY: Duration = Duration::from_millis(10);

/// The report of a replica on one request. It has the number of the window, whether the request
/// passed, and whether the replica waited for Redis.
type Line = (u64, bool, bool);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        None => run_replicas("window"),
        Some("overshoot") => run_replicas("overshoot"),
        Some("replica") => run_replica(&arguments.next().unwrap_or_default()),
        Some(other) => Err(format!("`{other}` is unknown; use `overshoot` or nothing").into()),
    }
}

/// Runs replicas for some windows, kills one of them, and starts another.
fn run_replicas(kind: &str) -> Result<(), Box<dyn Error>> {
    let (sender, lines) = channel();
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(start_replica(kind, &sender)?);
    }
    // The first whole window.
    let first = window_of(since_epoch()) + 1;
    wait_for(first);
    let started = Instant::now();
    println!("{REPLICAS} replicas, {LIMIT} requests in {WINDOW:?}");
    thread::sleep(WINDOW + WINDOW / 4);
    if let Some(mut killed) = replicas.pop() {
        killed.kill()?;
        killed.wait()?;
        println!("{:?}: a replica is killed", started.elapsed());
    }
    wait_for(first + 2);
    replicas.push(start_replica(kind, &sender)?);
    println!("{:?}: a replica starts", started.elapsed());
    wait_for(first + WINDOWS);
    for mut replica in replicas {
        replica.kill()?;
        replica.wait()?;
    }
    drop(sender);
    print_windows(&lines, first);
    Ok(())
}

/// Prints what passed in each window.
fn print_windows(lines: &Receiver<Line>, first: u64) {
    let mut windows = BTreeMap::<u64, [u64; 3]>::new();
    for (window, passed, asked) in lines {
        let [requests, all_passed, all_asked] = windows.entry(window).or_default();
        *requests += 1;
        *all_passed += u64::from(passed);
        *all_asked += u64::from(asked);
    }
    for (window, [requests, passed, asked]) in windows.range(first..first + WINDOWS) {
        println!(
            "window {}: {requests} requests, {passed} passed, {asked} waited for Redis",
            window - first + 1
        );
    }
}

/// Starts this program once more, as a replica.
fn start_replica(kind: &str, lines: &Sender<Line>) -> Result<Child, Box<dyn Error>> {
    let mut replica = Command::new(env::current_exe()?)
        .args(["replica", kind])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = replica.stdout.take().ok_or("a replica has an output")?;
    let lines = lines.clone();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let mut words = line.split(' ');
            let window = words.next().and_then(|word| word.parse().ok());
            if let (Some(window), Some(passed), Some(asked)) = (window, words.next(), words.next())
            {
                // It fails when the windows are printed.
                let _ = lines.send((window, passed == "passed", asked == "asked"));
            }
        }
    });
    Ok(replica)
}

/// Sends requests to the limiter, and writes a line for each.
#[tokio::main]
async fn run_replica(kind: &str) -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let limiter = RateLimiter::redis(&url, "asynchronous-example").await?;
    let limit = match kind {
        "overshoot" => {
            let quota = Quota::per_second(LIMIT / WINDOW.as_secs());
            Limit::token_bucket("api", quota)?.with_overshoot_percent(10)?
        }
        _ => Limit::fixed_window_aligned("api", Quota::new(LIMIT, WINDOW))?.asynchronous()?,
    };
    let client = Key::new("client");
    let mut requests = interval(EVERY);
    requests.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        requests.tick().await;
        let decision = limiter.check(&limit, &client).await?;
        let window = window_of(decision.decided_at());
        let passed = if decision.allowed() {
            "passed"
        } else {
            "denied"
        };
        let asked = match decision.source() {
            Source::Asynchronous | Source::DenyCache => "here",
            _ => "asked",
        };
        writeln!(stdout(), "{window} {passed} {asked}")?;
    }
}

/// The number of the window of a time since the Unix epoch.
fn window_of(time: Duration) -> u64 {
    time.as_secs() / WINDOW.as_secs()
}

fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Waits until a window starts.
fn wait_for(window: u64) {
    let start = Duration::from_secs(window * WINDOW.as_secs());
    thread::sleep(start.saturating_sub(since_epoch()));
}
