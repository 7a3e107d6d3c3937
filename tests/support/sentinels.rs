//! A real master with two replicas, and three real sentinels that watch it.

use std::env::temp_dir;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::RedisResult;

use super::{RedisServer, free_port};

pub const SERVICE: &str = "limits";

/// A master is down for the sentinels after so many milliseconds.
const DOWN_AFTER: &str = "500";

pub struct Sentinels {
    /// The first one starts as the master.
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    process: Child,
    port: u16,
    directory: PathBuf,
}

impl Sentinels {
    /// Starts all of them, and waits until the sentinels know each other and the replicas.
    /// `arguments` are those of each server, by its number.
    pub fn start(arguments: impl Fn(usize) -> Vec<String>) -> Self {
        Self::start_all("127.0.0.1", 0, arguments)
    }

    /// Starts replicas whose clocks are so many seconds ahead, or behind.
    pub fn start_with_clock(offset: i64) -> Self {
        Self::start_all("127.0.0.1", offset, |_| Vec::new())
    }

    /// Starts servers that the sentinels know by a name.
    pub fn start_by_name() -> Self {
        let announce = ["--replica-announce-ip", "localhost"].map(str::to_owned);
        Self::start_all("localhost", 0, |_| announce.to_vec())
    }

    fn start_all(host: &str, offset: i64, arguments: impl Fn(usize) -> Vec<String>) -> Self {
        let start = |number, more: &[String]| {
            let all = [&arguments(number)[..], more].concat();
            let all: Vec<_> = all.iter().map(String::as_str).collect();
            match offset {
                0 => RedisServer::start_with(&all),
                _ if number == 0 => RedisServer::start_with(&all),
                offset => RedisServer::start_with_clock(offset, &all),
            }
        };
        let master = start(0, &[]);
        let replica_of = [
            "--replicaof".to_owned(),
            host.to_owned(),
            master.port().to_string(),
        ];
        let replicas = (1..3).map(|number| start(number, &replica_of));
        let servers: Vec<_> = replicas.collect();
        let sentinels = (0..3)
            .map(|_| Sentinel::start(host, master.port()))
            .collect();
        let all = Self {
            servers: std::iter::once(master).chain(servers).collect(),
            sentinels,
        };
        // What a replica does not have yet is lost with its master.
        all.wait_until("the replicas follow the master", || {
            all.servers[1..].iter().all(|replica| {
                let info: String = redis::cmd("INFO")
                    .arg("replication")
                    .query(&mut replica.connection())
                    .unwrap();
                info.contains("master_link_status:up")
            })
        });
        all.wait_until("the sentinels know each other", || {
            all.sentinels.iter().all(|sentinel| {
                sentinel.count("SENTINELS").is_ok_and(|others| others == 2)
                    && sentinel
                        .count("REPLICAS")
                        .is_ok_and(|replicas| replicas == 2)
            })
        });
        all
    }

    /// The URL of all sentinels.
    pub fn url(&self) -> String {
        let ports = self
            .sentinels
            .iter()
            .map(|it| format!("127.0.0.1:{}", it.port));
        format!(
            "redis-sentinel://{}/{SERVICE}",
            ports.collect::<Vec<_>>().join(",")
        )
    }

    /// The port of the master, as the sentinels say.
    pub fn master(&self) -> u16 {
        let answer = self.sentinels[2].ask::<(String, u16)>(&["GET-MASTER-ADDR-BY-NAME", SERVICE]);
        answer.unwrap().1
    }

    /// The port of the master, as most of the sentinels say.
    pub fn majority(&self) -> u16 {
        let mut named: Vec<u16> = self
            .sentinels
            .iter()
            .map(|it| {
                it.ask::<(String, u16)>(&["GET-MASTER-ADDR-BY-NAME", SERVICE])
                    .unwrap()
                    .1
            })
            .collect();
        named.sort_unstable();
        named[1]
    }

    /// Makes a replica the master, although the master is well.
    pub fn fail_over(&self) {
        self.wait_until("the sentinels agree to a failover", || {
            self.sentinels[0].ask::<()>(&["FAILOVER", SERVICE]).is_ok()
        });
    }

    /// Pauses or resumes a sentinel. While it is paused, its connections stay open.
    pub fn pause_sentinel(&self, number: usize, paused: bool) {
        let signal = if paused { "-STOP" } else { "-CONT" };
        let process = self.sentinels[number].process.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &process])
                .status()
                .unwrap()
                .success()
        );
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "not within a minute: {what}"
            );
            // Their gossip has a period of seconds, and no event to wait for.
            sleep(Duration::from_millis(50));
        }
    }
}

impl Sentinel {
    fn start(host: &str, master: u16) -> Self {
        let port = free_port();
        let directory = temp_dir().join(format!("tollgate-sentinel-{port}"));
        fs::create_dir_all(&directory).unwrap();
        let config = directory.join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", directory.display()),
            "sentinel resolve-hostnames yes".to_owned(),
            "sentinel announce-hostnames yes".to_owned(),
            format!("sentinel monitor {SERVICE} {host} {master} 2"),
            format!("sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}"),
            format!("sentinel failover-timeout {SERVICE} 5000"),
        ];
        fs::write(&config, lines.join("\n")).unwrap();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let process = Command::new(binary)
            .arg(&config)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        Self {
            process,
            port,
            directory,
        }
    }

    fn ask<T: redis::FromRedisValue>(&self, arguments: &[&str]) -> RedisResult<T> {
        let client = redis::Client::open(("127.0.0.1", self.port))?;
        redis::cmd("SENTINEL")
            .arg(arguments)
            .query(&mut client.get_connection()?)
    }

    /// The number of other sentinels, or of replicas, that it knows.
    fn count(&self, what: &str) -> RedisResult<usize> {
        self.ask::<Vec<redis::Value>>(&[what, SERVICE])
            .map(|all| all.len())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.directory));
    }
}
