//! A real redis-server, started on a free port and stopped when dropped.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use std::{env, fs};

use tollgate::store::RedisStoreBuilder;
use tollgate::{RateLimiter, RedisStore};

/// The number of ports to try, since another process may take a free one.
const ATTEMPTS: usize = 10;

pub struct RedisServer {
    process: Child,
    port: u16,
    /// A server that replicates leaves files behind, which the next one must not load.
    directory: PathBuf,
}

impl RedisServer {
    /// Starts the `redis-server` in `$REDIS_SERVER` or on the path.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        (0..ATTEMPTS)
            .find_map(|_| Self::start_on_with(free_port(), arguments))
            .unwrap_or_else(|| panic!("redis-server did not start on {ATTEMPTS} free ports"))
    }

    /// Starts on a given port; `None` if the server does not start.
    pub fn start_on(port: u16) -> Option<Self> {
        Self::start_on_with::<&str>(port, &[])
    }

    /// Starts on a given port, with further arguments.
    pub fn start_on_with<A: AsRef<OsStr>>(port: u16, arguments: &[A]) -> Option<Self> {
        Self::launch(Command::new(binary()), port, arguments)
    }

    /// Starts with a clock that is so many seconds ahead, or behind. Linux only.
    pub fn start_with_clock(offset: i64, arguments: &[&str]) -> Self {
        static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
            let library = env::temp_dir().join(format!("tollgate-clock-{}.so", process::id()));
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/clock.c");
            let compiled = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .args([library.as_os_str(), OsStr::new(source)])
                .status();
            assert!(compiled.expect("there is a C compiler: `cc`").success());
            library
        });
        (0..ATTEMPTS)
            .find_map(|_| {
                let mut command = Command::new(binary());
                command
                    .env("LD_PRELOAD", &*LIBRARY)
                    .env("CLOCK_OFFSET", offset.to_string());
                Self::launch(command, free_port(), arguments)
            })
            .unwrap_or_else(|| panic!("redis-server did not start with another clock"))
    }

    fn launch<A: AsRef<OsStr>>(mut command: Command, port: u16, arguments: &[A]) -> Option<Self> {
        let program = command.get_program().to_owned();
        let directory = env::temp_dir().join(format!("tollgate-redis-{port}-{}", process::id()));
        fs::create_dir_all(&directory).expect("a directory can be created");
        let mut process = command
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .args(["--appendonly", "no", "--dir"])
            .arg(&directory)
            // A master usually waits for 5 s for further replicas before it sends its keys.
            .args(["--repl-diskless-sync-delay", "0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot start `{}`: {error}; install it (`make redis`) or set $REDIS_SERVER",
                    program.display()
                )
            });
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let ready = output
            .lines()
            .map_while(Result::ok)
            .any(|line| line.to_lowercase().contains("ready to accept connections"));
        if !ready {
            process.wait().expect("a child can be waited for");
            drop(fs::remove_dir_all(&directory));
        }
        ready.then_some(Self {
            process,
            port,
            directory,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A store on it with a long deadline: a busy machine must not fail a test.
    pub fn store(&self) -> RedisStoreBuilder {
        self.store_of("tollgate")
    }

    /// Such a store with budgets of its own.
    pub fn store_of(&self, prefix: impl Into<String>) -> RedisStoreBuilder {
        RedisStore::builder(prefix)
            .url(self.url())
            .deadline(Duration::from_secs(20))
    }

    /// A limiter on such a store.
    pub async fn limiter(&self) -> RateLimiter {
        RateLimiter::new(self.store().connect().await.expect("the server runs"))
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("the URL is valid")
    }

    /// A connection of the test's own.
    pub fn connection(&self) -> redis::Connection {
        self.client().get_connection().expect("the server runs")
    }

    /// The first number of its version. Valkey is the Redis that it is compatible with.
    pub fn version(&self) -> u32 {
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("server")
            .query(&mut self.connection())
            .unwrap();
        let version: String = info.get("redis_version").unwrap();
        version.split('.').next().unwrap().parse().unwrap()
    }

    /// Resets the counts of calls, which include those of a connection's greeting.
    pub fn reset_calls(&self) {
        let () = redis::cmd("CONFIG")
            .arg("RESETSTAT")
            .query(&mut self.connection())
            .unwrap();
    }

    /// The number of calls of a command since the server started, or since `reset_calls`.
    pub fn calls(&self, command: &str) -> u64 {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.connection())
            .unwrap();
        let start = format!("cmdstat_{command}:calls=");
        info.lines()
            .find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    /// The number of errors with a code since the server started.
    pub fn errors(&self, code: &str) -> u64 {
        let info: String = redis::cmd("INFO")
            .arg("errorstats")
            .query(&mut self.connection())
            .unwrap();
        let start = format!("errorstat_{code}:count=");
        info.lines()
            .find_map(|line| line.strip_prefix(&start)?.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process.kill().expect("the server can be killed");
        self.process.wait().expect("a child can be waited for");
    }

    /// Pauses or resumes the server. While it is paused, its connections stay open.
    pub fn pause(&self, paused: bool) {
        let signal = if paused { "-STOP" } else { "-CONT" };
        let status = Command::new("kill")
            .args([signal, &self.process.id().to_string()])
            .status()
            .expect("there is a `kill`");
        assert!(status.success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// The `redis-server` in `$REDIS_SERVER`, or on the path.
fn binary() -> String {
    env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A port that was free a moment ago, and that no other test of this process has. The kernel may
/// return a port again, and HAProxy shares a port with another process without an error.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.insert(port) {
            return port;
        }
    }
}
