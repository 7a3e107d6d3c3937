//! Settings, costs and clocks at the ends of their ranges give an error of the builder or a
//! decision, and never a panic.

#![cfg(feature = "http")]

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::time::timeout;
use tollgate::clock::ManualClock;
use tollgate::key::Global;
use tollgate::{Check, ConfigError, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::support::op::Op;

const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

const DURATIONS: [Duration; 9] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_micros(1),
    Duration::from_millis(1),
    Duration::from_secs(1),
    Duration::from_secs(24 * 60 * 60),
    YEAR,
    Duration::from_micros(1 << 53),
    Duration::MAX,
];

const NUMBERS: [u64; 10] = [
    0,
    1,
    2,
    1_000,
    65_535,
    1_000_000,
    u32::MAX as u64,
    1 << 52,
    (1 << 53) - 1,
    u64::MAX,
];

const COSTS: [u32; 5] = [0, 1, 2, 65_536, u32::MAX];

type Constructor = fn(&str, Quota) -> Result<Limit, ConfigError>;

const ALGORITHMS: [Constructor; 7] = [
    Limit::token_bucket,
    Limit::leaky_bucket,
    Limit::gcra,
    Limit::fixed_window,
    Limit::fixed_window_aligned,
    Limit::sliding_window,
    Limit::sliding_log,
];

fn limit() -> impl Strategy<Value = Option<Limit>> {
    let numbers = (select(&NUMBERS[..]), prop::option::of(select(&NUMBERS[..])));
    (select(&ALGORITHMS[..]), numbers, select(&DURATIONS[..])).prop_map(
        |(algorithm, (limit, burst), period)| {
            let quota = Quota::new(limit, period);
            let quota = burst.map_or(quota, |burst| quota.burst(burst));
            algorithm("limit", quota).ok()
        },
    )
}

/// A change of the clock before a check.
#[derive(Clone, Copy, Debug)]
enum Step {
    Set(Duration),
    Advance(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let durations = select(&DURATIONS[..]);
    (any::<bool>(), durations).prop_map(|(set, time)| {
        if set {
            Step::Set(time)
        } else {
            Step::Advance(time)
        }
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

async fn hello(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn limiter_decides_at_the_ends_of_every_range(
        limit in limit(),
        steps in prop::collection::vec(
            (
                step(),
                select(&COSTS[..]),
                select(&[Op::Charge, Op::Peek, Op::Refund, Op::Reset][..]),
            ),
            1..12,
        ),
        max_wait in select(&DURATIONS[..]),
        cap in prop::option::of(select(&[0, 1, usize::MAX][..])),
    ) {
        let Some(limit) = limit else { return Ok(()) };
        block_on(async {
            let clock = ManualClock::new();
            let store = MemoryStore::builder().clock(clock.clone());
            let store = match cap {
                Some(cap) => store.max_keys(cap),
                None => store,
            };
            let limiter = RateLimiter::new(store.build());
            let key = Key::new("k");
            for (step, cost, op) in steps {
                match step {
                    Step::Set(time) => clock.set(time),
                    Step::Advance(time) => clock.advance(time),
                }
                let check = Check::new(&limit, &key).with_cost(cost);
                let operation = op.on(check, None, Duration::ZERO);
                let decision = limiter.apply(operation).await.unwrap();
                prop_assert!(!decision.allowed() || decision.retry_after().is_none());
                // The clock does not advance, so a wait would not end.
                let wait = limiter.acquire(&limit, &key, cost, max_wait);
                drop(timeout(Duration::from_millis(1), wait).await);
            }
            Ok(())
        })?;
    }

    #[test]
    fn layer_answers_at_the_ends_of_every_range(
        limit in limit(),
        steps in prop::collection::vec((step(), select(&COSTS[..])), 1..6),
        in_delta_seconds: bool,
    ) {
        let Some(limit) = limit else { return Ok(()) };
        block_on(async {
            let clock = ManualClock::new();
            let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
            for (step, cost) in steps {
                match step {
                    Step::Set(time) => clock.set(time),
                    Step::Advance(time) => clock.advance(time),
                }
                let layer = RateLimitLayer::new(&limiter, limit.clone(), Global).unwrap();
                let mut layer = layer.cost(move |_| cost);
                if in_delta_seconds {
                    layer = layer.reset_in_delta_seconds();
                }
                let service = ServiceBuilder::new().layer(layer).service(service_fn(hello));
                // A leaky bucket's delay can be years.
                let answer = service.oneshot(Request::new(Full::default()));
                drop(timeout(Duration::from_millis(1), answer).await);
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn longest_max_wait_ends_when_units_are_available() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::fixed_window("limit", Quota::new(1, YEAR)).unwrap();
    let key = Key::new("k");
    for _ in 0..3 {
        assert!(
            limiter
                .acquire(&limit, &key, 1, Duration::MAX)
                .await
                .unwrap()
                .allowed()
        );
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn store_with_extreme_settings_decides() {
    use tollgate::RedisStore;

    let redis = crate::support::RedisServer::start();
    for deny_for in DURATIONS {
        let limiter = RateLimiter::new(redis.store().deny_for(deny_for).connect().await.unwrap());
        let key = Key::from(deny_for.as_nanos() as u64);
        for quota in [Quota::new(1, Duration::from_micros(1)), Quota::new(1, YEAR)] {
            let limit = Limit::gcra("limit", quota).unwrap();
            for cost in COSTS {
                for _ in 0..2 {
                    let decision = limiter.check_n(&limit, &key, cost).await.unwrap();
                    assert!(!decision.allowed() || cost <= 1, "{deny_for:?}, {cost}");
                }
            }
        }
    }
    for deadline in DURATIONS {
        let store = RedisStore::builder("tollgate")
            .url(redis.url())
            .deadline(deadline)
            .build();
        let Ok(store) = store else { continue };
        let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
        // The shortest deadlines pass before the answer.
        drop(RateLimiter::new(store).check(&limit, &Key::new("k")).await);
    }
}
