//! tollgate and its peers, side by side: each as a tower service, in one process, on one Redis that
//! is started for it, in turn and in several rounds. Prints a Markdown table of the medians.

mod contenders;
mod cpu;
mod load;
mod redis_server;
mod users;

use std::time::Duration;

use contenders::{Allowance, Contender};
use load::{Load, Sample};

/// How often everybody gets a turn.
const ROUNDS: usize = 5;

/// How long a turn is measured.
const TURN: Duration = Duration::from_millis(600);

/// What no key comes to the end of, at its share of the load.
const SPREAD: Allowance = Allowance { burst: 60_000, every_ms: 100 };

/// What not even a hot key comes to the end of.
const PLENTY: Allowance = Allowance { burst: 100_000_000, every_ms: 1 };

#[tokio::main]
async fn main() {
    let server = redis_server::Server::start();
    for concurrency in [1, 64, 256, 1_024] {
        let title = format!("{concurrency} at once, 10,000 keys");
        measure(&server, &title, contenders::on_redis(&server), concurrency, 10_000, SPREAD).await;
    }
    let title = "256 at once, one hot key";
    measure(&server, title, contenders::on_redis(&server), 256, 1, PLENTY).await;
    let title = "256 at once, 10,000 keys, three limits";
    let three = contenders::three_limits_on_redis(&server);
    measure(&server, title, three, 256, 10_000, PLENTY).await;
    for concurrency in [1, 64] {
        let title = format!("{concurrency} at once, 10,000 keys, in memory");
        measure(&server, &title, contenders::in_memory(), concurrency, 10_000, SPREAD).await;
    }
}

/// Measures all contenders in turn, and prints a row for each.
async fn measure(
    server: &redis_server::Server,
    title: &str,
    contenders: Vec<Contender>,
    concurrency: usize,
    keys: usize,
    allowance: Allowance,
) {
    let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (contender, samples) in contenders.iter().zip(&mut samples) {
            server.clear().await;
            let load = Load { concurrency, keys, time: TURN };
            samples.push((contender.measure)(load, allowance).await);
        }
    }
    println!("\n### {title}\n");
    println!("| limiter | decisions/s | app us | Redis us | p50 us | p99 us | admitted of |");
    println!("|---|---|---|---|---|---|---|");
    for (contender, samples) in contenders.iter().zip(&samples) {
        let rate = median(samples, |it| it.decisions as f64 / it.wall.as_secs_f64());
        let each = |time: Duration, it: &Sample| time.as_secs_f64() * 1e6 / it.decisions as f64;
        let app = median(samples, |it| each(it.app_cpu, it));
        let redis = median(samples, |it| each(it.redis_cpu, it));
        let at =
            |part| median(samples, move |it| it.latencies.value_at_quantile(part) as f64 / 1e3);
        let admitted: u64 = samples.iter().map(|it| it.admitted_in_all).sum();
        let asked: u64 = samples.iter().map(|it| it.asked_in_all).sum();
        println!(
            "| {} | {rate:.0} | {app:.2} | {redis:.2} | {:.1} | {:.1} | {admitted} of {asked} |",
            contender.name,
            at(0.5),
            at(0.99)
        );
    }
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<_> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
