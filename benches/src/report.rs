//! The results as a Markdown table: medians over the rounds, and medians of the ratios within each
//! round.

use std::fmt::Write;
use std::time::Duration;

use crate::load::Sample;
use crate::scenario::Result;

/// What has to be known to read the tables.
pub const NOTES: &str = "\
App and Redis µs are CPU time for each decision, of the process with all its clients, and of Redis.
Ratios are those within a round, their medians; the peer in the head is the one that decides most.

- Every limiter waits for Redis for up to five seconds: it is measured, not given up.
- tower-rate-tier runs with plain user ids; by default it hashes them.
- tower-rate-limit-redis counts to 65,535. With one hot key it comes to that, and then refuses,
  which costs less.
- A sliding log holds 1,000 requests at most here.
- By hand is one script call for each limit, with GCRA, and a header or two.
";

/// Decisions a second.
pub fn rate(it: &Sample) -> f64 {
    it.decisions as f64 / it.wall.as_secs_f64()
}

fn app_cpu(it: &Sample) -> f64 {
    per_decision(it.app_cpu, it)
}

fn redis_cpu(it: &Sample) -> f64 {
    per_decision(it.redis_cpu, it)
}

fn per_decision(time: Duration, it: &Sample) -> f64 {
    time.as_secs_f64() * 1e6 / it.decisions as f64
}

pub fn median_of(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(figure).collect())
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One's figure against another's, in the same round.
fn ratio(one: &Result, other: &Result, figure: fn(&Sample) -> f64) -> f64 {
    let rounds = one.samples.iter().zip(&other.samples);
    median(rounds.map(|(one, other)| figure(one) / figure(other)).collect())
}

/// The peer that decides most.
fn best_peer(results: &[Result]) -> &Result {
    let peers = results.iter().filter(|it| it.is_peer);
    let rate_of = |it: &&Result| median_of(&it.samples, rate);
    peers.max_by(|a, b| rate_of(a).total_cmp(&rate_of(b))).expect("nobody runs alone")
}

pub fn table(title: &str, results: &[Result]) -> String {
    let (first, best) = (&results[0], best_peer(results));
    let mut text = format!("### {title}\n\n");
    let peer = &best.name;
    text += "| limiter | decisions/s | app µs | Redis µs | p50 µs | p99 µs | admitted of asked | ";
    text += &format!(
        "decisions : {peer} | app CPU : {peer} | Redis CPU : {peer} | {} : this |\n",
        first.name
    );
    text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for it in results {
        let figure = |figure: fn(&Sample) -> f64| median_of(&it.samples, figure);
        let latency =
            |part| median_of(&it.samples, |it| it.latencies.value_at_quantile(part) as f64 / 1e3);
        let admitted = it.samples.iter().map(|it| it.admitted_in_all).sum::<u64>();
        let asked = it.samples.iter().map(|it| it.asked_in_all).sum::<u64>();
        let allowed = it.allowed.map(|units| units * it.samples.len() as u64);
        let allowed = allowed.map_or_else(String::new, |units| format!(" ({units} allowed)"));
        let speed = ratio(first, it, rate);
        let (x_speed, x_app, x_redis) =
            (ratio(it, best, rate), ratio(it, best, app_cpu), ratio(it, best, redis_cpu));
        let of_redis = |text: String| if x_redis.is_nan() { String::new() } else { text };
        let row = writeln!(
            text,
            "| {} | {:.0} | {:.2} | {} | {:.1} | {:.1} | {admitted} of {asked}{allowed} | \
             {x_speed:.2}x | {x_app:.2}x | {} | {speed:.2}x |",
            it.name,
            figure(rate),
            figure(app_cpu),
            of_redis(format!("{:.2}", figure(redis_cpu))),
            latency(0.5),
            latency(0.99),
            of_redis(format!("{x_redis:.2}x")),
        );
        row.expect("a string can be written to");
    }
    text
}
