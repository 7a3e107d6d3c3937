//! The metrics, the dashboard and the alerts agree; and in `make dashboards`, a real Prometheus
//! scrapes two replicas of the example and evaluates every expression.

#![cfg(all(feature = "metrics", feature = "axum", feature = "redis"))]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::support::example::{run, start};
use crate::support::{RedisServer, free_port};

const SECOND: Duration = Duration::from_secs(1);

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&read(deploy("grafana/dashboards/tollgate.json"))).unwrap()
}

/// The metrics that the guide lists.
fn documented() -> BTreeSet<String> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/observability.md");
    let text = read(guide);
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `tollgate_")?.split_once('`'));
    rows.map(|(name, _)| format!("tollgate_{name}")).collect()
}

/// The metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    let metrics = words.filter(|word| word.starts_with("tollgate_"));
    let of_histogram = |word: &str| {
        let part = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| word.strip_suffix(part));
        part.unwrap_or(word).to_owned()
    };
    metrics.map(of_histogram).collect()
}

/// The expressions of the dashboard, with a title each.
fn expressions() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (title, expression) = (panel["title"].as_str(), target["expr"].as_str());
            found.push((title.unwrap().to_owned(), expression.unwrap().to_owned()));
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        let expression = annotation["expr"].as_str().unwrap();
        found.push(("annotation".to_owned(), expression.to_owned()));
    }
    found
}

/// An expression as Grafana sends it, with all values of the variables.
fn filled_in(expression: &str) -> String {
    let filled = expression.replace("$__rate_interval", "10s");
    ["$job", "$limit", "$store"]
        .iter()
        .fold(filled, |it, variable| it.replace(variable, ".*"))
}

#[test]
fn guide_lists_every_metric_of_the_crate() {
    let names = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/telemetry/metrics/names.rs");
    assert_eq!(named(&read(names)), documented());
}

#[test]
fn dashboard_shows_every_metric_and_no_other() {
    let shown: String = expressions()
        .into_iter()
        .map(|(_, expression)| expression)
        .collect();
    assert_eq!(
        named(&shown.replace("tollgate_", " tollgate_")),
        documented()
    );
}

#[test]
fn service_trusts_the_address_of_its_balancer_and_no_other() {
    let compose = read(deploy("compose.yaml"));
    let value = |name: &str| {
        let mut values = compose
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name));
        (values.next().unwrap().to_owned(), values.next())
    };
    let (proxies, balancer) = (value("PROXIES: "), value("ipv4_address: "));
    assert_eq!(proxies, balancer);
    assert_eq!(proxies.1, None);
    assert!(proxies.0.parse::<std::net::IpAddr>().is_ok(), "{proxies:?}");
    assert!(read(deploy("nginx.conf")).contains("X-Forwarded-For $proxy_add_x_forwarded_for;"));
}

#[test]
fn panels_do_not_overlap_and_have_their_own_numbers() {
    let dashboard = dashboard();
    let (mut cells, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let number = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(number("x") + number("w") <= 24, "{}", panel["title"]);
        for x in number("x")..number("x") + number("w") {
            for y in number("y")..number("y") + number("h") {
                assert!(cells.insert((x, y)), "{} covers another", panel["title"]);
            }
        }
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
    }
}

#[test]
fn alerts_are_of_metrics_that_exist() {
    let alerts = named(&read(deploy("prometheus/alerts.yml")));
    let unknown: Vec<_> = alerts.difference(&documented()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// A running Prometheus, which ends with the test.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Starts it with the files of `deploy`, faster, on these targets.
    fn start(targets: &[u16]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tollgate-prometheus-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let config = read(deploy("prometheus/prometheus.yml"));
        let (before, _) = config
            .split_once("    dns_sd_configs:")
            .expect("replicas are found by DNS");
        let targets: Vec<_> = targets
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let before = before.replace("15s", "1s");
        let config = format!("{before}    static_configs:\n      - targets: {targets:?}\n");
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        let alerts = read(deploy("prometheus/alerts.yml"));
        let alerts = ["30m", "10m", "5m", "1m"].iter().fold(alerts, |it, pause| {
            it.replace(&format!("for: {pause}"), "for: 1s")
        });
        fs::write(folder.join("alerts.yml"), alerts).unwrap();
        let port = free_port();
        let child = Command::new("prometheus")
            .arg(format!(
                "--config.file={}",
                folder.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed: `make dashboards` installs it");
        Self { child, port }
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let uri = format!("http://127.0.0.1:{}/api/v1/{path}", self.port);
        let request = Request::get(uri).body(Empty::new()).unwrap();
        let body = client
            .request(request)
            .await
            .ok()?
            .into_body()
            .collect()
            .await
            .ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }

    /// The series of an expression. An error of the expression fails the test.
    async fn query(&self, expression: &str) -> Vec<Value> {
        let escaped: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let answer = self
            .get(&format!("query?query={escaped}"))
            .await
            .expect("it answers");
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    async fn firing(&self) -> BTreeSet<String> {
        let answer = self.get("alerts").await.expect("it answers");
        let alerts = answer["data"]["alerts"].as_array().unwrap().clone();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing
            .map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned())
            .collect()
    }
}

async fn until(mut is: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is().await {
            sleep(SECOND / 5).await;
        }
    };
    timeout(60 * SECOND, waiting)
        .await
        .expect("it takes less than a minute");
}

/// Sends requests of a few users to both replicas, some of them more than their limit.
async fn traffic(ports: &[u16]) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    for number in 0..200 {
        let uri = format!("http://127.0.0.1:{}/search", ports[number % ports.len()]);
        let request = Request::get(uri).header("authorization", format!("user{}", number % 7));
        client
            .request(request.body(Empty::new()).unwrap())
            .await
            .unwrap();
    }
}

/// What Prometheus gets from a replica.
async fn scraped(port: u16) -> Bytes {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let uri = format!("http://127.0.0.1:{port}/metrics");
    let response = client
        .request(Request::get(uri).body(Empty::new()).unwrap())
        .await
        .unwrap();
    response.into_body().collect().await.unwrap().to_bytes()
}

fn promtool(arguments: &[&str]) -> String {
    let (succeeded, text) = run(Command::new("promtool")
        .args(arguments)
        .current_dir(deploy("prometheus")));
    assert!(succeeded, "{arguments:?}: {text}");
    text
}

#[test]
#[ignore = "needs Prometheus: run it with `make dashboards`"]
fn promtool_accepts_the_configuration_and_the_tests_of_the_alerts() {
    promtool(&["check", "config", "prometheus.yml"]);
    let (rules, tests) = (
        read(deploy("prometheus/alerts.yml")),
        read(deploy("prometheus/alerts.test.yml")),
    );
    let alerts: Vec<_> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let found = format!("{} rules found", alerts.len());
    assert!(promtool(&["check", "rules", "alerts.yml"]).contains(&found));
    promtool(&["test", "rules", "alerts.test.yml"]);
    for alert in alerts {
        assert!(
            tests.contains(&format!("alertname: {alert}\n        exp_alerts")),
            "{alert}"
        );
    }
}

#[tokio::test]
#[ignore = "needs Prometheus: run it with `make dashboards`"]
async fn prometheus_scrapes_replicas_and_evaluates_every_expression() {
    let mut redis = RedisServer::start();
    let settings = [("REDIS_URL", &*redis.url()), ("REPLICAS", "2")];
    let mut replicas = [(); 2].map(|()| start("service", &settings));
    let ports = [replicas[0].port, replicas[1].port];
    let operations = replicas.each_mut().map(|replica| replica.next_port());
    let prometheus = Prometheus::start(&operations);
    until(async || prometheus.get("status/buildinfo").await.is_some()).await;
    let ready = "count(up == 1)";
    until(async || {
        let up = prometheus.query(ready).await;
        up.first().is_some_and(|up| up["value"][1] == "2")
    })
    .await;

    // The service has neither shadow limits nor permits, look-ups, files of limits, overshoots,
    // warnings or overrides.
    let of_others = [
        "Shadow mode: would be denied",
        "Answered without the store",
        "In flight and waiting",
        "Limits with an overshoot",
        "Near the limit",
        "Overrides",
        "Not asked",
        "Blocks of keys",
        "Failures of the application",
        "Versions of the configuration",
        "Failures",
        "Connections and breakers",
        "annotation",
    ];
    until(async || {
        traffic(&ports).await;
        let mut missing = Vec::new();
        for (title, expression) in expressions() {
            let series = prometheus.query(&filled_in(&expression)).await;
            if series.is_empty() && !of_others.contains(&&*title) {
                missing.push(title);
            }
        }
        missing.is_empty()
    })
    .await;
    // Names, types and descriptions as Prometheus wants them.
    let metrics = std::env::temp_dir().join(format!("tollgate-metrics-{}", std::process::id()));
    fs::write(&metrics, scraped(operations[0]).await).unwrap();
    let (succeeded, text) = run(Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(fs::File::open(&metrics).unwrap()));
    assert!(succeeded && text.is_empty(), "{text}");
    let denied = prometheus
        .query("sum(tollgate_decisions_total{outcome=\"denied\"})")
        .await;
    assert_ne!(denied[0]["value"][1], "0");
    until(async || {
        traffic(&ports).await;
        prometheus.firing().await == BTreeSet::from(["TollgateManyDenials".to_owned()])
    })
    .await;

    redis.kill();
    until(async || {
        traffic(&ports).await;
        let firing = prometheus.firing().await;
        let expected = [
            "TollgateBreakerOpen",
            "TollgateLimitsLocally",
            "TollgateStoreFails",
        ];
        expected.iter().all(|alert| firing.contains(*alert))
    })
    .await;
    let share = &expressions()[2];
    assert_eq!(share.0, "Decided without the store");
    let series = prometheus.query(&filled_in(&share.1)).await;
    let value: f64 = series[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(value > 0.1, "{value}");
    let rules = prometheus.get("rules").await.unwrap();
    for rule in rules["data"]["groups"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
