//! Limits that replicas decide without waiting for the store.

use super::Limit;
use crate::algorithm::{FixedWindow, Rule};
use crate::units::ConfigError;

/// # Decisions without waiting
impl Limit {
    /// Lets each replica decide without waiting for Redis, with units that it charged ahead.
    ///
    /// A replica charges *blocks* of units of a key that is in use. Its checks spend them in about
    /// a microsecond, and a task charges the next block before the last one is spent. Blocks get
    /// smaller with the rest of the window, and its last units are charged one by one. Checks of a
    /// key without units wait for Redis, as without this setting.
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
    /// its replica needs in 5 seconds at the present rate of the key, and at most four times what
    /// it charged before in that window. Units that are not spent 10 seconds after the last block
    /// are given back, and all units by [`RateLimiter::flush`](crate::RateLimiter::flush). If a
    /// process is killed, or if the answer of Redis to a charge is lost, a block is lost until the
    /// window ends.
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
                "only a fixed window is decided asynchronously, and this is a {}; use \
                 `fixed_window`, or remove `asynchronous`",
                self.algorithm().name()
            ))),
        };
        check().map_err(|error| error.at("asynchronous").of_limit(self.name()))?;
        Ok(self.with(|definition| definition.is_asynchronous = true))
    }

    /// Returns whether replicas decide without waiting for Redis. See
    /// [`asynchronous`](Self::asynchronous).
    #[must_use]
    #[inline]
    pub fn is_asynchronous(&self) -> bool {
        self.shared.is_asynchronous
    }

    /// The rule, if units are charged ahead.
    #[inline]
    pub(crate) fn decided_ahead(&self) -> Option<&FixedWindow> {
        match self.rule() {
            Rule::FixedWindow(rule) if self.is_asynchronous() => Some(rule),
            _ => None,
        }
    }
}

/// The error of a limit that has both settings.
pub(super) fn blocks_keys() -> ConfigError {
    ConfigError::new(
        "it blocks keys and is asynchronous, and a blocked key could spend units that were charged \
         before; remove one of the two settings",
    )
    .at("asynchronous")
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
            assert!(error.contains("limit `api`"), "{error}");
        }
        let window = Limit::fixed_window("api", quota).unwrap();
        assert!(!window.is_asynchronous());
        assert!(window.asynchronous().unwrap().is_asynchronous());
        let by_the_clock = Limit::fixed_window_aligned("api", quota).unwrap();
        assert!(by_the_clock.asynchronous().unwrap().is_asynchronous());
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
