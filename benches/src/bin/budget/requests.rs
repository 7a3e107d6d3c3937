//! The requests that are watched.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::str::FromStr;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response};
use nix::sys::resource::{UsageWho, getrusage};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, consume_budget};
use tollgate::key::Header;
use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};
use tower::util::ServiceFn;
use tower::{Layer, Service, service_fn};

use crate::Failure;

/// The header with the key.
const USER: &str = "x-user";

const KEYS: usize = 10_000;

/// The service that gets the requests, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// No layer at all.
    Bare,
    Memory,
    /// One request at a time, on Redis.
    Alone,
    /// 64 requests at a time, on Redis.
    Batched,
}

impl Case {
    pub const ALL: [Self; 4] = [Self::Bare, Self::Memory, Self::Alone, Self::Batched];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Memory => "memory",
            Self::Alone => "alone",
            Self::Batched => "batched",
        }
    }

    pub const fn title(self) -> &'static str {
        match self {
            Self::Bare => "no layer",
            Self::Memory => "in memory",
            Self::Alone => "on Redis, 1 at once",
            Self::Batched => "on Redis, 64 at once",
        }
    }

    const fn at_once(self) -> usize {
        match self {
            Self::Bare | Self::Memory | Self::Alone => 1,
            Self::Batched => 64,
        }
    }

    /// The requests of the shorter run for a tool that slows the program down.
    pub const fn requests(self) -> usize {
        match self {
            Self::Bare | Self::Memory | Self::Batched => 20_000,
            Self::Alone => 4_000,
        }
    }

    /// The requests that take about three seconds.
    pub const fn requests_at_full_speed(self) -> usize {
        match self {
            Self::Bare => 8_000_000,
            Self::Memory => 3_000_000,
            Self::Alone => 50_000,
            Self::Batched => 600_000,
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let case = Self::ALL.into_iter().find(|case| case.name() == name);
        case.ok_or_else(|| format!("there is no case `{name}`"))
    }
}

/// The use of the machine for a request.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu_ns: f64,
    /// How often a thread gave up its core, or had to.
    pub switches: f64,
}

impl Usage {
    fn of_this_process() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask about itself");
        let ns = |time: nix::sys::time::TimeVal| {
            time.tv_sec() as f64 * 1e9 + time.tv_usec() as f64 * 1e3
        };
        let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
        Self {
            cpu_ns: ns(usage.user_time()) + ns(usage.system_time()),
            switches: switches as f64,
        }
    }

    fn since(self, before: Self, requests: usize) -> Self {
        Self {
            cpu_ns: (self.cpu_ns - before.cpu_ns) / requests as f64,
            switches: (self.switches - before.switches) / requests as f64,
        }
    }
}

/// Sends the requests, and prints the [`Usage`] of one.
pub fn send(case: Case, requests: usize, url: &str) -> Result<(), Failure> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let usage = match case {
        Case::Bare => send_to(&runtime, case, requests, handler()),
        Case::Memory => {
            let service = layer(&RateLimiter::in_memory())?.layer(handler());
            send_to(&runtime, case, requests, service)
        }
        Case::Alone | Case::Batched => {
            let store = RedisStore::builder("budget")
                .url(url)
                .deadline(Duration::from_secs(60));
            let limiter = RateLimiter::new(runtime.block_on(store.connect())?);
            send_to(&runtime, case, requests, layer(&limiter)?.layer(handler()))
        }
    };
    println!("{} {}", usage.cpu_ns, usage.switches);
    Ok(())
}

type Handler = ServiceFn<fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>>;

fn handler() -> Handler {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

/// Budgets that last, so that each key has its own.
fn layer(limiter: &RateLimiter) -> Result<RateLimitLayer, Failure> {
    let quota = Quota::per_second(1).burst(10_000_000);
    let limit = Limit::token_bucket("user", quota)?;
    Ok(RateLimitLayer::new(limiter, limit, Header::new(USER)?)?)
}

/// Sends each key once, and then the requests.
fn send_to<S, B>(runtime: &Runtime, case: Case, requests: usize, service: S) -> Usage
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let at_once = case.at_once();
    runtime.block_on(send_all(service.clone(), at_once, KEYS));
    let before = Usage::of_this_process();
    runtime.block_on(send_all(service, at_once, requests));
    Usage::of_this_process().since(before, requests)
}

async fn send_all<S, B>(service: S, at_once: usize, requests: usize)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let mut senders = JoinSet::new();
    for sender in 0..at_once {
        let mut service = service.clone();
        senders.spawn(async move {
            for number in (sender..requests).step_by(at_once) {
                let mut request = Request::new(Body::empty());
                let user = HeaderValue::from(number * 7919 % KEYS);
                request.headers_mut().insert(USER, user);
                let Ok(()) = poll_fn(|context| service.poll_ready(context)).await;
                let Ok(_) = service.call(request).await;
                consume_budget().await;
            }
        });
    }
    senders.join_all().await;
}
