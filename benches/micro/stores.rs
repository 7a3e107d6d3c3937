//! A check in the embedded store, for each algorithm.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tollgate::{Key, Limit, MemoryStore, Op, Quota, Store};

fn stores(criterion: &mut Criterion) {
    let quota = Quota::new(1_000_000, Duration::from_secs(1));
    let limits = [
        Limit::token_bucket("token bucket", quota),
        Limit::leaky_bucket_meter("leaky bucket", quota),
        Limit::gcra("GCRA", quota),
        Limit::fixed_window("fixed window", quota),
        Limit::sliding_window("sliding window", quota),
        Limit::sliding_window_of("sliding window of 10", quota, 10),
        Limit::sliding_log("sliding log", Quota::new(1_000, Duration::from_secs(1))),
    ];
    for keys in [1_usize, 100_000] {
        let mut group = criterion.benchmark_group(format!("MemoryStore, {keys} keys"));
        let users: Vec<_> = (0..keys).map(|number| Key::new(format!("user{number}"))).collect();
        for limit in limits.iter().map(|it| it.as_ref().expect("the numbers are in range")) {
            let store = MemoryStore::new();
            let mut number = 0;
            group.bench_function(limit.name(), |bencher| {
                bencher.iter(|| {
                    number = (number + 7_919) % keys;
                    black_box(store.apply(Op::Charge, &[limit.charge(&users[number], 1)]))
                });
            });
        }
    }
}

criterion_group!(benches, stores);
criterion_main!(benches);
