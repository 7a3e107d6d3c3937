//! Measures how far replicas that decide without waiting for Redis exceed a limit. They are real
//! processes on a real Redis, under several demands, and with faults. `make excess` prints a table.
//!
//! `faults 600` runs fleets for 600 seconds, in which processes are killed, paused and started, and
//! fails if more passes than is promised.
//! `picture` draws the picture of the guide.

mod picture;

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tollgate::{ConfigError, Key, Limit, Quota, RateLimiter, RedisStore};

use support::RedisServer;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the tests use the rest of the helpers"
)]
#[path = "../../../../tests/support"]
mod support {
    mod redis_server;

    pub use redis_server::RedisServer;
}

const CAPACITY: u64 = 1_000;

const PERIOD: Duration = Duration::from_secs(10);

const OVERSHOOT_PERCENT: u8 = 5;

/// Each is asked with the whole demand.
const KEYS: u64 = 5;

/// The time of a fleet, a little less than four periods.
const TIME: Duration = Duration::from_secs(39);

/// A process that is paused for so long counts as one that was killed.
const CUT_OFF: Duration = Duration::from_secs(10);

/// The replicas of a fleet with faults.
const REPLICAS: usize = 4;

/// Between two times at which a replica may get requests.
const EVERY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    FixedWindow,
    TokenBucket,
    SlidingLog,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::FixedWindow, Self::TokenBucket, Self::SlidingLog];

    const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::TokenBucket => "token_bucket",
            Self::SlidingLog => "sliding_log",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    fn limit(self) -> Result<Limit, ConfigError> {
        let quota = Quota::new(CAPACITY, PERIOD);
        match self {
            Self::FixedWindow => Limit::fixed_window_aligned("api", quota)?.asynchronous(),
            Self::TokenBucket => {
                Limit::token_bucket("api", quota)?.with_overshoot_percent(OVERSHOOT_PERCENT)
            }
            Self::SlidingLog => {
                Limit::sliding_log("api", quota)?.with_overshoot_percent(OVERSHOOT_PERCENT)
            }
        }
    }

    /// The most units above the limit, in any time, of a key with these allowed requests.
    fn excess(self, times: &[Duration]) -> f64 {
        let capacity = CAPACITY as f64;
        match self {
            Self::FixedWindow => {
                let mut windows = BTreeMap::<u64, f64>::new();
                for time in times {
                    *windows
                        .entry(time.as_secs() / PERIOD.as_secs())
                        .or_default() += 1.0;
                }
                windows.into_values().fold(0.0, f64::max) - capacity
            }
            Self::TokenBucket => levels(times).fold(0.0, f64::max) - capacity,
            Self::SlidingLog => {
                let (mut log, mut most) = (VecDeque::new(), 0);
                for time in times {
                    while log.front().is_some_and(|first| *time - *first >= PERIOD) {
                        log.pop_front();
                    }
                    log.push_back(*time);
                    most = most.max(log.len());
                }
                most as f64 - capacity
            }
        }
    }

    /// The units that the limit allows to one key from the first to the last time.
    fn allowance(self, first: Duration, last: Duration) -> f64 {
        let window = |time: Duration| time.as_secs() / PERIOD.as_secs();
        let periods = match self {
            Self::FixedWindow => (window(last) - window(first) + 1) as f64,
            Self::TokenBucket => 1.0 + (last - first).as_secs_f64() / PERIOD.as_secs_f64(),
            Self::SlidingLog => ((last - first).as_secs_f64() / PERIOD.as_secs_f64()).ceil(),
        };
        CAPACITY as f64 * periods
    }
}

/// The level of a bucket of the limit after each of these requests.
fn levels(times: &[Duration]) -> impl Iterator<Item = f64> {
    let rate = CAPACITY as f64 / PERIOD.as_secs_f64();
    let (mut level, mut last) = (0.0_f64, Duration::ZERO);
    times.iter().map(move |time| {
        level = (level - rate * (*time - last).as_secs_f64()).max(0.0) + 1.0;
        last = *time;
        level
    })
}

/// The key of an allowed request, and its time since the Unix epoch.
type Allowed = (u64, Duration);

/// Random numbers by xorshift, which differ from process to process.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(RandomState::new().hash_one(()) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        self.below(1 << 52) as f64 / (1_u64 << 52) as f64
    }
}

/// The processes of one service.
struct Fleet {
    server: RedisServer,
    algorithm: Algorithm,
    /// Requests a second for each key, of all replicas together.
    demand: f64,
    /// The number of replicas that share the demand.
    shared_by: usize,
    replicas: Vec<Child>,
    allowed: Sender<Allowed>,
}

impl Fleet {
    fn new(algorithm: Algorithm, demand: f64, shared_by: usize) -> (Self, Receiver<Allowed>) {
        let (sender, receiver) = channel();
        let fleet = Self {
            server: RedisServer::start(),
            algorithm,
            demand,
            shared_by,
            replicas: Vec::new(),
            allowed: sender,
        };
        (fleet, receiver)
    }

    fn start_replica(&mut self) {
        let per_second = self.demand * KEYS as f64 / self.shared_by as f64;
        let program = env::current_exe().expect("the program has a path");
        let mut replica = Command::new(program)
            .args(["replica", &self.server.url(), self.algorithm.name()])
            .arg(per_second.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let output = replica.stdout.take().expect("it is piped");
        let allowed = self.allowed.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
                if let (Some(key), Some(micros)) = (numbers.next(), numbers.next()) {
                    let _ = allowed.send((key, Duration::from_micros(micros)));
                }
            }
        });
        self.replicas.push(replica);
    }

    /// Ends a replica as an orchestrator does, so that it pays what it owes.
    fn stop_replica(&mut self, index: usize) {
        let mut replica = self.replicas.swap_remove(index);
        drop(replica.stdin.take());
        replica.wait().expect("a child can be waited for");
    }

    fn kill_replica(&mut self, index: usize) {
        let mut replica = self.replicas.swap_remove(index);
        replica.kill().expect("a child can be killed");
        replica.wait().expect("a child can be waited for");
    }

    fn signal(&self, index: usize, signal: &str) {
        let id = self.replicas[index].id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.expect("there is a `kill`").success());
    }

    fn stop(mut self) -> (RedisServer, Algorithm) {
        while !self.replicas.is_empty() {
            self.stop_replica(0);
        }
        (self.server, self.algorithm)
    }
}

struct Measured {
    /// The highest excess of each key.
    excess: Vec<f64>,
    /// The part of the allowance that was used.
    used: f64,
    /// Scripts that Redis ran for each allowed request, with those that share the overshoot.
    calls: f64,
}

/// The times of the allowed requests of each key, in order.
fn times_of_keys(allowed: &Receiver<Allowed>) -> BTreeMap<u64, Vec<Duration>> {
    let mut keys = BTreeMap::<u64, Vec<Duration>>::new();
    for (key, time) in allowed {
        keys.entry(key).or_default().push(time);
    }
    keys.values_mut().for_each(|times| times.sort_unstable());
    keys
}

fn measure(fleet: Fleet, allowed: &Receiver<Allowed>) -> Measured {
    let (server, algorithm) = fleet.stop();
    let keys = times_of_keys(allowed);
    let all: usize = keys.values().map(Vec::len).sum();
    let allowance = |times: &Vec<Duration>| algorithm.allowance(times[0], times[times.len() - 1]);
    Measured {
        used: all as f64 / keys.values().map(allowance).sum::<f64>(),
        calls: server.calls("evalsha") as f64 / all as f64,
        excess: keys.values().map(|times| algorithm.excess(times)).collect(),
    }
}

fn percent_of_capacity(units: f64) -> f64 {
    units.max(0.0) * 100.0 / CAPACITY as f64
}

fn print_row(start: &str, measured: &Measured) {
    let highest = measured.excess.iter().copied().fold(0.0, f64::max);
    let mean = measured.excess.iter().map(|it| it.max(0.0)).sum::<f64>() / KEYS as f64;
    println!(
        "| {start} | {:.1} % | {:.1} % | {:.0} % | {:.2} |",
        percent_of_capacity(mean),
        percent_of_capacity(highest),
        measured.used * 100.0,
        measured.calls
    );
}

const HEAD: &str = "\
| algorithm | replicas | demand | mean excess | highest | used | calls for each allowed request |
|---|--:|--:|--:|--:|--:|--:|";

fn print_table(algorithms: &[Algorithm]) {
    println!(
        "{CAPACITY} in {PERIOD:?}, {KEYS} keys, {} s, an overshoot of {OVERSHOOT_PERCENT} % (fixed \
         windows have none)\n\n{HEAD}",
        TIME.as_secs()
    );
    let rate = CAPACITY as f64 / PERIOD.as_secs_f64();
    for &algorithm in algorithms {
        for count in [1, 4, 8] {
            for demand in [0.5, 1.5, 4.0] {
                let (mut fleet, allowed) = Fleet::new(algorithm, demand * rate, count);
                (0..count).for_each(|_| fleet.start_replica());
                sleep(TIME);
                let start = format!("{} | {count} | {demand} x", algorithm.name());
                print_row(&start, &measure(fleet, &allowed));
            }
        }
        let (mut fleet, allowed) = Fleet::new(algorithm, 4.0 * rate, 8);
        (0..2).for_each(|_| fleet.start_replica());
        for _ in 0..6 {
            sleep(TIME / 14);
            fleet.start_replica();
        }
        for _ in 0..6 {
            sleep(TIME / 14);
            fleet.stop_replica(0);
        }
        sleep(TIME / 14);
        let start = format!("{} | 2 to 8 to 2 | 1 to 4 x", algorithm.name());
        print_row(&start, &measure(fleet, &allowed));
    }
}

/// Runs replicas, of which one after another is killed, paused or replaced. Panics if more than the
/// bound passed.
fn run_with_faults(algorithm: Algorithm, time: Duration) {
    let rate = CAPACITY as f64 / PERIOD.as_secs_f64();
    let (mut fleet, allowed) = Fleet::new(algorithm, 4.0 * rate, REPLICAS);
    (0..REPLICAS).for_each(|_| fleet.start_replica());
    let begin = Instant::now();
    let mut random = Random::new();
    let mut next = |below| random.below(below);
    let (mut kills, mut pauses, mut cut_off, mut stops) = (0_u32, 0_u32, 0_u32, 0_u32);
    while begin.elapsed() < time {
        sleep(Duration::from_millis(500 + next(4_500)));
        let index = next(REPLICAS as u64) as usize;
        match next(3) {
            0 => {
                fleet.kill_replica(index);
                kills += 1;
            }
            1 => {
                fleet.stop_replica(index);
                stops += 1;
            }
            _ => {
                let pause = Duration::from_millis(100 + next(12_000));
                let stopped = Instant::now();
                fleet.signal(index, "-STOP");
                sleep(pause);
                fleet.signal(index, "-CONT");
                pauses += 1;
                cut_off += u32::from(stopped.elapsed() >= CUT_OFF);
                continue;
            }
        }
        sleep(Duration::from_millis(next(3_000)));
        fleet.start_replica();
    }
    let measured = measure(fleet, &allowed);
    print_row(
        &format!("{} | {REPLICAS}, with faults | 4 x", algorithm.name()),
        &measured,
    );
    let bound = match algorithm {
        Algorithm::FixedWindow => 0.0,
        Algorithm::TokenBucket | Algorithm::SlidingLog => bound_with_lost(kills + cut_off),
    };
    eprintln!(
        "{kills} killed, {stops} stopped, {pauses} paused, and {cut_off} of these for {CUT_OFF:?} \
         or longer: at most {bound:.1} %"
    );
    let highest = measured.excess.iter().copied().fold(0.0, f64::max);
    assert!(
        percent_of_capacity(highest) <= bound,
        "{highest} units above the limit are more than {bound:.1} %"
    );
}

/// The overshoot in percent, and what so many replicas owed that were lost. While one of them is
/// replaced, the others have more than their usual part.
fn bound_with_lost(lost: u32) -> f64 {
    let largest_part = 1.0 / (REPLICAS as f64 - 1.0);
    f64::from(OVERSHOOT_PERCENT) * largest_part.mul_add(f64::from(lost), 1.0)
}

/// Sends requests to the limiter until the input ends. Writes a line for each allowed one.
#[tokio::main]
async fn run_replica(url: &str, algorithm: Algorithm, per_second: f64) {
    let store = RedisStore::builder("excess").url(url).connect().await;
    let limiter = RateLimiter::new(store.expect("Redis is up"));
    let limit = algorithm.limit().expect("the limit is valid");
    let (ended, mut end) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        drop(std::io::stdin().read_line(&mut String::new()));
        let _ = ended.send(());
    });
    let keys: Vec<_> = (0..KEYS).map(Key::from).collect();
    let mut rounds = interval(EVERY);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut random = Random::new();
    while end.try_recv().is_err() {
        rounds.tick().await;
        // On average, so many requests a second, at random times.
        let mut wanted = per_second * EVERY.as_secs_f64() * 2.0 * random.part();
        while wanted > random.part() {
            wanted -= 1.0;
            let number = random.below(KEYS);
            // A process that was paused finds its deadline over.
            let Ok(decision) = limiter.check(&limit, &keys[number as usize]).await else {
                continue;
            };
            if decision.allowed() {
                let time = decision.decided_at().as_micros();
                writeln!(stdout(), "{number} {time}").expect("the parent reads");
            }
        }
    }
    limiter.flush().await;
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["replica", url, name, per_second] => run_replica(
            url,
            Algorithm::of_name(name).expect("the parent knows it"),
            per_second.parse().expect("it is a number"),
        ),
        ["faults", seconds] => {
            let time = Duration::from_secs(seconds.parse().expect("a number of seconds"));
            println!("{HEAD}");
            for algorithm in Algorithm::ALL {
                run_with_faults(algorithm, time / 3);
            }
        }
        ["picture"] => picture::draw().expect("the folder is there"),
        [] => print_table(&Algorithm::ALL),
        [name] => print_table(&[Algorithm::of_name(name).expect("an algorithm's name")]),
        _ => panic!("use nothing, `faults SECONDS`, `picture` or the name of an algorithm"),
    }
}
