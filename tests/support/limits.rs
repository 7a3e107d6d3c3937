//! Limits that several test files share.

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
