//! What a setting of the layer costs: requests a second, latency and CPU, against the same layer without it. All of
//! them take turns in one run. With an argument, only those whose names contain it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use hdrhistogram::Histogram;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use tokio::task::JoinSet;
use tollgate::config::{Config, Format, LimitSet, Names};
use tollgate::key::Header;
use tollgate::layer::{Found, Limits, Lookup, Settlement};
use tollgate::limit::BlockPolicy;
use tollgate::{
    Check, ConcurrencyLimit, ConcurrencyLimiter, ConfigError, Key, Limit, Quota, RateLimitLayer,
    RateLimiter, RedisStore,
};
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt, service_fn};

#[path = "../cpu.rs"]
#[expect(dead_code, reason = "the server's CPU is not measured here")]
mod cpu;
#[path = "../../../tests/support/redis_server.rs"]
mod support;

/// What the others are compared with.
const FIRST: &str = "fixed limit";

const USER: &str = "x-user";
const KEYS: usize = 10_000;
const AT_ONCE: usize = 64;
const TURN: Duration = Duration::from_millis(1_500);
const TURNS: usize = 5;

type Answer = Ready<Result<Response<Body>, Infallible>>;
type Service = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// A layer with one setting, and the handler that uses it.
struct Contender {
    name: &'static str,
    service: Service,
    turns: Vec<Sample>,
}

struct Sample {
    rate: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = support::RedisServer::start();
    let redis = RedisStore::connect(&server.url()).await?;
    for (store, limiter, permits) in [
        ("in memory", RateLimiter::in_memory(), ConcurrencyLimiter::in_memory()),
        ("on Redis", RateLimiter::new(redis.clone()), ConcurrencyLimiter::new(redis)),
    ] {
        let mut contenders = contenders(&limiter, &permits)?;
        if let Some(part) = std::env::args().nth(1) {
            contenders.retain(|it| it.name == FIRST || it.name.contains(&part));
        }
        for turn in 1..=TURNS {
            for contender in &mut contenders {
                eprintln!("{store}, turn {turn} of {TURNS}: {}", contender.name);
                let sample = load(&contender.service).await;
                contender.turns.push(sample);
            }
        }
        println!("\n{KEYS} keys, {AT_ONCE} requests at once, {store}, medians of {TURNS} turns\n");
        println!("| layer | requests/s | of the first | CPU us | p50 us | p99 us |");
        println!("|---|--:|--:|--:|--:|--:|");
        let first = median(&contenders[0].turns, |it| it.rate);
        for Contender { name, turns, .. } in &contenders {
            let rate = median(turns, |it| it.rate);
            println!(
                "| {name} | {rate:.0} | {:.2} | {:.2} | {:.1} | {:.1} |",
                rate / first,
                median(turns, |it| it.cpu_us),
                median(turns, |it| it.p50_us),
                median(turns, |it| it.p99_us),
            );
        }
    }
    Ok(())
}

fn median(turns: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn contenders(
    limiter: &RateLimiter,
    permits: &ConcurrencyLimiter,
) -> Result<Vec<Contender>, ConfigError> {
    let at_once = |name: &str| ConcurrencyLimit::new(name, 1_000);
    let quota = Quota::per_second(1_000_000).burst(1_000_000_000);
    let limit = |name: &str| Limit::token_bucket(name, quota);
    let user = || Header::new(USER);
    let layer = |name: &str| RateLimitLayer::of(limiter, limit(name)?).key(user()?);
    let policy = BlockPolicy::after(20, Duration::from_secs(60));
    let contender = |name, service| Contender { name, service, turns: Vec::new() };

    let (chosen, looked_up) = (limit("chosen")?, limit("looked-up")?);
    let lookup = Lookup::new(
        |request: &Parts| request.headers.get(USER).cloned(),
        |_| ready(Ok::<_, Infallible>(Some(true))),
    )
    .capacity(2 * KEYS)
    .ttl(Duration::from_secs(3_600));
    let of_user = |request: &Parts, limit: &Limit| match request.headers.get(USER) {
        Some(user) => Check::new(limit, Key::new(user)).into(),
        None => Limits::Unlimited,
    };
    Ok(vec![
        contender(FIRST, plain(layer("fixed")?)),
        contender(
            "a closure chooses the limit",
            plain(RateLimitLayer::limits(limiter, move |it: &Parts| of_user(it, &chosen))?),
        ),
        contender(
            "a look-up chooses the limit, from its cache",
            plain(
                RateLimitLayer::builder(limiter)
                    .limits_by_lookup(lookup, move |request, _, plan| match plan {
                        Found::Known(true) => of_user(request, &looked_up),
                        _ => Limits::Unlimited,
                    })
                    .build()?,
            ),
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
        contender("wait_up_to, and none waits", plain(layer("waiting")?.wait_up_to(TURN)?)),
        contender("shadow mode", plain(layer("shadow")?.shadow())),
        contender(
            "block_offenders, and none is denied",
            plain(
                RateLimitLayer::of(limiter, limit("offenders")?.block_offenders(policy)?)
                    .key(user()?)?,
            ),
        ),
        contender(
            "a limit of requests in flight, and no rate",
            plain(RateLimitLayer::concurrency(permits, at_once("alone")?, user()?)?),
        ),
        contender(
            "a fixed limit and one of requests in flight",
            plain(
                RateLimitLayer::builder(limiter)
                    .limit(limit("with-permits")?, user()?)
                    .concurrency_limit(permits, at_once("with-a-rate")?, user()?)
                    .build()?,
            ),
        ),
        contender("a limit from a configuration", plain(from_config(limiter, 0)?)),
        contender("one of 50 limits from a configuration", plain(from_config(limiter, 49)?)),
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

fn settling(layer: RateLimitLayer) -> Service {
    fn handler(request: Request<Body>) -> Answer {
        if let Some(settlement) = request.extensions().get::<Settlement>() {
            settlement.settle("settled", 4);
        }
        ready(Ok(Response::new(Body::empty())))
    }
    boxed(layer, handler)
}

fn boxed(
    layer: RateLimitLayer,
    handler: impl Fn(Request<Body>) -> Answer + Clone + Send + Sync + 'static,
) -> Service {
    let service = ServiceBuilder::new().layer(layer).service(service_fn(handler));
    BoxCloneSyncService::new(service.map_response(|response| response.map(Body::new)))
}

/// Sends requests in a closed loop, for one turn.
async fn load(service: &Service) -> Sample {
    let (started, cpu_before) = (Instant::now(), cpu::of_this_process());
    let mut workers = JoinSet::new();
    for number in 0..AT_ONCE {
        let mut service = service.clone();
        workers.spawn(async move {
            let mut latencies = Histogram::<u64>::new(3).expect("3 digits are possible");
            let mut key = number;
            while started.elapsed() < TURN {
                key = (key * 1_103_515_245 + 12_345) % (1 << 31);
                let user = HeaderValue::try_from(format!("user{}", key % KEYS));
                let mut request = Request::new(Body::empty());
                request.headers_mut().insert(USER, user.expect("it is printable"));
                let sent = Instant::now();
                let Ok(service) = service.ready().await;
                let Ok(response) = tower::Service::call(service, request).await;
                assert!(response.status().is_success(), "{}", response.status());
                let nanos = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
                latencies.record(nanos).expect("the histogram grows");
                // An embedded store never yields.
                if key % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            latencies
        });
    }
    let mut latencies = Histogram::<u64>::new(3).expect("3 digits are possible");
    while let Some(of_worker) = workers.join_next().await {
        latencies.add(of_worker.expect("no worker panics")).expect("they have the same range");
    }
    let (count, elapsed) = (latencies.len() as f64, started.elapsed());
    let cpu = cpu::of_this_process().saturating_sub(cpu_before);
    Sample {
        rate: count / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / count,
        p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
    }
}
