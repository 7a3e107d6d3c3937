//! The examples do what their first lines say: each is started as a user starts it.

#![cfg(all(feature = "axum", feature = "redis", feature = "grpc"))]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::RedisServer;
use crate::support::example::{program, run, start};
use crate::support::requests::number;

/// A response: its status, headers and body.
type Response = (u16, HeaderMap, String);

/// Sends a request. With a `user`, it has that user's `Authorization`.
async fn send(method: &str, port: u16, path: &str, user: Option<&str>) -> Response {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://127.0.0.1:{port}{path}"));
    if let Some(user) = user {
        request = request.header("authorization", user);
    }
    let response = client
        .request(request.body(Empty::new()).unwrap())
        .await
        .unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        parts.status.as_u16(),
        parts.headers,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

/// Sends requests until one is denied. On a slow machine, a token a second is refilled meanwhile.
async fn until_denied(port: u16, path: &str, user: Option<&str>) -> (usize, Response) {
    for allowed in 0.. {
        let response = send("GET", port, path, user).await;
        if response.0 == 429 {
            return (allowed, response);
        }
        assert_eq!(response.0, 200, "{}", response.2);
    }
    unreachable!()
}

#[tokio::test]
async fn quickstart_allows_ten_requests_at_once() {
    let example = start("quickstart", &[]);
    let started = Instant::now();
    let (allowed, (_, headers, body)) = until_denied(example.port, "/", None).await;
    assert!(
        (10..=10 + started.elapsed().as_secs() as usize).contains(&allowed),
        "{allowed}"
    );
    assert_eq!(number(&headers, "retry-after"), 1);
    assert_eq!(number(&headers, "x-ratelimit-limit"), 10);
    assert_eq!(number(&headers, "x-ratelimit-remaining"), 0);
    assert_eq!(body, "rate limit `quickstart` exceeded: try again in 1 s\n");
}

#[tokio::test]
async fn replicas_of_quickstart_share_a_budget_and_survive_their_redis() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let replicas = [(); 2].map(|()| start("quickstart", &[("REDIS_URL", &url)]));
    let started = Instant::now();
    let mut allowed = 0;
    for number in 0.. {
        let (status, ..) = send("GET", replicas[number % 2].port, "/", None).await;
        if status == 429 {
            break;
        }
        allowed += 1;
    }
    assert!(
        (10..=10 + started.elapsed().as_secs() as usize).contains(&allowed),
        "{allowed}"
    );
    redis.kill();
    for replica in &replicas {
        // A denial may stand for as long as it was made for. No other outcome is a failure of the
        // service.
        let (status, ..) = send("GET", replica.port, "/", None).await;
        assert!([200, 429].contains(&status), "{status}");
    }
}

#[tokio::test]
async fn examples_say_what_is_wrong_with_their_settings() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    for name in ["quickstart", "behind_proxy"] {
        for (setting, value, message) in [
            (
                "PORT",
                "many",
                "PORT is not a port number: `many`".to_owned(),
            ),
            (
                "PORT",
                &*taken,
                format!("cannot listen on 127.0.0.1:{taken}"),
            ),
            (
                "REDIS_URL",
                "http://127.0.0.1/",
                "the Redis URL cannot be used".to_owned(),
            ),
            (
                "REDIS_URL",
                "redis://127.0.0.1:1/",
                "127.0.0.1:1".to_owned(),
            ),
        ] {
            let (succeeded, text) = run(program(name).env(setting, value));
            assert!(!succeeded, "{text}");
            assert!(
                text.contains(&message),
                "{name} with {setting}={value}: {text}"
            );
        }
    }
    let (succeeded, text) = run(program("behind_proxy").env("TRUSTED", "10.0.0.0/40"));
    assert!(!succeeded && text.contains("`10.0.0.0/40`"), "{text}");
}

#[tokio::test]
async fn service_limits_users_a_costly_route_and_not_its_health() {
    let example = start("service", &[]);
    let (_, (_, headers, body)) = until_denied(example.port, "/search", Some("alice")).await;
    assert_eq!(headers["content-type"], "application/json");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["limit"], "user");
    let (status, _, body) = send("GET", example.port, "/search", Some("bob")).await;
    assert_eq!((status, &*body), (200, "found it, 9 more searches\n"));
    let mut exports = Vec::new();
    for _ in 0..3 {
        exports.push(send("POST", example.port, "/export", Some("carol")).await.0);
    }
    assert_eq!(exports, [200, 200, 429]);
    for _ in 0..30 {
        assert_eq!(send("GET", example.port, "/health", None).await.0, 200);
    }
}

#[tokio::test]
async fn service_serves_its_metrics_where_clients_do_not_reach_them() {
    let mut example = start("service", &[]);
    until_denied(example.port, "/search", Some("alice")).await;
    assert_eq!(
        send("GET", example.port, "/metrics", Some("bob")).await.0,
        404
    );
    let (status, _, text) = send("GET", example.next_port(), "/metrics", None).await;
    assert_eq!(status, 200);
    let denied = r#"tollgate_decisions_total{limit="user",outcome="denied",source="store"} 1"#;
    assert!(text.contains(denied), "{text}");
}

#[tokio::test]
async fn service_is_healthy_without_redis_and_says_so() {
    let mut redis = RedisServer::start();
    let example = start("service", &[("REDIS_URL", &redis.url())]);
    let health = async || send("GET", example.port, "/health", None).await;
    assert_eq!(health().await.2, "fine\n");
    redis.kill();
    let started = Instant::now();
    while health().await.2 == "fine\n" {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the circuit breaker does not open"
        );
        let status = send("GET", example.port, "/search", Some("alice")).await.0;
        assert!([200, 429].contains(&status), "{status}");
    }
    let (status, _, body) = health().await;
    assert_eq!(
        (status, &*body),
        (200, "fine, and with local limits: Redis does not answer\n")
    );
}

#[tokio::test]
async fn hyper_service_allows_ten_requests_at_once() {
    let example = start("hyper_service", &[]);
    let (allowed, (_, headers, _)) = until_denied(example.port, "/", None).await;
    assert!(allowed >= 10, "{allowed}");
    assert_eq!(number(&headers, "retry-after"), 1);
}

#[tokio::test]
async fn tonic_service_allows_ten_calls_at_once() {
    let example = start("tonic_service", &[]);
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", example.port)).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let mut allowed = 0;
    let denied = loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => allowed += 1,
            Err(denied) => break denied,
        }
    };
    assert!(allowed >= 10, "{allowed}");
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(
        denied.metadata().get("grpc-retry-pushback-ms").unwrap(),
        "1000"
    );
}

#[test]
fn three_processes_send_five_requests_a_second_together() {
    let (redis, provider) = (RedisServer::start(), start("hyper_service", &[]));
    let (started, url) = (
        Instant::now(),
        format!("http://127.0.0.1:{}/", provider.port),
    );
    let processes = [(); 3].map(|()| {
        let mut process = program("outgoing");
        process.args([&url, "8"]).env("REDIS_URL", redis.url());
        std::thread::spawn(move || run(&mut process))
    });
    for process in processes {
        let (succeeded, text) = process.join().unwrap();
        assert!(succeeded, "{text}");
        assert_eq!(
            text.lines()
                .filter(|line| line.contains("request "))
                .count(),
            8,
            "{text}"
        );
        assert!(!text.contains("429 Too Many Requests after 0.0"), "{text}");
    }
    assert!(
        started.elapsed() >= Duration::from_millis(4_600),
        "24 requests: 23 turns of 200 ms"
    );
}

/// The requests of each window, and those that passed, and that waited for Redis.
fn asynchronous_windows(arguments: &[&str]) -> Vec<[u64; 3]> {
    let redis = RedisServer::start();
    let mut process = program("asynchronous");
    let (succeeded, text) = run(process.args(arguments).env("REDIS_URL", redis.url()));
    assert!(succeeded, "{text}");
    let windows = text.lines().filter(|line| line.starts_with("window"));
    let counts = windows.map(|window| {
        let counts = window.split([' ', ':']);
        let counts: Vec<u64> = counts.filter_map(|word| word.parse().ok()).collect();
        let [_, requests, passed, asked] = counts[..] else {
            panic!("{window}");
        };
        [requests, passed, asked]
    });
    counts.collect()
}

#[test]
fn asynchronous_replicas_pass_at_most_the_limit_in_each_window() {
    let windows = asynchronous_windows(&[]);
    assert_eq!(windows.len(), 4);
    for [requests, passed, asked] in &windows {
        // A replica that is killed loses units.
        assert!((700..=1_000).contains(passed), "{windows:?}");
        assert!(*asked < requests / 4, "{windows:?}");
    }
}

#[test]
fn asynchronous_replicas_exceed_a_bucket_by_the_overshoot_at_most() {
    let windows = asynchronous_windows(&["overshoot"]);
    assert_eq!(windows.len(), 4);
    let passed: u64 = windows.iter().map(|[_, passed, _]| passed).sum();
    // The bucket, the refill of 20 seconds, the overshoot, and what a killed replica owed.
    assert!(
        (3_800..=200 + 4_000 + 20 + 5).contains(&passed),
        "{windows:?}"
    );
    let asked: u64 = windows.iter().map(|[_, _, asked]| asked).sum();
    assert!(asked < 4_000, "{windows:?}");
}

#[tokio::test]
async fn plans_have_their_quotas_and_an_upgrade_keeps_what_was_used() {
    let example = start("plans", &[]);
    let ask = async |account| send("GET", example.port, "/", account).await;
    let (allowed, _) = until_denied(example.port, "/", Some("alice")).await;
    assert_eq!(allowed, 5);
    let my_limits = async || send("GET", example.port, "/me/limits", Some("alice")).await;
    let (status, _, body) = my_limits().await;
    assert_eq!(status, 200);
    let usage: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&usage[0]["limit"], &usage[0]["capacity"]),
        (&"requests".into(), &5.into())
    );
    assert!(usage[0]["remaining"].as_u64().unwrap() < 5, "{body}");
    for (account, expected) in [
        (
            None,
            (
                401,
                "no key for the rate limit: the request has no id to look up\n",
            ),
        ),
        (Some("robot"), (200, "hello\n")),
        (Some("mallory"), (402, "the last invoice is not paid\n")),
        (Some("nobody"), (403, "no such account\n")),
    ] {
        let (status, _, body) = ask(account).await;
        assert_eq!((status, &*body), expected);
    }
    let changed = send("POST", example.port, "/plan/alice/pro", None).await;
    assert_eq!((changed.0, &*changed.2), (200, "changed\n"));
    let changed = Instant::now();
    let upgraded = loop {
        let response = ask(Some("alice")).await;
        if response.0 == 200 && number(&response.1, "x-ratelimit-limit") == 20 {
            break response;
        }
        assert!(
            changed.elapsed() < Duration::from_secs(20),
            "the upgrade does not count"
        );
    };
    // Five were used, and one a second is replenished.
    let left = number(&upgraded.1, "x-ratelimit-remaining");
    assert!(
        (14..=14 + changed.elapsed().as_secs() + 1).contains(&left),
        "{left}"
    );
}

#[tokio::test]
async fn in_flight_bounds_streams_of_a_tenant_on_all_replicas() {
    let redis = RedisServer::start();
    let replicas = [(); 2].map(|()| start("in_flight", &[("REDIS_URL", &redis.url())]));
    let ports = replicas.each_ref().map(|replica| replica.port);
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let export = |port: u16, tenant: &str, seconds: u32| {
        let url = format!("http://127.0.0.1:{port}/export/{seconds}");
        let request = Request::get(url)
            .header("x-tenant", tenant)
            .body(Empty::new())
            .unwrap();
        client.request(request)
    };
    let mut streams = [
        export(ports[0], "acme", 60).await.unwrap(),
        export(ports[1], "acme", 60).await.unwrap(),
    ];
    for stream in &mut streams {
        assert_eq!(stream.status(), 200);
        let part = stream
            .body_mut()
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap();
        assert_eq!(part, "data: a part of the export\n\n");
    }
    for port in ports {
        assert_eq!(export(port, "acme", 1).await.unwrap().status(), 429);
        assert_eq!(export(port, "globex", 1).await.unwrap().status(), 200);
    }
    // The client disconnects.
    drop(streams);
    let started = Instant::now();
    while export(ports[0], "acme", 1).await.unwrap().status() == 429 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the permits are not given back"
        );
    }
    let import = |port: u16| {
        let request = Request::post(format!("http://127.0.0.1:{port}/import/60"));
        client.request(
            request
                .header("x-tenant", "initech")
                .body(Empty::new())
                .unwrap(),
        )
    };
    assert_eq!(import(ports[0]).await.unwrap().status(), 202);
    assert_eq!(import(ports[1]).await.unwrap().status(), 202);
    assert_eq!(
        import(ports[0]).await.unwrap().status(),
        429,
        "two go on after their responses"
    );
}

#[tokio::test]
async fn offenders_are_shut_out_by_their_denials_and_by_the_operator() {
    let redis = RedisServer::start();
    let replicas = [(); 2].map(|()| start("offenders", &[("REDIS_URL", &redis.url())]));
    let ports = replicas.each_ref().map(|replica| replica.port);
    let mut bodies = Vec::new();
    for number in 0..16 {
        bodies.push(send("POST", ports[number % 2], "/login", None).await.2);
    }
    assert!(
        bodies[..5].iter().all(|body| body == "wrong password\n"),
        "{bodies:?}"
    );
    assert!(
        bodies[5..14]
            .iter()
            .all(|body| body.contains("`login` exceeded")),
        "{bodies:?}"
    );
    assert!(
        bodies[14..].iter().all(|body| body.contains("blocked by")),
        "{bodies:?}"
    );
    for port in ports {
        let (status, headers, _) = send("POST", port, "/login", None).await;
        assert_eq!(
            (status, number(&headers, "x-ratelimit-remaining")),
            (429, 0)
        );
    }
    let key = "/admin/block?key=127.0.0.1";
    let ask = async |method, path: &str| send(method, ports[1], path, None).await;
    assert!(ask("GET", key).await.2.starts_with("blocked for "));
    assert_eq!(ask("DELETE", key).await.2, "not blocked\n");
    assert_eq!(
        send("POST", ports[1], "/login", None).await.0,
        200,
        "and has its attempts back"
    );
    assert_eq!(ask("GET", key).await.2, "not blocked\n");
    let long = ask("PUT", &format!("{key}&seconds=3600")).await;
    assert_eq!((long.0, &*long.2), (200, "blocked for 3600 s more\n"));
    assert_eq!(ask("PUT", &format!("{key}&seconds=0")).await.0, 400);
    let (status, _, body) = ask("GET", "/admin/block?key=(a").await;
    assert!(
        status == 400 && body.contains("copy it from an event"),
        "{body}"
    );
}

#[tokio::test]
async fn live_configuration_changes_with_its_file_and_with_a_key_of_redis_and_by_override() {
    let file = std::env::temp_dir().join(format!("tollgate-example-{}.toml", std::process::id()));
    let text = include_str!("../../examples/limits.toml");
    std::fs::write(&file, text).unwrap();
    let redis = RedisServer::start();
    let settings = [("LIMITS", file.to_str().unwrap())];
    let of_file = start("live_configuration", &settings);
    let of_redis = start(
        "live_configuration",
        &[("LIMITS", "redis"), ("REDIS_URL", &redis.url())],
    );
    for port in [of_file.port, of_redis.port] {
        assert_eq!(until_denied(port, "/search", None).await.0, 5);
        assert_eq!(send("GET", port, "/health", None).await.0, 200);
        let export = async || send("GET", port, "/export", None).await.0;
        let (first, second, third) = tokio::join!(export(), export(), export());
        let mut exports = [first, second, third];
        exports.sort_unstable();
        assert_eq!(exports, [200, 200, 429], "two at once");
    }
    let larger = text.replace("5/10s", "8/10s");
    let new = file.with_extension("new");
    std::fs::write(&new, &larger).unwrap();
    std::fs::rename(&new, &file).unwrap();
    let mut cli = redis.connection();
    let () = redis::Commands::set(&mut cli, "live-configuration-config:limits", &larger).unwrap();
    let () =
        redis::Commands::publish(&mut cli, "live-configuration-config:limits", "changed").unwrap();
    for port in [of_file.port, of_redis.port] {
        let changed = Instant::now();
        while !send("GET", port, "/limits", None).await.2.contains("8/10s") {
            assert!(
                changed.elapsed() < Duration::from_secs(60),
                "the new limits are not in force"
            );
        }
        let denied_or_not = send("GET", port, "/search", None).await;
        assert_eq!(number(&denied_or_not.1, "x-ratelimit-limit"), 8);
    }
    for port in [of_file.port, of_redis.port] {
        let (status, _, body) = send("POST", port, "/raise/acme/30", None).await;
        assert_eq!((status, &*body), (200, "30 per 1m, for an hour\n"));
        assert_eq!(limit_of_searches(port, "acme").await, 30);
        assert_eq!(limit_of_searches(port, "bob").await, 8);
    }
    std::fs::remove_file(&file).unwrap();
}

/// The limit that the headers of a user's search report.
async fn limit_of_searches(port: u16, user: &str) -> u64 {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://127.0.0.1:{port}/search"));
    let request = request.header("x-user", user).body(Empty::new()).unwrap();
    let response = client.request(request).await.unwrap();
    number(response.headers(), "x-ratelimit-limit")
}

#[tokio::test]
async fn llm_gateway_settles_the_tokens_of_a_stream() {
    let redis = RedisServer::start();
    let example = start("llm_gateway", &[("REDIS_URL", &redis.url())]);
    let ask = async |user: &str, path: &str| {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let request = Request::get(format!("http://127.0.0.1:{}{path}", example.port));
        let request = request.header("x-user", user).body(Empty::new()).unwrap();
        let (parts, body) = client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (
            parts.status.as_u16(),
            parts.headers,
            String::from_utf8(body.to_vec()).unwrap(),
        )
    };
    let limiter = tollgate::RateLimiter::redis(&redis.url(), "llm-gateway")
        .await
        .unwrap();
    let limit = |name, quota| tollgate::Limit::token_bucket(name, quota).unwrap();
    let tokens = limit("tokens", tollgate::Quota::per_minute(1_000));
    let used = async |limit: &tollgate::Limit, user: &str| {
        let decision = limiter.peek(limit, user, 0).await.unwrap();
        (
            decision.capacity() - decision.remaining(),
            decision.reset_after(),
        )
    };

    let (status, _, body) = ask("alice", "/chat?tokens=20").await;
    assert_eq!((status, body.matches("data: token ").count()), (200, 20));
    // The stream ends when its task has ended, and the settlement is on its way.
    let started = Instant::now();
    while used(&tokens, "alice").await.0 > 20 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the tokens are not settled"
        );
    }
    ask("alice", "/chat?tokens=1500").await;
    let started = Instant::now();
    let denied = loop {
        let (status, headers, body) = ask("alice", "/chat").await;
        if status == 429 {
            break (headers, body);
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the debt does not count"
        );
    };
    assert!(
        denied.1.starts_with("rate limit `tokens` exceeded"),
        "{}",
        denied.1
    );
    assert!(
        number(&denied.0, "retry-after") > 20,
        "500 tokens of debt, and an estimate of 100"
    );

    // A failure of the model costs neither a request nor a token.
    assert_eq!(ask("bob", "/chat?tokens=0").await.0, 502);
    let requests = limit("requests", tollgate::Quota::per_minute(10));
    let started = Instant::now();
    while used(&requests, "bob").await.0 + used(&tokens, "bob").await.0 > 0 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the failure is not refunded"
        );
    }
}

#[test]
fn workers_send_each_mail_once_and_five_a_second() {
    let redis = RedisServer::start();
    let started = Instant::now();
    let (succeeded, text) = run(program("worker").env("REDIS_URL", redis.url()));
    assert!(succeeded, "{text}");
    let mails: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("sends mail "))
        .collect();
    let different: BTreeSet<_> = mails.iter().map(|(_, mail)| mail.trim()).collect();
    assert_eq!((mails.len(), different.len()), (20, 20), "{text}");
    assert!(started.elapsed() >= Duration::from_millis(3_800), "{text}");
}
