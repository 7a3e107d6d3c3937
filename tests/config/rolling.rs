//! Replicas with different versions of the limits, as processes, on one Redis: a rolling
//! deployment.

#![cfg(all(feature = "axum", feature = "config", feature = "redis"))]

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::{env, fs};

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::Request;
use tollgate::config::{FileSource, LimitSet, Names};
use tollgate::key::Header;
use tollgate::{RateLimitLayer, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::process::{Process, answer};
use crate::support::requests::{number, send};

fn text(algorithm: &str, quota: &str) -> String {
    // As a queue, it would delay for hours.
    let mode = if algorithm == "leaky_bucket" {
        "mode = \"meter\"\n"
    } else {
        ""
    };
    format!(
        "[[limits]]\nname = \"api\"\nalgorithm = \"{algorithm}\"\n\
         quota = \"{quota}\"\nkey = \"user\"\n{mode}"
    )
}

/// A replica of a service, with a file of its own.
struct Replica {
    process: Process,
    file: PathBuf,
}

impl Replica {
    fn start(server: &RedisServer, number: usize, text: &str) -> Self {
        let file =
            env::temp_dir().join(format!("tollgate-rolling-{}-{number}.toml", server.port()));
        fs::write(&file, text).unwrap();
        let settings = [
            ("REPLICA_URL", &*server.url()),
            ("REPLICA_FILE", file.to_str().unwrap()),
        ];
        Self {
            process: Process::start("rolling::replica", &settings),
            file,
        }
    }

    /// Sends requests of a user until one is denied. Returns how many were allowed, and
    /// `Retry-After`.
    fn exhaust(&mut self, user: &str) -> (u64, u64) {
        let answer = self.process.ask(&format!("exhaust {user}"));
        let (allowed, retry_after) = answer.split_once(' ').unwrap();
        (allowed.parse().unwrap(), retry_after.parse().unwrap())
    }

    /// Puts a new version of the limits into force.
    fn deploy(&mut self, text: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &self.file).unwrap();
        let expected = text.lines().find(|line| line.starts_with("quota")).unwrap();
        assert_eq!(self.process.ask(&format!("await {expected}")), "in force");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.file));
    }
}

#[test]
fn rolling_deployment_neither_mints_nor_locks_out() {
    let server = RedisServer::start();
    for algorithm in [
        "fixed_window",
        "sliding_window",
        "sliding_log",
        "token_bucket",
        "gcra",
        "leaky_bucket",
    ] {
        // What is allowed lasts for hours, so that the time of this test adds nothing.
        let (before, larger, smaller) = (
            text(algorithm, "30/30d"),
            text(algorithm, "50/30d"),
            text(algorithm, "20/10d"),
        );
        let mut replicas: Vec<_> = (0..3)
            .map(|number| Replica::start(&server, number, &before))
            .collect();
        let user = algorithm;
        assert_eq!(replicas[0].exhaust(user).0, 30, "{algorithm}");
        assert_eq!(replicas[1].exhaust(user).0, 0, "{algorithm}");

        // The first replica has the larger quota, and the others deny by theirs.
        replicas[0].deploy(&larger);
        assert_eq!(replicas[1].exhaust(user).0, 0, "{algorithm}");
        assert_eq!(replicas[0].exhaust(user).0, 20, "{algorithm}");
        assert_eq!(replicas[2].exhaust(user).0, 0, "{algorithm}");
        replicas[1].deploy(&larger);
        replicas[2].deploy(&larger);
        for replica in &mut replicas {
            assert_eq!(replica.exhaust(user).0, 0, "{algorithm}");
        }

        // The way back, and to another period: nothing more, and no longer than the longer period.
        replicas[2].deploy(&smaller);
        for replica in [2, 0, 1, 2] {
            let (allowed, retry_after) = replicas[replica].exhaust(user);
            assert_eq!(allowed, 0, "{algorithm}");
            assert!(
                (1..=30 * 86_400).contains(&retry_after),
                "{algorithm}: {retry_after}"
            );
        }
    }
}

#[test]
#[ignore = "a replica of the tests above"]
fn replica() {
    let url = env::var("REPLICA_URL").expect("set by the tests above");
    let file = env::var("REPLICA_FILE").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve(&url, Path::new(&file)));
}

async fn serve(url: &str, file: &Path) {
    let store = RedisStore::connect(url, "tollgate").await.unwrap();
    let mut source = FileSource::new(file).unwrap();
    let names = Names::new().key("user", Header::new("x-user").unwrap());
    let limits = LimitSet::new(source.read().unwrap(), names).unwrap();
    limits.follow(source);
    let layer = RateLimitLayer::from_config(RateLimiter::new(store), &limits).unwrap();
    let app = Router::new().route("/", any(|| async {})).layer(layer);
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, argument) = line.split_once(' ').unwrap();
        if command == "await" {
            while !fs::read_to_string(file).unwrap().contains(argument)
                || !is_in_force(&limits, argument)
            {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            answer(&"in force");
        } else {
            let (allowed, retry_after) = exhaust(&app, argument).await;
            answer(&format!("{allowed} {retry_after}"));
        }
    }
}

fn is_in_force(limits: &LimitSet, quota: &str) -> bool {
    let (_, quota) = quota.split_once(" = ").unwrap();
    let config = serde_json::to_string(&limits.config()).unwrap();
    config.contains(&format!("\"quota\":{quota}"))
}

async fn exhaust(app: &Router, user: &str) -> (u64, u64) {
    let mut allowed = 0;
    loop {
        let request = Request::get("/")
            .header("x-user", user)
            .body(Body::empty())
            .unwrap();
        let response = send(app, request).await;
        if response.status() == 429 {
            return (allowed, number(response.headers(), "retry-after"));
        }
        assert_eq!(response.status(), 200);
        allowed += 1;
    }
}
