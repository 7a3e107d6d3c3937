//! Requests in a closed loop: as many at once as asked for, each followed by the next.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::task::JoinSet;
use tower::{Service, ServiceExt};

use crate::cpu;

/// The header that every contender takes its key from.
pub const KEY: &str = "x-user";

/// What is asked of a contender.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests at once.
    pub concurrency: usize,
    /// How many different keys they have.
    pub keys: usize,
    /// How long it is measured, after a tenth of that to warm up.
    pub time: Duration,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Sample {
    pub decisions: u64,
    /// Those that were admitted since the first request, warm-up included.
    pub admitted_in_all: u64,
    /// Since the first request.
    pub asked_in_all: u64,
    pub wall: Duration,
    pub app_cpu: Duration,
    pub redis_cpu: Duration,
    /// In nanoseconds.
    pub latencies: Histogram<u64>,
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
pub async fn send<S, B>(
    service: S,
    load: Load,
    redis: Option<&mut redis::aio::MultiplexedConnection>,
) -> Sample
where
    S: Service<Request<()>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Debug,
    B: Send + 'static,
{
    let keys: Arc<[HeaderValue]> = (0..load.keys)
        .map(|user| HeaderValue::try_from(format!("user{user}")).expect("it is printable"))
        .collect();
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
    let mut redis = redis;
    tokio::time::sleep(load.time / 10).await;
    let redis_before = cpu::of_redis(redis.as_deref_mut()).await;
    let app_before = cpu::of_this_process();
    let start = Instant::now();
    flags.counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(load.time).await;
    flags.counting.store(false, Ordering::Relaxed);
    let wall = start.elapsed();
    let app_cpu = cpu::of_this_process() - app_before;
    let redis_cpu = cpu::of_redis(redis).await - redis_before;
    flags.over.store(true, Ordering::Relaxed);

    let mut sample = Sample {
        decisions: 0,
        admitted_in_all: 0,
        asked_in_all: 0,
        wall,
        app_cpu,
        redis_cpu,
        latencies: histogram(),
    };
    for seen in workers.join_all().await {
        sample.decisions += seen.latencies.len();
        sample.admitted_in_all += seen.admitted_in_all;
        sample.asked_in_all += seen.asked_in_all;
        sample.latencies.add(&seen.latencies).expect("they have the same bounds");
    }
    sample
}

struct Seen {
    admitted_in_all: u64,
    asked_in_all: u64,
    latencies: Histogram<u64>,
}

impl<S, B> Worker<S>
where
    S: Service<Request<()>, Response = Response<B>>,
    S::Error: Debug,
{
    async fn run(mut self) -> Seen {
        let mut seen = Seen { admitted_in_all: 0, asked_in_all: 0, latencies: histogram() };
        while !self.flags.over.load(Ordering::Relaxed) {
            let mut request = Request::new(());
            request.headers_mut().insert(KEY, self.next_key());
            let service = self.service.ready().await.expect("a limiter is ready");
            let start = Instant::now();
            let response = service.call(request).await.expect("a limiter does not fail");
            let latency = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let admitted = match response.status() {
                StatusCode::OK => 1,
                StatusCode::TOO_MANY_REQUESTS => 0,
                status => panic!("a contender answered {status}"),
            };
            seen.asked_in_all += 1;
            seen.admitted_in_all += admitted;
            if self.flags.counting.load(Ordering::Relaxed) {
                seen.latencies.saturating_record(latency);
            }
            // A contender that never waits must not keep the others from running.
            tokio::task::consume_budget().await;
        }
        seen
    }

    /// Another key each time, by xorshift.
    fn next_key(&mut self) -> HeaderValue {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.keys[self.random as usize % self.keys.len()].clone()
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("the bounds are in order")
}
