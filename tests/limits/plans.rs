//! Limits that are chosen for each request: by a closure, by a key, and by a look-up.

#![cfg(feature = "axum")]

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::key::Header;
use tollgate::layer::{ChosenLimits, Lookup, LookupBuilder, LookupResult, OnStoreFailure};
use tollgate::store::{Announcement, Announcements};
use tollgate::{Check, Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::requests::{app, number, plain, request, send, status};
use crate::support::scripted::Scripted;

const MS: Duration = Duration::from_millis(1);

/// The application's limits: both plans have one name.
#[derive(Clone)]
struct Plans {
    free: Limit,
    pro: Limit,
}

impl Plans {
    fn new() -> Self {
        let limit = |quota| Limit::fixed_window("api", quota).unwrap();
        Self {
            free: limit(Quota::per_hour(2)),
            pro: limit(Quota::per_hour(5)),
        }
    }

    fn limits(&self, plan: Option<&str>, user: &str) -> ChosenLimits {
        match plan {
            Some("free") => Check::new(&self.free, user).into(),
            Some("pro") => Check::new(&self.pro, user).into(),
            Some("internal") => ChosenLimits::Unlimited,
            Some("unpaid") => ChosenLimits::reject_with(StatusCode::PAYMENT_REQUIRED, "pay first"),
            _ => ChosenLimits::reject("no such plan"),
        }
    }
}

fn header<'a>(request: &'a Parts, name: &str) -> &'a str {
    request
        .headers
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

fn of(user: &str, plan: &str) -> Request<Body> {
    request("GET", "/")
        .header("user", user)
        .header("plan", plan)
        .body(Body::empty())
        .unwrap()
}

fn by_header() -> Router {
    let plans = Plans::new();
    let limiter = RateLimiter::in_memory();
    let choose =
        move |request: &Parts| plans.limits(Some(header(request, "plan")), header(request, "user"));
    app(RateLimitLayer::from_fn(&limiter, choose).unwrap())
}

#[tokio::test]
async fn each_plan_has_its_quota() {
    let app = by_header();
    for (user, plan, allowed) in [("alice", "free", 2), ("bob", "pro", 5)] {
        for left in (0..allowed).rev() {
            let response = send(&app, of(user, plan)).await;
            assert_eq!(response.status(), 200);
            assert_eq!(number(response.headers(), "x-ratelimit-limit"), allowed);
            assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left);
        }
        assert_eq!(status(&app, of(user, plan)).await, 429);
    }
    for _ in 0..10 {
        let response = send(&app, of("carol", "internal")).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
    }
}

#[tokio::test]
async fn upgrade_keeps_what_was_used() {
    let app = by_header();
    for _ in 0..2 {
        assert_eq!(status(&app, of("alice", "free")).await, 200);
    }
    assert_eq!(status(&app, of("alice", "free")).await, 429);
    for left in [2, 1, 0] {
        let response = send(&app, of("alice", "pro")).await;
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left);
    }
    assert_eq!(status(&app, of("alice", "pro")).await, 429);
    assert_eq!(
        status(&app, of("alice", "free")).await,
        429,
        "a downgrade mints nothing"
    );
}

#[tokio::test]
async fn usage_is_that_of_the_chosen_plan_and_a_rejected_request_has_none() {
    let database = Database::new();
    let limiter = RateLimiter::in_memory();
    let plans = Plans::new();
    let chosen = plans.clone();
    let of_closure = RateLimitLayer::from_fn(&limiter, move |request: &Parts| {
        chosen.limits(Some(header(request, "plan")), header(request, "user"))
    });
    let looked_up = RateLimitLayer::from_lookup(
        &limiter,
        database.lookup().build().unwrap(),
        move |_, user, plan| match plan {
            LookupResult::Known(plan) => plans.limits(Some(plan), user),
            _ => ChosenLimits::reject("no account"),
        },
    );
    let (of_closure, looked_up) = (of_closure.unwrap(), looked_up.unwrap());
    assert_eq!(
        status(&app(of_closure.clone()), of("alice", "pro")).await,
        200
    );
    database.answers(Ok(Some("pro")));
    let (request, _) = of("alice", "pro").into_parts();
    for layer in [&of_closure, &looked_up, &of_closure] {
        let usage = layer.usage(&request).await.unwrap();
        assert_eq!((usage[0].capacity, usage[0].remaining), (5, 4));
    }
    for plan in ["unpaid", "internal"] {
        let (request, _) = of("alice", plan).into_parts();
        assert_eq!(of_closure.usage(&request).await.unwrap(), [], "{plan}");
    }
}

#[tokio::test]
async fn rejected_request_gets_the_reason_and_consumes_nothing() {
    let app = by_header();
    for (plan, expected, text) in [("unpaid", 402, "pay first\n"), ("x", 403, "no such plan\n")] {
        let response = send(&app, of("alice", plan)).await;
        assert_eq!(response.status().as_u16(), expected);
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert!(!response.headers().contains_key("retry-after"));
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            text
        );
    }
    let response = send(&app, of("alice", "free")).await;
    assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 1);
}

#[tokio::test]
async fn rejection_can_say_when_to_retry() {
    let choose = |_: &Parts| ChosenLimits::Reject {
        status: StatusCode::SERVICE_UNAVAILABLE,
        reason: "the database is away".into(),
        retry_after: Some(1_200 * MS),
    };
    let app = app(RateLimitLayer::from_fn(RateLimiter::in_memory(), choose).unwrap());
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), 503);
    assert_eq!(number(response.headers(), "retry-after"), 2);
}

#[tokio::test]
async fn layer_in_shadow_mode_enforces_no_chosen_limit_and_rejects_nothing() {
    let plans = Plans::new();
    let choose =
        move |request: &Parts| plans.limits(Some(header(request, "plan")), header(request, "user"));
    let layer = RateLimitLayer::from_fn(RateLimiter::in_memory(), choose).unwrap();
    let shadow = app(layer.clone().shadow_mode());
    for plan in ["free", "free", "free", "unpaid", "x"] {
        assert_eq!(status(&shadow, of("alice", plan)).await, 200, "{plan}");
    }
    let enforced = app(layer.shadow_percent(0).unwrap());
    assert_eq!(status(&enforced, of("alice", "free")).await, 429);
    assert_eq!(status(&enforced, of("alice", "unpaid")).await, 402);
}

#[tokio::test]
async fn status_of_a_rejection_is_that_of_an_error() {
    for (chosen, answered) in [(200, 403), (302, 403), (404, 404), (599, 599)] {
        let chosen = StatusCode::from_u16(chosen).unwrap();
        let choose = move |_: &Parts| ChosenLimits::reject_with(chosen, "no");
        let app = app(RateLimitLayer::from_fn(RateLimiter::in_memory(), choose).unwrap());
        assert_eq!(status(&app, plain("/")).await, answered, "{chosen}");
    }
}

#[tokio::test]
async fn chosen_and_fixed_limits_are_one_group() {
    let tenant = Limit::fixed_window("tenant", Quota::per_hour(3)).unwrap();
    let plans = Plans::new();
    let limiter = RateLimiter::in_memory();
    let layer = RateLimitLayer::from_key(&limiter, Header::new("user").unwrap(), {
        let plans = plans.clone();
        move |_, user| Check::new(&plans.free, user).into()
    });
    let layer = layer
        .unwrap()
        .limit(tenant.clone(), Header::new("tenant").unwrap())
        .unwrap();
    let app = app(layer);
    let of = |user: &str| {
        let request = request("GET", "/")
            .header("tenant", "acme")
            .header("user", user);
        request.body(Body::empty()).unwrap()
    };
    for (user, expected) in [("alice", 200), ("alice", 200), ("alice", 429), ("bob", 200)] {
        assert_eq!(status(&app, of(user)).await, expected);
    }
    assert_eq!(
        status(&app, of("bob")).await,
        429,
        "the tenant has used its three"
    );
    let left = limiter.peek(&plans.free, "bob", 0).await.unwrap();
    assert_eq!(left.remaining(), 1, "a denied group charges nothing");
    // A request without a user.
    let nobody = request("GET", "/")
        .header("tenant", "acme")
        .body(Body::empty())
        .unwrap();
    assert_eq!(status(&app, nobody).await, 400);
}

#[tokio::test]
async fn checks_that_are_no_group_are_a_mistake_of_the_application() {
    let limit = Limit::gcra("api", Quota::per_second(1)).unwrap();
    let (one, many) = (Check::new(&limit, "a"), limit.clone());
    let permits = Limit::concurrency("exports", 10).unwrap();
    let choices: [(Box<dyn Fn() -> ChosenLimits + Send + Sync>, _); 4] = [
        (
            Box::new(move || {
                let checks = (0..256_u64).map(|key| Check::new(&permits, key));
                checks.collect::<Vec<_>>().into()
            }),
            500,
        ),
        (Box::new(move || [one.clone(), one.clone()].into()), 500),
        (
            Box::new(move || {
                let checks = (0..256_u64).map(|key| Check::new(&many, key));
                checks.collect::<Vec<_>>().into()
            }),
            500,
        ),
        (Box::new(|| Vec::new().into()), 200),
    ];
    for (choose, expected) in choices {
        let (log, _guard) = Log::start();
        let layer =
            RateLimitLayer::from_fn(RateLimiter::in_memory(), move |_: &Parts| choose()).unwrap();
        assert_eq!(status(&app(layer), plain("/")).await, expected);
        assert_eq!(
            log.lines().iter().any(|line| line.contains("ERROR")),
            expected == 500
        );
    }
}

#[tokio::test]
async fn chosen_limits_fail_as_the_layer_says() {
    let quota = Quota::per_hour(4);
    let plain_limit = Limit::fixed_window("api", quota).unwrap();
    let own = plain_limit
        .clone()
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    // The share of a thousandth of a year-long period cannot be decided.
    let year = Quota::new(1, Duration::from_secs(365 * 24 * 60 * 60));
    let undecidable = Limit::token_bucket("api", year).unwrap();
    let local = OnStoreFailure::local(2);
    for (limit, policy, expected) in [
        (&plain_limit, OnStoreFailure::FailOpen, [200, 200, 200]),
        (&plain_limit, OnStoreFailure::FailClosed, [503, 503, 503]),
        (&plain_limit, local, [200, 200, 429]),
        (&own, OnStoreFailure::FailOpen, [503, 503, 503]),
        (&undecidable, local, [503, 503, 503]),
    ] {
        let store = Scripted::default();
        store.switch_off(true);
        let limit = limit.clone();
        let layer = RateLimitLayer::from_fn(RateLimiter::new(store), move |_: &Parts| {
            Check::new(&limit, "alice").into()
        });
        let app = app(layer.unwrap().on_store_failure(policy).unwrap());
        for expected in expected {
            assert_eq!(status(&app, plain("/")).await, expected, "{policy:?}");
        }
    }
}

#[cfg(feature = "json")]
#[tokio::test]
async fn reason_is_in_a_json_body() {
    use tollgate::layer::BodyFormat;
    let choose = |_: &Parts| ChosenLimits::reject("suspended");
    let layer = RateLimitLayer::from_fn(RateLimiter::in_memory(), choose).unwrap();
    let response = send(&app(layer.body_format(BodyFormat::Json)), plain("/")).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"error":"rejected","message":"suspended"}"#);
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn rejected_grpc_call_gets_a_grpc_status() {
    for (status, code) in [
        (401, "16"),
        (402, "7"),
        (403, "7"),
        (429, "8"),
        (503, "14"),
        (409, "9"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let choose = move |_: &Parts| ChosenLimits::reject_with(status, "no");
        let app = app(RateLimitLayer::from_fn(RateLimiter::in_memory(), choose).unwrap());
        let call = request("POST", "/").header("content-type", "application/grpc");
        let response = send(&app, call.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], code);
    }
}

/// A database: how it answers, how long it takes, and how often it was asked.
#[derive(Clone)]
struct Database {
    asked: Arc<AtomicU32>,
    latency_ms: Arc<AtomicU32>,
    answer: Arc<std::sync::Mutex<Result<Option<&'static str>, &'static str>>>,
}

impl Database {
    fn new() -> Self {
        let answer = Arc::new(std::sync::Mutex::new(Ok(Some("free"))));
        Self {
            asked: Arc::default(),
            latency_ms: Arc::default(),
            answer,
        }
    }

    fn answers(&self, answer: Result<Option<&'static str>, &'static str>) {
        *self.answer.lock().unwrap() = answer;
    }

    fn takes(&self, milliseconds: u32) {
        self.latency_ms.store(milliseconds, Ordering::SeqCst);
    }

    fn asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }

    async fn plan(self) -> io::Result<Option<&'static str>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        sleep(MS * self.latency_ms.load(Ordering::SeqCst)).await;
        let answer = *self.answer.lock().unwrap();
        assert_ne!(answer, Err("panic"), "the look-up panics");
        answer.map_err(io::Error::other)
    }

    fn lookup(&self) -> LookupBuilder<String, &'static str> {
        let database = self.clone();
        let id = |request: &Parts| {
            Some(header(request, "user").to_owned()).filter(|user| !user.is_empty())
        };
        Lookup::builder(id, move |_| database.clone().plan())
    }

    /// An app that says how the plan was found, and nothing else: all are allowed, or rejected with
    /// 4xx.
    fn app(&self, lookup: LookupBuilder<String, &'static str>) -> Router {
        self.app_on(lookup.build().unwrap())
    }

    fn app_on(&self, lookup: Lookup<String, &'static str>) -> Router {
        let layer = RateLimitLayer::from_lookup(RateLimiter::in_memory(), lookup, |_, _, plan| {
            let status = match plan {
                LookupResult::Known(&"free") => return ChosenLimits::Unlimited,
                LookupResult::Known(_) => 402,
                LookupResult::Unknown => 404,
                _ => 503,
            };
            ChosenLimits::reject_with(StatusCode::from_u16(status).unwrap(), "no")
        });
        app(layer.unwrap())
    }
}

const FREE: u16 = 200;
const PRO: u16 = 402;
const UNKNOWN: u16 = 404;
const FAILED: u16 = 503;

async fn ask(app: &Router, user: &str) -> u16 {
    status(app, of(user, "")).await
}

#[tokio::test(start_paused = true)]
async fn key_of_an_extractor_is_looked_up_and_a_request_without_it_says_why() {
    let plan_of = async |key: Key| Ok::<_, io::Error>(Some(key.as_str().to_owned()));
    let lookup = Lookup::by_key(Header::new("x-plan").unwrap(), plan_of);
    let plans = Plans::new();
    let limiter = RateLimiter::in_memory();
    let layer =
        RateLimitLayer::from_lookup(&limiter, lookup, move |_, key: &Key, plan| match plan {
            LookupResult::Known(plan) => plans.limits(Some(plan), key.as_str()),
            _ => ChosenLimits::reject("not known"),
        });
    let app = app(layer.unwrap());
    for (plan, answer) in [
        ("pro", StatusCode::OK),
        ("unpaid", StatusCode::PAYMENT_REQUIRED),
    ] {
        let request = Request::get("/").header("x-plan", plan);
        let request = request.body(Body::empty()).unwrap();
        assert_eq!(send(&app, request).await.status(), answer, "{plan}");
    }
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(
        String::from_utf8_lossy(&body).contains("x-plan"),
        "{body:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn text_of_a_header_is_looked_up_as_the_client_sent_it() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let database = Arc::clone(&asked);
    let lookup = Lookup::by_header("x-api-key", move |api_key: String| {
        database.lock().unwrap().push(api_key);
        async { Ok::<_, io::Error>(Some(())) }
    });
    let limit = Limit::gcra("api", Quota::per_minute(10)).unwrap();
    let limiter = RateLimiter::in_memory();
    let layer =
        RateLimitLayer::from_lookup(&limiter, lookup.unwrap(), move |_, key: &String, _| {
            Check::new(&limit, key).into()
        });
    let app = app(layer.unwrap());
    let ask = async |api_key: &[u8]| {
        let request = Request::get("/").header("x-api-key", api_key);
        let request = request.body(Body::empty()).unwrap();
        send(&app, request).await.status()
    };
    let long = "k".repeat(200);
    for api_key in ["sk:live~1", "käse", long.as_str()] {
        assert_eq!(ask(api_key.as_bytes()).await, StatusCode::OK, "{api_key}");
    }
    assert_eq!(*asked.lock().unwrap(), ["sk:live~1", "käse", long.as_str()]);
    for no_text in [b"\xff".as_slice(), b""] {
        assert_eq!(ask(no_text).await, StatusCode::BAD_REQUEST);
    }
    assert!(Lookup::<String, ()>::by_header("cookie", async |_| Ok::<_, io::Error>(None)).is_err());
}

#[tokio::test(start_paused = true)]
async fn looked_up_plan_is_fresh_for_its_ttl() {
    let database = Database::new();
    let app = database.app(database.lookup().ttl(10_000 * MS));
    for _ in 0..3 {
        assert_eq!(ask(&app, "alice").await, FREE);
    }
    assert_eq!(database.asked(), 1);
    database.answers(Ok(Some("pro")));
    sleep(9_999 * MS).await;
    assert_eq!(ask(&app, "alice").await, FREE);
    sleep(2 * MS).await;
    assert_eq!(
        ask(&app, "alice").await,
        PRO,
        "an upgrade counts after the ttl"
    );
    assert_eq!(database.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_look_up_is_in_flight_for_each_id() {
    let database = Database::new();
    database.takes(100);
    let app = database.app(database.lookup());
    let mut requests = JoinSet::new();
    for number in 0..200 {
        let app = app.clone();
        requests.spawn(async move { ask(&app, ["alice", "bob"][number % 2]).await });
    }
    assert_eq!(requests.join_all().await, [FREE; 200]);
    assert_eq!(database.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn unknown_id_is_remembered() {
    let database = Database::new();
    database.answers(Ok(None));
    let app = database.app(database.lookup().unknown_ttl(5_000 * MS));
    for _ in 0..3 {
        assert_eq!(ask(&app, "mallory").await, UNKNOWN);
    }
    assert_eq!(database.asked(), 1);
    database.answers(Ok(Some("free")));
    sleep(5_001 * MS).await;
    assert_eq!(ask(&app, "mallory").await, FREE);
    assert_eq!(ask(&app, "").await, 400, "a request without an id");
    assert_eq!(database.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn forgotten_id_is_looked_up_again_even_if_a_look_up_is_in_flight() {
    let database = Database::new();
    let lookup = database.lookup().build().unwrap();
    let app = database.app_on(lookup.clone());
    assert_eq!(ask(&app, "alice").await, FREE);
    database.answers(Ok(Some("pro")));
    lookup.forget(&"alice".to_owned());
    assert_eq!(ask(&app, "alice").await, PRO);

    lookup.forget(&"alice".to_owned());
    database.takes(100);
    let late = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, "alice").await }
    });
    sleep(50 * MS).await;
    lookup.forget(&"alice".to_owned());
    let newer = ask(&app, "alice");
    assert_eq!((newer.await, late.await.unwrap()), (PRO, PRO));
    assert_eq!(
        database.asked(),
        4,
        "the look-up in flight does not count for later requests"
    );
}

/// An id that changes all the time, such as a busy account whose plan is announced with each write.
#[tokio::test(start_paused = true)]
async fn id_that_is_forgotten_all_the_time_has_one_look_up_that_runs() {
    let running = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (now_running, most_of_seven) = (Arc::clone(&running), Arc::clone(&most));
    let id = |request: &Parts| Some(header(request, "user").to_owned());
    let lookup = Lookup::builder(id, move |id: String| {
        let (running, most) = (Arc::clone(&now_running), Arc::clone(&most_of_seven));
        async move {
            if id == "7" {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
            }
            sleep(100 * MS).await;
            if id == "7" {
                running.fetch_sub(1, Ordering::SeqCst);
            }
            Ok::<_, io::Error>(Some("free"))
        }
    });
    let lookup = lookup.max_in_flight(4).build().unwrap();
    let app = Database::new().app_on(lookup.clone());
    let forgetting = tokio::spawn(async move {
        loop {
            lookup.forget(&"7".to_owned());
            sleep(MS).await;
        }
    });
    let mut requests = JoinSet::new();
    for number in 0..1_000_u32 {
        let app = app.clone();
        let user = if number % 50 == 0 {
            format!("other-{number}")
        } else {
            "7".to_owned()
        };
        requests.spawn(async move { ask(&app, &user).await });
        sleep(2 * MS).await;
    }
    let statuses = requests.join_all().await;
    forgetting.abort();
    assert!(
        statuses.iter().all(|status| *status == FREE),
        "{statuses:?}"
    );
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// Announcements of another messaging system than Redis. A message without an id stands for any.
struct Messages(mpsc::UnboundedReceiver<Option<&'static str>>);

impl Announcements for Messages {
    async fn next(&mut self) -> Option<Announcement> {
        Some(match self.0.recv().await? {
            Some(id) => Announcement::One(id.to_owned()),
            None => Announcement::Any,
        })
    }
}

#[tokio::test(start_paused = true)]
async fn look_up_follows_announcements_of_any_messaging_system_until_they_end() {
    let database = Database::new();
    let lookup = database.lookup().ttl(3_600_000 * MS).build().unwrap();
    let app = database.app_on(lookup.clone());
    let (announce, messages) = mpsc::unbounded_channel();
    let (log, _guard) = Log::start();
    lookup.follow(Messages(messages));
    let both = async || (ask(&app, "alice").await, ask(&app, "bob").await);
    assert_eq!(both().await, (FREE, FREE));
    database.answers(Ok(Some("pro")));

    announce.send(Some("alice")).unwrap();
    sleep(MS).await;
    assert_eq!(both().await, (PRO, FREE));
    announce.send(None).unwrap();
    sleep(MS).await;
    assert_eq!(both().await, (PRO, PRO));
    assert_eq!(database.asked(), 5);

    database.answers(Ok(Some("free")));
    drop(announce);
    sleep(MS).await;
    assert_eq!(both().await, (FREE, FREE), "some may have been missed");
    let lines = log.lines();
    let ended = lines
        .iter()
        .filter(|it| it.contains("announcements have ended"));
    assert_eq!(ended.count(), 1, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn expired_plans_are_looked_up_again_and_old_ones_stay_while_that_fails() {
    let database = Database::new();
    let lookup = database.lookup().build().unwrap();
    let app = database.app_on(lookup.clone());
    assert_eq!(
        (ask(&app, "alice").await, ask(&app, "bob").await),
        (FREE, FREE)
    );
    database.answers(Ok(Some("pro")));
    lookup.forget(&"alice".to_owned());
    assert_eq!(
        (ask(&app, "alice").await, ask(&app, "bob").await),
        (PRO, FREE)
    );
    assert_eq!(database.asked(), 3);

    // An announcement that was missed takes no plan away.
    database.answers(Err("away"));
    lookup.expire_all();
    assert_eq!(
        (ask(&app, "alice").await, ask(&app, "bob").await),
        (PRO, FREE)
    );
    assert_eq!(database.asked(), 2);
    assert_eq!(ask(&app, "bob").await, FREE);
    assert_eq!(
        database.asked(),
        0,
        "a look-up that failed is repeated after a second"
    );
    database.answers(Ok(Some("pro")));
    sleep(1_001 * MS).await;
    assert_eq!(
        (ask(&app, "alice").await, ask(&app, "bob").await),
        (PRO, PRO)
    );
}

#[tokio::test(start_paused = true)]
async fn look_up_in_flight_when_all_expire_is_repeated() {
    let database = Database::new();
    let lookup = database.lookup().build().unwrap();
    let app = database.app_on(lookup.clone());
    database.takes(100);
    let first = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, "alice").await }
    });
    sleep(50 * MS).await;
    lookup.expire_all();
    assert_eq!(first.await.unwrap(), FREE);
    database.answers(Ok(Some("pro")));
    database.takes(0);
    assert_eq!((ask(&app, "alice").await, database.asked()), (PRO, 2));
}

#[tokio::test(start_paused = true)]
async fn old_plan_is_used_while_look_ups_fail() {
    let database = Database::new();
    let lookup = database.lookup().ttl(1_000 * MS).stale_for(60_000 * MS);
    let app = database.app(lookup);
    assert_eq!(ask(&app, "alice").await, FREE);
    database.answers(Err("connection refused"));
    let (log, _guard) = Log::start();
    for _ in 0..50 {
        sleep(100 * MS).await;
        assert_eq!(ask(&app, "alice").await, FREE);
    }
    let asked = database.asked() - 1;
    assert!((4..=5).contains(&asked), "{asked} look-ups in 5 s");
    assert!(
        log.lines()[0].contains("connection refused"),
        "{:?}",
        log.lines()
    );
    sleep(60_000 * MS).await;
    assert_eq!(ask(&app, "alice").await, FAILED, "the old plan is too old");
    database.answers(Ok(Some("pro")));
    assert_eq!(
        ask(&app, "alice").await,
        FAILED,
        "it is not looked up again at once"
    );
    sleep(1_001 * MS).await;
    assert_eq!(ask(&app, "alice").await, PRO);
}

#[tokio::test(start_paused = true)]
async fn old_plan_is_used_if_a_look_up_is_slow() {
    let database = Database::new();
    let app = database.app(
        database
            .lookup()
            .ttl(1_000 * MS)
            .patience(50 * MS)
            .timeout(500 * MS),
    );
    assert_eq!(ask(&app, "alice").await, FREE);
    sleep(1_001 * MS).await;
    database.answers(Ok(Some("pro")));
    database.takes(200);
    let started = Instant::now();
    assert_eq!(ask(&app, "alice").await, FREE);
    assert_eq!(started.elapsed(), 50 * MS);
    assert_eq!(ask(&app, "alice").await, FREE);
    assert_eq!(started.elapsed(), 50 * MS, "the next does not wait again");
    sleep(151 * MS).await;
    assert_eq!(ask(&app, "alice").await, PRO);
    assert_eq!(database.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn first_look_up_fails_after_its_timeout() {
    let database = Database::new();
    database.takes(10_000);
    let app = database.app(database.lookup().timeout(300 * MS));
    let started = Instant::now();
    assert_eq!(ask(&app, "alice").await, FAILED);
    assert_eq!(started.elapsed(), 300 * MS);
    assert_eq!(ask(&app, "alice").await, FAILED);
    assert_eq!(started.elapsed(), 300 * MS, "a failure is remembered");
}

#[test]
fn settings_under_which_every_look_up_fails_are_errors() {
    let lookup = || Database::new().lookup();
    for (lookup, setting) in [
        (lookup().capacity(0), "`capacity`"),
        (lookup().max_in_flight(0), "`max_in_flight`"),
        (lookup().timeout(Duration::ZERO), "`timeout`"),
    ] {
        let error = lookup.build().err().unwrap().to_string();
        assert_eq!(error, format!("{setting} of the look-up is 0; use more"));
    }
}

#[tokio::test(start_paused = true)]
async fn look_ups_in_flight_are_bounded() {
    let database = Database::new();
    database.takes(100);
    let app = database.app(database.lookup().max_in_flight(8));
    let mut requests = JoinSet::new();
    for number in 0..1_000 {
        let app = app.clone();
        requests.spawn(async move { ask(&app, &format!("user-{number}")).await });
    }
    let answers = requests.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == FREE).count(), 8);
    assert_eq!(
        answers.iter().filter(|answer| **answer == FAILED).count(),
        992
    );
    assert_eq!(
        ask(&app, "user-999").await,
        FREE,
        "an overload is not remembered"
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_does_not_cancel_a_look_up() {
    let database = Database::new();
    database.takes(100);
    let app = database.app(database.lookup());
    let first = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, "alice").await }
    });
    sleep(10 * MS).await;
    first.abort();
    assert_eq!(ask(&app, "alice").await, FREE);
    assert_eq!(database.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn look_up_that_panics_has_failed_and_is_repeated_after_a_second() {
    let database = Database::new();
    database.answers(Err("panic"));
    let app = database.app(database.lookup());
    for _ in 0..10 {
        assert_eq!(ask(&app, "alice").await, FAILED);
    }
    assert_eq!(database.asked(), 1);
    database.answers(Ok(Some("free")));
    sleep(1_001 * MS).await;
    assert_eq!(ask(&app, "alice").await, FREE);
}

#[tokio::test(start_paused = true)]
async fn cache_is_bounded() {
    let database = Database::new();
    let app = database.app(database.lookup().capacity(100));
    for _ in 0..2 {
        for number in 0..1_000 {
            assert_eq!(ask(&app, &format!("user-{number}")).await, FREE);
        }
    }
    assert!(
        database.asked() >= 1_800,
        "at most about a hundred were in the cache"
    );
}

#[tokio::test(start_paused = true)]
async fn looked_up_limits_are_decided_with_the_others() {
    let database = Database::new();
    database.takes(20);
    let limiter = RateLimiter::in_memory();
    let (all, plans) = (
        Limit::fixed_window("all", Quota::per_hour(3)).unwrap(),
        Plans::new(),
    );
    let layer = RateLimitLayer::from_lookup(
        &limiter,
        database.lookup().build().unwrap(),
        move |_, user, plan| match plan {
            LookupResult::Known(plan) => plans.limits(Some(plan), user),
            _ => ChosenLimits::reject("no plan"),
        },
    )
    .unwrap()
    .limit(all, tollgate::key::Global)
    .unwrap();
    let app = app(layer);
    for expected in [200, 200, 429] {
        assert_eq!(ask(&app, "alice").await, expected);
    }
    assert_eq!(ask(&app, "bob").await, 200);
    assert_eq!(ask(&app, "carol").await, 429);
}
