//! Redis fails, in every way that we know of, under load from two processes (`make failures`).
//!
//! Each process is an application with a route for each failure policy. Each case breaks Redis for
//! a while, and mends it. In all of them: no hang, no panic, no 500. Under `FailClosed`, nothing is
//! allowed that Redis did not allow. Under `Local`, no more than the bound. Afterwards decisions
//! are exact again, without a restart. The table that this prints is in the guide about outages.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::stdin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;
use tollgate::decision::Source;
use tollgate::key::{Global, Header};
use tollgate::limit::OnStoreFailure;
use tollgate::{Decision, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};

use crate::support::chaos::{Chaos, Mode};
use crate::support::cluster::Cluster;
use crate::support::delay::delaying;
use crate::support::process::{self, Process};
use crate::support::requests::{request, send};
use crate::support::sentinels::Sentinels;
use crate::support::{RedisServer, free_port};

const DEADLINE: Duration = Duration::from_millis(250);

/// No request may take longer.
const WORST: Duration = DEADLINE.saturating_mul(3);

/// Redis decides again after that, at the latest: the breaker's longest pause, an attempt to
/// connect, and the recovery of the breaker.
const RECOVERY: Duration = DEADLINE.saturating_mul(12);

/// Two processes are two replicas.
const PROCESSES: u32 = 2;

/// Units a second, and at once.
const RATE: u64 = 40;

/// The limit that is checked for exactness.
const EXACT: u64 = 100;

const POLICIES: [(&str, OnStoreFailure); 3] = [
    ("open", OnStoreFailure::FailOpen),
    ("local", OnStoreFailure::local(PROCESSES)),
    ("closed", OnStoreFailure::FailClosed),
];

/// The requests of one policy in one phase.
#[derive(Default)]
struct Seen {
    by_source: BTreeMap<&'static str, u64>,
    denied: u64,
    unavailable: u64,
    /// Anything but 200, 429 and 503.
    wrong: u64,
    worst: Duration,
    /// The last request that Redis did not decide, since the phase began.
    last_undecided: Option<Duration>,
}

impl Seen {
    fn add(&mut self, status: u16, source: Option<Source>, began: Instant, latency: Duration) {
        let source = match source {
            Some(Source::Store | Source::DenyCache) => "redis",
            Some(Source::Local) => "local",
            Some(Source::FailOpen) => "open",
            _ => "none",
        };
        match status {
            200 => *self.by_source.entry(source).or_default() += 1,
            429 => self.denied += 1,
            503 => self.unavailable += 1,
            _ => self.wrong += 1,
        }
        self.worst = self.worst.max(latency);
        if source != "redis" {
            self.last_undecided = Some(began.elapsed());
        }
    }

    fn in_json(&self) -> Value {
        json!({
            "allowed": self.by_source,
            "denied": self.denied,
            "unavailable": self.unavailable,
            "wrong": self.wrong,
            "worst_ms": self.worst.as_millis() as u64,
            "last_undecided_ms": self.last_undecided.map(|it| it.as_millis() as u64),
        })
    }
}

/// The service of one policy: a limit for all, and one for each user that is checked for exactness.
fn service(limiter: &RateLimiter, policy: OnStoreFailure) -> [Router; 2] {
    let all = Limit::token_bucket("all", Quota::per_second(RATE)).unwrap();
    let each = Limit::fixed_window("each", Quota::per_hour(EXACT)).unwrap();
    let layer = RateLimitLayer::new(limiter, all, Global).unwrap();
    let exact = RateLimitLayer::new(limiter, each, Header::new("x-user").unwrap()).unwrap();
    [layer, exact].map(|layer| {
        let layer = layer.on_store_failure(policy).unwrap().insert_decision();
        Router::new().fallback(|| async {}).layer(layer)
    })
}

/// The application: requests to each service without an end, and commands from its input.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that `every_failure...` starts"]
async fn application() {
    let url = std::env::var("APPLICATION_URL").unwrap();
    let (mut services, mut phases) = (Vec::new(), Vec::new());
    for (name, policy) in POLICIES {
        let store = RedisStore::builder(name)
            .url(&url)
            .deadline(DEADLINE)
            .build();
        let limiter = RateLimiter::new(store.unwrap());
        let [load, exact] = service(&limiter, policy);
        let phase = Arc::new(Mutex::new((Instant::now(), Seen::default())));
        for _ in 0..3 {
            let (load, phase) = (load.clone(), Arc::clone(&phase));
            tokio::spawn(async move {
                loop {
                    let asked = Instant::now();
                    let response = send(
                        &load,
                        request("GET", "/").body(axum::body::Body::empty()).unwrap(),
                    )
                    .await;
                    let latency = asked.elapsed();
                    let source = response
                        .extensions()
                        .get::<Decision>()
                        .map(Decision::source);
                    note(&phase, response.status().as_u16(), source, latency);
                    sleep(Duration::from_millis(6)).await;
                }
            });
        }
        services.push(exact);
        phases.push(phase);
    }
    for command in stdin().lines().map_while(Result::ok) {
        let answer = match command.split_once(' ') {
            // Ends a phase, and begins the next one.
            None => {
                let ended = phases.iter().map(|phase| {
                    let ended = std::mem::replace(
                        &mut *phase.lock().unwrap(),
                        (Instant::now(), Seen::default()),
                    );
                    ended.1.in_json()
                });
                Value::Array(ended.collect())
            }
            // The requests of a new user that are allowed, of many at once.
            Some((_, user)) => {
                let mut allowed = Vec::new();
                for service in &services {
                    let mut requests = JoinSet::new();
                    for _ in 0..EXACT * 2 {
                        let (service, user) = (service.clone(), user.to_owned());
                        requests.spawn(async move {
                            let request = request("GET", "/").header("x-user", user);
                            send(&service, request.body(axum::body::Body::empty()).unwrap())
                                .await
                                .status()
                        });
                    }
                    let statuses = requests.join_all().await;
                    allowed.push(
                        statuses
                            .iter()
                            .filter(|status| status.as_u16() == 200)
                            .count(),
                    );
                }
                json!(allowed)
            }
        };
        process::answer(&answer);
    }
}

fn note(phase: &Mutex<(Instant, Seen)>, status: u16, source: Option<Source>, latency: Duration) {
    let (began, seen) = &mut *phase.lock().unwrap();
    seen.add(status, source, *began, latency);
}

fn run(application: &mut Process, command: &str) -> Vec<Value> {
    serde_json::from_str(&application.ask(command)).unwrap()
}

/// What both processes saw under one policy in one phase.
#[derive(Clone, Debug, Default)]
struct Sum {
    redis: u64,
    local: u64,
    open: u64,
    other: u64,
    unavailable: u64,
    wrong: u64,
    worst: Duration,
    last_undecided: Duration,
}

impl Sum {
    fn of(answers: &[Vec<Value>], policy: usize) -> Self {
        let mut sum = Self::default();
        for answer in answers {
            let seen = &answer[policy];
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            let allowed = &seen["allowed"];
            sum.redis += number(&allowed["redis"]);
            sum.local += number(&allowed["local"]);
            sum.open += number(&allowed["open"]);
            sum.other += number(&allowed["none"]);
            sum.unavailable += number(&seen["unavailable"]);
            sum.wrong += number(&seen["wrong"]);
            let millis = |value: &Value| Duration::from_millis(number(value));
            sum.worst = sum.worst.max(millis(&seen["worst_ms"]));
            sum.last_undecided = sum.last_undecided.max(millis(&seen["last_undecided_ms"]));
        }
        sum
    }
}

/// How a case differs from the others.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    lasts: Duration,
    /// The time that Redis itself needs, such as for a failover.
    server: Duration,
    /// Whether Redis loses budgets, or another client writes them.
    loses: bool,
    /// Whether Redis decides on all the same.
    decides: bool,
}

const fn case(name: &'static str) -> Case {
    let (lasts, server) = (Duration::from_millis(1_500), Duration::ZERO);
    Case {
        name,
        lasts,
        server,
        loses: false,
        decides: false,
    }
}

struct Suite {
    rows: Vec<String>,
    failed: Vec<String>,
}

impl Suite {
    /// Runs a case: two applications at `url`, and what breaks Redis and mends it.
    async fn run(
        &mut self,
        case: Case,
        url: &str,
        break_it: impl FnOnce(),
        mend_it: impl FnOnce(),
    ) {
        let mut applications: Vec<_> = (0..PROCESSES)
            .map(|_| Process::start("failures::application", &[("APPLICATION_URL", url)]))
            .collect();
        let mut all = |command: &str| -> Vec<Vec<Value>> {
            applications
                .iter_mut()
                .map(|application| run(application, command))
                .collect()
        };
        // All of them are connected.
        let ready = Instant::now();
        loop {
            let seen = all("phase");
            if (0..POLICIES.len()).all(|policy| Sum::of(&seen, policy).redis > 0) {
                break;
            }
            assert!(
                ready.elapsed() < Duration::from_secs(20),
                "{}: never connected",
                case.name
            );
            sleep(Duration::from_millis(200)).await;
        }
        let broken_at = Instant::now();
        all("phase");
        break_it();
        sleep(case.lasts).await;
        let during = all("phase");
        mend_it();
        let mended_at = Instant::now();
        let patience = RECOVERY + case.server;
        let mut after = all("phase");
        let mut recoveries = [Duration::ZERO; POLICIES.len()];
        // Until nothing but Redis decides, for a while.
        loop {
            sleep(DEADLINE * 3).await;
            let since = mended_at.elapsed();
            let more = all("phase");
            let mut is_stable = true;
            for (policy, recovery) in recoveries.iter_mut().enumerate() {
                let last = Sum::of(&more, policy).last_undecided;
                if !last.is_zero() {
                    *recovery = since.saturating_sub(DEADLINE * 3) + last;
                    is_stable = false;
                }
            }
            after.extend(more);
            if is_stable || since > patience + Duration::from_secs(10) {
                break;
            }
        }
        let lasted = broken_at.elapsed();
        let user = format!(
            "user-{}",
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos()
        );
        let exact: Vec<_> = applications
            .iter_mut()
            .map(|it| run(it, &format!("exact {user}")))
            .collect();

        for (policy, (name, _)) in POLICIES.iter().enumerate() {
            let (during, after) = (Sum::of(&during, policy), Sum::of(&after, policy));
            let recovery = recoveries[policy];
            let worst = during.worst.max(after.worst);
            let quota = RATE as f64 * (1.0 + lasted.as_secs_f64());
            let by_redis = during.redis + after.redis;
            let local = during.local + after.local;
            let open = during.open + after.open;
            let exact: u64 = exact
                .iter()
                .map(|answer| answer[policy].as_u64().unwrap())
                .sum();
            let unavailable = during.unavailable + after.unavailable;
            let outcome = [
                ("by Redis", during.redis > RATE / 2),
                ("unlimited", open > 0),
                ("locally", local > 0),
                ("503", unavailable > 0),
            ];
            let outcome: Vec<_> = outcome
                .iter()
                .filter(|(_, is)| *is)
                .map(|(name, _)| *name)
                .collect();
            self.rows.push(format!(
                "| {} | {name} | {} | {} ms | {} | {by_redis} | {} | {quota:.0} |",
                case.name,
                outcome.join(", "),
                worst.as_millis(),
                if recovery.is_zero() {
                    "-".to_owned()
                } else {
                    format!("{} ms", recovery.as_millis())
                },
                local + open,
            ));
            println!("{}", self.rows.last().unwrap());
            let mut expect = |is_so: bool, what: &str| {
                if !is_so {
                    self.failed.push(format!(
                        "{}, {name}: {what} ({during:?}, {after:?})",
                        case.name
                    ));
                }
            };
            let otherwise = [during.open, during.local, during.unavailable][policy];
            expect(case.decides || otherwise > 10, "it did not fail");
            expect(
                !case.decides || during.redis > RATE / 2,
                "Redis did not decide",
            );
            expect(
                during.wrong + after.wrong == 0,
                "a status that is none of 200, 429, 503",
            );
            expect(
                during.other + after.other == 0,
                "a request without a decision was allowed",
            );
            expect(worst <= WORST, "a request took too long");
            expect(recovery <= patience, "it took too long to recover");
            expect(*name == "open" || open == 0, "it failed open");
            expect(*name == "local" || local == 0, "it was limited locally");
            expect(*name == "closed" || unavailable == 0, "it failed closed");
            expect(
                local as f64 <= quota,
                "more than the bound was allowed locally",
            );
            expect(
                case.loses || by_redis as f64 <= quota,
                "Redis allowed more than the quota",
            );
            expect(
                exact == EXACT,
                &format!("afterwards {exact} of {EXACT} were allowed"),
            );
        }
    }
}

/// Commands to the server on one connection. One that the server does not know is an error.
fn command(connection: &mut redis::Connection, words: &[&str]) {
    let answer = redis::cmd(words[0])
        .arg(&words[1..])
        .query::<redis::Value>(connection);
    answer.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Repeats a command for as long as the case lasts.
fn repeatedly(server: &RedisServer, lasts: Duration, words: &'static [&str]) {
    let client = server.client();
    spawn_blocking(move || {
        let started = Instant::now();
        let mut connection = client.get_connection().unwrap();
        while started.elapsed() < lasts {
            drop(
                redis::cmd(words[0])
                    .arg(&words[1..])
                    .query::<redis::Value>(&mut connection),
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

fn temporary(name: &str) -> String {
    let directory = std::env::temp_dir().join(format!("tollgate-{name}-{}", free_port()));
    std::fs::create_dir_all(&directory).unwrap();
    directory.display().to_string()
}

/// Starts a server where another was a moment ago.
fn restart(port: u16, arguments: &[&str]) -> RedisServer {
    RedisServer::start_on_with(port, arguments).expect("the port is still free")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes minutes: `make failures`"]
async fn every_failure_has_its_outcome_and_heals() {
    println!(
        "| failure | policy | decided by | worst latency | recovery | by Redis | otherwise | quota |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut suite = Suite {
        rows: Vec::new(),
        failed: Vec::new(),
    };
    processes_that_fail(&mut suite).await;
    networks_that_fail(&mut suite).await;
    servers_that_decline(&mut suite).await;
    topologies_that_change(&mut suite).await;
    assert!(suite.failed.is_empty(), "{}", suite.failed.join("\n"));
}

async fn processes_that_fail(suite: &mut Suite) {
    let empty = Case {
        loses: true,
        ..case("killed, restarted empty")
    };
    let mut server = RedisServer::start();
    let (url, port) = (server.url(), server.port());
    let mut restarted = None;
    suite
        .run(
            empty,
            &url,
            || server.kill(),
            || restarted = Some(restart(port, &[])),
        )
        .await;
    drop(restarted);

    let directory = temporary("aof");
    let persistent = [
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--dir",
        &*directory,
    ];
    let mut server = RedisServer::start_with(&persistent);
    let (url, port) = (server.url(), server.port());
    let mut restarted = None;
    let kept = case("killed, restarted from an AOF");
    suite
        .run(
            kept,
            &url,
            || server.kill(),
            || restarted = Some(restart(port, &persistent)),
        )
        .await;
    drop(restarted);

    let server = RedisServer::start();
    let url = server.url();
    suite
        .run(
            case("stopped (SIGSTOP)"),
            &url,
            || server.pause(true),
            || server.pause(false),
        )
        .await;

    let mut server = RedisServer::start();
    let (url, port) = (server.url(), server.port());
    let (silent, mut restarted) = (Mutex::new(None), None);
    let accepts = Case {
        loses: true,
        ..case("accepts and never answers")
    };
    let replace = || {
        server.kill();
        *silent.lock().unwrap() = Some(std::net::TcpListener::bind(("127.0.0.1", port)).unwrap());
    };
    let put_back = || {
        *silent.lock().unwrap() = None;
        restarted = Some(restart(port, &[]));
    };
    suite.run(accepts, &url, replace, put_back).await;
    drop(restarted);

    // A data set that takes a second to load.
    let directory = temporary("loading");
    let slow = [
        "--dir",
        &*directory,
        "--enable-debug-command",
        "yes",
        "--key-load-delay",
        "400",
    ];
    let slow = [
        &slow[..],
        &["--loading-process-events-interval-bytes", "1024"],
    ]
    .concat();
    let mut server = RedisServer::start_with(&slow);
    command(&mut server.connection(), &["DEBUG", "POPULATE", "3000"]);
    command(&mut server.connection(), &["SAVE"]);
    let (url, port) = (server.url(), server.port());
    let mut restarted = None;
    let loading = Case {
        loses: true,
        server: Duration::from_secs(2),
        ..case("killed, then LOADING")
    };
    suite
        .run(
            loading,
            &url,
            || server.kill(),
            || restarted = Some(restart(port, &slow)),
        )
        .await;
}

async fn networks_that_fail(suite: &mut Suite) {
    for (name, mode) in [
        ("replies cut in the middle", Mode::CutReplies),
        ("replies one byte at a time", Mode::Trickle),
        ("packets held up", Mode::BlackHole),
        ("each 16th reply lost", Mode::LoseReplies),
    ] {
        let server = RedisServer::start();
        let chaos = Chaos::start(server.port()).await;
        let url = format!("redis://127.0.0.1:{}/", chaos.port);
        let case = Case {
            decides: matches!(mode, Mode::Trickle | Mode::LoseReplies),
            ..case(name)
        };
        suite
            .run(case, &url, || chaos.set(mode), || chaos.set(Mode::Well))
            .await;
    }
    // A deadline of 250 ms leaves no time to wait for another call.
    let server = RedisServer::start();
    let millis = Arc::new(AtomicU64::new(1));
    let port = delaying(server.port(), Arc::clone(&millis)).await;
    let url = format!("redis://127.0.0.1:{port}/");
    let slow = Case {
        decides: true,
        ..case("slow, and alive: 200 ms away")
    };
    let set = |wanted: u64| millis.store(wanted, Ordering::Relaxed);
    suite.run(slow, &url, || set(200), || set(1)).await;
}

async fn servers_that_decline(suite: &mut Suite) {
    let lasts = case("").lasts;
    for (name, words) in [
        ("SCRIPT FLUSH, 50 a second", &["SCRIPT", "FLUSH"][..]),
        (
            "CLIENT KILL, 50 a second",
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        ),
    ] {
        let server = RedisServer::start();
        let decides = words[0] == "SCRIPT";
        let case = Case {
            decides,
            ..case(name)
        };
        suite
            .run(
                case,
                &server.url(),
                || repeatedly(&server, lasts, words),
                || {},
            )
            .await;
    }
    let server = RedisServer::start();
    let keys = ["open", "local", "closed"].map(|prefix| format!("{prefix}:{{*}}:b:all"));
    let client = server.client();
    let overwrite = || {
        spawn_blocking(move || {
            let (started, mut connection) = (Instant::now(), client.get_connection().unwrap());
            while started.elapsed() < lasts {
                for key in &keys {
                    let () = redis::pipe()
                        .del(key)
                        .lpush(key, "x")
                        .query(&mut connection)
                        .unwrap();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    };
    let foreign = Case {
        loses: true,
        decides: true,
        ..case("a list at our key, 50 a second")
    };
    suite.run(foreign, &server.url(), overwrite, || {}).await;

    // Others fill the memory, and our keys are evicted.
    const FILL: &[&str] = &[
        "EVAL",
        "for i = 1, 100 do redis.call('SET', 'other' .. math.random(1e9), ('x'):rep(10000)) end",
        "0",
    ];
    let full = ["--maxmemory", "5mb", "--maxmemory-policy", "allkeys-random"];
    let server = RedisServer::start_with(&full);
    let evicting = Case {
        loses: true,
        decides: true,
        ..case("maxmemory, keys are evicted")
    };
    suite
        .run(
            evicting,
            &server.url(),
            || repeatedly(&server, lasts, FILL),
            || {},
        )
        .await;

    let paused: &[&[&str]] = &[&["CLIENT", "PAUSE", "1500", "ALL"]];
    let mended: &[&[&str]] = &[];
    for (name, breaks, mends) in [
        ("CLIENT PAUSE", paused, mended),
        (
            "maxmemory, noeviction",
            &[&["CONFIG", "SET", "maxmemory", "1"]],
            &[&["CONFIG", "SET", "maxmemory", "0"]],
        ),
        (
            "demoted to a replica (READONLY)",
            &[&["REPLICAOF", "127.0.0.1", "1"]],
            &[&["REPLICAOF", "NO", "ONE"]],
        ),
        (
            "password changed (NOAUTH)",
            &[
                &[
                    "ACL", "SETUSER", "admin", "on", ">admin", "+@all", "~*", "&*",
                ],
                &["ACL", "SETUSER", "default", "resetpass", ">new"],
                &["CLIENT", "KILL", "TYPE", "normal"],
            ],
            &[],
        ),
        (
            "right revoked (NOPERM)",
            &[&["ACL", "SETUSER", "default", "-evalsha"]],
            &[&["ACL", "SETUSER", "default", "+evalsha"]],
        ),
    ] {
        let server = RedisServer::start();
        let run = |commands: &[&[&str]]| {
            let mut connection = server.connection();
            commands
                .iter()
                .for_each(|words| command(&mut connection, words));
        };
        let mend = || {
            if !name.contains("NOAUTH") {
                return run(mends);
            }
            let url = server.url().replace("//", "//admin:admin@");
            let mut admin = redis::Client::open(url).unwrap().get_connection().unwrap();
            command(&mut admin, &["ACL", "SETUSER", "default", "nopass"]);
        };
        suite
            .run(case(name), &server.url(), || run(breaks), mend)
            .await;
    }

    // The connection that mends it is the only one that the server has room for.
    let server = RedisServer::start();
    let connection = RefCell::new(server.connection());
    let run = |words: &[&str]| command(&mut connection.borrow_mut(), words);
    let fill = || {
        run(&["CONFIG", "SET", "maxclients", "1"]);
        run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    };
    let make_room = || run(&["CONFIG", "SET", "maxclients", "10000"]);
    let crowded = case("no room for connections (maxclients)");
    suite.run(crowded, &server.url(), fill, make_room).await;

    let server = RedisServer::start_with(&["--busy-reply-threshold", "100"]);
    let client = server.client();
    let hog = || {
        spawn_blocking(move || {
            let mut connection = client.get_connection().unwrap();
            let endless = redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .to_owned();
            drop(endless.query::<redis::Value>(&mut connection));
        });
    };
    let kill = || command(&mut server.connection(), &["SCRIPT", "KILL"]);
    suite
        .run(
            case("a script that hogs the server (BUSY)"),
            &server.url(),
            hog,
            kill,
        )
        .await;

    let directory = temporary("misconf");
    let server = RedisServer::start_with(&["--dir", &directory, "--save", "3600 1000000"]);
    let break_it = || {
        std::fs::remove_dir_all(&directory).unwrap();
        command(&mut server.connection(), &["BGSAVE"]);
    };
    let mend = || {
        let forgive = ["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"];
        command(&mut server.connection(), &forgive);
    };
    suite
        .run(
            case("no disk to save to (MISCONF)"),
            &server.url(),
            break_it,
            mend,
        )
        .await;
}

async fn topologies_that_change(suite: &mut Suite) {
    let failover = Duration::from_secs(6);
    let lost = Case {
        loses: true,
        server: failover,
        ..case("sentinels: master killed")
    };
    let mut sentinels = spawn_blocking(|| Sentinels::start(|_| Vec::new()))
        .await
        .unwrap();
    let url = sentinels.url();
    suite
        .run(lost, &url, || sentinels.servers[0].kill(), || {})
        .await;

    let planned = Case {
        name: "sentinels: planned failover",
        lasts: Duration::from_secs(4),
        decides: true,
        ..lost
    };
    let sentinels = spawn_blocking(|| Sentinels::start(|_| Vec::new()))
        .await
        .unwrap();
    let url = sentinels.url();
    suite
        .run(planned, &url, || sentinels.fail_over(), || {})
        .await;
    drop(sentinels);

    let lost = Case {
        name: "cluster: master killed",
        ..lost
    };
    let mut cluster = spawn_blocking(Cluster::that_fails_over).await.unwrap();
    let url = cluster.url();
    let kill_owner = || {
        let is_owner = |node: &&mut RedisServer| {
            let keys: Vec<String> = redis::cmd("KEYS")
                .arg("*:b:all")
                .query(&mut node.connection())
                .unwrap();
            !keys.is_empty()
        };
        cluster
            .nodes
            .iter_mut()
            .take(3)
            .find(is_owner)
            .expect("one has the key")
            .kill();
    };
    suite.run(lost, &url, kill_owner, || {}).await;
    drop(cluster);

    let cluster = Arc::new(spawn_blocking(Cluster::start).await.unwrap());
    let url = cluster.url();
    let moving = Arc::clone(&cluster);
    let move_slots = move || {
        spawn_blocking(move || {
            for node in 0..3 {
                let mut connection = moving.nodes[node].connection();
                let stored: Vec<String> = redis::cmd("KEYS")
                    .arg("*:b:all")
                    .query(&mut connection)
                    .unwrap();
                let slots: BTreeSet<_> = stored.iter().map(|key| moving.slot(key)).collect();
                for slot in slots {
                    if moving.master_of(slot) == node {
                        moving.move_slot(slot, node, (node + 1) % 3);
                    }
                }
            }
        });
    };
    let moved = Case {
        decides: true,
        ..case("cluster: slots moved")
    };
    suite.run(moved, &url, move_slots, || {}).await;
    drop(cluster);

    // New connections are validated by the slots of some partitions. Those slots move, or have no
    // owner. The slots of the keys stay where they are.
    for (name, is_moving) in [
        ("cluster: new connections, slots move", true),
        ("cluster: slots without an owner", false),
    ] {
        let cluster = spawn_blocking(Cluster::start).await.unwrap();
        let url = cluster.url();
        let abandoned = RefCell::new(Vec::new());
        let break_it = || {
            let of_keys = slots_of_keys(&cluster);
            for tag in TAGS {
                let slot = cluster.slot(tag);
                let owner = cluster.master_of(slot);
                if of_keys.contains(&slot) {
                    continue;
                }
                if is_moving {
                    cluster.begin_move(slot, owner, (owner + 1) % 3);
                } else {
                    cluster.abandon_slot(slot);
                    abandoned.borrow_mut().push((slot, owner));
                }
            }
            for node in &cluster.nodes[..3] {
                command(
                    &mut node.connection(),
                    &["CLIENT", "KILL", "TYPE", "normal"],
                );
            }
        };
        // The key that is counted afterwards may be in one of the slots.
        let give_back = || cluster.adopt_slots(abandoned.take());
        suite
            .run(
                Case {
                    decides: true,
                    ..case(name)
                },
                &url,
                break_it,
                give_back,
            )
            .await;
    }
}

/// The first partitions of each of three masters.
const TAGS: [&str; 9] = ["18", "3", "61", "2", "60", "59", "49", "103", "0"];

fn slots_of_keys(cluster: &Cluster) -> BTreeSet<u16> {
    let stored = cluster.nodes[..3].iter().flat_map(|node| -> Vec<String> {
        redis::cmd("KEYS")
            .arg("*:b:all")
            .query(&mut node.connection())
            .unwrap()
    });
    stored.map(|key| cluster.slot(&key)).collect()
}
