//! The examples, as programs that a user starts.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;

/// A running example, which ends with the test.
pub struct Example {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The port that its first line or a later one names.
    pub port: u16,
}

impl Example {
    /// The port that a later line names.
    pub fn next_port(&mut self) -> u16 {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the example ended without a port");
            if let Some(port) = port(&line) {
                return port;
            }
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program of an example, without the settings of this environment.
pub fn program(name: &str) -> Command {
    // `cargo test --test NAME` does not build them. Where they are built, this takes an instant.
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let mut build = Command::new(env!("CARGO"));
        // What `cargo test` sets of this package, build scripts would take for a change.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                build.env_remove(&*name);
            }
        }
        let release = (!cfg!(debug_assertions)).then_some("--release");
        build.args([
            "build",
            "--quiet",
            "-p",
            "tollgate",
            "-p",
            "tollgate-examples",
        ]);
        build.args(["--all-features", "--examples"]).args(release);
        assert!(
            build.status().unwrap().success(),
            "the examples do not compile"
        );
    });
    let tests = std::env::current_exe().unwrap();
    let mut command = Command::new(
        tests
            .parent()
            .unwrap()
            .with_file_name("examples")
            .join(name),
    );
    for setting in ["PORT", "REDIS_URL", "TRUSTED", "FORWARDED", "HEADER"] {
        command.env_remove(setting);
    }
    command
}

/// Starts a server with these settings, on a free port.
pub fn start(name: &str, settings: &[(&str, &str)]) -> Example {
    let mut command = program(name);
    command
        .env("PORT", "0")
        .env("METRICS_PORT", "0")
        .envs(settings.iter().copied())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut example = Example {
        child,
        output,
        port: 0,
    };
    example.port = example.next_port();
    example
}

/// The port of the first address of a line.
fn port(line: &str) -> Option<u16> {
    let (_, rest) = line
        .split_once("127.0.0.1:")
        .or_else(|| line.split_once("0.0.0.0:"))?;
    rest.split(|it: char| !it.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// Runs a program to its end: whether it succeeded, and all that it printed.
pub fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr]
        .map(|it| String::from_utf8(it).unwrap())
        .concat();
    (output.status.success(), text)
}
