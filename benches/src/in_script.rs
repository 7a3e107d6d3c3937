//! Redis's own time for each check, from `INFO commandstats`, and the memory of a log.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tollgate::clock::ManualClock;
use tollgate::store::{Operation, Store};
use tollgate::{Check, Key, Limit, Quota, RateLimiter, RedisStore};

use crate::contenders::{ALGORITHMS, Allowance};
use crate::redis_server::Server;
use crate::report::median;

pub const TITLE: &str = "inside Redis";

/// The expected time.
pub const EXPECTED: Duration = Duration::from_secs(25);

const CHECKS: usize = 5_000;
const KEYS: usize = 1_000;
const TOGETHER: usize = 64;

/// The longest time of a check on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number of rounds. Each figure is their median.
const ROUNDS: usize = 5;

/// Two tables, in Markdown.
///
/// On one thread, so that checks made at once are in one batch.
pub fn measure(server: &Server) -> Result<String, Box<dyn Error>> {
    let server = server.clone();
    let measuring = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let tables = runtime.map(|runtime| runtime.block_on(tables(&server)));
        tables
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    });
    Ok(measuring.join().map_err(|_| "the measurement panicked")??)
}

async fn tables(server: &Server) -> Result<String, Box<dyn Error>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut logs: Vec<Row> = Vec::new();
    for _ in 0..ROUNDS {
        script_round(
            server,
            &mut Round {
                rows: &mut rows,
                next: 0,
            },
        )
        .await?;
        log_round(
            server,
            &mut Round {
                rows: &mut logs,
                next: 0,
            },
        )
        .await?;
    }
    let mut text = format!("### Time {TITLE}, µs a check (`INFO commandstats`)\n\n");
    text += "| what | one a call | 64 a call | denied, one a call |\n|---|--:|--:|--:|\n";
    rows.iter().try_for_each(|row| row.write(&mut text))?;
    text += "\n### A full sliding log\n\n";
    text += "| requests in the log | µs a check | bytes in Redis |\n|---|--:|--:|\n";
    logs.iter().try_for_each(|row| row.write(&mut text))?;
    Ok(text)
}

/// A name, and columns with a figure for each round.
struct Row {
    name: String,
    columns: Vec<Vec<f64>>,
}

impl Row {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "| {} |", self.name)?;
        for column in &self.columns {
            match median(column.clone()) {
                figure if figure.is_nan() => write!(text, " |")?,
                figure => write!(text, " {figure:.2} |")?,
            }
        }
        writeln!(text)
    }
}

/// One more figure for each row of a table.
struct Round<'a> {
    rows: &'a mut Vec<Row>,
    next: usize,
}

impl Round<'_> {
    fn add(&mut self, name: &str, figures: &[f64]) {
        if self.next == self.rows.len() {
            let columns = figures.iter().map(|_| Vec::new()).collect();
            self.rows.push(Row {
                name: name.to_owned(),
                columns,
            });
        }
        let row = &mut self.rows[self.next];
        row.columns
            .iter_mut()
            .zip(figures)
            .for_each(|(column, figure)| column.push(*figure));
        self.next += 1;
    }
}

async fn script_round(server: &Server, round: &mut Round<'_>) -> Result<(), Box<dyn Error>> {
    let mut connection = server.connection().await;
    let (null, increment) = baselines(server, &mut connection).await?;
    round.add("a script that does nothing", &[null, f64::NAN, f64::NAN]);
    round.add("`INCRBY`", &[increment, f64::NAN, f64::NAN]);
    let plenty = Allowance {
        burst: 1_000,
        every_ms: 3_600_000,
    };
    let nothing = Allowance {
        burst: 1,
        every_ms: 3_600_000,
    };
    for algorithm in ALGORITHMS {
        let limit = algorithm.limit_on_redis("limit", plenty);
        let alone = check(server, &mut connection, &limit, 1).await?;
        let together = check(server, &mut connection, &limit, TOGETHER).await?;
        let denied = algorithm.limit_on_redis("limit", nothing);
        check(server, &mut connection, &denied, TOGETHER).await?;
        let denied = check_again(server, &mut connection, &denied, 1).await?;
        round.add(algorithm.name, &[alone, together, denied]);
    }
    Ok(())
}

async fn log_round(server: &Server, round: &mut Round<'_>) -> Result<(), Box<dyn Error>> {
    let mut connection = server.connection().await;
    for length in [10, 100, 1_000] {
        let (time, bytes) = log_of(server, &mut connection, length).await?;
        round.add(&length.to_string(), &[time, bytes as f64]);
    }
    Ok(())
}

async fn baselines(
    server: &Server,
    connection: &mut MultiplexedConnection,
) -> Result<(f64, f64), Box<dyn Error>> {
    let script = redis::Script::new("return 0");
    let _: i64 = script.key("key").invoke_async(connection).await?;
    server.clear().await;
    for _ in 0..CHECKS {
        let _: i64 = script.key("key").invoke_async(connection).await?;
        let mut increment = redis::cmd("INCRBY");
        let _: i64 = increment
            .arg("counter")
            .arg(1)
            .query_async(connection)
            .await?;
    }
    let per_call = |micros: f64| micros / CHECKS as f64;
    Ok((
        per_call(micros_in(connection, "evalsha").await?),
        per_call(micros_in(connection, "incrby").await?),
    ))
}

/// Microseconds a check on fresh keys.
async fn check(
    server: &Server,
    connection: &mut MultiplexedConnection,
    limit: &Limit,
    together: usize,
) -> Result<f64, Box<dyn Error>> {
    server.clear().await;
    check_again(server, connection, limit, together).await
}

/// Microseconds a check, `together` at a time.
async fn check_again(
    server: &Server,
    connection: &mut MultiplexedConnection,
    limit: &Limit,
    together: usize,
) -> Result<f64, Box<dyn Error>> {
    let store = RedisStore::builder("tollgate")
        .url(server.url())
        .deadline(PATIENCE)
        .deny_for(Duration::ZERO)
        .connect()
        .await?;
    let keys: Vec<_> = (0..KEYS)
        .map(|number| Key::new(format!("user{number}")))
        .collect();
    let before = micros_in(connection, "evalsha").await?;
    for first in (0..CHECKS).step_by(together) {
        let asked = (first..first + together).map(|number| {
            store.apply(Operation::Charge(
                Check::new(limit, &keys[number % KEYS]).into(),
            ))
        });
        for answer in asked.collect::<Vec<_>>() {
            drop(answer.await?);
        }
    }
    let checks = CHECKS.next_multiple_of(together);
    Ok((micros_in(connection, "evalsha").await? - before) / checks as f64)
}

/// Microseconds a check, and bytes, when each allowed request replaces the oldest entry.
async fn log_of(
    server: &Server,
    connection: &mut MultiplexedConnection,
    length: u64,
) -> Result<(f64, u64), Box<dyn Error>> {
    server.clear().await;
    let clock = ManualClock::new();
    let store = RedisStore::builder("tollgate")
        .url(server.url())
        .deadline(PATIENCE)
        .clock(clock.clone())
        .connect()
        .await?;
    let limiter = RateLimiter::new(store);
    let limit = Limit::sliding_log("log", Quota::new(length, Duration::from_secs(length)))?;
    let key = Key::new("user");
    let mut before = 0.0;
    for number in 0..2 * length + CHECKS as u64 {
        if number == 2 * length {
            before = micros_in(connection, "evalsha").await?;
        }
        clock.advance(Duration::from_secs(1));
        let decision = limiter.check(&limit, &key).await?;
        assert!(decision.allowed(), "the oldest entry has left the log");
    }
    let time = micros_in(connection, "evalsha").await? - before;
    let stored: Vec<String> = redis::cmd("KEYS").arg("*").query_async(connection).await?;
    let mut usage = redis::cmd("MEMORY");
    let bytes = usage
        .arg("USAGE")
        .arg(&stored[0])
        .query_async(connection)
        .await?;
    Ok((time / CHECKS as f64, bytes))
}

/// The microseconds that the server has spent on a command.
async fn micros_in(
    connection: &mut MultiplexedConnection,
    command: &str,
) -> Result<f64, Box<dyn Error>> {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(connection)
        .await?;
    let prefix = format!("cmdstat_{command}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    let micros = line.and_then(|line| {
        line.split(',')
            .find_map(|field| field.strip_prefix("usec="))?
            .parse()
            .ok()
    });
    Ok(micros.unwrap_or(0.0))
}
