//! A limit for a key with an override.

use super::asynchronous::ChargeTime;
use super::{AppliedOverride, Limit};
use crate::algorithm::{Anchor, Rule};
use crate::model::OverrideEffect;
use crate::units::{ConfigError, Quota};

impl Limit {
    /// The same limit for a key with an override, on the same budgets.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit cannot have the quota or the permits.
    pub(crate) fn overridden(&self, effect: &OverrideEffect) -> Result<Self, ConfigError> {
        let plain = self.without_override();
        let limit = match effect {
            OverrideEffect::Quota(quota) => plain.with_quota(*quota)?,
            OverrideEffect::Permits(permits) => plain.with_permits(*permits)?,
            OverrideEffect::Unlimited | OverrideEffect::Denied(_) => plain.clone(),
        };
        let denial = match effect {
            OverrideEffect::Denied(text) => Some(text.clone()),
            _ => None,
        };
        let applied = AppliedOverride {
            plain: plain.clone(),
            denial,
        };
        Ok(limit.with(|definition| definition.applied_override = Some(Box::new(applied))))
    }

    /// Returns whether it is the limit of a key with an override.
    #[inline]
    pub(crate) fn is_overridden(&self) -> bool {
        self.shared.applied_override.is_some()
    }

    /// The same limit without its override.
    pub(crate) fn without_override(&self) -> &Self {
        let applied = self.shared.applied_override.as_ref();
        applied.map_or(self, |it| &it.plain)
    }

    /// The text for a client whose key an override denies.
    pub(crate) fn denial(&self) -> Option<&str> {
        self.shared.applied_override.as_ref()?.denial.as_deref()
    }

    fn with_quota(&self, quota: Quota) -> Result<Self, ConfigError> {
        let quota = quota.on_calendar_of(self.quota());
        let name = self.name();
        let changed = match self.rule() {
            Rule::FixedWindow(rule) => {
                let anchor = match rule.anchor {
                    Anchor::Calendar(_) => Anchor::First,
                    anchor => anchor,
                };
                Self::fixed(name, quota, anchor)
            }
            Rule::SlidingWindow(rule) => Self::sliding_window_with(name, quota, rule.sub_windows),
            Rule::SlidingLog(_) => Self::sliding_log(name, quota),
            Rule::Bucket(rule) => Self::bucket(name, quota, rule.flavour),
            Rule::Concurrency(_) => Err(ConfigError::new(
                "a concurrency limit has permits, and no quota; override it with permits, such as \
                 `limit = 5`",
            )
            .of_limit(name)),
        }?;
        self.with_settings(&changed)
    }

    fn with_permits(&self, permits: u32) -> Result<Self, ConfigError> {
        let name = self.name();
        if !self.is_concurrency() {
            let error = "only concurrency limits have permits; override it with a quota, such as \
                         \"100/min\"";
            return Err(ConfigError::new(error).of_limit(name));
        }
        if self.sheds_load() {
            let error = "it sheds load by what the server can take, and not by key; remove the \
                         override";
            return Err(ConfigError::new(error).of_limit(name));
        }
        self.with_settings(&Self::concurrency(name, permits)?)
    }

    /// The `changed` limit with the settings of this one. A setting that needs more units than the
    /// changed limit has is left out, as for a plan.
    fn with_settings(&self, changed: &Self) -> Result<Self, ConfigError> {
        let settings = &*self.shared;
        let limit = self.clone().with(|definition| {
            definition.quota = changed.quota();
            definition.rule = changed.rule().clone();
            definition.on_store_failure = None;
            definition.share = None;
            definition.asynchronous = None;
            definition.warn_at_percent = None;
        });
        let limit = match settings.asynchronous {
            None => limit,
            Some(ChargeTime::Ahead) => limit.asynchronous()?,
            Some(ChargeTime::Later { percent, .. }) => limit.with_overshoot_if_enough(percent),
        };
        let limit = match settings.warn_at_percent {
            None => limit,
            Some(percent) => limit.with_warning_if_enough(percent),
        };
        match settings.on_store_failure {
            None => Ok(limit),
            Some(policy) => limit.with_on_store_failure(policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::BlockPolicy;
    use crate::model::OnStoreFailure;

    fn with_quota(limit: &Limit, quota: &str) -> Result<Limit, ConfigError> {
        limit.overridden(&OverrideEffect::Quota(quota.parse().unwrap()))
    }

    #[test]
    fn quota_of_an_override_keeps_the_algorithm_and_the_settings() {
        let quota = Quota::per_minute(100);
        let limits = [
            Limit::fixed_window_aligned("api", quota),
            Limit::sliding_window_with("api", quota, 6),
            Limit::sliding_log("api", quota),
            Limit::token_bucket("api", quota.burst(20)),
            Limit::leaky_bucket_meter("api", quota),
            Limit::gcra("api", quota),
        ];
        for limit in limits {
            let limit = limit
                .and_then(|it| it.with_on_store_failure(OnStoreFailure::local(2)))
                .and_then(|it| it.with_shadow_percent(40))
                .and_then(|it| it.with_max_debt(7))
                .and_then(|it| it.with_warn_at_percent(80))
                .and_then(|it| it.with_block_policy(BlockPolicy::by_operators()))
                .unwrap();
            let raised = with_quota(&limit, "1000/h").unwrap();
            assert_eq!(raised.quota(), Quota::per_hour(1_000), "{limit}");
            assert!(raised.shares_budgets_with(&limit), "{limit}");
            assert_eq!(raised.algorithm(), limit.algorithm());
            assert_eq!(raised.shadow_percent(), 40);
            assert_eq!(
                (raised.max_debt(), raised.warn_at_percent()),
                (Some(7), Some(80))
            );
            assert_eq!(raised.block_policy(), limit.block_policy());
            let share = raised.share().unwrap();
            assert!(share.quota().capacity() <= 500, "{share}");
            assert!(raised.is_overridden() && share.is_overridden());
            assert!(!limit.is_overridden());
            // Again, it is the same.
            assert_eq!(with_quota(&raised, "1000/h").unwrap(), raised);
        }
    }

    #[test]
    fn setting_without_enough_units_is_left_out() {
        let quota = Quota::per_minute(1_000);
        let limit = Limit::gcra("api", quota).unwrap();
        let limit = limit.with_overshoot_percent(5).unwrap();
        let limit = limit.with_warn_at_percent(80).unwrap();
        assert_eq!(with_quota(&limit, "400/min").unwrap().overshoot(), Some(20));
        let small = with_quota(&limit, "2/min").unwrap();
        assert_eq!((small.overshoot(), small.warn_at_percent()), (None, None));
        let window = Limit::fixed_window("api", quota).unwrap();
        let window = window.asynchronous().unwrap();
        assert!(with_quota(&window, "2/min").unwrap().is_asynchronous());
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn quota_of_the_same_unit_has_the_calendar_of_the_limit() {
        let month = Quota::per_month(100).starting_on_day(15).unwrap();
        let month = month.in_time_zone("Europe/Berlin").unwrap();
        let limit = Limit::fixed_window("api", month).unwrap();
        let raised = with_quota(&limit, "900/month").unwrap();
        assert_eq!(raised.quota(), Quota::per(900, month.period()));
        assert_eq!(
            with_quota(&limit, "900/h").unwrap().quota(),
            Quota::per_hour(900)
        );
        let day = Quota::per_day(100).in_time_zone("Asia/Tokyo").unwrap();
        let limit = Limit::fixed_window("api", day).unwrap();
        let raised = with_quota(&limit, "900/day").unwrap();
        assert_eq!(raised.quota(), Quota::per(900, day.period()));
    }

    #[test]
    fn override_that_a_limit_cannot_have_is_an_error_that_says_what_to_do() {
        let rate = Limit::sliding_window_with("api", Quota::per_minute(100), 6).unwrap();
        let permits = Limit::concurrency("exports", 3).unwrap();
        let quota = |text: &str| OverrideEffect::Quota(text.parse().unwrap());
        let errors = [
            (
                permits.overridden(&quota("9/s")),
                "has permits, and no quota",
            ),
            (rate.overridden(&OverrideEffect::Permits(3)), "with a quota"),
            (
                permits.overridden(&OverrideEffect::Permits(0)),
                "1 to 1000000",
            ),
            (
                permits
                    .clone()
                    .shedding_load()
                    .overridden(&OverrideEffect::Permits(3)),
                "sheds load",
            ),
            (rate.overridden(&quota("0/min")), "use at least 1"),
            (rate.overridden(&quota("9/367d")), "366 days"),
        ];
        for (limit, expected) in errors {
            let error = limit.unwrap_err().to_string();
            assert!(
                error.starts_with("limit `") && error.contains(expected),
                "{error}"
            );
        }
        let more = permits.overridden(&OverrideEffect::Permits(9)).unwrap();
        assert_eq!(more.permits(), 9);
    }
}
