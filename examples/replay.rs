//! A dry run of a limit: reads checks from stdin, one JSON object a line, and prints what each
//! would have been answered, in virtual time.
//!
//! ```sh
//! cargo run --example replay -- \
//!   --limit '{"name":"api","algorithm":"gcra","limit":5,"period":"1s"}' <<'EOF'
//! {"at_us":0,"op":"charge","key":"k","cost":1}
//! {"at_us":200000,"op":"peek","key":"k","cost":5}
//! EOF
//! ```
//!
//! A line has the time (`at_us`), and may have an `op` (`charge`, `peek`, `refund`, `reset`;
//! charge if it is not given), a `key`, a `cost` (1 if it is not given), and a `limit` that takes
//! the place of the one of its name from there on. A refund has a `receipt` with the time (`at_us`)
//! and the `cost` of the charge that it takes back.
//!
//! A limit may have its period in microseconds, as `period_us`, in place of a `period` with a unit.
//! The test vectors and other programs write it so.
//!
//! `--help` lists the options.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tollgate::clock::ManualClock;
use tollgate::decision::{Receipt, Verdict};
use tollgate::store::Op;
use tollgate::{Decision, Key, Limit, MemoryStore, RateLimiter, RedisStore};

const HELP: &str = "\
Replays checks against limits, in virtual time.

usage: replay --limit JSON [--limit JSON ...] [--store memory|redis://...] [--summary] < checks

  --limit JSON    a limit, as {\"name\":\"api\",\"algorithm\":\"gcra\",\"limit\":5,\"period\":\"15m\",\"burst\":5};
                  `period` has a unit, or is \"period_us\":900000000; several are one group
  --store STORE   memory (the default), or the URL of a Redis; what is replayed there is kept
                  under keys of this run's own, and goes away by itself, an hour after its time
  --summary       print totals instead of each decision

a check, one a line: {\"at_us\":0,\"op\":\"charge\",\"key\":\"k\",\"cost\":1}
  op is charge (the default), peek, refund or reset; key is empty and cost is 1 by default;
  \"limit\":{...} takes the place of the limit of its name from there on;
  a refund has \"receipt\":{\"at_us\":0,\"cost\":1}, the time and the cost of the charge it takes back
";

/// The latest time that a `ManualClock` shows.
const LATEST_US: u64 = 200 * 366 * 24 * 60 * 60 * 1_000_000;

struct Options {
    limits: Vec<Limit>,
    store: String,
    summary: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    at_us: u64,
    #[serde(default)]
    op: Operation,
    #[serde(default)]
    key: String,
    #[serde(default = "one")]
    cost: u32,
    limit: Option<AnyLimit>,
    receipt: Option<Charged>,
}

/// The charge that a refund takes back.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Charged {
    at_us: u64,
    cost: u32,
}

/// A limit in the format of `tollgate::Limit`, or with `period_us` in place of its period.
#[derive(Deserialize)]
#[serde(try_from = "Map<String, Value>")]
struct AnyLimit(Limit);

impl TryFrom<Map<String, Value>> for AnyLimit {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Self, String> {
        if let Some(micros) = fields.remove("period_us") {
            let micros = micros.as_u64().ok_or("`period_us` is not a whole number")?;
            if fields.insert("period".to_owned(), format!("{micros}us").into()).is_some() {
                return Err("`period` and `period_us` are the same: remove one".to_owned());
            }
        }
        serde_json::from_value(Value::Object(fields)).map(Self).map_err(|error| error.to_string())
    }
}

const fn one() -> u32 {
    1
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Operation {
    #[default]
    Charge,
    Peek,
    Refund,
    Reset,
}

impl From<Operation> for Op {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Charge => Self::Charge,
            Operation::Peek => Self::Peek,
            Operation::Refund => Self::Refund,
            Operation::Reset => Self::Reset,
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u128>,
    reset_after_us: u128,
    delay_us: u128,
    never: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<Line<'a>>,
}

impl<'a> Line<'a> {
    fn of_verdict(name: Option<&'a str>, verdict: &Verdict) -> Self {
        Self {
            name,
            allowed: verdict.allowed(),
            limit: verdict.capacity(),
            remaining: verdict.remaining(),
            retry_after_us: verdict.retry_after().map(|wait| wait.as_micros()),
            reset_after_us: verdict.reset_after().as_micros(),
            delay_us: verdict.delay().as_micros(),
            never: verdict.exceeds_capacity(),
            limits: Vec::new(),
        }
    }

    fn of_decision(limits: &'a [Limit], decision: &Decision) -> Self {
        let mut line = Self::of_verdict(None, decision.deciding());
        line.delay_us = decision.delay().as_micros();
        if limits.len() > 1 {
            let pairs = limits.iter().zip(decision.verdicts());
            line.limits =
                pairs.map(|(limit, it)| Self::of_verdict(Some(limit.name()), it)).collect();
        }
        line
    }
}

/// Totals: checks, but for the peak rate, which is in units.
#[derive(Default, Serialize)]
struct Summary {
    checks: u64,
    admitted: u64,
    refused: u64,
    peak_rate: Peak,
    keys: BTreeMap<String, Totals>,
    #[serde(skip)]
    admissions: Vec<(u64, u64)>,
}

#[derive(Default, Serialize)]
struct Totals {
    admitted: u64,
    refused: u64,
}

/// The most units that were admitted in any second, of all keys.
#[derive(Default, Serialize)]
struct Peak {
    units_per_second: u64,
    from_us: u64,
}

impl Summary {
    fn count(&mut self, check: &Check, decision: &Decision) {
        if check.op != Operation::Charge {
            return;
        }
        self.checks += 1;
        let totals = self.keys.entry(check.key.clone()).or_default();
        if decision.allowed() {
            self.admitted += 1;
            totals.admitted += 1;
            // What waits for its turn counts when it leaves.
            let leaves = check.at_us + decision.delay().as_micros() as u64;
            self.admissions.push((leaves, check.cost.into()));
        } else {
            self.refused += 1;
            totals.refused += 1;
        }
    }

    fn finish(mut self) -> Self {
        self.admissions.sort_unstable();
        let (mut first, mut units) = (0, 0);
        for &(at, cost) in &self.admissions {
            units += cost;
            while self.admissions[first].0 + 1_000_000 <= at {
                units -= self.admissions[first].1;
                first += 1;
            }
            if units > self.peak_rate.units_per_second {
                self.peak_rate =
                    Peak { units_per_second: units, from_us: self.admissions[first].0 };
            }
        }
        self
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = error.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
    io.or(json) == Some(io::ErrorKind::BrokenPipe)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let Some(mut options) = options()? else {
        print!("{HELP}");
        return Ok(());
    };
    let clock = ManualClock::new();
    let limiter = limiter(&options.store, &clock).await?;
    // Line by line, so that another program can ask and read in turn.
    let mut output = io::stdout().lock();
    let mut summary = Summary::default();

    for (number, line) in io::stdin().lock().lines().enumerate() {
        let wrong = |error: &dyn Display| format!("line {}: {error}", number + 1);
        let line = line.map_err(|error| wrong(&error))?;
        if line.trim().is_empty() {
            continue;
        }
        let check = parse(&line).map_err(|error| wrong(&error))?;
        if let Some(AnyLimit(limit)) = &check.limit {
            change(&mut options.limits, limit).map_err(|error| wrong(&error))?;
        }
        clock.set(Duration::from_micros(check.at_us));
        let key = Key::new(&check.key);
        let receipt = check.receipt.map(|charged| Receipt::new(charged.at_us, charged.cost));
        let ask = |limit| tollgate::Check::new(limit, &key).cost(check.cost).of(receipt);
        let batch: Vec<_> = options.limits.iter().map(ask).collect();
        let decision =
            limiter.apply(check.op.into(), &batch).await.map_err(|error| wrong(&error))?;
        summary.count(&check, &decision);
        if !options.summary {
            serde_json::to_writer(&mut output, &Line::of_decision(&options.limits, &decision))?;
            writeln!(output)?;
        }
    }
    if options.summary {
        serde_json::to_writer_pretty(&mut output, &summary.finish())?;
        writeln!(output)?;
    }
    output.flush()?;
    Ok(())
}

fn parse(line: &str) -> Result<Check, String> {
    let check: Check = serde_json::from_str(line).map_err(|error| {
        // It is always line 1 of the line.
        error.to_string().replace(" at line 1 column", ", at column")
    })?;
    if check.at_us > LATEST_US {
        return Err(format!("at_us is {}, more than 200 years after 1970", check.at_us));
    }
    Ok(check)
}

/// Puts a limit in the place of the one of its name.
fn change(limits: &mut [Limit], limit: &Limit) -> Result<(), String> {
    let place = limits.iter_mut().find(|known| known.name() == limit.name());
    let place = place.ok_or_else(|| {
        format!("no --limit has the name `{}`, so there is none to change", limit.name())
    })?;
    *place = limit.clone();
    Ok(())
}

async fn limiter(store: &str, clock: &ManualClock) -> Result<RateLimiter, Box<dyn Error>> {
    if store == "memory" {
        return Ok(RateLimiter::new(MemoryStore::with_clock(clock.clone())));
    }
    if !store.contains(':') {
        return Err(format!("--store is `memory` or the URL of a Redis, not `{store}`").into());
    }
    // Nothing that an earlier run left may count.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let prefix = format!("replay-{}-{}", std::process::id(), now.as_micros());
    let redis = RedisStore::builder()
        .url(store)
        .prefix(prefix)
        .clock(clock.clone())
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    Ok(RateLimiter::new(redis))
}

/// The options, or none if help is wanted.
fn options() -> Result<Option<Options>, Box<dyn Error>> {
    let mut options = Options { limits: Vec::new(), store: "memory".to_owned(), summary: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value; see --help"));
        match argument.as_str() {
            "--limit" => {
                let json = value()?;
                let AnyLimit(limit) = serde_json::from_str(&json)
                    .map_err(|error| format!("--limit {json}: {error}"))?;
                if options.limits.iter().any(|known| known.name() == limit.name()) {
                    return Err(format!("two limits have the name `{}`", limit.name()).into());
                }
                options.limits.push(limit);
            }
            "--store" => options.store = value()?,
            "--summary" => options.summary = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown option `{argument}`; see --help").into()),
        }
    }
    if options.limits.is_empty() {
        return Err("no limit: give at least one --limit; see --help".into());
    }
    Ok(Some(options))
}
