//! Who is measured. Each is driven as a tower service, set up as its README says, but for what
//! `report::NOTES` says.

mod by_hand;
mod governor;
mod rate_limit_redis;
mod rate_tier;
mod tollgate;

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;

use axum::body::Body;
use http::{Request, Response};
use tower::service_fn;
use tower::util::ServiceFn;

use crate::load::{Load, Sample};
use crate::redis_server::Server;

pub use self::tollgate::ALGORITHMS;

/// What every contender is to hold a key to: `burst` at once, then one unit each `every_ms`.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    pub burst: u32,
    pub every_ms: u32,
}

/// One measurement, on a service of its own.
type Measure = Box<dyn Fn(Load, Allowance) -> Pin<Box<dyn Future<Output = Sample>>>>;

/// A limiter that takes part.
pub struct Contender {
    pub name: String,
    /// Whether it is one of those that tollgate is measured against.
    pub is_peer: bool,
    pub measure: Measure,
}

impl Contender {
    fn peer<F: Future<Output = Sample> + 'static>(
        name: &str,
        measure: impl Fn(Load, Allowance) -> F + 'static,
    ) -> Self {
        Self { is_peer: true, ..Self::tollgate(name.to_owned(), measure) }
    }

    fn tollgate<F: Future<Output = Sample> + 'static>(
        name: String,
        measure: impl Fn(Load, Allowance) -> F + 'static,
    ) -> Self {
        let measure: Measure = Box::new(move |load, allowance| Box::pin(measure(load, allowance)));
        Self { name, is_peer: false, measure }
    }
}

type Handler = ServiceFn<fn(Request<()>) -> Ready<Result<Response<Body>, Infallible>>>;

/// The service behind every limiter: it costs nothing.
fn handler() -> Handler {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

/// tollgate on Redis, under a token bucket, and its peers.
pub fn on_redis(server: &Server) -> Vec<Contender> {
    let tollgate = tollgate::on_redis(server, tollgate::TOKEN_BUCKET);
    [vec![tollgate], peers_on_redis(server)].into_iter().flatten().collect()
}

/// The same, and tollgate with leases.
pub fn on_redis_and_leased(server: &Server) -> Vec<Contender> {
    let mut all = on_redis(server);
    all.insert(1, tollgate::leased(server));
    all
}

/// tollgate on Redis, under each algorithm, and its peers.
pub fn algorithms_on_redis(server: &Server) -> Vec<Contender> {
    let tollgate = ALGORITHMS.iter().map(|&it| tollgate::on_redis(server, it));
    tollgate.chain(peers_on_redis(server)).collect()
}

/// The same with refusals in mind: what tollgate remembers of them, and what it costs to ask.
pub fn refusing_on_redis(server: &Server) -> Vec<Contender> {
    let remembering = tollgate::on_redis(server, tollgate::TOKEN_BUCKET);
    let asking = ALGORITHMS.iter().map(|&it| tollgate::always_asking(server, it));
    [remembering].into_iter().chain(asking).chain(peers_on_redis(server)).collect()
}

fn peers_on_redis(server: &Server) -> Vec<Contender> {
    vec![
        rate_tier::on_redis(server),
        rate_limit_redis::on_redis(server),
        by_hand::multiplexed(server),
        by_hand::pooled(server),
    ]
}

/// Three limits in one check, and peers in three layers: for each user, each tenant, everybody.
pub fn three_limits_on_redis(server: &Server) -> Vec<Contender> {
    vec![
        tollgate::three_on_redis(server),
        rate_tier::three_on_redis(server),
        rate_limit_redis::three_on_redis(server),
        by_hand::three_multiplexed(server),
    ]
}

/// tollgate in memory, under each algorithm, and its peers.
pub fn in_memory(_: &Server) -> Vec<Contender> {
    let tollgate = ALGORITHMS.iter().map(|&it| tollgate::in_memory(it));
    let peers = [governor::in_memory(), governor::in_memory_with_headers(), rate_tier::in_memory()];
    tollgate.chain(peers).collect()
}
