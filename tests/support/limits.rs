//! Limits that several test files share.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Limit, Quota};

/// One limit under each algorithm, 5 units a minute.
pub fn limits() -> Vec<Limit> {
    let quota = Quota::per_minute(5);
    vec![
        Limit::token_bucket("token_bucket", quota).unwrap(),
        Limit::leaky_bucket("leaky_bucket", quota).unwrap(),
        Limit::gcra("gcra", quota).unwrap(),
        Limit::fixed_window("fixed_window", quota).unwrap(),
        Limit::sliding_window_with("sliding_window", quota, 4).unwrap(),
        Limit::sliding_log("sliding_log", quota).unwrap(),
    ]
}

/// One to three limits of any algorithms.
pub fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    let numbers = (0usize..8, 1u64..20, 1u64..5_000_000, 0u64..10);
    prop::collection::vec(numbers, 1..4).prop_map(|all| {
        let limits =
            all.into_iter()
                .enumerate()
                .map(|(number, (algorithm, limit, period_us, burst))| {
                    let quota = Quota::new(limit, Duration::from_micros(period_us * limit));
                    let (with_burst, name) =
                        (quota.burst(limit + burst), &*format!("limit-{number}"));
                    match algorithm {
                        0 => Limit::token_bucket(name, with_burst),
                        1 => Limit::gcra(name, with_burst),
                        2 => Limit::leaky_bucket_meter(name, with_burst),
                        3 => Limit::fixed_window(name, quota),
                        4 => Limit::fixed_window_aligned(name, quota),
                        5 => Limit::sliding_window(name, quota),
                        6 => Limit::sliding_window_with(name, quota, 1 + burst as u32),
                        _ => Limit::sliding_log(name, quota),
                    }
                    // Not every period can be divided into sub-windows.
                    .unwrap_or_else(|_| Limit::fixed_window(name, quota).unwrap())
                });
        limits.collect()
    })
}
