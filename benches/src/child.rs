//! Child processes of this program: servers and replicas. Parent and child exchange lines.

use std::env;
use std::io::{BufRead, Write, stdin, stdout};
use std::process::Stdio;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::contenders::Setup;
use crate::load::Load;

/// The first argument of a child.
pub const CHILD: &str = "child";

/// The task of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub role: Role,
    pub contender: String,
    pub setup: Setup,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Serves the contender over HTTP. Prints its port, then its CPU time after each prompt.
    Server,
    /// Sends a load to the contender. Prints a line when it is ready, and its sample when it is
    /// done.
    Replica(Load),
}

/// A running child. Dropping it kills the process.
pub struct Child {
    process: tokio::process::Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub fn start(job: &Job) -> Self {
        let program = env::current_exe().expect("this program has a path");
        let mut process = Command::new(program)
            .args([CHILD, &serde_json::to_string(job).expect("a job is JSON")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program can be started again");
        let input = process.stdin.take().expect("it is piped");
        let output = process.stdout.take().expect("it is piped");
        Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        }
    }

    /// Waits for the child's next line.
    pub async fn hear<T: DeserializeOwned>(&mut self) -> T {
        let line = self.output.next_line().await.expect("it is text");
        let line = line.expect("the child ended early: its error is above");
        serde_json::from_str(&line).expect("the child says what is expected")
    }

    /// Prompts the child.
    pub async fn prompt(&mut self) {
        self.input
            .write_all(b"\n")
            .await
            .expect("the child listens");
    }

    pub async fn end(mut self) {
        self.process.kill().await.expect("a child can be ended");
    }
}

/// Prints a line to the parent.
pub fn say(something: &impl Serialize) {
    println!("{}", serde_json::to_string(something).expect("it is JSON"));
    stdout().flush().expect("the parent listens");
}

/// Waits for the parent's next prompt. Returns false if the parent has exited.
pub fn is_prompted() -> bool {
    stdin()
        .lock()
        .read_line(&mut String::new())
        .is_ok_and(|bytes| bytes > 0)
}
