//! The limiters that are measured. Each is a tower service, set up as its README says, but for the
//! exceptions in `report::NOTES`.

mod by_hand;
mod governor;
mod rate_limit_redis;
mod rate_tier;
mod reported;
mod tollgate;
mod trypema;

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;

use axum::body::{Body, Bytes, HttpBody};
use axum::{BoxError, Router};
use http::{Request, Response};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tower::util::ServiceFn;
use tower::{Service, service_fn};

use crate::load::{Load, send};
use crate::redis_server::connection;
use crate::sample::Sample;

pub use self::tollgate::ALGORITHMS;

/// The quota of every key: `burst` at once, then one unit each `every_ms`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Allowance {
    pub burst: u32,
    pub every_ms: u32,
}

/// The settings of a limiter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub redis_url: String,
    pub allowance: Allowance,
}

/// The role of a contender in comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Tollgate,
    Peer,
    /// A peer that counts in the process and reports later, so more than the limit may pass.
    Reporter,
    /// No limiter at all.
    Bare,
}

type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// A service that takes part.
pub struct Contender {
    pub name: String,
    pub side: Side,
    pub on_redis: bool,
    measure: Box<dyn Fn(Setup, Load, Option<MultiplexedConnection>) -> Later<Sample>>,
    app: Box<dyn Fn(Setup) -> Later<Router>>,
}

impl Contender {
    fn new<F, S, B>(side: Side, name: &str, build: impl Fn(Setup) -> F + Copy + 'static) -> Self
    where
        F: Future<Output = S> + 'static,
        S: Limited<B>,
        S::Future: Send + 'static,
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let measure = move |setup, load, redis| -> Later<Sample> {
            Box::pin(async move { send(build(setup).await, load, redis).await })
        };
        let app = move |setup| -> Later<Router> {
            Box::pin(async move { Router::new().route_service("/", build(setup).await) })
        };
        let (measure, app) = (Box::new(measure), Box::new(app));
        Self {
            name: name.to_owned(),
            side,
            on_redis: true,
            measure,
            app,
        }
    }

    fn in_memory(self) -> Self {
        Self {
            on_redis: false,
            ..self
        }
    }

    /// One turn of a closed loop, on a service of its own.
    pub async fn measure(&self, setup: Setup, load: Load) -> Sample {
        let redis = if self.on_redis {
            Some(connection(&setup.redis_url).await)
        } else {
            None
        };
        (self.measure)(setup, load, redis).await
    }

    /// The service as an axum app.
    pub async fn app(&self, setup: Setup) -> Router {
        (self.app)(setup).await
    }
}

/// A service in front of the handler.
trait Limited<B>:
    Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static
{
}

impl<S, B> Limited<B> for S where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static
{
}

type Handler = ServiceFn<fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>>;

/// The service behind every limiter: next to no work.
fn handler() -> Handler {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

fn bare_service() -> Contender {
    Contender::new(Side::Bare, "bare service", |_| ready(handler())).in_memory()
}

fn bare_axum() -> Contender {
    Contender {
        name: "bare axum".to_owned(),
        ..bare_service()
    }
}

/// tollgate on Redis, under a token bucket, and its peers.
pub fn on_redis() -> Vec<Contender> {
    [
        vec![tollgate::on_redis(tollgate::TOKEN_BUCKET)],
        peers_on_redis(),
    ]
    .concat_all()
}

/// The limiters that decide most requests in the process, and those that ask Redis for each.
pub fn without_a_round_trip() -> Vec<Contender> {
    let here = vec![
        tollgate::asynchronous(),
        tollgate::with_overshoot(),
        trypema::hybrid(),
        reported::by_hand(),
    ];
    [here, fast_on_redis()].concat_all()
}

/// Two limits that the process decides when it knows a key, each beside the same limit that always
/// asks Redis.
pub fn with_and_without_a_round_trip() -> Vec<Contender> {
    vec![
        tollgate::asynchronous(),
        tollgate::on_redis(tollgate::FIXED_WINDOW),
        tollgate::with_overshoot(),
        tollgate::on_redis(tollgate::TOKEN_BUCKET),
    ]
}

/// tollgate on Redis, under each algorithm, and its peers.
pub fn algorithms_on_redis() -> Vec<Contender> {
    [ALGORITHMS.map(tollgate::on_redis).into(), peers_on_redis()].concat_all()
}

/// tollgate on Redis, under each algorithm, and its fast peers.
pub fn algorithms_on_redis_and_fast_peers() -> Vec<Contender> {
    [
        ALGORITHMS.map(tollgate::on_redis).into(),
        fast_peers_on_redis(),
    ]
    .concat_all()
}

/// tollgate on Redis with its deny cache, and under each algorithm without it; and its peers.
pub fn denying_on_redis() -> Vec<Contender> {
    let cached = vec![tollgate::on_redis(tollgate::TOKEN_BUCKET)];
    [
        cached,
        ALGORITHMS.map(tollgate::without_deny_cache).into(),
        peers_on_redis(),
    ]
    .concat_all()
}

fn peers_on_redis() -> Vec<Contender> {
    [fast_peers_on_redis(), vec![by_hand::pooled()]].concat_all()
}

fn fast_peers_on_redis() -> Vec<Contender> {
    vec![
        rate_tier::on_redis(),
        rate_limit_redis::on_redis(),
        by_hand::multiplexed(),
    ]
}

/// tollgate on Redis, and the peers that sustain the load.
pub fn fast_on_redis() -> Vec<Contender> {
    [
        vec![tollgate::on_redis(tollgate::TOKEN_BUCKET)],
        fast_peers_on_redis(),
    ]
    .concat_all()
}

/// Three limits in one group, and peers in three layers: each user, each tenant, and all requests.
pub fn three_limits_on_redis() -> Vec<Contender> {
    vec![
        tollgate::three_on_redis(),
        rate_tier::three_on_redis(),
        rate_limit_redis::three_on_redis(),
        by_hand::three_multiplexed(),
    ]
}

/// tollgate in memory, under each algorithm, and its peers.
pub fn in_memory() -> Vec<Contender> {
    let mut tollgate: Vec<_> = ALGORITHMS.map(tollgate::in_memory).into();
    tollgate.push(tollgate::in_memory_with_extensions());
    [vec![bare_service()], tollgate, peers_in_memory()].concat_all()
}

/// tollgate in memory, and the peers that have the same kind of budget.
pub fn buckets_in_memory() -> Vec<Contender> {
    vec![
        bare_service(),
        tollgate::in_memory(tollgate::TOKEN_BUCKET),
        governor::in_memory_with_headers(),
        governor::in_memory(),
    ]
}

fn peers_in_memory() -> Vec<Contender> {
    vec![
        governor::in_memory_with_headers(),
        governor::in_memory(),
        rate_tier::in_memory(),
    ]
}

/// tollgate in memory behind axum, its peers, and axum alone.
pub fn axum_in_memory() -> Vec<Contender> {
    let tollgate = vec![tollgate::in_memory(tollgate::TOKEN_BUCKET)];
    [vec![bare_axum()], tollgate, peers_in_memory()].concat_all()
}

/// axum alone, and with limiters that decide most requests in the process.
pub fn axum_without_a_round_trip() -> Vec<Contender> {
    vec![
        bare_axum(),
        tollgate::asynchronous(),
        tollgate::with_overshoot(),
        tollgate::in_memory(tollgate::TOKEN_BUCKET),
        tollgate::on_redis(tollgate::TOKEN_BUCKET),
        rate_limit_redis::on_redis(),
    ]
}

/// tollgate on Redis behind axum, its peers, and axum alone.
pub fn axum_on_redis() -> Vec<Contender> {
    [vec![bare_axum()], on_redis()].concat_all()
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Contender>;
}

impl<const N: usize> ConcatAll for [Vec<Contender>; N] {
    fn concat_all(self) -> Vec<Contender> {
        self.into_iter().flatten().collect()
    }
}
