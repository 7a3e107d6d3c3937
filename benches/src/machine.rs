//! The machine and the versions of a run.

use std::process::Command;
use std::thread::available_parallelism;
use std::{env, fs};

use crate::scenario::{ROUNDS, ROUNDS_ALONE, ROUNDS_IN_MEMORY, ROUNDS_OF_GROWTH};

/// A line for the head of a report.
pub fn describe() -> String {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("processor", |(_, model)| model);
    let cores = available_parallelism().map_or(0, usize::from);
    let redis = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let says = |program: &str| {
        let output = Command::new(program).arg("--version").output();
        output
            .ok()
            .and_then(|it| String::from_utf8(it.stdout).ok())
            .unwrap_or_default()
    };
    let redis = says(&redis);
    let redis = redis
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or("?");
    let rust = says("rustc");
    format!(
        "{model}, {cores} cores that the clients and Redis share, {} {}, Redis {redis}, {}.\n\
         Medians of {ROUNDS} rounds: {ROUNDS_ALONE} one at a time on Redis, {ROUNDS_IN_MEMORY} in \
         memory, and of HTTP and growth that the process decides, {ROUNDS_OF_GROWTH} of other \
         growth.\n",
        env::consts::OS,
        env::consts::ARCH,
        rust.trim(),
    )
}
