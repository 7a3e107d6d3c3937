//! A turn of a service under load: requests of many users, in a closed loop.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use hdrhistogram::Histogram;
use http::{HeaderValue, Request, Response};
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

#[path = "cpu.rs"]
#[expect(dead_code, reason = "the server's CPU is not measured here")]
mod cpu;

/// The header with the key.
pub const USER: &str = "x-user";
pub const KEYS: usize = 10_000;
pub const TURN: Duration = Duration::from_millis(1_500);

pub type Service = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// What a turn measured.
pub struct Sample {
    pub rate: f64,
    pub cpu_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// The median of a figure.
pub fn median(turns: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Sends requests in a closed loop, for one turn.
pub async fn load(service: &Service, at_once: usize) -> Sample {
    let (started, cpu_before) = (Instant::now(), cpu::of_this_process());
    let mut workers = JoinSet::new();
    for number in 0..at_once {
        let mut service = service.clone();
        workers.spawn(async move {
            let mut latencies = Histogram::<u64>::new(3).expect("3 digits are possible");
            let mut key = number;
            while started.elapsed() < TURN {
                key = (key * 1_103_515_245 + 12_345) % (1 << 31);
                let user = HeaderValue::try_from(format!("user{}", key % KEYS));
                let mut request = Request::new(Body::empty());
                request
                    .headers_mut()
                    .insert(USER, user.expect("it is printable"));
                let sent = Instant::now();
                let Ok(service) = service.ready().await;
                let Ok(response) = tower::Service::call(service, request).await;
                assert!(
                    !response.status().is_server_error(),
                    "{}",
                    response.status()
                );
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
        latencies
            .add(of_worker.expect("no worker panics"))
            .expect("they have the same range");
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
