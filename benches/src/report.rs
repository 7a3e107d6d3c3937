//! The results as Markdown tables: medians over the rounds, and medians of the ratios within each
//! round.

use crate::contenders::Side;
use crate::sample::Sample;
use crate::scenario::Outcome;

/// Notes on the tables.
pub const NOTES: &str = "\
App µs and Redis µs are CPU time a decision: of the process with the limiter, and of Redis. In a
closed loop that process holds the clients, too. The bare service shows what the loop alone costs.
A ratio is the median of the ratios within each round. The column's head names what it is relative
to: tower_governor with headers in memory, and the fastest peer on Redis.

- Every limiter waits for Redis for up to five seconds.
- tower-rate-tier runs with plain user ids. By default it hashes them.
- tower-rate-limit-redis counts to 65,535. One hot key uses that up. Its denials cost less.
- A sliding log on Redis holds 1,000 requests at most here.
- trypema and INCRBY every 50 ms count in the process and report later, so more than the limit may pass.
  They do not count as the fastest peer.
- By hand is one script call for each limit, with GCRA, and one or two headers.
- HTTP: axum in a process of its own, and wrk with one thread. App µs are those of the server.
- Replicas: processes with 64 requests at once each, on one Redis. Figures are totals, latencies
  those of the slowest replica.
- Growth: a process of its own asks for each key once (new keys/s), then at random. A key's memory
  is the growth of `used_memory` in `INFO memory`, or of the process's resident set, by its first
  request. 1,000,000 keys are measured in one round.
";

/// A column: its head, and its text for a contender.
type Column<'a> = (String, Box<dyn Fn(&Outcome) -> String + 'a>);

pub fn median_of(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(figure).collect())
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The figure of one relative to another's, in the same round.
fn ratio(one: &Outcome, other: &Outcome, figure: fn(&Sample) -> f64) -> f64 {
    let rounds = one.samples.iter().zip(&other.samples);
    median(
        rounds
            .map(|(one, other)| figure(one) / figure(other))
            .collect(),
    )
}

fn fastest_peer(outcomes: &[Outcome]) -> &Outcome {
    let peers = outcomes.iter().filter(|it| it.side == Side::Peer);
    let rate_of = |it: &&Outcome| median_of(&it.samples, Sample::rate);
    peers
        .max_by(|a, b| rate_of(a).total_cmp(&rate_of(b)))
        .expect("every scenario has a peer")
}

/// A table, relative to the contender of that name, or by default to the fastest peer.
pub fn table(title: &str, outcomes: &[Outcome], compared_with: Option<&str>) -> String {
    let named = compared_with.and_then(|name| outcomes.iter().find(|it| it.name == name));
    let peer = named.unwrap_or_else(|| fastest_peer(outcomes));
    let bare = outcomes.iter().find(|it| it.side == Side::Bare);
    let ours = outcomes.iter().find(|it| it.side == Side::Tollgate);
    let asks_redis = outcomes
        .iter()
        .any(|it| median_of(&it.samples, Sample::redis_cpu) > 0.0);

    let mut columns = vec![
        figure("decisions/s", 0, Sample::rate),
        figure("app µs", 2, Sample::app_cpu),
        figure("p50 µs", 1, |it| it.p50.as_secs_f64() * 1e6),
        figure("p99 µs", 1, |it| it.p99.as_secs_f64() * 1e6),
        ("allowed of asked".to_owned(), Box::new(allowed_of_asked)),
        relative_to("decisions/s", peer, Sample::rate),
        relative_to("app CPU", peer, Sample::app_cpu),
    ];
    if asks_redis {
        columns.insert(2, figure("Redis µs", 2, Sample::redis_cpu));
        columns.push(relative_to("Redis CPU", peer, Sample::redis_cpu));
    }
    if let Some(bare) = bare {
        columns.push(relative_to("decisions/s", bare, Sample::rate));
        columns.push(relative_to("app CPU", bare, Sample::app_cpu));
    }
    columns.extend(growth(outcomes, peer));
    if let Some(ours) = ours {
        let text = |it: &Outcome| times(ratio(ours, it, Sample::rate));
        columns.push((
            format!("decisions/s of {} : this", ours.name),
            Box::new(text),
        ));
    }
    render(title, &columns, outcomes)
}

fn figure<'a>(head: &str, digits: usize, figure: fn(&Sample) -> f64) -> Column<'a> {
    let text = move |it: &Outcome| number(median_of(&it.samples, figure), digits);
    (head.to_owned(), Box::new(text))
}

fn relative_to<'a>(head: &str, other: &'a Outcome, figure: fn(&Sample) -> f64) -> Column<'a> {
    let text = move |it: &Outcome| times(ratio(it, other, figure));
    (format!("{head} : {}", other.name), Box::new(text))
}

fn allowed_of_asked(it: &Outcome) -> String {
    let sum = |figure: fn(&Sample) -> u64| it.samples.iter().map(figure).sum::<u64>();
    let (allowed, asked) = (sum(|it| it.allowed_in_all), sum(|it| it.asked_in_all));
    let quota = it.quota.map(|units| units * it.samples.len() as u64);
    let quota = quota.map_or_else(String::new, |units| format!(" (quota {units})"));
    format!("{allowed} of {asked}{quota}")
}

/// The figures of the first requests, in scenarios that start with them.
fn growth<'a>(outcomes: &[Outcome], peer: &'a Outcome) -> Vec<Column<'a>> {
    let Some(growth) = outcomes.first().and_then(|it| it.samples.first()?.growth) else {
        return Vec::new();
    };
    let new_keys: fn(&Sample) -> f64 = |it| it.growth.map_or(f64::NAN, |growth| growth.rate());
    let bytes = if growth.redis_bytes > 0 {
        figure("bytes a key in Redis", 0, |it| {
            it.growth
                .map_or(f64::NAN, |it| it.redis_bytes as f64 / it.keys as f64)
        })
    } else {
        figure("resident bytes a key", 0, |it| {
            it.growth
                .map_or(f64::NAN, |it| it.app_bytes as f64 / it.keys as f64)
        })
    };
    vec![
        figure("new keys/s", 0, new_keys),
        relative_to("new keys/s", peer, new_keys),
        bytes,
    ]
}

fn render(title: &str, columns: &[Column<'_>], outcomes: &[Outcome]) -> String {
    let heads: Vec<_> = columns.iter().map(|(head, _)| &**head).collect();
    let mut text = format!("### {title}\n\n| limiter | {} |\n|---|", heads.join(" | "));
    text += &"--:|".repeat(columns.len());
    text += "\n";
    for outcome in outcomes {
        let cells: Vec<_> = columns.iter().map(|(_, cell)| cell(outcome)).collect();
        text += &format!("| {} | {} |\n", outcome.name, cells.join(" | "));
    }
    text
}

fn times(ratio: f64) -> String {
    if ratio.is_finite() && ratio > 0.0 {
        format!("{ratio:.2}x")
    } else {
        String::new()
    }
}

/// A figure, or an empty text without one.
fn number(figure: f64, digits: usize) -> String {
    if figure.is_finite() {
        format!("{figure:.digits$}")
    } else {
        String::new()
    }
}
