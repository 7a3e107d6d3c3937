//! The checks of one server.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::RedisError;

use super::{Findings, Level, limits};
use crate::arguments::DoctorArguments;
use crate::output::explained;
use crate::redis::servers::Server;

/// The round trips that are measured: so many that one in a thousand is seen, or as many as fit.
const PINGS: usize = 1_000;

const FEWEST_PINGS: usize = 20;

const MEASURED_FOR: Duration = Duration::from_secs(2);

/// Clients notice such a latency of each request.
const SLOW: Duration = Duration::from_millis(50);

/// The time that a check takes beyond a round trip, on a busy machine.
const QUEUED: Duration = Duration::from_millis(20);

/// Advice about what a server does not say.
const ASK_ITSELF: &str = "this may be a proxy: for the missing checks, give doctor the address of \
                          Redis itself";

/// A clock that is off by more seconds was not set.
const LONG_AGO: f64 = 365.0 * 86_400.0;

pub(super) async fn examine(
    server: &mut Server,
    arguments: &DoctorArguments,
    findings: &mut Findings,
) {
    if let Err(error) = latency(server, arguments.deadline, findings).await {
        let if_no_right = (
            Level::Problem,
            "give this user +ping, which services need, too",
        );
        failed("latency", &error, if_no_right, findings);
    }
    let prefix = arguments.prefix.trim_end_matches(':');
    if let Err(error) = clock(server, prefix, findings).await {
        let if_no_right = (
            Level::Problem,
            "give this user +time, which services need, too",
        );
        failed("clock", &error, if_no_right, findings);
    }
    if let Err(error) = limits::examine(server, prefix, findings).await {
        let if_no_right = (
            Level::Problem,
            "give this user +getrange, which services need, too",
        );
        failed("limits", &error, if_no_right, findings);
    }
    let info: String = match server.ask(&["INFO"]).await {
        Ok(info) => info,
        Err(error) => {
            let if_no_right = (Level::Advice, "give this user +info for the other checks");
            return failed("INFO", &error, if_no_right, findings);
        }
    };
    let info = Info::parse(&info);
    version(&info, findings);
    memory(&info, findings);
    replication(server, &info, findings).await;
    persistence(server, prefix, &info, findings).await;
    cluster(server, &info, findings).await;
    connections(&info, findings);
}

/// Reports a command that failed: for want of a right, because a proxy does not know it, or because
/// the server does not answer as it should.
fn failed(
    about: &'static str,
    error: &anyhow::Error,
    if_no_right: (Level, &'static str),
    findings: &mut Findings,
) {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<RedisError>());
    let (level, advice) = match cause {
        Some(cause) if cause.code() == Some("NOPERM") => if_no_right,
        // Some proxies close the connection at a command that they do not know.
        Some(cause) if cause.code() == Some("ERR") || cause.is_connection_dropped() => {
            (Level::Advice, ASK_ITSELF)
        }
        _ => (
            Level::Problem,
            "services need an answer within 250 ms: look at the network, and at the load of the \
             server",
        ),
    };
    findings.add(about, level, explained(error), Some(advice.into()));
}

/// The fields of INFO.
struct Info(HashMap<String, String>);

impl Info {
    fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(
            fields
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
                .collect(),
        )
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

async fn latency(
    server: &mut Server,
    deadline: Duration,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < FEWEST_PINGS || (times.len() < PINGS && started.elapsed() < MEASURED_FOR) {
        let start = Instant::now();
        let _: String = server.ask(&["PING"]).await?;
        times.push(start.elapsed());
    }
    times.sort();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let median = times[times.len() / 2];
    let slowest = times[(times.len() * 999).div_ceil(1_000) - 1];
    let found = format!(
        "{:.2} ms, {:.2} ms at the p99.9 of {} round trips",
        millis(median),
        millis(slowest),
        times.len()
    );
    let needed = slowest + QUEUED;
    if needed > deadline {
        let level = if slowest > deadline {
            Level::Problem
        } else {
            Level::Advice
        };
        let advice = format!(
            "checks fail after the deadline of {:.0} ms: set it to {:.0} ms or more \
             (`RedisStoreBuilder::deadline`), or look for slow commands (SLOWLOG GET)",
            millis(deadline),
            millis(needed).ceil()
        );
        findings.add("latency", level, found, Some(advice.into()));
    } else if median > SLOW {
        findings.advice(
            "latency",
            found,
            "each request waits for a round trip: move the service nearer to Redis",
        );
    } else {
        findings.good("latency", found);
    }
    Ok(())
}

async fn clock(server: &mut Server, prefix: &str, findings: &mut Findings) -> anyhow::Result<()> {
    let theirs = server.now(prefix).await? as f64 / 1e6;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let ahead = theirs - ours;
    let found = format!(
        "{:.3} s {} this machine",
        ahead.abs(),
        if ahead < 0.0 { "behind" } else { "ahead of" }
    );
    if ahead.abs() > LONG_AGO {
        let advice = "this is no time of day: a proxy may answer TIME by itself, or the clock was \
                      never set";
        findings.advice("clock", found, advice);
    } else if ahead.abs() > 1.0 {
        findings.advice(
            "clock",
            found,
            "decisions go by this clock alone and are right; X-RateLimit-Reset, a time of day, is \
             off by as much: run NTP",
        );
    } else {
        findings.good("clock", found);
    }
    Ok(())
}

fn version(info: &Info, findings: &mut Findings) {
    let (redis, valkey) = (info.text("redis_version"), info.text("valkey_version"));
    if !valkey.is_empty() {
        return findings.good("version", format!("Valkey {valkey}"));
    }
    if redis.is_empty() {
        return findings.advice("version", "the server does not say its version", ASK_ITSELF);
    }
    let found = format!("Redis {redis}");
    let mut numbers = redis.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    let version = (number(), number(), number());
    if version < (6, 2, 0) {
        findings.problem(
            "version",
            found,
            "tollgate is tested on Redis 6.2 and later, and Valkey 8 and later",
        );
    } else if version < (6, 2, 7) {
        findings.advice(
            "version",
            found,
            "before 6.2.7, scripts ignore min-replicas-to-write",
        );
    } else {
        findings.good("version", found);
    }
}

fn memory(info: &Info, findings: &mut Findings) {
    let policy = info.text("maxmemory_policy");
    let evicted = info.number("evicted_keys");
    let (used, most) = (info.number("used_memory"), info.number("maxmemory"));
    if policy.is_empty() {
        return findings.advice("memory", "the server does not say its memory", ASK_ITSELF);
    }
    if policy != "noeviction" && most > 0 {
        findings.problem(
            "eviction",
            format!("{policy}, {evicted} keys evicted so far"),
            "an evicted budget is a full one: set maxmemory-policy noeviction, or give tollgate a \
             Redis of its own",
        );
    } else if policy == "noeviction" {
        findings.good("eviction", "noeviction");
    } else {
        findings.advice(
            "eviction",
            format!("{policy}, which takes effect once maxmemory is set"),
            "set maxmemory-policy noeviction: an evicted budget is a full one",
        );
    }
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    if most == 0 {
        let found = format!("{} used, and no maxmemory", mb(used));
        findings.advice(
            "memory",
            found,
            "set maxmemory below what the machine has: otherwise the kernel ends Redis",
        );
    } else if used * 10 > most * 8 {
        let found = format!("{} of {} used", mb(used), mb(most));
        findings.problem(
            "memory",
            found,
            "when it is full, checks fail as in an outage: raise maxmemory",
        );
    } else {
        findings.good("memory", format!("{} of {} used", mb(used), mb(most)));
    }
}

async fn replication(server: &mut Server, info: &Info, findings: &mut Findings) {
    match info.text("role") {
        "master" => {}
        "" => {
            return findings.advice(
                "replication",
                "the server does not say its role",
                ASK_ITSELF,
            );
        }
        _ => {
            let advice =
                "write the primary's address into the URL, or redis-sentinel:// with the sentinels";
            return findings.problem("replication", "this server is a read-only replica", advice);
        }
    }
    let replicas = info.number("connected_slaves");
    if replicas == 0 {
        return findings.advice(
            "replication",
            "no replica",
            "if this server is lost, services fail as their on_store_failure says until it is back",
        );
    }
    let setting: Result<Vec<String>, _> = server
        .ask(&["CONFIG", "GET", "min-replicas-to-write"])
        .await;
    match setting.ok().and_then(|it| it.get(1)?.parse::<u64>().ok()) {
        Some(0) => findings.advice(
            "replication",
            format!("{replicas} replicas, and min-replicas-to-write is 0"),
            "a failover loses the last charges: min-replicas-to-write 1 and min-replicas-max-lag \
             10 bound how many",
        ),
        Some(least) => findings.good(
            "replication",
            format!("{replicas} replicas, min-replicas-to-write {least}"),
        ),
        None => findings.good(
            "replication",
            format!("{replicas} replicas (this user may not read min-replicas-to-write)"),
        ),
    }
}

async fn persistence(server: &mut Server, prefix: &str, info: &Info, findings: &mut Findings) {
    if info.text("aof_enabled").is_empty() {
        return;
    }
    let save: Result<Vec<String>, _> = server.ask(&["CONFIG", "GET", "save"]).await;
    let found = match (
        info.text("aof_enabled"),
        save.ok().and_then(|it| it.into_iter().nth(1)),
    ) {
        ("1", _) => "append-only file",
        (_, Some(times)) if times.is_empty() => "none",
        (_, Some(_)) => "snapshots",
        (_, None) => "snapshots or none (this user may not read `save`)",
    };
    if info.text("rdb_last_bgsave_status") == "err" {
        let advice = "Redis rejects writes while it cannot save (MISCONF): make room on the disk, \
                      or stop saving";
        return findings.problem("persistence", "the last snapshot failed", advice);
    }
    let overrides = format!("{prefix}-config:overrides");
    let overrides: u64 = server.ask(&["HLEN", &overrides]).await.unwrap_or(0);
    if found == "none" && overrides > 0 {
        let advice = "turn on the append-only file or snapshots, or keep the overrides in a file of \
                      limits: a restart loses them";
        return findings.advice("persistence", "none, and there are overrides", advice);
    }
    findings.good(
        "persistence",
        format!("{found}; after a restart without data, every budget is full once"),
    );
}

async fn cluster(server: &mut Server, info: &Info, findings: &mut Findings) {
    if info.text("cluster_enabled") != "1" {
        return;
    }
    let state: String = match server.ask(&["CLUSTER", "INFO"]).await {
        Ok(state) => state,
        Err(error) => {
            let if_no_right = (Level::Advice, "give this user +cluster|info for this check");
            return failed("cluster", &error, if_no_right, findings);
        }
    };
    let state = Info::parse(&state);
    let (size, nodes) = (
        state.number("cluster_size"),
        state.number("cluster_known_nodes"),
    );
    let found = format!(
        "{size} shards, {nodes} nodes, {} of 16384 slots served",
        state.number("cluster_slots_ok")
    );
    if state.text("cluster_state") == "ok" {
        findings.good("cluster", found);
    } else {
        findings.problem(
            "cluster",
            found,
            "the keys of the other slots cannot be decided: see CLUSTER NODES",
        );
    }
}

fn connections(info: &Info, findings: &mut Findings) {
    if info.text("connected_clients").is_empty() {
        return;
    }
    let (open, most) = (info.number("connected_clients"), info.number("maxclients"));
    if most > 0 && open * 10 > most * 8 {
        let found = format!("{open} of {most} in use");
        findings.problem(
            "connections",
            found,
            "new replicas of your services will not connect: raise maxclients",
        );
    } else {
        findings.good("connections", format!("{open} in use"));
    }
}
