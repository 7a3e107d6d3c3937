//! A replica's share of a limit, for the time when the store is unavailable.

use std::sync::Arc;

use super::{Definition, Limit};
use crate::algorithm::Rule;
use crate::units::{ConfigError, Quota};

/// The share of one of `replicas`. Rates are divided exactly. Capacities are rounded down, and at
/// least 1.
pub(super) fn share(limit: &Limit, replicas: u32) -> Result<Limit, ConfigError> {
    let quota = limit.quota();
    let replicas = u64::from(replicas);
    let capacity = |units: u64| (units / replicas).max(1);
    let quota = match limit.rule() {
        Rule::Bucket(_) => {
            let common = common_divisor(quota.limit(), replicas);
            let periods = u32::try_from(replicas / common).unwrap_or(u32::MAX);
            let period = quota.length().saturating_mul(periods);
            Quota::new(quota.limit() / common, period).burst(capacity(quota.capacity()))
        }
        Rule::FixedWindow(_)
        | Rule::SlidingWindow(_)
        | Rule::SlidingLog(_)
        | Rule::Concurrency(_) => Quota::per(capacity(quota.limit()), quota.period()),
    };
    let name = limit.name();
    match limit.rule() {
        Rule::FixedWindow(rule) => Limit::fixed(name, quota, rule.anchor),
        Rule::SlidingWindow(rule) => Limit::sliding_window_with(name, quota, rule.sub_windows),
        Rule::SlidingLog(_) => Limit::sliding_log(name, quota),
        Rule::Bucket(rule) => Limit::bucket(name, quota, rule.flavour),
        Rule::Concurrency(_) => {
            let permits = u32::try_from(quota.limit()).unwrap_or(u32::MAX);
            Limit::concurrency(name, permits)
        }
    }
    .map_err(|error| {
        ConfigError::new(format!(
            "{error} (in the share of one of {replicas} replicas: use fewer)"
        ))
    })
}

/// The share with the settings of its limit. The quota is its own, and the debt is divided as well:
/// a share repays it at its part of the rate.
pub(super) fn with_settings_of(limit: &Definition, share: &Limit) -> Limit {
    let policy = limit.on_store_failure;
    let replicas = policy.and_then(|policy| policy.replicas().ok().flatten());
    let replicas = u64::from(replicas.unwrap_or(1));
    let definition = Definition {
        quota: share.quota(),
        rule: share.rule().clone(),
        on_store_failure: None,
        share: None,
        max_debt: limit.max_debt.map(|units| units.div_ceil(replicas)),
        ..limit.clone()
    };
    Limit {
        shared: Arc::new(definition),
    }
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::BlockPolicy;
    use crate::model::OnStoreFailure;

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

    type Setter = fn(Limit) -> Result<Limit, ConfigError>;

    const RATE_SETTERS: [Setter; 5] = [
        |limit| limit.with_on_store_failure(OnStoreFailure::local(3)),
        |limit| limit.with_shadow_percent(60),
        |limit| limit.with_max_debt(7),
        |limit| limit.with_warn_at_percent(80),
        |limit| limit.with_block_policy(BlockPolicy::after(20, Duration::from_secs(60))),
    ];

    const PERMIT_SETTERS: [Setter; 3] = [
        |limit| limit.with_on_store_failure(OnStoreFailure::local(3)),
        |limit| limit.with_shadow_percent(60),
        |limit| limit.with_retry_after(Duration::from_secs(30)),
    ];

    /// A limit of each algorithm, and its setters.
    fn limits() -> Vec<(Limit, &'static [Setter])> {
        let quota = Quota::per_minute(100);
        let rates = [
            Limit::fixed_window("api", quota),
            Limit::sliding_window_with("api", quota, 6),
            Limit::sliding_log("api", quota),
            Limit::token_bucket("api", quota),
            Limit::leaky_bucket("api", quota),
            Limit::gcra("api", quota),
        ];
        let rates = rates.map(|limit| (limit.unwrap(), &RATE_SETTERS[..]));
        let permits = Limit::concurrency("api", 10).unwrap();
        let mut limits = rates.to_vec();
        limits.push((permits, &PERMIT_SETTERS));
        limits
    }

    #[test]
    fn order_of_two_setters_does_not_matter() {
        for (limit, setters) in limits() {
            for (first, one) in setters.iter().enumerate() {
                for (second, other) in setters.iter().enumerate() {
                    let forth = one(limit.clone()).and_then(other).unwrap();
                    let back = other(limit.clone()).and_then(one).unwrap();
                    assert_eq!(forth, back, "{limit:?}, setters {first} and {second}");
                    assert_eq!(forth.share(), back.share(), "{limit:?}");
                }
            }
        }
    }

    #[test]
    fn share_keeps_every_setting_except_quota_and_failure_policy() {
        for (limit, setters) in limits() {
            let settled = setters
                .iter()
                .try_fold(limit, |limit, set| set(limit))
                .unwrap();
            let share = settled.share().unwrap();
            assert_eq!(share.name(), settled.name());
            assert_eq!(share.algorithm(), settled.algorithm());
            assert_eq!(share.shadow_percent(), settled.shadow_percent());
            assert_eq!(share.block_policy(), settled.block_policy());
            assert_eq!(share.warn_at_percent(), settled.warn_at_percent());
            assert_eq!(share.retry_after(), settled.retry_after());
            assert_eq!(share.on_store_failure(), None, "a share has no share");
        }
    }

    #[test]
    fn largest_debt_is_divided_and_rounded_up() {
        let limit = Limit::token_bucket("api", Quota::per_second(10)).unwrap();
        let share = |replicas, debt| {
            let policy = OnStoreFailure::local(replicas);
            let limit = limit.clone().with_on_store_failure(policy).unwrap();
            limit
                .with_max_debt(debt)
                .unwrap()
                .share()
                .unwrap()
                .max_debt()
        };
        assert_eq!(
            [share(3, 5), share(9, 5), share(3, 0)],
            [Some(2), Some(1), Some(0)]
        );
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
