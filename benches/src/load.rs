//! Requests in a closed loop: a fixed number at once, each followed by the next.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use hdrhistogram::Histogram;
use http::{HeaderValue, Request, Response, StatusCode};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tower::{Service, ServiceExt};

use crate::sample::{Growth, Sample};
use crate::{cpu, memory};

/// The header that every contender takes its key from.
pub const KEY: &str = "x-user";

/// The load of a contender in a turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Requests at once.
    pub concurrency: usize,
    /// Different keys.
    pub keys: usize,
    /// Not measured, before the rest.
    pub warm_up: Duration,
    /// The measured time.
    pub time: Duration,
    /// Whether each key is requested once before that.
    pub grows: bool,
}

#[derive(Default)]
struct Flags {
    counting: AtomicBool,
    over: AtomicBool,
}

struct Worker<S> {
    service: S,
    keys: Arc<[HeaderValue]>,
    random: u64,
    flags: Arc<Flags>,
}

/// Sends the load to a service. `redis` is a connection to measure the server with.
pub async fn send<S, B>(service: S, load: Load, redis: Option<MultiplexedConnection>) -> Sample
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let mut redis = redis;
    let keys: Arc<[HeaderValue]> = (0..load.keys)
        .map(|user| HeaderValue::try_from(format!("user{user}")).expect("it is printable"))
        .collect();
    let growth = match load.grows {
        true => Some(grow(&service, load.concurrency, &keys, redis.as_mut()).await),
        false => None,
    };
    let flags = Arc::new(Flags::default());
    let mut workers = JoinSet::new();
    for number in 0..load.concurrency {
        let worker = Worker {
            service: service.clone(),
            keys: Arc::clone(&keys),
            random: 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1) << 20,
            flags: Arc::clone(&flags),
        };
        workers.spawn(worker.run());
    }
    tokio::time::sleep(load.warm_up).await;
    let redis_before = cpu::of_redis(redis.as_mut()).await;
    let app_before = cpu::of_this_process();
    let start = Instant::now();
    flags.counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(load.time).await;
    flags.counting.store(false, Ordering::Relaxed);
    let wall = start.elapsed();
    let app_cpu = cpu::of_this_process() - app_before;
    let redis_cpu = cpu::of_redis(redis.as_mut()).await - redis_before;
    flags.over.store(true, Ordering::Relaxed);

    let mut all = Seen::default();
    workers
        .join_all()
        .await
        .into_iter()
        .for_each(|seen| all.add(&seen));
    let latency = |part| Duration::from_nanos(all.latencies.value_at_quantile(part));
    Sample {
        decisions: all.latencies.len(),
        allowed_in_all: all.allowed,
        asked_in_all: all.asked,
        wall,
        app_cpu,
        redis_cpu,
        p50: latency(0.5),
        p99: latency(0.99),
        growth,
    }
}

/// Requests each key once.
async fn grow<S, B>(
    service: &S,
    concurrency: usize,
    keys: &Arc<[HeaderValue]>,
    mut redis: Option<&mut MultiplexedConnection>,
) -> Growth
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    // The first key also pays for scripts, connections and buffers, so it is left out.
    ask(&mut service.clone(), HeaderValue::from_static("first")).await;
    let redis_before = memory::of_redis(redis.as_deref_mut()).await;
    let app_before = memory::of_this_process();
    let start = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (mut service, keys, next) = (service.clone(), Arc::clone(keys), Arc::clone(&next));
        workers.spawn(async move {
            while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                assert!(is_allowed(&ask(&mut service, key.clone()).await));
                tokio::task::consume_budget().await;
            }
        });
    }
    workers.join_all().await;
    Growth {
        keys: keys.len() as u64,
        wall: start.elapsed(),
        app_bytes: memory::of_this_process().saturating_sub(app_before),
        redis_bytes: memory::of_redis(redis).await.saturating_sub(redis_before),
    }
}

async fn ask<S, B>(service: &mut S, key: HeaderValue) -> Response<B>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(KEY, key);
    let Ok(service) = service.ready().await;
    let Ok(response) = service.call(request).await;
    response
}

fn is_allowed<B>(response: &Response<B>) -> bool {
    match response.status() {
        StatusCode::OK => true,
        StatusCode::TOO_MANY_REQUESTS => false,
        status => panic!("a contender answered {status}"),
    }
}

struct Seen {
    allowed: u64,
    asked: u64,
    /// In nanoseconds.
    latencies: Histogram<u64>,
}

impl Default for Seen {
    fn default() -> Self {
        let latencies = Histogram::new_with_bounds(1, 10_000_000_000, 2);
        Self {
            allowed: 0,
            asked: 0,
            latencies: latencies.expect("the bounds are in order"),
        }
    }
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.asked += other.asked;
        self.latencies
            .add(&other.latencies)
            .expect("they have the same bounds");
    }
}

impl<S, B> Worker<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    async fn run(mut self) -> Seen {
        let mut seen = Seen::default();
        while !self.flags.over.load(Ordering::Relaxed) {
            let key = self.next_key();
            let start = Instant::now();
            let response = ask(&mut self.service, key).await;
            let latency = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            seen.asked += 1;
            seen.allowed += u64::from(is_allowed(&response));
            if self.flags.counting.load(Ordering::Relaxed) {
                seen.latencies.saturating_record(latency);
            }
            // A contender that never waits must not block the other tasks.
            tokio::task::consume_budget().await;
        }
        seen
    }

    /// A random key, by xorshift.
    fn next_key(&mut self) -> HeaderValue {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.keys[self.random as usize % self.keys.len()].clone()
    }
}
