//! Limits that replicas decide without waiting for the store.

use super::Limit;
use crate::algorithm::{FixedWindow, Rule};
use crate::units::ConfigError;

/// The smallest overshoot, in units. Two replicas cannot share one unit.
const LEAST_OVERSHOOT: u64 = 2;

/// When replicas charge the units of checks that they decide without waiting for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChargeTime {
    /// Before they spend them, so they exceed nothing.
    Ahead,
    /// Later. All replicas together may exceed the limit by so much.
    Later { percent: u8, overshoot: u64 },
}

/// # Decisions without waiting
impl Limit {
    /// Lets each replica decide without waiting for Redis, with units that it charged ahead, for
    /// fixed windows. For other rates, see
    /// [`with_overshoot_percent`](Self::with_overshoot_percent).
    ///
    /// A replica charges *blocks* of units of a key that is in use. Its checks spend them in about
    /// a microsecond, and a task charges the next block when half of the last one is spent. Blocks
    /// get smaller with the rest of the window, and its last units are charged one by one. Checks
    /// of a key without units wait for Redis, as without this setting.
    ///
    /// **Guarantee.** In each window at most the limit passes, however many replicas there are,
    /// because Redis charges each unit before it is spent, and it is spent in the same window. A
    /// Redis that loses its last writes, or whose clock jumps ahead, breaks an exact limit, and
    /// this one. Units on replicas also pass after a [reset](crate::RateLimiter::reset) of the key
    /// by another replica, and on a machine that is suspended until the window is over, because its
    /// clock stands still. A key that an operator [blocks](crate::RateLimiter::block) on one
    /// replica can spend the units of the others.
    ///
    /// **Price.** A check can be denied while another replica has units. A block is at most what
    /// its replica needs in 10 seconds at the present rate of the key, or in 20 while the window
    /// has plenty, and at most four times what it charged before in that window. Units that are not
    /// spent 30 seconds after the last block are given back, and all units by
    /// [`RateLimiter::flush`](crate::RateLimiter::flush). A replica that was denied sees them up to
    /// 8 seconds [later](crate::store::RedisStoreBuilder::deny_for). If a process is killed, or if
    /// the answer of Redis to a charge is lost, a block is lost until the window ends.
    ///
    /// While Redis does not answer, replicas spend the units that they have. Then the [failure
    /// policy](Self::with_on_store_failure) decides.
    ///
    /// Such a decision has the [source](crate::Decision::source)
    /// [`Source::Asynchronous`](crate::decision::Source::Asynchronous). Its `remaining` does not
    /// count what other replicas charged since Redis answered last. A store other than
    /// [`RedisStore`](crate::RedisStore) decides each check as usual.
    ///
    /// ```
    /// use tollgate::{Limit, Quota};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let api = Limit::fixed_window("api", Quota::per_minute(6_000))?.asynchronous()?;
    /// assert!(api.is_asynchronous());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is not a fixed window, because units of other algorithms do
    /// not end with a window, and if it [blocks keys](Self::with_block_policy), because a blocked
    /// key could spend the units that were charged before.
    pub fn asynchronous(self) -> Result<Self, ConfigError> {
        let check = || match self.rule() {
            Rule::FixedWindow(_) if self.block_policy().is_some() => Err(blocks_keys()),
            Rule::FixedWindow(_) => Ok(()),
            _ => Err(ConfigError::new(format!(
                "only a fixed window is asynchronous without an overshoot, and this is a {}; use \
                 `with_overshoot_percent` (`overshoot_percent` in a file), or `fixed_window`",
                self.algorithm().name()
            ))),
        };
        check().map_err(|error| error.at("asynchronous").of_limit(self.name()))?;
        Ok(self.with(|definition| definition.asynchronous = Some(ChargeTime::Ahead)))
    }

    /// Lets each replica decide without waiting for Redis, and all replicas together allow up to
    /// `percent` percent above the limit.
    ///
    /// A replica keeps the last answer of Redis for each key. It allows a check that fits this
    /// answer in about a microsecond, and charges the units of several checks together within a few
    /// seconds. Until then it owes them. The replicas share the overshoot, and each may owe its
    /// part for each key, so you configure no number of replicas. The first checks of a key wait
    /// for Redis, and so does a check for which the part is used up.
    ///
    /// **Guarantee.** In any time `t`, at most `capacity + rate x t + overshoot` passes, however
    /// many replicas there are. With 1,000 a minute and 5 percent, at most 1,050 pass at once, and
    /// then 1,000 a minute. A sliding window or log exceeds what it allows without this
    /// setting by at most the overshoot. If a process is killed, or cut off from Redis for 10
    /// seconds, the units that it owed pass in addition, at most its part of the overshoot for each
    /// key. So do units that it could not charge before it lost its part, because one master of a
    /// cluster is away. Exceptions are a Redis whose clock jumps or that loses writes, and a
    /// machine that is suspended, because its clock stands still.
    ///
    /// **Price.** 5 percent of 100 units are 5. Each of 4 replicas may owe one of them. On 6
    /// replicas, each part is less than one unit, and all checks wait for Redis. A
    /// [refund](crate::RateLimiter::refund) is exact while its units are owed. Later, and if a
    /// check of the key waited for Redis meanwhile, a sliding log gives back nothing, and other
    /// algorithms give back the units that they still find. `remaining` does not count units that
    /// other replicas owe. [`RateLimiter::flush`](crate::RateLimiter::flush) charges all owed
    /// units.
    ///
    /// While Redis does not answer, replicas decide on for at most 5 seconds, within the overshoot.
    /// Then the [failure policy](Self::with_on_store_failure) decides.
    ///
    /// Such a decision has the [source](crate::Decision::source)
    /// [`Source::Asynchronous`](crate::decision::Source::Asynchronous). A store other than
    /// [`RedisStore`](crate::RedisStore) decides each check as usual, and without an overshoot.
    ///
    /// ```
    /// use tollgate::{Limit, Quota};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let api = Limit::token_bucket("api", Quota::per_minute(1_000))?.with_overshoot_percent(5)?;
    /// assert!(api.is_asynchronous());
    /// assert_eq!(api.overshoot_percent(), 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the percentage is not 1 to 100, or is less than two units of the
    /// capacity. A fixed window is an error, because it is [`asynchronous`](Self::asynchronous)
    /// without an overshoot. So are a leaky bucket as a queue and a concurrency limit, because only
    /// Redis knows their order, and a limit that [blocks keys](Self::with_block_policy), because
    /// the denials of all replicas count together.
    pub fn with_overshoot_percent(self, percent: u8) -> Result<Self, ConfigError> {
        let later = self
            .charged_later(percent)
            .map_err(|error| error.at("overshoot_percent").of_limit(self.name()))?;
        Ok(self.with(|definition| definition.asynchronous = Some(later)))
    }

    /// Sets the overshoot for the quota of a plan. If a plan is too small for that, its checks wait
    /// for the store.
    pub(crate) fn with_overshoot_if_enough(self, percent: u8) -> Self {
        match self.charged_later(percent) {
            Ok(later) => self.with(|definition| definition.asynchronous = Some(later)),
            Err(_) => self,
        }
    }

    fn charged_later(&self, percent: u8) -> Result<ChargeTime, ConfigError> {
        let reason = match self.rule() {
            Rule::FixedWindow(_) => {
                Some("a fixed window needs no overshoot; use `asynchronous` in its place")
            }
            Rule::Concurrency(_) => {
                Some("only the store knows the permits of a concurrency limit; remove it")
            }
            Rule::Bucket(rule) if rule.queues() => {
                Some("only the store knows the queue of a leaky bucket; use the mode `meter`")
            }
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(ConfigError::new(reason));
        }
        if self.block_policy().is_some() {
            return Err(blocks_keys());
        }
        if percent == 0 || percent > 100 {
            return Err(ConfigError::new(format!(
                "the overshoot is {percent} percent; use 1 to 100"
            )));
        }
        let capacity = self.quota().capacity();
        let overshoot = u128::from(capacity) * u128::from(percent) / 100;
        let overshoot = u64::try_from(overshoot).unwrap_or(u64::MAX);
        if overshoot < LEAST_OVERSHOOT {
            return Err(ConfigError::new(format!(
                "{percent} percent of {capacity} units is less than {LEAST_OVERSHOOT} units, so \
                 replicas could decide nothing; use a larger percentage or remove it"
            )));
        }
        Ok(ChargeTime::Later { percent, overshoot })
    }

    /// Returns whether replicas decide without waiting for Redis. See
    /// [`asynchronous`](Self::asynchronous) and
    /// [`with_overshoot_percent`](Self::with_overshoot_percent).
    #[must_use]
    #[inline]
    pub fn is_asynchronous(&self) -> bool {
        self.shared.asynchronous.is_some()
    }

    /// Returns the most by which all replicas together may exceed the limit, in percent. Default:
    /// 0. See [`with_overshoot_percent`](Self::with_overshoot_percent).
    #[must_use]
    pub fn overshoot_percent(&self) -> u8 {
        match self.shared.asynchronous {
            Some(ChargeTime::Later { percent, .. }) => percent,
            Some(ChargeTime::Ahead) | None => 0,
        }
    }

    /// The same in units, if replicas allow units on credit.
    #[inline]
    pub(crate) fn overshoot(&self) -> Option<u64> {
        match self.shared.asynchronous {
            Some(ChargeTime::Later { overshoot, .. }) => Some(overshoot),
            Some(ChargeTime::Ahead) | None => None,
        }
    }

    /// The rule, if units are charged ahead.
    #[inline]
    pub(crate) fn charged_ahead(&self) -> Option<&FixedWindow> {
        match self.rule() {
            Rule::FixedWindow(rule) if self.is_asynchronous() => Some(rule),
            _ => None,
        }
    }
}

/// The error of a limit that has both settings.
pub(super) fn blocks_keys() -> ConfigError {
    ConfigError::new(
        "it blocks keys and is asynchronous, and replicas would decide without the store, which \
         alone knows of a block; remove one of the two settings",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::BlockPolicy;
    use crate::units::Quota;

    fn error_of(limit: Result<Limit, ConfigError>) -> String {
        limit.unwrap_err().to_string()
    }

    #[test]
    fn only_a_fixed_window_is_decided_asynchronously() {
        let quota = Quota::per_minute(100);
        let others = [
            Limit::token_bucket("api", quota),
            Limit::sliding_log("api", quota),
            Limit::concurrency("api", 3),
        ];
        for limit in others {
            let error = error_of(limit.unwrap().asynchronous());
            assert!(error.contains("only a fixed window"), "{error}");
            assert!(error.contains("with_overshoot_percent"), "{error}");
            assert!(error.contains("limit `api`"), "{error}");
        }
        let window = Limit::fixed_window("api", quota).unwrap();
        assert!(!window.is_asynchronous());
        assert!(window.asynchronous().unwrap().is_asynchronous());
        let by_the_clock = Limit::fixed_window_aligned("api", quota).unwrap();
        assert!(by_the_clock.asynchronous().unwrap().is_asynchronous());
    }

    #[test]
    fn overshoot_is_a_part_of_the_capacity_of_limits_that_are_not_windows() {
        let quota = Quota::per_minute(1_000);
        let meter = Limit::leaky_bucket_meter("api", quota).unwrap();
        let others = [
            Limit::token_bucket("api", quota.burst(400)),
            Limit::gcra("api", quota.burst(400)),
            Ok(meter),
            Limit::sliding_window("api", quota),
            Limit::sliding_log("api", quota),
        ];
        for limit in others {
            let limit = limit.unwrap();
            assert_eq!((limit.overshoot(), limit.overshoot_percent()), (None, 0));
            let capacity = limit.quota().capacity();
            let limit = limit.with_overshoot_percent(5).unwrap();
            assert_eq!(limit.overshoot(), Some(capacity / 20));
            assert_eq!(limit.overshoot_percent(), 5);
            assert!(limit.is_asynchronous() && limit.charged_ahead().is_none());
        }
    }

    #[test]
    fn overshoot_that_cannot_work_is_an_error_that_says_what_to_do() {
        let quota = Quota::per_minute(100);
        let bucket = || Limit::token_bucket("api", quota);
        let errors = [
            (Limit::fixed_window("api", quota), 5, "use `asynchronous`"),
            (Limit::concurrency("api", 30), 5, "concurrency limit"),
            (Limit::leaky_bucket("api", quota), 5, "mode `meter`"),
            (bucket(), 0, "use 1 to 100"),
            (bucket(), 101, "use 1 to 100"),
            (bucket(), 1, "1 percent of 100 units is less than 2 units"),
            (
                bucket().and_then(|it| it.with_block_policy(BlockPolicy::by_operators())),
                5,
                "remove one of the two",
            ),
        ];
        for (limit, percent, expected) in errors {
            let error = error_of(limit.unwrap().with_overshoot_percent(percent));
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("limit `api`"), "{error}");
        }
    }

    #[test]
    fn limit_that_blocks_keys_is_not_asynchronous_in_any_order_of_the_settings() {
        let window = || Limit::fixed_window("api", Quota::per_minute(100)).unwrap();
        let policy = BlockPolicy::by_operators();
        let first = window().with_block_policy(policy).unwrap().asynchronous();
        let last = window().asynchronous().unwrap().with_block_policy(policy);
        for error in [error_of(first), error_of(last)] {
            assert!(error.contains("remove one of the two"), "{error}");
        }
    }
}
