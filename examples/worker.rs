//! A queue consumer without HTTP: four tasks send mails, together at most 5 a second.
//!
//! ```sh
//! cargo run --example worker
//! REDIS_URL=redis://127.0.0.1/ cargo run --example worker   # start several: they share the rate
//! ```

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tollgate::{Key, Limit, Quota, RateLimiter};

const MAILS: u32 = 20;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "worker").await?,
        _ => RateLimiter::in_memory(),
    };
    // With a burst of 1 the mails leave evenly, one every 200 ms.
    let rate = Limit::gcra("mails", Quota::per_second(5).burst(1))?;
    let provider = Key::new("smtp.example.com");

    let queue = Arc::new(Mutex::new(
        (1..=MAILS).collect::<std::collections::VecDeque<_>>(),
    ));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 1..=4 {
        let (limiter, rate, provider) = (limiter.clone(), rate.clone(), provider.clone());
        let queue = Arc::clone(&queue);
        workers.spawn(async move {
            loop {
                let Some(mail) = queue.lock().await.pop_front() else {
                    return Ok(());
                };
                // Waits for units, for at most 10 s.
                let acquired = limiter
                    .acquire(&rate, &provider, 1, Duration::from_secs(10))
                    .await;
                let acquired = acquired.map(|decision| decision.allowed());
                if !matches!(acquired, Ok(true)) {
                    queue.lock().await.push_back(mail);
                    println!("mail {mail:2} is queued again");
                    // The worker stops if the store is unavailable.
                    acquired?;
                    continue;
                }
                let at = started.elapsed().as_millis();
                println!("{at:5} ms: worker {worker} sends mail {mail:2}");
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker?.map_err(|error: tollgate::Error| error)?;
    }
    Ok(())
}
