//! One check in the embedded store, for each algorithm, and in governor: no layer, no request.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tollgate::store::{Operation, Store};
use tollgate::{Check, ConfigError, Key, Limit, MemoryStore, Quota};

/// Limits that no key exhausts. Only the log denies most checks if there is one key.
fn limits() -> Result<Vec<Limit>, ConfigError> {
    let rate = Quota::new(1, EVERY).burst(BURST.into());
    let in_a_window = Quota::new(BURST.into(), Duration::from_secs(4));
    Ok(vec![
        Limit::token_bucket("token bucket", rate)?,
        Limit::leaky_bucket_meter("leaky bucket", rate)?,
        Limit::gcra("GCRA", rate)?,
        Limit::fixed_window("fixed window", in_a_window)?,
        Limit::sliding_window("sliding window", in_a_window)?,
        Limit::sliding_window_with("sliding window of 10", in_a_window, 10)?,
        Limit::sliding_log("sliding log", Quota::new(1_000, Duration::from_secs(4)))?,
    ])
}

const EVERY: Duration = Duration::from_millis(1);
const BURST: u32 = 1_000_000_000;

/// A key that is neither equal nor adjacent to the last one.
fn next(number: usize, keys: usize) -> usize {
    (number + 7_919) % keys
}

fn stores(criterion: &mut Criterion) {
    for (threads, keys) in [(1, 1), (1, 100_000), (2, 1), (2, 100_000)] {
        let mut group = criterion.benchmark_group(format!("{threads} threads, {keys} keys"));
        let users: Arc<Vec<_>> =
            Arc::new((0..keys).map(|it| Key::new(format!("user{it}"))).collect());
        for limit in limits().expect("the numbers are in range") {
            let store = Arc::new(MemoryStore::new());
            let check = {
                let (limit, users) = (limit.clone(), Arc::clone(&users));
                move |number: usize| {
                    drop(black_box(store.apply(Operation::Charge(
                        Check::new(&limit, &users[number]).into(),
                    ))));
                }
            };
            group.bench_function(limit.name(), |bencher| {
                bencher.iter_custom(|checks| time(threads, checks, keys, &check));
            });
        }
        let burst = NonZeroU32::new(BURST).expect("it is not 0");
        let rate = governor::Quota::with_period(EVERY)
            .expect("it is not 0")
            .allow_burst(burst);
        let governor = Arc::new(governor::RateLimiter::keyed(rate));
        let names: Arc<Vec<_>> = Arc::new((0..keys).map(|it| format!("user{it}")).collect());
        let check = move |number: usize| {
            drop(black_box(governor.check_key(&names[number])));
        };
        group.bench_function("governor", |bencher| {
            bencher.iter_custom(|checks| time(threads, checks, keys, &check));
        });
    }
}

/// The time of `checks` on each of the threads.
fn time<F>(threads: usize, checks: u64, keys: usize, check: &F) -> Duration
where
    F: Fn(usize) + Clone + Send + 'static,
{
    let run = move |check: F, mut number: usize| {
        for _ in 0..checks {
            number = next(number, keys);
            check(number);
        }
    };
    let start = Instant::now();
    let others: Vec<_> = (1..threads)
        .map(|thread| {
            let check = check.clone();
            thread::spawn(move || run(check, thread))
        })
        .collect();
    run(check.clone(), 0);
    for other in others {
        other.join().expect("a check does not panic");
    }
    start.elapsed()
}

criterion_group!(benches, stores);
criterion_main!(benches);
