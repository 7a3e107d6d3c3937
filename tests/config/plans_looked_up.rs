//! Limits in a file, whose plans the application looks up.

#![cfg(all(feature = "axum", feature = "config"))]

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::config::{Config, Format, LimitSet, Names};
use tollgate::key::{Global, Header};
use tollgate::layer::{Lookup, LookupResult};
use tollgate::{Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{app, number, send};

const FILE: &str = r#"
    [[limits]]
    name = "api"
    algorithm = "fixed_window"
    quota = "10/h"
    key = "user"
    plan = "account"
    plans.pro.quota = "100/h"
    plans.staff.unlimited = true
    plans.unpaid.deny = "pay first"
    plans.emergency.quota = "50/h"

    [[limits]]
    name = "exports"
    match = { path = "/exports" }
    algorithm = "fixed_window"
    quota = "1/h"
    key = "user"
    plan = "account"
    plans.pro.quota = "5/h"
"#;

/// The plans by user, and how often they were asked for. `None`: it is away.
#[derive(Clone, Default)]
struct Database {
    plans: Arc<Mutex<Option<HashMap<String, &'static str>>>>,
    asked: Arc<AtomicU32>,
}

impl Database {
    fn with(plans: &[(&str, &'static str)]) -> Self {
        let plans = plans.iter().map(|(user, plan)| ((*user).to_owned(), *plan));
        Self {
            plans: Arc::new(Mutex::new(Some(plans.collect()))),
            asked: Arc::default(),
        }
    }

    async fn plan_of(self, user: Key) -> io::Result<Option<&'static str>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(20)).await;
        match &*self.plans.lock().unwrap() {
            Some(plans) => Ok(plans.get(user.as_str()).copied()),
            None => Err(io::Error::other("away")),
        }
    }

    fn lookup(&self) -> Lookup<Key, &'static str> {
        let database = self.clone();
        let user = Header::new("x-user").unwrap();
        Lookup::by_key(user, move |user| database.clone().plan_of(user))
    }

    fn names(&self) -> Names {
        let plan = |plan: LookupResult<'_, &'static str>| match plan {
            LookupResult::Known(plan) => Some(*plan),
            LookupResult::Unknown => None,
            _ => Some("emergency"),
        };
        Names::new()
            .key("user", Header::new("x-user").unwrap())
            .plan_lookup("account", self.lookup(), plan)
    }

    fn layer(&self) -> RateLimitLayer {
        let config = Config::parse("limits.toml", FILE, Format::Toml).unwrap();
        let limits = LimitSet::new(config, self.names()).unwrap();
        RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap()
    }

    fn app(&self) -> Router {
        app(self.layer())
    }

    fn asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }
}

fn of(user: &str, path: &str) -> Request<Body> {
    let request = Request::get(path).header("x-user", user);
    request.body(Body::empty()).unwrap()
}

/// The status, and the limit that the headers report.
async fn ask(app: &Router, user: &str, path: &str) -> (u16, u64) {
    let response = send(app, of(user, path)).await;
    let headers = response.headers();
    let limit = match headers.contains_key("x-ratelimit-limit") {
        true => number(headers, "x-ratelimit-limit"),
        false => 0,
    };
    (response.status().as_u16(), limit)
}

#[tokio::test(start_paused = true)]
async fn plan_is_looked_up_once_and_then_known() {
    let database = Database::with(&[("ann", "pro"), ("bea", "staff"), ("cat", "unpaid")]);
    let app = database.app();
    for _ in 0..3 {
        assert_eq!(ask(&app, "ann", "/").await, (200, 100));
        assert_eq!(ask(&app, "bea", "/").await, (200, 0));
        assert_eq!(ask(&app, "cat", "/").await, (403, 0));
        assert_eq!(ask(&app, "dan", "/").await, (200, 10), "an unknown account");
    }
    assert_eq!(database.asked(), 4, "once for each user");
}

#[tokio::test(start_paused = true)]
async fn two_limits_of_a_request_share_one_look_up() {
    let database = Database::with(&[("ann", "pro")]);
    let app = database.app();
    for left in (0..5).rev() {
        let response = send(&app, of("ann", "/exports")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left);
    }
    assert_eq!(ask(&app, "ann", "/exports").await, (429, 5));
    assert_eq!(database.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn request_without_an_id_has_no_plan_and_one_whose_look_up_fails_has_the_one_for_that() {
    let database = Database::default();
    let app = database.app();
    assert_eq!(ask(&app, "ann", "/").await, (200, 50));
    let request = Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(send(&app, request).await.status(), 400, "it has no key");
    *database.plans.lock().unwrap() = Some(HashMap::from([("ann".to_owned(), "pro")]));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(ask(&app, "ann", "/").await, (200, 100));
}

#[tokio::test(start_paused = true)]
async fn requests_at_once_wait_for_one_look_up_and_charge_once_each() {
    let database = Database::with(&[("ann", "pro")]);
    let app = database.app();
    let mut requests = JoinSet::new();
    for _ in 0..120 {
        let app = app.clone();
        requests.spawn(async move { ask(&app, "ann", "/").await.0 });
    }
    let statuses = requests.join_all().await;
    let allowed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((allowed, database.asked()), (100, 1));
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_request_is_that_of_its_plan() {
    let database = Database::with(&[("ann", "pro")]);
    let layer = database.layer();
    let (request, _) = of("ann", "/exports").into_parts();
    let usage = layer.usage(&request).await.unwrap();
    let limits: Vec<_> = usage.iter().map(|it| (&*it.limit, it.capacity)).collect();
    assert_eq!(limits, [("api", 100), ("exports", 5)]);
}

#[tokio::test(start_paused = true)]
async fn usage_of_the_set_looks_the_plan_up_if_it_is_not_known() {
    let database = Database::with(&[("ann", "pro")]);
    let config = Config::parse("limits.toml", FILE, Format::Toml).unwrap();
    let limits = LimitSet::new(config, database.names()).unwrap();
    let limiter = RateLimiter::in_memory();
    let app = app(RateLimitLayer::from_config(&limiter, &limits).unwrap());
    for _ in 0..40 {
        assert_eq!(ask(&app, "ann", "/").await, (200, 100));
    }
    // The value is not fresh any more.
    sleep(Duration::from_secs(61)).await;
    let (request, _) = of("ann", "/").into_parts();
    let usage = limits.usage(&limiter, &request).await.unwrap();
    assert_eq!((usage[0].capacity, usage[0].remaining), (100, 60));
}

#[tokio::test(start_paused = true)]
async fn look_ups_of_two_names_run_at_once_beside_a_fixed_limit() {
    let database = Database::with(&[("ann", "pro")]);
    let plan = |plan: LookupResult<'_, &'static str>| match plan {
        LookupResult::Known(plan) => Some(*plan),
        _ => None,
    };
    let names = database
        .names()
        .plan_lookup("other", database.lookup(), plan);
    let other = FILE.replacen("\"account\"", "\"other\"", 1);
    let config = Config::parse("limits.toml", &other, Format::Toml).unwrap();
    let limits = LimitSet::new(config, names).unwrap();
    let fixed = Limit::fixed_window("all", Quota::per_hour(3)).unwrap();
    let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap();
    let app = app(layer.limit(fixed, Global).unwrap());
    let started = Instant::now();
    assert_eq!(ask(&app, "ann", "/exports").await.0, 200);
    assert!(
        started.elapsed() < Duration::from_millis(40),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(database.asked(), 2);
    for expected in [200, 200, 429] {
        assert_eq!(
            ask(&app, "ann", "/exports").await.0,
            expected,
            "of three for all"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn plan_that_is_forgotten_all_the_time_is_never_left_out() {
    let database = Database::with(&[("ann", "pro")]);
    let lookup = database.lookup();
    let plan = |plan: LookupResult<'_, &'static str>| match plan {
        LookupResult::Known(plan) => Some(*plan),
        _ => None,
    };
    let user = Header::new("x-user").unwrap();
    let names = Names::new().key("user", user);
    let names = names.plan_lookup("account", lookup.clone(), plan);
    let config = Config::parse("limits.toml", FILE, Format::Toml).unwrap();
    let limits = LimitSet::new(config, names).unwrap();
    let app = app(RateLimitLayer::from_config(RateLimiter::in_memory(), &limits).unwrap());
    let forgetting = tokio::spawn(async move {
        loop {
            lookup.forget(&Key::new("ann"));
            sleep(Duration::from_millis(1)).await;
        }
    });
    for _ in 0..50 {
        assert_eq!(ask(&app, "ann", "/").await, (200, 100));
    }
    forgetting.abort();
}
