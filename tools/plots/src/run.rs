//! Sends requests to a limit, in virtual time.

use std::error::Error;
use std::time::Duration;

use tokio::runtime;
use tollgate::clock::ManualClock;
use tollgate::{Key, Limit, MemoryStore, RateLimiter};

/// The times of a run.
pub(crate) struct Times {
    /// Its start, since 1970. Arrivals are milliseconds from then on.
    pub(crate) start: Duration,
    pub(crate) length: Duration,
    /// How often the units that are left are read.
    pub(crate) sample: Duration,
}

/// A request that was decided.
pub(crate) struct Request {
    /// When it arrived, in seconds.
    pub(crate) arrived: f64,
    /// When the layer forwards it, in seconds. `None`: it is denied.
    pub(crate) forwarded: Option<f64>,
}

/// What a limit did.
pub(crate) struct Run {
    pub(crate) requests: Vec<Request>,
    /// The units that were left, by time in seconds.
    pub(crate) remaining: Vec<(f64, f64)>,
}

impl Run {
    pub(crate) fn allowed(&self) -> usize {
        self.requests
            .iter()
            .filter(|it| it.forwarded.is_some())
            .count()
    }

    /// `12 of 20 allowed`
    pub(crate) fn summary(&self) -> String {
        format!("{} of {} allowed", self.allowed(), self.requests.len())
    }

    /// The times at which requests were forwarded, in order. Some may be after the end of the run.
    pub(crate) fn forwarded(&self) -> Vec<f64> {
        self.requests.iter().filter_map(|it| it.forwarded).collect()
    }

    /// The times at which denied requests arrived, in order.
    pub(crate) fn denied(&self) -> Vec<f64> {
        let denied = self.requests.iter().filter(|it| it.forwarded.is_none());
        denied.map(|it| it.arrived).collect()
    }
}

/// Sends requests that arrive at these milliseconds, and reads the budget until a second.
pub(crate) fn run(limit: &Limit, arrivals: &[u64], seconds: u64) -> Result<Run, Box<dyn Error>> {
    let times = Times {
        start: Duration::ZERO,
        length: Duration::from_secs(seconds),
        sample: Duration::from_millis(50),
    };
    run_at(limit, arrivals, &times)
}

/// Sends requests, and reads the budget, at these times.
pub(crate) fn run_at(
    limit: &Limit,
    arrivals: &[u64],
    times: &Times,
) -> Result<Run, Box<dyn Error>> {
    let millis =
        |duration: Duration| duration.as_secs() * 1_000 + u64::from(duration.subsec_millis());
    let step = millis(times.sample);
    let runtime = runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let clock = ManualClock::new();
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
        let key = Key::new("client");
        let (mut requests, mut remaining) = (Vec::new(), Vec::new());
        let mut arrivals = arrivals.iter().copied().peekable();
        for sample in (0..millis(times.length)).step_by(step as usize) {
            clock.set(times.start + Duration::from_millis(sample));
            let left = limiter.peek(limit, &key, 0).await?.remaining();
            remaining.push((sample as f64 / 1e3, left as f64));
            while let Some(at) = arrivals.next_if(|at| *at < sample + step) {
                clock.set(times.start + Duration::from_millis(at));
                let decision = limiter.check(limit, &key).await?;
                let arrived = at as f64 / 1e3;
                let forwarded = arrived + decision.delay().as_secs_f64();
                let forwarded = decision.allowed().then_some(forwarded);
                requests.push(Request { arrived, forwarded });
                remaining.push((arrived, decision.remaining() as f64));
            }
        }
        Ok(Run {
            requests,
            remaining,
        })
    })
}
