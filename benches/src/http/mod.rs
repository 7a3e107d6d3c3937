//! axum over TCP, in a process of its own, and wrk as the client.

mod wrk;

pub use self::wrk::check;

use std::error::Error;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::child::{self, Child, Job};
use crate::contenders::Contender;
use crate::cpu;
use crate::load::Load;
use crate::redis_server::connection;
use crate::sample::Sample;

/// One turn: a fresh server, and wrk for at least a second.
///
/// # Errors
///
/// Returns an error if wrk does.
pub async fn turn(job: &Job, on_redis: bool, load: Load) -> Result<Sample, Box<dyn Error>> {
    let mut redis = if on_redis {
        Some(connection(&job.setup.redis_url).await)
    } else {
        None
    };
    let mut server = Child::start(job);
    let port: u16 = server.hear().await;
    // wrk counts whole seconds.
    if load.warm_up >= Duration::from_secs(1) {
        wrk::run(port, load.concurrency, load.warm_up).await?;
    }
    let redis_before = cpu::of_redis(redis.as_mut()).await;
    let app_before = cpu_of(&mut server).await;
    let figures = wrk::run(port, load.concurrency, load.time).await?;
    let app_cpu = cpu_of(&mut server).await - app_before;
    let redis_cpu = cpu::of_redis(redis.as_mut()).await - redis_before;
    server.end().await;
    Ok(Sample {
        decisions: figures.requests,
        allowed_in_all: figures.requests,
        asked_in_all: figures.requests,
        wall: Duration::from_micros(figures.wall),
        app_cpu,
        redis_cpu,
        p50: Duration::from_micros(figures.p50),
        p99: Duration::from_micros(figures.p99),
        growth: None,
    })
}

async fn cpu_of(server: &mut Child) -> Duration {
    server.prompt().await;
    server.hear().await
}

/// The server's side.
pub async fn serve(contender: &Contender, job: Job) -> Result<(), Box<dyn Error>> {
    let app = contender.app(job.setup).await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    child::say(&listener.local_addr()?.port());
    // A thread of its own, so that reading does not hold up the server.
    let asked = tokio::task::spawn_blocking(|| {
        while child::is_prompted() {
            child::say(&cpu::of_this_process());
        }
    });
    tokio::select! {
        served = axum::serve(listener, app) => served?,
        parent_is_gone = asked => parent_is_gone?,
    }
    Ok(())
}
