//! Helpers of the tests: the program, and real servers.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

pub mod budgets;
#[path = "../../../../tests/support/cluster.rs"]
pub mod cluster;
#[path = "../../../../tests/support/fake_redis.rs"]
pub mod fake_redis;
#[path = "../../../../tests/support/pass_on.rs"]
pub mod pass_on;
#[path = "../../../../tests/support/redis_server.rs"]
mod redis_server;

pub use self::redis_server::{RedisServer, free_port};

use std::io::Write;
use std::process::{Command, Stdio};

/// What a run of the program printed, and its exit code.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// The lines of standard output, as JSON.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs `tollgate` with these arguments, and these bytes on standard input.
pub fn tollgate_with(arguments: &[&str], input: &[u8]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .env_remove("REDIS_URL")
        .env("TOLLGATE_PREFIX", "tollgate")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The program may write before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    Run {
        code: output.status.code().unwrap(),
        out,
        err,
    }
}

/// Runs `tollgate` without input.
pub fn tollgate(arguments: &[&str]) -> Run {
    tollgate_with(arguments, b"")
}
