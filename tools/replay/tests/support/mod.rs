//! Runs the program.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

pub(crate) struct Output {
    pub(crate) success: bool,
    pub(crate) text: String,
    pub(crate) errors: String,
}

impl Output {
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Runs `replay` with these arguments, and this on its stdin.
pub(crate) fn replay<A: AsRef<str>>(arguments: &[A], input: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args(arguments.iter().map(AsRef::as_ref))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = program.stdin.take().unwrap();
    let input = input.to_owned();
    // A program that fails early does not read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = program.wait_with_output().unwrap();
    writer.join().unwrap();
    Output {
        success: output.status.success(),
        text: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}
