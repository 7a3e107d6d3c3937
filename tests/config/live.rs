//! Limits from a configuration, in layers, and how they are replaced while requests are in flight.

#![cfg(all(feature = "axum", feature = "config"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout};
use tollgate::config::{Config, ConfigSource, Format, LimitSet, Names};
use tollgate::decision::Usage;
use tollgate::key::Header;
use tollgate::layer::{OnMissingKey, OnStoreFailure};
use tollgate::{ConfigError, Error, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::requests::{number, plain, request, send, status};
use crate::support::scripted::Scripted;

fn config(text: &str) -> Config {
    Config::parse("limits.toml", text, Format::Toml).unwrap()
}

/// A fixed window of an hour, by the user.
fn limit(name: &str, units: u32, rest: &str) -> String {
    format!(
        "[[limits]]\nname = \"{name}\"\nalgorithm = \"fixed_window\"\n\
         quota = \"{units}/h\"\nkey = \"user\"\n{rest}\n"
    )
}

fn names() -> Names {
    Names::new()
        .key("user", Header::new("x-user").unwrap())
        .key("tenant", Header::new("x-tenant").unwrap())
        .plan("account", |request| {
            let plan = request.headers.get("x-plan")?.to_str().ok()?;
            Some(plan.to_owned())
        })
        .cost("items", |request| {
            number(&request.headers, "x-items") as u32
        })
}

fn set(text: &str) -> LimitSet {
    LimitSet::new(config(text), names()).unwrap()
}

fn routes() -> Router {
    let hello = || any(|| async { "hello" });
    Router::new()
        .route("/", hello())
        .route("/search", hello())
        .route("/users/{id}", hello())
        .nest("/api", Router::new().route("/items/{id}", hello()))
}

fn app(limits: &LimitSet) -> Router {
    routes().layer(RateLimitLayer::from_config(RateLimiter::in_memory(), limits).unwrap())
}

fn of(user: &str, method: &str, path: &str) -> Request<Body> {
    request(method, path)
        .header("x-user", user)
        .body(Body::empty())
        .unwrap()
}

fn get(path: &str) -> Request<Body> {
    of("alice", "GET", path)
}

/// The limit and what is left of it. `None` if the request is not limited.
fn left(response: &Response<Body>) -> Option<(u64, u64)> {
    assert_eq!(response.status(), 200);
    let headers = response.headers();
    headers.contains_key("x-ratelimit-limit").then(|| {
        (
            number(headers, "x-ratelimit-limit"),
            number(headers, "x-ratelimit-remaining"),
        )
    })
}

async fn left_at(app: &Router, path: &str) -> Option<(u64, u64)> {
    left(&send(app, get(path)).await)
}

#[tokio::test(start_paused = true)]
async fn offenders_are_blocked_while_the_configuration_says_so() {
    let block = "block = { after = \"2/min\", for = \"1h\" }";
    let set = set(&limit("login", 1, block));
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::from_config(&limiter, &set).unwrap();
    let app = routes().layer(layer);
    let mut denials = Vec::new();
    for _ in 0..3 {
        let request = request("GET", "/")
            .header("x-user", "mallory")
            .body(Body::empty());
        let response = send(&app, request.unwrap()).await;
        denials.push((
            response.status().as_u16(),
            number(response.headers(), "x-ratelimit-remaining"),
        ));
    }
    assert_eq!(denials, [(200, 0), (429, 0), (429, 0)]);
    tokio::time::advance(Duration::from_secs(1800)).await;
    let mallory = || {
        request("GET", "/")
            .header("x-user", "mallory")
            .body(Body::empty())
            .unwrap()
    };
    set.replace(config(&limit("login", 2, block))).unwrap();
    assert_eq!(
        status(&app, mallory()).await,
        429,
        "a larger quota does not end a block"
    );
    set.replace(config(&limit("login", 2, ""))).unwrap();
    assert_eq!(
        status(&app, mallory()).await,
        200,
        "without the policy there are no blocks"
    );
}

#[tokio::test]
async fn limit_applies_to_the_routes_that_match() {
    let app = app(&set(&[
        limit(
            "search",
            50,
            "match = { path = \"/search\", method = \"GET\" }",
        ),
        limit(
            "users",
            40,
            "match = [{ path = \"/users/{id}\" }, { path = \"/api/items/{item}\" }]",
        ),
        limit("me", 30, "match = { path = \"/users/me\" }"),
        limit(
            "deletions",
            20,
            "match = { method = [\"DELETE\", \"PATCH\"] }\nexcept = { path = \"/search\" }",
        ),
    ]
    .concat()));
    assert_eq!(left_at(&app, "/search").await, Some((50, 49)));
    assert_eq!(
        left(&send(&app, of("alice", "HEAD", "/search")).await),
        Some((50, 48))
    );
    assert_eq!(
        left(&send(&app, of("alice", "POST", "/search")).await),
        None
    );
    assert_eq!(left_at(&app, "/users/7").await, Some((40, 39)));
    assert_eq!(left_at(&app, "/api/items/7").await, Some((40, 38)));
    assert_eq!(left_at(&app, "/users/me").await, Some((30, 29)));
    assert_eq!(left_at(&app, "/").await, None);
    assert_eq!(
        left(&send(&app, of("alice", "PATCH", "/")).await),
        Some((20, 19))
    );
    assert_eq!(
        left(&send(&app, of("alice", "PATCH", "/search")).await),
        None
    );
}

#[tokio::test]
async fn path_counts_as_it_was_sent_where_no_route_was_matched() {
    let layer = RateLimitLayer::from_config(
        RateLimiter::in_memory(),
        &set(&limit("search", 50, "match = { path = \"/search\" }")),
    );
    // A layer around the router, and not inside of it.
    let app = Router::new().fallback_service(tower::Layer::layer(&layer.unwrap(), routes()));
    for (taken, path) in [
        "/search",
        "/search/",
        "//search",
        "/%73earch",
        "/x/../search",
    ]
    .iter()
    .enumerate()
    {
        let response = send(&app, get(path)).await;
        assert_eq!(
            number(response.headers(), "x-ratelimit-remaining"),
            49 - taken as u64,
            "{path}"
        );
    }
    assert_eq!(left_at(&app, "/").await, None);
}

#[tokio::test]
async fn all_limits_of_a_request_are_charged_or_none() {
    let app = app(&set(&[
        limit("all", 3, ""),
        limit("search", 1, "match = { path = \"/search\" }"),
    ]
    .concat()));
    assert_eq!(left_at(&app, "/search").await, Some((1, 0)));
    for _ in 0..5 {
        assert_eq!(status(&app, get("/search")).await, 429);
    }
    assert_eq!(left_at(&app, "/").await, Some((3, 1)));
}

#[tokio::test]
async fn keys_are_joined_or_tried_one_after_another() {
    let of = |user: &str, tenant: &str| {
        let request = request("GET", "/").header("x-tenant", tenant);
        let request = if user.is_empty() {
            request
        } else {
            request.header("x-user", user)
        };
        request.body(Body::empty()).unwrap()
    };
    let joined = app(&set(
        &limit("api", 1, "").replace("\"user\"", "[\"user\", \"tenant\"]")
    ));
    assert_eq!(status(&joined, of("alice", "acme")).await, 200);
    assert_eq!(status(&joined, of("alice", "acme")).await, 429);
    assert_eq!(status(&joined, of("alice", "other")).await, 200);
    assert_eq!(status(&joined, of("bob", "acme")).await, 200);
    assert_eq!(status(&joined, of("", "acme")).await, 400);

    let first = app(&set(
        &limit("api", 1, "").replace("\"user\"", "{ first_of = [\"user\", \"tenant\"] }")
    ));
    assert_eq!(status(&first, of("alice", "acme")).await, 200);
    assert_eq!(status(&first, of("alice", "other")).await, 429);
    assert_eq!(status(&first, of("", "other")).await, 200);
    // A user cannot take the budget of a tenant of that name.
    assert_eq!(status(&first, of("acme", "x")).await, 200);
    assert_eq!(status(&first, of("", "acme")).await, 200);
}

#[tokio::test]
async fn plans_have_their_quotas_and_share_the_budget() {
    let plans = "plan = \"account\"\n[limits.plans]\npro = { quota = \"10/h\" }\n\
                 staff = { unlimited = true }\nclosed = { deny = \"this account is closed\" }";
    let app = app(&set(&limit("api", 2, plans)));
    let of = |plan: &str| {
        let request = request("GET", "/")
            .header("x-user", "alice")
            .header("x-plan", plan);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(left(&send(&app, get("/")).await), Some((2, 1)));
    assert_eq!(left(&send(&app, of("unknown")).await), Some((2, 0)));
    assert_eq!(status(&app, of("unknown")).await, 429);
    assert_eq!(left(&send(&app, of("pro")).await), Some((10, 7)));
    assert_eq!(left(&send(&app, of("staff")).await), None);
    let closed = send(&app, of("closed")).await;
    assert_eq!(closed.status(), 403);
    let text = closed.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"this account is closed"), "{text:?}");
}

#[tokio::test]
async fn usage_has_the_plan_of_the_request_and_charges_nothing() {
    let text = format!(
        "{}{}",
        limit(
            "api",
            5,
            "plan = \"account\"\nmatch = { path = \"/search\" }\n\
            plans = { pro = { quota = \"50/h\" }, internal = { unlimited = true } }"
        ),
        limit("all", 100, "cost = 10"),
    );
    let limits = set(&text);
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
    let app = routes().layer(layer.clone());
    let of_plan = |plan: &str, path: &str| {
        let request = request("GET", path)
            .header("x-user", "alice")
            .header("x-plan", plan);
        request.body(Body::empty()).unwrap()
    };
    for _ in 0..8 {
        assert_eq!(status(&app, of_plan("pro", "/search")).await, 200);
    }
    let left = |usage: Vec<Usage>| -> Vec<(String, u64, u64)> {
        let left = usage
            .into_iter()
            .map(|it| (it.limit, it.capacity, it.remaining));
        left.collect()
    };
    for (plan, expected) in [
        ("pro", vec![("api", 50, 42), ("all", 100, 20)]),
        ("free", vec![("api", 5, 0), ("all", 100, 20)]),
        ("internal", vec![("all", 100, 20)]),
    ] {
        let owned = expected
            .into_iter()
            .map(|(name, of, left)| (name.to_owned(), of, left));
        let expected: Vec<_> = owned.collect();
        let (page, _) = of_plan(plan, "/me/limits").into_parts();
        for _ in 0..3 {
            let of_set = limits.usage(&limiter, &page).await.unwrap();
            assert_eq!(left(of_set), expected, "{plan}, whatever the route");
        }
        let of_route = left(layer.usage(&page).await.unwrap());
        assert_eq!(
            of_route,
            expected[expected.len() - 1..],
            "{plan}, of this route"
        );
        let (search, _) = of_plan(plan, "/search").into_parts();
        assert_eq!(
            left(layer.usage(&search).await.unwrap()),
            expected,
            "{plan}"
        );
    }
    let pro = limits.limit_of_plan("api", "pro").unwrap();
    assert_eq!(
        limiter.peek(&pro, "alice", 0).await.unwrap().remaining(),
        42
    );
    let free = limits.limit_of_plan("api", "unheard").unwrap();
    assert_eq!(free.quota().capacity(), 5);
    assert_eq!(limits.limit_of_plan("api", "internal"), None);
    assert_eq!(limits.limit_of_plan("other", "pro"), None);
}

#[tokio::test]
async fn request_costs_what_the_limit_says_or_else_the_layer() {
    let limits = set(&[
        limit("fixed", 100, "match = { path = \"/\" }\ncost = 5"),
        limit(
            "named",
            100,
            "match = { path = \"/search\" }\ncost = \"items\"",
        ),
        limit("layer", 100, "match = { path = \"/users/{id}\" }"),
    ]
    .concat());
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let app = routes().layer(layer.cost(|_| 3));
    let of = |path: &str| {
        let request = request("GET", path)
            .header("x-user", "alice")
            .header("x-items", "7");
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(left(&send(&app, of("/")).await), Some((100, 95)));
    assert_eq!(left(&send(&app, of("/search")).await), Some((100, 93)));
    assert_eq!(left(&send(&app, of("/users/1")).await), Some((100, 97)));
}

#[tokio::test(start_paused = true)]
async fn changed_quota_keeps_what_was_used() {
    let limits = set(&limit("api", 10, ""));
    let app = app(&limits);
    for _ in 0..4 {
        left_at(&app, "/").await;
    }
    limits.replace(config(&limit("api", 20, ""))).unwrap();
    assert_eq!(left_at(&app, "/").await, Some((20, 15)));
    limits.replace(config(&limit("api", 6, ""))).unwrap();
    assert_eq!(left_at(&app, "/").await, Some((6, 0)));
    assert_eq!(status(&app, get("/")).await, 429);
    limits.replace(config(&limit("api", 3, ""))).unwrap();
    let denied = send(&app, get("/")).await;
    assert_eq!(denied.status(), 429);
    assert!(number(denied.headers(), "retry-after") <= 3_600);
    assert_eq!(limits.version(), 4);
}

#[tokio::test]
async fn renamed_limit_starts_full_and_a_removed_one_limits_no_longer() {
    let limits = set(&limit("api", 1, ""));
    let app = app(&limits);
    assert_eq!(left_at(&app, "/").await, Some((1, 0)));
    limits.replace(config(&limit("service", 1, ""))).unwrap();
    assert_eq!(left_at(&app, "/").await, Some((1, 0)));
    limits.replace(config("limits = []")).unwrap();
    assert_eq!(left_at(&app, "/").await, None);
    // What was used under that name is not forgotten.
    limits
        .replace(config(&[limit("api", 1, ""), limit("new", 5, "")].concat()))
        .unwrap();
    assert_eq!(status(&app, get("/")).await, 429);
}

#[tokio::test]
async fn request_finishes_under_the_limits_it_began_with() {
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (started, go_on) = (Arc::clone(&started), Arc::clone(&go_on));
        move || async move {
            started.notify_one();
            go_on.notified().await;
            "hello"
        }
    };
    let limits = set(&limit("api", 10, ""));
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let app = Router::new().route("/", any(handler)).layer(layer);
    let slow = tokio::spawn(send_to(app.clone(), get("/")));
    started.notified().await;
    limits.replace(config(&limit("api", 20, ""))).unwrap();
    go_on.notify_one();
    assert_eq!(left(&slow.await.unwrap()), Some((10, 9)));
    go_on.notify_one();
    assert_eq!(left_at(&app, "/").await, Some((20, 18)));
}

async fn send_to(app: Router, request: Request<Body>) -> Response<Body> {
    send(&app, request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replacing_under_load_never_allows_more_than_the_largest_quota() {
    let limits = set(&limit("api", 50, ""));
    let app = app(&limits);
    let (mut requests, allowed) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for _ in 0..8 {
        let (app, allowed) = (app.clone(), Arc::clone(&allowed));
        requests.spawn(async move {
            for _ in 0..500 {
                match status(&app, get("/")).await {
                    200 => drop(allowed.fetch_add(1, Ordering::Relaxed)),
                    status => assert_eq!(status, 429),
                }
            }
        });
    }
    while !requests.is_empty() {
        for units in [20, 50, 35] {
            limits.replace(config(&limit("api", units, ""))).unwrap();
            yield_now().await;
        }
        if let Some(ended) = requests.try_join_next() {
            ended.unwrap();
        }
    }
    assert!(limits.version() > 3);
    // On a busy machine, all requests may have come under a smaller quota.
    limits.replace(config(&limit("api", 50, ""))).unwrap();
    while status(&app, get("/")).await == 200 {
        allowed.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(allowed.load(Ordering::Relaxed), 50);
}

#[tokio::test]
async fn version_with_an_error_keeps_the_limits_and_says_so() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 10, ""));
    let app = app(&limits);
    let wrong = config(&limit("api", 20, "").replace("\"user\"", "\"usr\""));
    let error = limits.replace(wrong.clone()).unwrap_err().to_string();
    assert!(
        error.starts_with("limits.toml:5: `limits[0].key`: "),
        "{error}"
    );
    assert_eq!(left_at(&app, "/").await, Some((10, 9)));

    // The same by a source.
    let (sender, receiver) = watch::channel(limits.config());
    limits.follow(receiver);
    sender.send_replace(wrong);
    until(|| limits.rejected().is_some()).await;
    assert_eq!(limits.rejected().unwrap().to_string(), error);
    assert_eq!(left_at(&app, "/").await, Some((10, 8)));
    let line = log
        .lines()
        .into_iter()
        .find(|line| line.contains("not replaced"))
        .unwrap();
    assert!(
        line.contains("ERROR") && line.contains("version=1") && line.contains(&error),
        "{line}"
    );

    // The version in force again is no other version, and clears the error.
    sender.send_replace(limits.config());
    until(|| limits.rejected().is_none()).await;
    assert!(
        log.lines()
            .iter()
            .any(|line| line.contains("INFO") && line.contains("limits valid again"))
    );
    sender.send_replace(config(&limit("api", 30, "")));
    until(|| limits.version() == 2).await;
    assert!(limits.rejected().is_none());
    assert_eq!(left_at(&app, "/").await, Some((30, 27)));
}

/// Waits for what another task does.
async fn until(is_so: impl Fn() -> bool) {
    let turns = async {
        while !is_so() {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), turns)
        .await
        .expect("it becomes so");
}

#[tokio::test]
async fn equal_version_changes_nothing() {
    let limits = set(&limit("api", 10, ""));
    limits
        .replace(config(&format!("# a comment\n{}", limit("api", 10, ""))))
        .unwrap();
    assert_eq!(limits.version(), 1);
}

#[tokio::test]
async fn task_that_follows_a_source_ends_with_the_set_and_the_end_of_a_source_is_reported() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 10, ""));
    let (sender, receiver) = watch::channel(limits.config());
    limits.clone().follow(receiver);
    drop(limits);
    sender.closed().await;
    assert!(log.lines().is_empty());

    let limits = set(&limit("api", 10, ""));
    let (sender, receiver) = watch::channel(limits.config());
    assert!(!limits.is_followed());
    limits.follow(receiver);
    assert!(limits.is_followed());
    drop(sender);
    let ended = || {
        log.lines()
            .iter()
            .any(|line| line.contains("source of limits ended"))
    };
    until(ended).await;
    until(|| !limits.is_followed()).await;
    assert_eq!(limits.version(), 1);
}

/// A source that panics instead of waiting.
struct Panicking;

impl ConfigSource for Panicking {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        panic!("no more versions");
    }
}

/// A source that always has a version.
struct Restless(u32);

impl ConfigSource for Restless {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        self.0 += 1;
        Some(Ok(config(&limit("api", self.0, ""))))
    }
}

#[tokio::test]
async fn source_that_panics_is_reported_and_one_without_a_pause_blocks_nobody() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 10, ""));
    limits.follow(Panicking);
    until(|| !limits.is_followed()).await;
    assert!(
        log.lines()
            .iter()
            .any(|line| line.contains("source of limits ended"))
    );
    assert!(
        limits
            .rejected()
            .unwrap()
            .to_string()
            .contains("the source of limits panicked")
    );
    limits.follow(Restless(100));
    until(|| limits.version() > 5).await;
    assert!(limits.is_followed());
}

#[tokio::test]
async fn no_version_ends_the_following_of_a_source() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 10, ""));
    let (sender, receiver) = watch::channel(limits.config());
    limits.follow(receiver);
    let long = format!("match = {{ path = \"/{}\" }}", "a".repeat(66_000));
    for (number, bad) in [long.as_str(), "match = { path = \"/{a}{b}\" }"]
        .into_iter()
        .enumerate()
    {
        sender.send(config(&limit("api", 11, bad))).unwrap();
        until(|| limits.rejected().is_some()).await;
        assert!(limits.is_followed());
        until(|| {
            log.lines()
                .iter()
                .any(|line| line.contains("limits not replaced"))
        })
        .await;
        let quota = 20 + number as u32;
        sender.send(config(&limit("api", quota, ""))).unwrap();
        until(|| limits.rejected().is_none()).await;
        assert_eq!(
            limits.limit("api").unwrap().quota().capacity(),
            u64::from(quota)
        );
    }
    // The longest path is in the table, whatever its width.
    let longest = format!("match = {{ path = \"/{}\" }}", "a".repeat(1_023));
    sender.send(config(&limit("api", 30, &longest))).unwrap();
    until(|| limits.limit("api").unwrap().quota().capacity() == 30).await;
    assert!(limits.to_string().contains(&"a".repeat(1_023)));
    assert!(limits.is_followed());
}

#[test]
fn end_of_the_runtime_is_no_end_of_a_source() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 10, ""));
    let (_sender, receiver) = watch::channel(limits.config());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        limits.follow(receiver);
        yield_now().await;
    });
    drop(runtime);
    assert!(!limits.is_followed());
    assert!(log.lines().is_empty());
}

#[tokio::test]
async fn changes_are_reported_and_the_table_is_at_debug_level() {
    let (log, _guard) = Log::start();
    let limits = set(&[limit("a", 1, ""), limit("b", 1, ""), limit("c", 1, "")].concat());
    let _app = app(&limits);
    limits
        .replace(config(
            &[limit("a", 1, ""), limit("b", 2, ""), limit("d", 1, "")].concat(),
        ))
        .unwrap();
    let lines = log.lines();
    // A subscriber that asks when it gets an event finds the new limits in force.
    let [first, replaced, second] = &lines[..] else {
        panic!("{lines:#?}")
    };
    assert!(
        first.contains("DEBUG") && first.contains("limits in force"),
        "{first}"
    );
    assert!(
        second.contains("DEBUG") && second.contains("limits in force"),
        "{second}"
    );
    assert!(
        replaced.contains("INFO") && replaced.contains("limits replaced"),
        "{replaced}"
    );
    for field in ["version=2", "added=\"d (", "removed=\"c (", "changed=\"b ("] {
        assert!(replaced.contains(field), "{replaced}");
    }
}

#[tokio::test]
async fn version_without_limits_is_in_force_and_warns() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 1, ""));
    let app = app(&limits);
    limits.replace(config("limits = []")).unwrap();
    assert_eq!(status(&app, get("/")).await, 200);
    assert_eq!(status(&app, get("/")).await, 200);
    let lines = log.lines();
    let warns = |line: &&String| line.contains("WARN") && line.contains("no limits left");
    assert_eq!(lines.iter().filter(warns).count(), 1, "{lines:#?}");
}

#[tokio::test]
async fn report_of_a_change_names_the_plans() {
    let (log, _guard) = Log::start();
    let with = |pro: u32, rest: &str| {
        let plans = "plan = \"account\"\n[limits.plans]\nfree = { quota = \"1/h\" }\n";
        limit(
            "api",
            1,
            &format!("{plans}pro = {{ quota = \"{pro}/h\" }}\n{rest}"),
        )
    };
    let limits = set(&with(10, ""));
    limits
        .replace(config(&with(20, "team = { quota = \"9/h\" }\n")))
        .unwrap();
    let replaced = log
        .lines()
        .into_iter()
        .find(|line| line.contains("limits replaced"))
        .unwrap();
    let changed = "; changed: plans.pro, plans.team)\"";
    assert!(replaced.contains(changed), "{replaced}");
}

#[tokio::test]
async fn report_of_a_change_names_all_fields() {
    let (log, _guard) = Log::start();
    let limits = set(&limit("api", 1, "match = { path = \"/search\" }\n"));
    let now = "match = { path = \"/serach\" }\ncost = 3\nexcept = { path = \"/health\" }\n";
    limits.replace(config(&limit("api", 5, now))).unwrap();
    let lines = log.lines();
    let replaced = lines.iter().find(|line| line.contains("limits replaced"));
    let changed = "now 5 per 1h (fixed window); changed: cost, except, match)\"";
    assert!(replaced.unwrap().contains(changed), "{replaced:?}");
}

#[tokio::test]
async fn settings_of_the_layer_apply_to_all_versions() {
    let limits = set(&limit("api", 1, ""));
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let app = routes().layer(layer.clone().shadow_mode());
    for _ in 0..3 {
        assert_eq!(status(&app, get("/")).await, 200);
    }
    limits.replace(config(&limit("api", 2, ""))).unwrap();
    assert_eq!(status(&app, get("/")).await, 200);
    // The same limits in another layer are enforced.
    assert_eq!(status(&routes().layer(layer), get("/")).await, 429);
}

#[tokio::test]
async fn failure_policy_is_that_of_the_limit_or_else_of_the_layer() {
    let closed = "match = { path = \"/search\" }\non_store_failure = \"fail_closed\"";
    let text = [limit("all", 5, ""), limit("search", 5, closed)].concat();
    let limits = set(&text);
    let layer = RateLimitLayer::from_config(
        RateLimiter::new(Scripted::failing(|| Error::unreachable("away"))),
        &limits,
    )
    .unwrap();
    let open = routes().layer(layer.clone());
    assert_eq!(status(&open, get("/")).await, 200);
    assert_eq!(status(&open, get("/search")).await, 503);
    let local = layer.on_store_failure(OnStoreFailure::local(5)).unwrap();
    let local = routes().layer(local);
    assert_eq!(status(&local, get("/")).await, 200);
    assert_eq!(status(&local, get("/")).await, 429);
    limits
        .replace(config(
            &text
                .replace("fail_closed", "fail_open")
                .replace("5/h", "10/h"),
        ))
        .unwrap();
    assert_eq!(status(&open, get("/search")).await, 200);
    assert_eq!(status(&local, get("/")).await, 200);
    assert_eq!(status(&local, get("/")).await, 429);
}

#[tokio::test]
async fn request_without_a_key_is_handled_as_the_layer_says() {
    let limits = set(&[
        limit("all", 5, ""),
        limit(
            "users",
            5,
            "match = { path = \"/users/{id}\" }\nshadow_percent = 100",
        ),
    ]
    .concat());
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    assert_eq!(
        status(&routes().layer(layer.clone()), plain("/")).await,
        400
    );
    let skips = layer.on_missing_key(OnMissingKey::SkipLimit).unwrap();
    assert_eq!(status(&routes().layer(skips), plain("/")).await, 200);
    // A limit in shadow mode rejects no request.
    limits
        .replace(config(&limit("all", 5, "shadow_percent = 100")))
        .unwrap();
    assert_eq!(status(&app(&limits), plain("/")).await, 200);
}

#[tokio::test]
async fn fixed_limits_and_those_of_a_configuration_are_one_group() {
    let limits = set(&limit("api", 3, ""));
    let fixed = Limit::fixed_window("search", Quota::per_hour(1)).unwrap();
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits)
        .unwrap()
        .limit(fixed, Header::new("x-tenant").unwrap())
        .unwrap();
    let app = routes().layer(layer);
    let of = |tenant: &str| {
        let request = request("GET", "/")
            .header("x-user", "alice")
            .header("x-tenant", tenant);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(status(&app, of("a")).await, 200);
    assert_eq!(status(&app, of("a")).await, 429);
    assert_eq!(status(&app, of("b")).await, 200);
    assert_eq!(status(&app, of("c")).await, 200);
    assert_eq!(status(&app, of("d")).await, 429);
}

#[tokio::test]
async fn names_that_would_share_budgets_by_mistake_are_errors() {
    let limiter = RateLimiter::in_memory();
    let fixed = Limit::fixed_window("login", Quota::per_hour(1)).unwrap();
    limiter.register(&fixed).unwrap();
    let limits = set(&limit("api", 3, ""));
    let layer = |limits: &LimitSet| {
        RateLimitLayer::from_config(&limiter, limits).map_err(|it| it.to_string())
    };
    let _first = layer(&limits).unwrap();
    // Two layers of one set share its budgets.
    let _second = layer(&limits).unwrap();

    let error = layer(&set(&limit("login", 3, ""))).unwrap_err();
    assert_eq!(
        error,
        "limits.toml:2: `limits[0].name`: a limit in the application's code has this name, and \
         headers and metrics could not tell the two apart; use another name"
    );
    let error = layer(&set(&[limit("x", 1, ""), limit("api", 3, "")].concat())).unwrap_err();
    assert!(
        error.starts_with(
            "limits.toml:8: `limits[1].name`: a limit of another `LimitSet` has this name"
        ),
        "{error}"
    );
    let api = Limit::fixed_window("api", Quota::per_hour(3)).unwrap();
    let error = limiter.register(&api).unwrap_err().to_string();
    assert!(
        error.contains("limit `api`: a limit from a configuration has this name"),
        "{error}"
    );

    // A version that takes the name of another limit is not put into force, in any layer.
    let other = RateLimiter::in_memory();
    let _third = RateLimitLayer::from_config(&other, &limits).unwrap();
    let taken = Limit::fixed_window("taken", Quota::per_hour(1)).unwrap();
    other.register(&taken).unwrap();
    let wrong = config(&[limit("new", 3, ""), limit("taken", 3, "")].concat());
    let error = limits.replace(wrong).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("limits.toml:8: `limits[1].name`"),
        "{error}"
    );
    assert_eq!(limits.config().names().collect::<Vec<_>>(), ["api"]);
    let new = Limit::fixed_window("new", Quota::per_hour(1)).unwrap();
    for limiter in [&limiter, &other] {
        limiter.register(&new).unwrap();
        limiter.register(&api).unwrap_err();
    }

    // The name of a limit that was removed is free, and so are those of a set that is gone.
    limits.replace(config(&limit("second", 3, ""))).unwrap();
    limiter.register(&api).unwrap();
    drop((_first, _second, _third, limits));
    let again = set(&limit("second", 5, ""));
    let _layer = RateLimitLayer::from_config(&limiter, &again).unwrap();
}

#[tokio::test]
async fn layer_that_is_gone_binds_no_version() {
    let limits = set(&limit("api", 3, ""));
    let limiter = RateLimiter::in_memory();
    let fixed = |name: &str| Limit::fixed_window(name, Quota::per_hour(1)).unwrap();
    let layer = RateLimitLayer::from_config(&limiter, &limits).unwrap();
    let full = (0..254).fold(layer, |layer, number| {
        layer
            .limit(fixed(&number.to_string()), Header::new("x-user").unwrap())
            .unwrap()
    });
    let two = config(&[limit("a", 1, ""), limit("b", 1, "")].concat());
    assert!(
        limits
            .replace(two.clone())
            .unwrap_err()
            .to_string()
            .contains("room for 1 limits")
    );
    // A clone with other settings is the same layer.
    let clone = full.clone().shadow_mode();
    drop(full);
    limits.replace(two.clone()).unwrap_err();
    drop(clone);
    limits.replace(two).unwrap();
}

#[tokio::test]
async fn denied_plan_is_enforced_for_the_keys_of_the_limit() {
    let text = |shadow| {
        let plans = "plan = \"account\"\n[limits.plans]\nclosed = { deny = \"closed\" }\n\
                     small = { quota = \"1/h\" }";
        limit("api", 1_000, &format!("shadow_percent = {shadow}\n{plans}"))
    };
    let limits = set(&text(0));
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let (app, shadow) = (
        routes().layer(layer.clone()),
        routes().layer(layer.shadow_mode()),
    );
    let of = |user: u32, plan: &str| {
        let request = request("GET", "/")
            .header("x-user", user.to_string())
            .header("x-plan", plan);
        request.body(Body::empty()).unwrap()
    };
    let closed = async |app: &Router| {
        let mut closed = 0;
        for user in 0..200 {
            closed += u32::from(status(app, of(user, "closed")).await == 403);
        }
        closed
    };
    assert_eq!((closed(&app).await, closed(&shadow).await), (200, 0));
    // The quotas of plans are in shadow mode with the layer, too.
    for _ in 0..3 {
        assert_eq!(status(&shadow, of(1, "small")).await, 200);
    }
    assert_eq!(status(&app, of(1, "small")).await, 429);
    limits.replace(config(&text(60))).unwrap();
    let share = closed(&app).await;
    assert!((60..100).contains(&share), "{share} of 200");
    assert_eq!(closed(&shadow).await, 0);
}

#[tokio::test]
async fn rest_of_a_route_in_another_router_has_its_whole_path() {
    let limits = set(&limit("inner", 50, "match = { path = \"/api/unknown\" }"));
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    // The inner router strips `/api`, and its fallback has no route.
    let inner = Router::new()
        .route("/known", any(|| async {}))
        .fallback(|| async {});
    let app = Router::new().nest_service("/api", tower::Layer::layer(&layer, inner));
    assert_eq!(left_at(&app, "/api/unknown").await, Some((50, 49)));
    assert_eq!(left_at(&app, "/api/known").await, None);
}

#[tokio::test]
async fn exception_for_a_route_in_another_router_has_its_whole_path() {
    let limits = set(&limit("inner", 50, "except = { path = \"/api/health\" }"));
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let inner = Router::new()
        .route("/known", any(|| async {}))
        .fallback(|| async {});
    let app = Router::new().nest_service("/api", tower::Layer::layer(&layer, inner));
    assert_eq!(left_at(&app, "/api/health").await, None);
    assert_eq!(left_at(&app, "/api/known").await, Some((50, 49)));
    // A path with several spellings is no exception.
    assert_eq!(left_at(&app, "/api//health").await, Some((50, 48)));
}

#[tokio::test]
async fn changed_key_counts_by_the_new_keys() {
    let limits = set(&limit("api", 2, ""));
    let app = app(&limits);
    let of = |tenant: &str| {
        let request = request("GET", "/")
            .header("x-user", "alice")
            .header("x-tenant", tenant);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(left(&send(&app, of("acme")).await), Some((2, 1)));
    limits
        .replace(config(
            &limit("api", 2, "").replace("\"user\"", "\"tenant\""),
        ))
        .unwrap();
    assert_eq!(left(&send(&app, of("acme")).await), Some((2, 1)));
    // The budget belongs to the name of the limit and the key.
    assert_eq!(left(&send(&app, of("alice")).await), Some((2, 0)));
}

#[tokio::test(start_paused = true)]
async fn changed_algorithm_keeps_what_was_used_within_the_buckets_alone() {
    let of = |algorithm: &str| limit("api", 5, "").replace("fixed_window", algorithm);
    let limits = set(&of("token_bucket"));
    let app = app(&limits);
    assert_eq!(left_at(&app, "/").await, Some((5, 4)));
    limits.replace(config(&of("gcra"))).unwrap();
    assert_eq!(left_at(&app, "/").await, Some((5, 3)));
    limits.replace(config(&of("fixed_window"))).unwrap();
    assert_eq!(left_at(&app, "/").await, Some((5, 4)));
    limits.replace(config(&of("token_bucket"))).unwrap();
    assert_eq!(left_at(&app, "/").await, Some((5, 2)));
}

#[tokio::test(start_paused = true)]
async fn changed_windows_keep_what_was_used_and_deny_for_two_periods_at_most() {
    for (algorithm, before, after) in [
        ("fixed_window", "anchor = \"first\"", "anchor = \"clock\""),
        ("fixed_window", "anchor = \"clock\"", "anchor = \"first\""),
        ("sliding_window", "sub_windows = 1", "sub_windows = 12"),
        ("sliding_window", "sub_windows = 12", "sub_windows = 1"),
        ("leaky_bucket", "mode = \"queue\"", "mode = \"meter\""),
    ] {
        let of = |shape: &str, units| limit("api", units, shape).replace("fixed_window", algorithm);
        let limits = set(&of(before, 5));
        let app = app(&limits);
        assert_eq!(left_at(&app, "/").await, Some((5, 4)), "{algorithm}");
        limits.replace(config(&of(after, 5))).unwrap();
        assert_eq!(
            left_at(&app, "/").await.unwrap().1,
            3,
            "{algorithm}: {after}"
        );
        limits.replace(config(&of(after, 2))).unwrap();
        let denied = send(&app, get("/")).await;
        assert_eq!(denied.status(), 429, "{algorithm}: {after}");
        assert!(
            number(denied.headers(), "retry-after") <= 7_200,
            "{algorithm}: {after}"
        );
    }
}

#[tokio::test]
async fn layer_has_room_for_255_limits_in_all() {
    let many: String = (0..254)
        .map(|number| limit(&number.to_string(), 1, ""))
        .collect();
    let limits = set(&many);
    let fixed = |name| Limit::fixed_window(name, Quota::per_hour(1)).unwrap();
    let user = || Header::new("x-user").unwrap();
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let layer = layer.limit(fixed("a"), user()).unwrap();
    assert_eq!(status(&routes().layer(layer.clone()), get("/")).await, 200);
    let error = layer
        .clone()
        .limit(fixed("b"), user())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`limits[253]`: the layer has room for 253 limits"),
        "{error}"
    );
    let error = limits
        .replace(config(&(many + &limit("254", 1, ""))))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`limits[254]`: the layer has room for 254 limits"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_and_settlements_know_the_limits_by_name() {
    let limits = set(&limit("api", 10, ""));
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let layer = layer.settle_on_response("api", |_| Some(5)).unwrap();
    let app = routes().layer(layer.wait_up_to(Duration::from_secs(3_600)).unwrap());
    assert_eq!(left_at(&app, "/").await, Some((10, 9)));
    limits.replace(config(&limit("api", 5, ""))).unwrap();
    let asked = Instant::now();
    assert_eq!(status(&app, get("/")).await, 200);
    assert!(
        asked.elapsed() >= Duration::from_secs(3_599),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn extractors_that_are_never_used_are_errors() {
    for (keys, expected) in [
        (
            "{ first_of = [\"global\", \"user\"] }",
            "`global`, so the names after it are never used",
        ),
        (
            "{ first_of = [\"user\", \"peer_ip\", \"user\"] }",
            "`user` is there twice, and the second is never used",
        ),
        ("[\"user\", \"user\"]", "`user` is there twice"),
    ] {
        let config = config(&limit("api", 1, "").replace("\"user\"", keys));
        let error = LimitSet::new(config, names()).unwrap_err().to_string();
        assert!(error.contains("limits[0].key"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
