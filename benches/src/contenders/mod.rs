//! Who is measured. Each is driven as a tower service, set up as its README says.

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

use self::tollgate::Kind;

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
    pub name: &'static str,
    pub measure: Measure,
}

impl Contender {
    fn new<F: Future<Output = Sample> + 'static>(
        name: &'static str,
        measure: impl Fn(Load, Allowance) -> F + 'static,
    ) -> Self {
        Self { name, measure: Box::new(move |load, allowance| Box::pin(measure(load, allowance))) }
    }
}

type Handler = ServiceFn<fn(Request<()>) -> Ready<Result<Response<Body>, Infallible>>>;

/// The service behind every limiter: it costs nothing.
fn handler() -> Handler {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

/// tollgate on Redis, under a token bucket, and its peers.
pub fn on_redis(server: &Server) -> Vec<Contender> {
    vec![
        tollgate::on_redis(server, Kind::One),
        rate_tier::on_redis(server),
        rate_limit_redis::on_redis(server),
        by_hand::multiplexed(server),
        by_hand::pooled(server),
    ]
}

/// Three limits in one check, and peers in three layers: for each user, each tenant, everybody.
pub fn three_limits_on_redis(server: &Server) -> Vec<Contender> {
    vec![
        tollgate::on_redis(server, Kind::Three),
        rate_tier::three_on_redis(server),
        rate_limit_redis::three_on_redis(server),
        by_hand::three_multiplexed(server),
    ]
}

/// tollgate and its peers in memory.
pub fn in_memory() -> Vec<Contender> {
    vec![
        tollgate::in_memory(Kind::One),
        governor::in_memory(),
        governor::in_memory_with_headers(),
        rate_tier::in_memory(),
    ]
}
