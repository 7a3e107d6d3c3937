//! A replica's share of a limit, for the time when the store is unavailable.

use super::Limit;
use crate::algorithm::Rule;
use crate::nouns::{ConfigError, Quota};

/// The share of one of `replicas`. Rates are divided exactly. Capacities are rounded down, and at
/// least 1.
pub(super) fn share(limit: &Limit, replicas: u32) -> Result<Limit, ConfigError> {
    let quota = limit.quota();
    let replicas = u64::from(replicas);
    let capacity = |units: u64| (units / replicas).max(1);
    let quota = match limit.rule() {
        Rule::TokenBucket(_) | Rule::LeakyBucket(_) | Rule::Gcra(_) => {
            let common = common_divisor(quota.limit(), replicas);
            let periods = u32::try_from(replicas / common).unwrap_or(u32::MAX);
            let period = quota.period().saturating_mul(periods);
            Quota::new(quota.limit() / common, period).burst(capacity(quota.capacity()))
        }
        Rule::FixedWindow(_) | Rule::SlidingWindow(_) | Rule::SlidingLog(_) => {
            Quota::new(capacity(quota.limit()), quota.period())
        }
        Rule::Concurrency(_) => {
            let permits = u32::try_from(capacity(quota.limit())).unwrap_or(u32::MAX);
            let share = Limit::concurrency(limit.name(), permits)?;
            return share.with_retry_after(limit.retry_after());
        }
    };
    let name = limit.name();
    match limit.rule() {
        Rule::FixedWindow(rule) => Limit::fixed(name, quota, rule.anchor),
        Rule::SlidingWindow(rule) => Limit::sliding_window_with(name, quota, rule.sub_windows),
        Rule::SlidingLog(_) => Limit::sliding_log(name, quota),
        Rule::TokenBucket(_) => Limit::token_bucket(name, quota),
        Rule::LeakyBucket(rule) => Limit::leaky(name, quota, rule.mode),
        Rule::Gcra(_) | Rule::Concurrency(_) => Limit::gcra(name, quota),
    }
    .map_err(|error| {
        ConfigError::new(format!(
            "{error} (in the share of one of {replicas} replicas: use fewer)"
        ))
    })
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(limit: Result<Limit, ConfigError>, replicas: u32) -> String {
        share(&limit.unwrap(), replicas).unwrap().to_string()
    }

    #[test]
    fn rate_of_a_bucket_is_divided_exactly_and_its_burst_is_rounded_down() {
        let quota = Quota::per_minute(100);
        assert_eq!(
            shared(Limit::gcra("api", quota), 3),
            "100 per 3m, burst 33 (GCRA)",
            "not 33 a minute, which is less than a third"
        );
        let quota = quota.burst(20);
        let limit = Limit::token_bucket("api", quota);
        assert_eq!(shared(limit, 4), "25 per 1m, burst 5 (token bucket)");
        let limit = Limit::leaky_bucket_meter("api", quota);
        assert_eq!(
            shared(limit, 30),
            "10 per 3m, burst 1 (leaky bucket as a meter)"
        );
    }

    #[test]
    fn limit_of_a_window_is_rounded_down_and_at_least_one() {
        let quota = Quota::per_hour(100);
        assert_eq!(
            shared(Limit::sliding_log("api", quota), 3),
            "33 per 1h (sliding log)"
        );
        let limit = Limit::sliding_window_with("api", quota, 6);
        assert_eq!(
            shared(limit, 200),
            "1 per 1h (sliding window of 6 sub-windows)"
        );
        let limit = Limit::fixed_window_aligned("api", quota);
        assert_eq!(
            shared(limit, 7),
            "14 per 1h (fixed window aligned to the clock)"
        );
    }

    #[test]
    fn permits_are_rounded_down_and_at_least_one() {
        let permits = |limit, replicas| shared(Limit::concurrency("exports", limit), replicas);
        assert_eq!([permits(10, 3), permits(2, 3)], ["3 at once", "1 at once"]);
    }

    #[test]
    fn share_of_one_replica_is_the_limit() {
        let quota = Quota::per_minute(100).burst(20);
        for limit in [
            Limit::gcra("api", quota),
            Limit::fixed_window("api", Quota::per_day(9)),
        ] {
            let limit = limit.unwrap();
            assert!(share(&limit, 1).unwrap().decides_as(&limit), "{limit}");
        }
    }
}
