//! The settings of a limit beside its quota: failure policy, shadow mode, debt, and advice.

use std::time::Duration;

use super::enforced::Enforced;
use super::{DEFAULT_RETRY_AFTER, Limit, share};
use crate::model::{Key, OnStoreFailure};
use crate::units::ConfigError;

const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60 * 60);

/// # Settings
impl Limit {
    /// Sets the outcome of checks when the store is unavailable. Default: the layer's. Without a
    /// layer, the check is an error.
    ///
    /// ```
    /// use tollgate::limit::OnStoreFailure;
    /// use tollgate::{Limit, Quota};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let api = Limit::token_bucket("api", Quota::per_minute(100))?
    ///     .with_on_store_failure(OnStoreFailure::local(3))?;
    /// let login = Limit::fixed_window("login", Quota::per_hour(5))?
    ///     .with_on_store_failure(OnStoreFailure::FailClosed)?;
    /// # let _ = (api, login);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the number of replicas is out of its range, or if the share of a replica
    /// has too long a period. For example, 100 a day on 3 replicas is 100 in 3 days for each. That
    /// period may have at most 366 days.
    pub fn with_on_store_failure(self, policy: OnStoreFailure) -> Result<Self, ConfigError> {
        let share = match policy.replicas() {
            Ok(Some(replicas)) => share::share(&self, replicas).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.of_limit(self.name())),
        }
        .map_err(|error| error.for_field("on_store_failure"))?;
        Ok(self.with(|definition| {
            definition.on_store_failure = Some(policy);
            definition.share = share;
        }))
    }

    /// Puts the limit in *shadow mode*: it decides, counts and reports, and never denies.
    ///
    /// A limit in shadow mode charges its budget as if it were enforced. A check that would be
    /// denied consumes nothing. A concurrency limit in shadow mode grants permits and reports, and
    /// a layer forwards a request that gets none.
    /// [`acquire_permit`](crate::RateLimiter::acquire_permit) ignores shadow mode.
    ///
    /// A limit in shadow mode does not keep a group from being charged, and does not delay a check.
    /// Its [verdict](crate::Decision::verdicts) says what it [would
    /// do](crate::decision::Verdict::would_deny). A layer reports it by an event and, with the
    /// feature `metrics`, by a counter, and not by headers.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let strict = Limit::fixed_window("strict", Quota::per_hour(1))?.with_shadow_mode();
    /// let alice = Key::new("alice");
    /// limiter.check(&strict, &alice).await?;
    /// let second = limiter.check(&strict, &alice).await?;
    /// assert!(second.allowed());
    /// assert!(second.deciding().would_deny());
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_shadow_mode(self) -> Self {
        self.with_enforced(Enforced::NEVER)
    }

    /// Puts the limit in [shadow mode](Self::with_shadow_mode) for a share of its keys, in percent.
    /// Default: 0. All other keys are limited.
    ///
    /// The share is stable. The same keys are limited on all replicas, after a restart, and as the
    /// share in shadow mode shrinks. Each name of a limit has a share of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if the share is above 100 percent.
    pub fn with_shadow_percent(self, percent: u8) -> Result<Self, ConfigError> {
        let enforced = Enforced::except_percent(percent)
            .map_err(|error| error.at("shadow_percent").of_limit(self.name()))?;
        Ok(self.with_enforced(enforced))
    }

    pub(crate) fn with_enforced(self, enforced: Enforced) -> Self {
        self.with(|definition| definition.enforced = enforced)
    }

    pub(crate) fn enforced(&self) -> Enforced {
        self.shared.enforced
    }

    /// The share of keys for which the limit is in [shadow mode](Self::with_shadow_mode), in
    /// percent.
    #[must_use]
    pub fn shadow_percent(&self) -> u8 {
        100 - self.shared.enforced.percent()
    }

    /// Returns whether the limit is enforced for a key. Otherwise it is in [shadow
    /// mode](Self::with_shadow_mode).
    #[must_use]
    #[inline]
    pub fn enforces(&self, key: &Key) -> bool {
        self.shared.enforced.includes(self.name(), key)
    }

    /// Returns whether the limit is enforced for all keys, and blocks none by itself.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.shared.enforced.is_always() && self.shared.block.is_none()
    }

    /// Sets the largest debt of a budget, in units. Default: only exact arithmetic bounds it.
    ///
    /// A [settlement](crate::RateLimiter::settle) may charge more units than the budget has left.
    /// Then checks are denied until the debt is repaid. A bucket repays it at its rate. A window
    /// forgets it at its end, and a log after a period.
    ///
    /// With a bound, you keep a wrong cost from locking a key out for long. For example, a budget
    /// of 1,000 tokens with a bound of 500 counts at most 1,500 used tokens, whatever a settlement
    /// charges. Units above the bound are forgiven. So with many requests in flight that cost more
    /// than their estimates, more passes than the quota, and the order of the settlements matters.
    ///
    /// While a [replica's share](OnStoreFailure::Local) decides, the bound is divided like the
    /// quota, and rounded up.
    ///
    /// Exact arithmetic also bounds the used units of a budget:
    ///
    /// | algorithm | the most used units |
    /// |---|---|
    /// | token bucket, leaky bucket, GCRA | the smaller of what refills in ten years, and about `6.7e15 / m`, where `m` is the period in microseconds after `limit / period` is reduced to lowest terms |
    /// | fixed window | `9e15` |
    /// | sliding window | `3.5e13` in a sub-window |
    /// | sliding log | `1.4e14` |
    ///
    /// # Errors
    ///
    /// Returns an error for a concurrency limit, whose permits are given back.
    pub fn with_max_debt(self, units: u64) -> Result<Self, ConfigError> {
        self.check_is_rate("max_debt", "permits are given back, and owe nothing")?;
        Ok(self.with(|definition| definition.max_debt = Some(units)))
    }

    /// The largest debt of a budget, in units. `None` if [`with_max_debt`](Self::with_max_debt) was
    /// not called.
    #[must_use]
    pub fn max_debt(&self) -> Option<u64> {
        self.shared.max_debt
    }

    /// Warns once when a key has used so many percent of its units: 60 to 99, such as 80. Default:
    /// never.
    ///
    /// Each limiter then logs the event `key near a limit`, and calls the function that you gave to
    /// [`RateLimiterBuilder::on_near_limit`](crate::limiter::RateLimiterBuilder::on_near_limit),
    /// such as to send an e-mail. It does so again for that key in the next fixed window. Under
    /// other algorithms, it does so after the budget was more than half full, and at the earliest
    /// after the time in which an empty budget becomes half full. Every decision that is near the
    /// limit [says so](crate::Decision::is_near_limit), and an allowed one counts in metrics as
    /// `near_limit`.
    ///
    /// A limiter knows of its own decisions, so each replica that serves a key warns once. The
    /// guide says how to send [one e-mail for all
    /// replicas](crate::guide::remaining#one-e-mail-for-all-replicas). Estimates count until they
    /// are [settled](crate::RateLimiter::settle), so an estimate that is much too high warns too
    /// early. A settlement also warns. A limit does not warn of a key for which it is in shadow
    /// mode, of a blocked key, and while the store does not decide.
    ///
    /// ```
    /// use tollgate::{Key, Limit, MemoryStore, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder(MemoryStore::new())
    ///     .on_near_limit(|key, usage| {
    ///         println!("{key} has {} left of {}", usage.remaining, usage.capacity);
    ///     })
    ///     .build()?;
    /// let api = Limit::fixed_window("api", Quota::per_hour(10))?.with_warn_at_percent(80)?;
    ///
    /// assert!(!limiter.check_n(&api, "alice", 7).await?.is_near_limit());
    /// // Prints "alice has 2 left of 10".
    /// assert!(limiter.check(&api, "alice").await?.is_near_limit());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the percentage is out of range or leaves no unit of the capacity, and
    /// for a concurrency limit, whose permits are given back.
    pub fn with_warn_at_percent(self, percent: u8) -> Result<Self, ConfigError> {
        self.check_is_rate("warn_at_percent", "permits are given back, and not used up")?;
        let wrong = |message: String| {
            let error = ConfigError::new(message).at("warn_at_percent");
            Err(error.of_limit(self.name()))
        };
        if !(60..=99).contains(&percent) {
            return wrong(format!("the warning is at {percent} percent; use 60 to 99"));
        }
        let capacity = self.quota().capacity();
        if most_left(capacity, percent) == 0 {
            return wrong(format!(
                "{percent} percent of {capacity} units leave none, so the warning would come with \
                 the last one; use a lower percentage or remove it"
            ));
        }
        Ok(self.with(|definition| definition.warn_at_percent = Some(percent)))
    }

    /// Sets the warning for the quota of a plan. If a plan is too small for that, it has none.
    pub(crate) fn with_warning_if_enough(self, percent: u8) -> Self {
        match self.clone().with_warn_at_percent(percent) {
            Ok(limit) => limit,
            Err(_) => self,
        }
    }

    /// The used percentage at which a key is near the limit. `None` if
    /// [`with_warn_at_percent`](Self::with_warn_at_percent) was not called.
    #[must_use]
    #[inline]
    pub fn warn_at_percent(&self) -> Option<u8> {
        self.shared.warn_at_percent
    }

    /// Returns whether a key that has so many units left is near the limit. `None` if the limit
    /// does not warn.
    #[inline]
    pub(crate) fn is_near(&self, remaining: u64) -> Option<bool> {
        let percent = self.shared.warn_at_percent?;
        Some(remaining <= most_left(self.shared.quota.capacity(), percent))
    }

    /// The outcome of checks when the store is unavailable. `None` if it is the layer's.
    #[must_use]
    pub fn on_store_failure(&self) -> Option<OnStoreFailure> {
        self.shared.on_store_failure
    }

    /// Sets the `Retry-After` of a request without a permit. Default: 1 second. Range: 1 second to
    /// 1 hour. The end of a request is not known in advance, so choose about the duration of a
    /// request.
    ///
    /// # Errors
    ///
    /// Returns an error if the time is out of range, and for a limit that is not a [concurrency
    /// limit](Self::concurrency), because a rate knows when units are available.
    pub fn with_retry_after(self, wait: Duration) -> Result<Self, ConfigError> {
        let check = || {
            if !self.is_concurrency() {
                return Err(ConfigError::new(
                    "`retry_after` is a setting of concurrency limits, and a rate knows when units \
                     are available; remove it",
                ));
            }
            if wait < DEFAULT_RETRY_AFTER || wait > LONGEST_RETRY_AFTER {
                return Err(ConfigError::new(format!(
                    "`retry_after` is {wait:?}; use {DEFAULT_RETRY_AFTER:?} to \
                     {LONGEST_RETRY_AFTER:?}"
                )));
            }
            Ok(())
        };
        check().map_err(|error| error.at("retry_after").of_limit(self.name()))?;
        Ok(self.with(|definition| definition.retry_after = wait))
    }

    /// The `Retry-After` of a request without a permit.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.shared.retry_after
    }

    /// Checks that this is not a concurrency limit, which does not have the field.
    pub(super) fn check_is_rate(&self, field: &'static str, why: &str) -> Result<(), ConfigError> {
        if self.is_concurrency() {
            let message = format!("a concurrency limit has no `{field}`: {why}; remove it");
            return Err(ConfigError::new(message).at(field).of_limit(self.name()));
        }
        Ok(())
    }

    /// The limit that decides in this process while the store is unavailable.
    pub(crate) fn share(&self) -> Option<&Self> {
        self.shared.share.as_ref()
    }

    /// A copy that shares no reference count with this limit.
    pub(crate) fn deep_clone(&self) -> Self {
        self.clone().with(|_| {})
    }
}

/// The most units that a key has left near a limit.
const fn most_left(capacity: u64, percent: u8) -> u64 {
    // A capacity is below 2^53.
    capacity * (100 - percent as u64) / 100
}
