//! wrk: the load over TCP.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

/// The script, for a wrk that reads it from a file.
const SCRIPT: &str = include_str!("users.lua");

/// The output of the script; times in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Figures {
    pub requests: u64,
    pub wall: u64,
    pub p50: u64,
    pub p99: u64,
    /// Requests without an answer, or with another one than 2xx or 3xx.
    pub failed: u64,
}

/// Makes sure that wrk is there.
///
/// # Errors
///
/// Returns an error if it cannot be started.
pub async fn check() -> Result<(), Box<dyn Error>> {
    let version = Command::new("wrk")
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await;
    version.map(drop).map_err(|error| missing(&error))
}

fn missing(error: &std::io::Error) -> Box<dyn Error> {
    format!("cannot start `wrk`: {error}; install it with `make wrk`").into()
}

/// Runs wrk on one thread against a port of this machine.
///
/// # Errors
///
/// Returns an error if wrk is missing, fails, or saw a request fail.
pub async fn run(port: u16, connections: usize, time: Duration) -> Result<Figures, Box<dyn Error>> {
    let script = Script::write()?;
    let wrk = Command::new("wrk")
        .arg(format!("-c{connections}"))
        .args(["-t1", &format!("-d{}s", time.as_secs().max(1)), "-s"])
        .arg(&script.0)
        .arg(format!("http://127.0.0.1:{port}/"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output();
    let output = wrk.await.map_err(|error| missing(&error))?;
    let text = String::from_utf8(output.stdout)?;
    let figures = text.lines().find(|line| line.starts_with('{'));
    let figures = figures.ok_or_else(|| format!("wrk ended with {}: {text}", output.status))?;
    let figures: Figures = serde_json::from_str(figures)?;
    match figures.failed {
        0 => Ok(figures),
        failed => Err(format!("wrk saw {failed} of {} requests fail", figures.requests).into()),
    }
}

/// The script as a file. Dropping it deletes the file.
struct Script(PathBuf);

impl Script {
    fn write() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("tollgate-wrk-{}.lua", std::process::id()));
        fs::write(&path, SCRIPT)?;
        Ok(Self(path))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}
