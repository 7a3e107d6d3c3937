//! The settings of a limit beside its quota: failure policy, shadow mode, debt.

use super::enforced::Enforced;
use super::{Failure, Limit, share};
use crate::nouns::{ConfigError, Key, OnStoreFailure};

impl Limit {
    /// Sets the outcome of checks when the store is unavailable. Default: that of the layer. Without a layer,
    /// the check is an error.
    ///
    /// ```
    /// use tollgate::limit::OnStoreFailure;
    /// use tollgate::{Limit, Quota};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let api = Limit::token_bucket("api", Quota::per_minute(100))?
    ///     .on_store_failure(OnStoreFailure::Local { replicas: 3 })?;
    /// let login = Limit::fixed_window("login", Quota::per_hour(5))?
    ///     .on_store_failure(OnStoreFailure::FailClosed)?;
    /// # let _ = (api, login);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the number of replicas is out of its range, or if a replica's share cannot be
    /// decided: that of a bucket has a period of as many periods as there are replicas, at most 366 days.
    pub fn on_store_failure(self, policy: OnStoreFailure) -> Result<Self, ConfigError> {
        let share = match policy.replicas() {
            Ok(Some(replicas)) => share::share(&self, replicas).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.of_limit(self.name())),
        }?;
        let share = share.map(|share| {
            share.with(|it| {
                it.enforced = self.shared.enforced;
                it.block = self.shared.block;
            })
        });
        Ok(self.with(|definition| definition.failure = Some(Failure { policy, share })))
    }

    /// Puts the limit into shadow mode: the same as [`enforce(0)`](Self::enforce).
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with(|definition| definition.set_enforced(Enforced::NEVER))
    }

    /// Enforces the limit for a share of its keys, in percent. Default: 100. For all other keys, the limit is in
    /// *shadow mode*: it decides, counts and reports, and never denies.
    ///
    /// A limit in shadow mode charges its budget as if it were enforced: a check that would be denied consumes
    /// nothing. It does not keep a group from being charged, and does not delay a check. Its
    /// [verdict](crate::Decision::verdicts) says what it [would do](crate::decision::Verdict::would_deny). A layer
    /// reports it by an event and, with the feature `metrics`, by a counter, and not by headers.
    ///
    /// The share is stable: the same keys are enforced on all replicas, after a restart, and at a higher percentage.
    /// Each name of a limit has a share of its own.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let strict = Limit::fixed_window("strict", Quota::per_hour(1))?.enforce(0)?;
    /// let alice = Key::new("alice");
    /// limiter.check(&strict, &alice).await?;
    /// let second = limiter.check(&strict, &alice).await?;
    /// assert!(second.allowed());
    /// assert!(second.deciding().would_deny());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the share is above 100 percent.
    pub fn enforce(self, percent: u8) -> Result<Self, ConfigError> {
        let enforced = Enforced::new(percent).map_err(|error| error.of_limit(self.name()))?;
        Ok(self.with(|definition| definition.set_enforced(enforced)))
    }

    #[cfg(feature = "http")]
    pub(crate) fn with_enforced(self, enforced: Enforced) -> Self {
        self.with(|definition| definition.set_enforced(enforced))
    }

    #[cfg(feature = "config")]
    pub(crate) fn enforced(&self) -> Enforced {
        self.shared.enforced
    }

    /// The share of keys for which the limit is enforced, in percent.
    #[must_use]
    pub fn enforced_percent(&self) -> u8 {
        self.shared.enforced.percent()
    }

    /// Whether the limit is enforced for a key. Otherwise it is in [shadow mode](Self::enforce).
    #[must_use]
    #[inline]
    pub fn enforces(&self, key: &Key) -> bool {
        self.shared.enforced.includes(self.name(), key)
    }

    /// Sets the largest debt of a budget, in units. Default: no bound but that of exact arithmetic.
    ///
    /// A [settlement](crate::RateLimiter::settle) may charge more units than the budget has left. Then checks are
    /// denied until the debt is repaid. A bucket repays it at its rate. A window forgets it at its end, and a log
    /// after a period.
    ///
    /// A bound keeps a wrong cost from locking a key out for long. Units above the bound are forgiven. So with many
    /// requests in flight that cost more than their estimates, more passes than the quota, and the order of the
    /// settlements matters.
    ///
    /// Exact arithmetic bounds the used units of a budget, too:
    ///
    /// | algorithm | the most used units |
    /// |---|---|
    /// | token bucket, leaky bucket, GCRA | what refills in ten years, and about `6.7e15 / m`, where `limit / period` in lowest terms is `n` units per `m` microseconds |
    /// | fixed window | `9e15` |
    /// | sliding window | `3.5e13` in a sub-window |
    /// | sliding log | `1.4e14` |
    #[must_use]
    pub fn max_debt(self, units: u64) -> Self {
        self.with(|definition| definition.max_debt = Some(units))
    }

    /// The largest debt of a budget, in units. `None` if [`max_debt`](Self::max_debt) is not set.
    #[must_use]
    pub fn debt_bound(&self) -> Option<u64> {
        self.shared.max_debt
    }

    /// The outcome of checks when the store is unavailable. `None` if it is that of the layer.
    #[must_use]
    pub fn failure_policy(&self) -> Option<OnStoreFailure> {
        self.shared.failure.as_ref().map(|failure| failure.policy)
    }

    /// The limit that decides in this process while the store is unavailable.
    pub(crate) fn share(&self) -> Option<&Self> {
        self.shared.failure.as_ref()?.share.as_ref()
    }

    /// A copy that shares no reference count with this limit.
    #[cfg(feature = "http")]
    pub(crate) fn deep_clone(&self) -> Self {
        self.clone().with(|_| {})
    }
}
