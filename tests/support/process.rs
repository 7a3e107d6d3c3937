//! Tests of this program that run in processes of their own, as the replicas of a service do.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts an ignored test, with these settings in its environment.
    pub fn start(test: &str, settings: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture"])
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Sends a line. Returns what the next line that it prints with [`answer`] has.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.receive()
    }

    /// Sends a line.
    pub fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the next line that it prints with [`answer`] has.
    pub fn receive(&mut self) -> String {
        let mut printed = String::new();
        loop {
            printed.clear();
            assert!(
                self.output.read_line(&mut printed).unwrap() > 0,
                "the process ended"
            );
            // The test harness prints lines of its own.
            if let Some((_, answer)) = printed.split_once("answer: ") {
                return answer.trim_end().to_owned();
            }
        }
    }
}

/// Answers the last line, in that process.
pub fn answer(text: &impl std::fmt::Display) {
    println!("answer: {text}");
    std::io::stdout().flush().unwrap();
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
