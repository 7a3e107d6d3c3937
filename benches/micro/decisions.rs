//! The pure decision of each algorithm, on an existing state: no store, no clock, no I/O.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use tollgate::store::{Operation, decide};
use tollgate::{Check, Key, Limit, Quota};

fn decisions(criterion: &mut Criterion) {
    let quota = Quota::new(1_000, Duration::from_secs(1));
    let limits = [
        Limit::token_bucket("token bucket", quota),
        Limit::leaky_bucket("leaky bucket, queue", quota),
        Limit::leaky_bucket_meter("leaky bucket, meter", quota),
        Limit::gcra("GCRA", quota),
        Limit::fixed_window("fixed window", quota),
        Limit::sliding_window("sliding window", quota),
        Limit::sliding_window_with("sliding window of 10", quota, 10),
        Limit::sliding_log("sliding log", quota),
    ];
    let key = Key::new("user");
    let mut group = criterion.benchmark_group("decide");
    for limit in limits.map(|it| it.expect("the numbers are in range")) {
        let charge = Operation::Charge(Check::new(&limit, &key).into());
        let mut states = [None];
        let mut now = Duration::from_secs(1_700_000_000);
        group.bench_function(limit.name(), |bencher| {
            bencher.iter(|| {
                // At the rate of the limit, so that every check is allowed.
                now += Duration::from_millis(1);
                black_box(decide(&charge, &mut states, now))
            });
        });
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
