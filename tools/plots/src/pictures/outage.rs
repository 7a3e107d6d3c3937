//! Two replicas through an outage of the store that they share, under each failure policy.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime;
use tokio::time::{Instant, sleep_until};
use tollgate::decision::Source;
use tollgate::limit::OnStoreFailure;
use tollgate::store::{Answer, Operation, Store};
use tollgate::{Error as CheckError, Key, Limit, MemoryStore, Quota, RateLimiter};
use tollgate_charts::{Align, Chart, Ink, Panel};

use super::{WIDTH, row, seconds};

const SECONDS: usize = 20;
const OUTAGE: std::ops::Range<u64> = 6..13;
const REPLICAS: u32 = 2;

/// A store that all replicas share, and that is away for a while.
#[derive(Clone, Debug, Default)]
struct Shared {
    store: Arc<MemoryStore>,
    is_away: Arc<AtomicBool>,
}

impl Store for Shared {
    fn apply(&self, operation: Operation) -> Answer {
        if self.is_away.load(Ordering::Relaxed) {
            return Answer::ready(Err(CheckError::unreachable("the store is away")));
        }
        self.store.apply(operation)
    }
}

/// Requests of one second, on all replicas.
#[derive(Clone, Copy, Default)]
struct Second {
    by_store: f64,
    locally: f64,
    unlimited: f64,
    denied: f64,
}

pub(crate) fn draw() -> Result<Chart, Box<dyn Error>> {
    let policies = [
        (
            "Local: each replica has half of the quota",
            OnStoreFailure::local(REPLICAS),
        ),
        ("Fail open (the default)", OnStoreFailure::FailOpen),
        ("Fail closed", OnStoreFailure::FailClosed),
    ];
    let mut chart = Chart::new(
        WIDTH,
        590,
        "Two replicas with 15 requests a second each share a limit of 20 a second. While their \
         store is away, a local limit keeps both together at 20 a second, fail open allows all 30, \
         and fail closed none.",
    );
    let title = "Two replicas, a limit of 20 a second, and 30 requests a second";
    chart.heading(Align::Start, (48.0, 30.0), title);
    let meaning = [
        (Ink::Allowed, "allowed by the store"),
        (Ink::Local, "allowed locally"),
        (Ink::Unlimited, "without a limit"),
        (Ink::Denied, "denied"),
        (Ink::Outage, "the store is away"),
    ];
    chart.legend((48.0, 54.0), meaning);
    let ticks = seconds([0, 5, 10, 15, 20]);
    for (number, (name, policy)) in policies.into_iter().enumerate() {
        let area = row(104.0 + number as f64 * 166.0, 116.0);
        let panel = Panel::new(area, 0.0..SECONDS as f64, -30.0..42.0);
        panel.shade(
            &mut chart,
            Ink::Outage,
            OUTAGE.start as f64..OUTAGE.end as f64,
        );
        for (number, second) in outage(policy)?.into_iter().enumerate() {
            let x = number as f64..number as f64 + 1.0;
            let mut below = 0.0;
            for (ink, count) in [
                (Ink::Allowed, second.by_store),
                (Ink::Local, second.locally),
                (Ink::Unlimited, second.unlimited),
            ] {
                panel.bar(&mut chart, ink, x.clone(), below..below + count);
                below += count;
            }
            panel.bar(&mut chart, Ink::Denied, x, -second.denied..0.0);
        }
        panel.left_axis(&mut chart, [(0.0, "0"), (20.0, "20/s")]);
        panel.threshold(&mut chart, Ink::Text, 20.0, "");
        panel.bottom_axis(
            &mut chart,
            ticks.iter().map(|(at, label)| (*at, label.as_str())),
        );
        chart.heading(Align::Start, (area.left, area.top - 10.0), name);
    }
    Ok(chart)
}

/// What two replicas do, second by second. Time is tokio's, which is paused, and jumps.
fn outage(policy: OnStoreFailure) -> Result<[Second; SECONDS], Box<dyn Error>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    runtime.block_on(async {
        let limit =
            Limit::token_bucket("api", Quota::per_second(20))?.with_on_store_failure(policy)?;
        let key = Key::global();
        let shared = Shared::default();
        let mut replicas = Vec::new();
        for _ in 0..REPLICAS {
            // No circuit breaker: its pauses are random, and this store fails at once.
            let replica = RateLimiter::new(shared.clone());
            replica.register(&limit)?;
            replicas.push(replica);
        }
        let mut seconds = [Second::default(); SECONDS];
        let start = Instant::now();
        for request in 0..30 * SECONDS as u64 {
            let at = Duration::from_micros(request * 1_000_000 / 30);
            sleep_until(start + at).await;
            shared
                .is_away
                .store(OUTAGE.contains(&at.as_secs()), Ordering::Relaxed);
            let replica = &replicas[request as usize % replicas.len()];
            let decision = replica.check(&limit, &key).await?;
            let second = &mut seconds[at.as_secs() as usize];
            let count = match (decision.allowed(), decision.source()) {
                (false, _) => &mut second.denied,
                (true, Source::Local) => &mut second.locally,
                (true, Source::FailOpen) => &mut second.unlimited,
                (true, _) => &mut second.by_store,
            };
            *count += 1.0;
        }
        Ok(seconds)
    })
}
