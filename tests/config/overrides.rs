//! Overrides in a file of limits.

#![cfg(all(feature = "axum", feature = "config"))]

use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::{Body, to_bytes};
use axum::{Router, routing::any};
use http::request::Parts;
use tollgate::config::{Config, Format, LimitSet, Names};
use tollgate::key::Header;
use tollgate::overrides::{Override, Overrides};
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{number, request, send};

const LIMITS: &str = r#"
    [[limits]]
    name = "api"
    algorithm = "token_bucket"
    quota = "10/min"
    key = "tenant"
    plan = "account"
    plans = { pro = { quota = "50/min" }, internal = { unlimited = true }, old = { deny = "gone" } }

    [limits.overrides]
    acme = { quota = "100/min", burst = 30, until = "2200-01-01", author = "maria" }
    ended = { quota = "100/min", until = 2020-01-01 }
    mallory = { deny = "suspended", reason = "fraud" }
    free = { unlimited = true }

    [[limits]]
    name = "exports"
    algorithm = "concurrency"
    limit = 1
    key = "tenant"
    match = { path = "/exports" }
    overrides = { acme = { limit = 3 } }
"#;

fn names() -> Names {
    let plan = |parts: &Parts| {
        let plan = parts.headers.get("x-plan")?;
        plan.to_str().ok().map(str::to_owned)
    };
    Names::new()
        .key("tenant", Header::new("x-tenant").unwrap())
        .plan("account", plan)
}

fn parse(text: &str) -> Config {
    Config::parse("limits.toml", text, Format::Toml).unwrap()
}

struct Service {
    limits: LimitSet,
    overrides: Overrides,
    limiter: RateLimiter,
    app: Router,
}

impl Service {
    fn new() -> Self {
        let limits = LimitSet::new(parse(LIMITS), names()).unwrap();
        let overrides = Overrides::new();
        let limiter = RateLimiter::builder(MemoryStore::new()).overrides(&overrides);
        let limiter = limiter.build().unwrap();
        let layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
        let app = Router::new()
            .route("/", any(|| async { "hello" }))
            .layer(layer);
        Self {
            limits,
            overrides,
            limiter,
            app,
        }
    }

    /// The status, and the limit of the headers.
    async fn get(&self, tenant: &str, plan: &str) -> (u16, Option<u64>) {
        let request = request("GET", "/").header("x-tenant", tenant);
        let request = request.header("x-plan", plan).body(Body::empty()).unwrap();
        let response = send(&self.app, request).await;
        let headers = response.headers();
        let is_limited = headers.contains_key("x-ratelimit-limit");
        let limit = is_limited.then(|| number(headers, "x-ratelimit-limit"));
        (response.status().as_u16(), limit)
    }
}

#[tokio::test]
async fn override_in_a_file_wins_over_the_plan() {
    let service = Service::new();
    for plan in ["none", "pro", "internal", "old"] {
        assert_eq!(service.get("acme", plan).await, (200, Some(30)), "{plan}");
        assert_eq!(service.get("mallory", plan).await, (403, None), "{plan}");
        assert_eq!(service.get("free", plan).await, (200, None), "{plan}");
    }
    for (plan, expected) in [
        ("none", (200, Some(10))),
        ("pro", (200, Some(50))),
        ("internal", (200, None)),
        ("old", (403, None)),
    ] {
        assert_eq!(service.get("ended", plan).await, expected, "{plan}");
        assert_eq!(service.get("bob", plan).await, expected, "{plan}");
    }
}

#[tokio::test]
async fn client_that_is_denied_gets_the_text_and_not_the_reason() {
    let service = Service::new();
    let request = request("GET", "/").header("x-tenant", "mallory");
    let response = send(&service.app, request.body(Body::empty()).unwrap()).await;
    let body = to_bytes(Body::new(response.into_body()), 1_000)
        .await
        .unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(
        body.contains("suspended") && !body.contains("fraud"),
        "{body}"
    );
}

#[tokio::test]
async fn override_at_run_time_wins_over_the_file_and_the_plan() {
    let service = Service::new();
    let raised = Override::quota("api", "acme", Quota::per_minute(900));
    service.overrides.set(raised).await.unwrap();
    for plan in ["none", "pro", "internal", "old"] {
        assert_eq!(service.get("acme", plan).await, (200, Some(900)), "{plan}");
    }
    let mallory = Override::unlimited("api", "mallory");
    service.overrides.set(mallory).await.unwrap();
    assert_eq!(service.get("mallory", "old").await, (200, None));
    assert!(service.overrides.remove("api", "mallory").await.unwrap());
    assert_eq!(service.get("mallory", "old").await, (403, None));
}

#[tokio::test]
async fn direct_calls_see_the_overrides_of_the_file() {
    let service = Service::new();
    let api = service.limits.limit("api").unwrap();
    let peek = async |key: &'static str| service.limiter.peek(&api, key, 0).await.unwrap();
    assert_eq!(peek("acme").await.capacity(), 30);
    assert_eq!(peek("bob").await.capacity(), 10);
    assert!(peek("mallory").await.is_blocked());
    let exports = service.limits.limit("exports").unwrap();
    let permit = async || {
        service
            .limiter
            .try_acquire_permit(&exports, "acme")
            .await
            .unwrap()
    };
    let held = [permit().await, permit().await, permit().await];
    assert!(held.iter().all(Option::is_some) && permit().await.is_none());
}

#[tokio::test]
async fn new_version_replaces_the_overrides_and_keeps_what_was_used() {
    let service = Service::new();
    for _ in 0..5 {
        service.get("acme", "none").await;
    }
    let lowered = LIMITS.replace(
        "quota = \"100/min\", burst = 30",
        "quota = \"100/min\", burst = 7",
    );
    let lowered = lowered.replace("mallory = { deny = \"suspended\", reason = \"fraud\" }", "");
    service.limits.replace(parse(&lowered)).unwrap();
    let api = service.limits.limit("api").unwrap();
    let left = service.limiter.peek(&api, "acme", 0).await.unwrap();
    assert_eq!((left.capacity(), left.remaining()), (7, 2));
    assert_eq!(service.get("mallory", "none").await, (200, Some(10)));
    // A version with an error changes nothing.
    let wrong = lowered.replace("burst = 7", "burst = 0");
    let wrong = Config::parse("limits.toml", &wrong, Format::Toml).unwrap();
    service.limits.replace(wrong).unwrap_err();
    assert_eq!(service.get("acme", "none").await.1, Some(7));
    // No limit, and so no override, is left.
    service.limits.replace(parse("limits = []")).unwrap();
    assert_eq!(service.get("acme", "none").await, (200, None));
}

#[test]
fn override_that_its_limit_cannot_have_is_an_error_that_names_the_line() {
    let limits = |line: &str| {
        let text = format!(
            "[[limits]]\nname = \"api\"\nalgorithm = \"fixed_window\"\nquota = \"10/min\"\n\
             key = \"tenant\"\n\n[limits.overrides]\n{line}\n"
        );
        let config = Config::parse("limits.toml", &text, Format::Toml);
        let error = config.and_then(|config| LimitSet::new(config, names()));
        error.unwrap_err().to_string()
    };
    let wrong = [
        ("acme = {}", "an override has one of `quota`"),
        (
            "acme = { quota = \"5/min\", unlimited = true }",
            "an override has one of",
        ),
        (
            "acme = { limit = 5 }",
            "only concurrency limits have permits",
        ),
        (
            "acme = { quota = \"5/min\", burst = 9 }",
            "a fixed window has no burst",
        ),
        ("acme = { quota = \"0/min\" }", "use at least 1"),
        ("acme = { quota = 5 }", "a string with a unit"),
        (
            "acme = { quota = \"5/month from 1\" }",
            "because the limit has them; leave them out",
        ),
        (
            "acme = { unlimited = true, until = \"soon\" }",
            "`soon` is not a time",
        ),
        ("acme = { unlimited = true, until = 5 }", "a time, such as"),
        (
            "acme = { unlimited = true, until = \"2026-12-03T18:00:00+24:00\" }",
            "is not a time",
        ),
        (
            "acme = { unlimited = true, for = \"7d\" }",
            "unknown field `for`; did you mean `until`? Expected one of `quota`,",
        ),
        ("acme = { deny = \"\" }", "the text for clients has 0 bytes"),
        (
            "\"a b\" = { unlimited = true }",
            "is not the encoded form of a key",
        ),
        ("acme = \"5/min\"", "an override: a table with"),
    ];
    for (line, expected) in wrong {
        let error = limits(line);
        assert!(error.starts_with("limits.toml:8"), "{line}: {error}");
        assert!(error.contains("limits[0].overrides"), "{line}: {error}");
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn number_of_overrides_in_a_file_is_bounded() {
    let mut text = "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"10/min\"\n\
                    key = \"tenant\"\n[limits.overrides]\n"
        .to_owned();
    for key in 0..10_001 {
        text.push_str(&format!("{key} = {{ unlimited = true }}\n"));
    }
    let error = LimitSet::new(parse(&text), names())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("10001 overrides; use at most 10000"),
        "{error}"
    );
}

#[test]
fn key_that_keeps_its_override_has_it_while_the_file_is_replaced() {
    let file = |version: usize| {
        let others = (0..1_000).map(|key| format!("{key} = {{ deny = \"{version}\" }}\n"));
        let limits = "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"10/min\"\n\
                      key = \"tenant\"\n[limits.overrides]\nacme = { quota = \"100/min\" }\n";
        parse(&(limits.to_owned() + &others.collect::<String>()))
    };
    let limits = LimitSet::new(file(0), names()).unwrap();
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
    let api = limits.limit("api").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            while !is_done.load(Ordering::Relaxed) {
                let peeked = runtime.block_on(limiter.peek(&api, "acme", 0));
                assert_eq!(peeked.unwrap().capacity(), 100);
                let denied = runtime.block_on(limiter.peek(&api, "7", 0));
                assert!(denied.unwrap().is_blocked());
            }
        });
        for version in 1..50 {
            limits.replace(file(version)).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    drop(layer);
}

#[tokio::test]
async fn override_is_in_force_in_a_set_that_takes_the_place_of_another() {
    let limiter = RateLimiter::in_memory();
    for _ in 0..3 {
        let limits = LimitSet::new(parse(LIMITS), names()).unwrap();
        let layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
        let api = limits.limit("api").unwrap();
        let peeked = limiter.peek(&api, "acme", 0).await.unwrap();
        assert_eq!(peeked.capacity(), 30);
        drop((limits, layer));
        // Without the set, its overrides have ended.
        let peeked = limiter.peek(&api, "acme", 0).await.unwrap();
        assert_eq!(peeked.capacity(), 10);
    }
}
