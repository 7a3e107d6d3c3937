//! The cost of each setting of the layer: requests a second, latency and CPU, against the same
//! layer without it. The settings take turns in one run. An argument selects the settings whose
//! names contain it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use tollgate::config::{Config, Format, LimitSet, Names};
use tollgate::key::Header;
use tollgate::layer::{ChosenLimits, Lookup, LookupResult, Settlement};
use tollgate::limit::BlockPolicy;
use tollgate::overrides::{Override, Overrides};
use tollgate::{Check, ConfigError, Error, Key, Limit, MemoryStore, Quota};
use tollgate::{RateLimitLayer, RateLimiter, RedisStore};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use turns::{KEYS, Sample, Service, TURN, USER};

#[path = "../../../tests/support/redis_server.rs"]
mod support;
#[path = "../turns.rs"]
mod turns;

/// What the others are compared with.
const FIRST: &str = "fixed limit";

const AT_ONCE: usize = 64;
const TURNS: usize = 5;

type Answer = Ready<Result<Response<Body>, Infallible>>;

/// A layer with one setting, and the handler that uses it.
struct Contender {
    name: &'static str,
    service: Service,
    turns: Vec<Sample>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = support::RedisServer::start();
    let redis = RedisStore::connect(&server.url(), "tollgate").await?;
    let overrides = overrides().await?;
    for (store, limiter, with_overrides) in [
        (
            "in memory",
            RateLimiter::in_memory(),
            RateLimiter::builder(MemoryStore::new()),
        ),
        (
            "on Redis",
            RateLimiter::new(redis.clone()),
            RateLimiter::builder(redis),
        ),
    ] {
        let with_overrides = with_overrides.overrides(&overrides).build()?;
        let mut contenders = contenders(&limiter, &with_overrides)?;
        let warns = warning_limit()?;
        let near = limiter.check_n(&warns, "near", 900_000_000).await?;
        assert!(near.is_near_limit());
        if let Some(part) = std::env::args().nth(1) {
            contenders.retain(|it| it.name == FIRST || it.name.contains(&part));
        }
        for turn in 1..=TURNS {
            for contender in &mut contenders {
                eprintln!("{store}, turn {turn} of {TURNS}: {}", contender.name);
                let sample = turns::load(&contender.service, AT_ONCE).await;
                contender.turns.push(sample);
            }
        }
        println!("\n{KEYS} keys, {AT_ONCE} requests at once, {store}, medians of {TURNS} turns\n");
        println!("| layer | requests/s | of the first | CPU us | p50 us | p99 us |");
        println!("|---|--:|--:|--:|--:|--:|");
        let first = turns::median(&contenders[0].turns, |it| it.rate);
        for Contender { name, turns, .. } in &contenders {
            let rate = turns::median(turns, |it| it.rate);
            println!(
                "| {name} | {rate:.0} | {:.2} | {:.2} | {:.1} | {:.1} |",
                rate / first,
                turns::median(turns, |it| it.cpu_us),
                turns::median(turns, |it| it.p50_us),
                turns::median(turns, |it| it.p99_us),
            );
        }
    }
    Ok(())
}

/// More than any turn uses.
fn quota() -> Quota {
    Quota::per_second(1_000_000).burst(1_000_000_000)
}

fn warning_limit() -> Result<Limit, ConfigError> {
    Limit::token_bucket("warns", quota())?.with_warn_at_percent(80)
}

/// 100,000 overrides: of each user under one limit, and of other keys.
async fn overrides() -> Result<Overrides, Error> {
    let overrides = Overrides::new();
    for user in 0..KEYS {
        let raised = Override::quota("overridden", format!("user{user}"), quota());
        overrides.set(raised).await?;
    }
    for other in KEYS..100_000 {
        let raised = Override::quota("others", format!("other{other}"), quota());
        overrides.set(raised).await?;
    }
    Ok(overrides)
}

fn contenders(
    limiter: &RateLimiter,
    with_overrides: &RateLimiter,
) -> Result<Vec<Contender>, ConfigError> {
    let at_once = |name: &str| Limit::concurrency(name, 1_000);
    let limit = |name: &str| Limit::token_bucket(name, quota());
    let user = || Header::new(USER);
    let layer = |name: &str| RateLimitLayer::new(limiter, limit(name)?, user()?);
    let policy = BlockPolicy::after(20, Duration::from_secs(60));
    let contender = |name, service| Contender {
        name,
        service,
        turns: Vec::new(),
    };

    let (chosen, looked_up) = (limit("chosen")?, limit("looked-up")?);
    let lookup = Lookup::builder(
        |request: &Parts| request.headers.get(USER).cloned(),
        |_| ready(Ok::<_, Infallible>(Some(true))),
    )
    .capacity(2 * KEYS)
    .ttl(Duration::from_secs(3_600))
    .build()?;
    let of_user = |request: &Parts, limit: &Limit| match request.headers.get(USER) {
        Some(user) => Check::new(limit, Key::new(user)).into(),
        None => ChosenLimits::Unlimited,
    };
    Ok(vec![
        contender(FIRST, plain(layer("fixed")?)),
        contender(
            "a closure chooses the limit",
            plain(RateLimitLayer::from_fn(limiter, move |it: &Parts| {
                of_user(it, &chosen)
            })?),
        ),
        contender(
            "a look-up chooses the limit, from its cache",
            plain(RateLimitLayer::from_lookup(
                limiter,
                lookup,
                move |request, _, plan| match plan {
                    LookupResult::Known(true) => of_user(request, &looked_up),
                    _ => ChosenLimits::Unlimited,
                },
            )?),
        ),
        contender(
            "insert_settlement, and nothing is settled",
            plain(layer("unsettled")?.insert_settlement()),
        ),
        contender(
            "settled at a lower cost",
            settling(layer("settled")?.cost(|_| 10).insert_settlement()),
        ),
        contender(
            "refund_when, and nothing is refunded",
            plain(layer("refund")?.refund_when(|_| false)),
        ),
        contender(
            "wait_up_to, and none waits",
            plain(layer("waiting")?.wait_up_to(TURN)?),
        ),
        contender("shadow mode", plain(layer("shadow")?.shadow_mode())),
        contender(
            "block_offenders, and none is denied",
            plain(RateLimitLayer::new(
                limiter,
                limit("offenders")?.with_block_policy(policy)?,
                user()?,
            )?),
        ),
        contender(
            "warn_at_percent, and one key was near",
            plain(RateLimitLayer::new(limiter, warning_limit()?, user()?)?),
        ),
        contender(
            "100,000 overrides, and none of these keys",
            plain(RateLimitLayer::new(
                with_overrides,
                limit("others")?,
                user()?,
            )?),
        ),
        contender(
            "100,000 overrides, and one of each key",
            plain(RateLimitLayer::new(
                with_overrides,
                limit("overridden")?,
                user()?,
            )?),
        ),
        contender(
            "a limit of requests in flight, and no rate",
            plain(RateLimitLayer::new(limiter, at_once("alone")?, user()?)?),
        ),
        contender(
            "a fixed limit and one of requests in flight",
            plain(
                RateLimitLayer::new(limiter, limit("with-permits")?, user()?)?
                    .limit(at_once("with-a-rate")?, user()?)?,
            ),
        ),
        contender(
            "shed load, and none is shed",
            plain(RateLimitLayer::load_shed("server", 1_000)?),
        ),
        contender(
            "shed load with tower's semaphore, and none is shed",
            shedding_with_tower(1_000),
        ),
        contender(
            "a limit from a configuration",
            plain(from_config(limiter, 0)?),
        ),
        contender(
            "one of 50 limits from a configuration",
            plain(from_config(limiter, 49)?),
        ),
    ])
}

/// A layer with a limit that applies, and others for routes that are not asked for.
fn from_config(limiter: &RateLimiter, others: usize) -> Result<RateLimitLayer, ConfigError> {
    let quota =
        "algorithm = \"token_bucket\"\nquota = \"1000000/s\"\nburst = 1000000000\nkey = \"user\"";
    let other = |number| {
        let name = format!("{others}-{number}");
        format!("[[limits]]\nname = \"{name}\"\nmatch = {{ path = \"/{name}/{{id}}\" }}\n{quota}\n")
    };
    let text: String = (0..others).map(other).collect();
    let text = format!("{text}[[limits]]\nname = \"live-{others}\"\n{quota}\n");
    let config = Config::parse("limits.toml", &text, Format::Toml)?;
    let limits = LimitSet::new(config, Names::new().key("user", Header::new(USER)?))?;
    RateLimitLayer::from_config(limiter, &limits)
}

fn plain(layer: RateLimitLayer) -> Service {
    fn handler(_: Request<Body>) -> Answer {
        ready(Ok(Response::new(Body::empty())))
    }
    boxed(layer, handler)
}

/// Turns the error of a shed request into a response, as axum's documentation shows.
fn shedding_with_tower(in_flight: usize) -> Service {
    let busy = |_: BoxError| ready(StatusCode::SERVICE_UNAVAILABLE);
    let service = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(busy))
        .load_shed()
        .concurrency_limit(in_flight)
        .service(service_fn(|_: Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new(Body::empty())))
        }));
    Service::new(service)
}

fn settling(layer: RateLimitLayer) -> Service {
    fn handler(request: Request<Body>) -> Answer {
        if let Some(settlement) = request.extensions().get::<Settlement>() {
            let _settled = settlement.settle("settled", 4);
        }
        ready(Ok(Response::new(Body::empty())))
    }
    boxed(layer, handler)
}

fn boxed(
    layer: RateLimitLayer,
    handler: impl Fn(Request<Body>) -> Answer + Clone + Send + Sync + 'static,
) -> Service {
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(handler));
    Service::new(service.map_response(|response| response.map(Body::new)))
}
