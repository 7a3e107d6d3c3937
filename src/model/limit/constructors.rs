//! A limit under each algorithm.

use super::{Limit, check_name};
use crate::algorithm::{
    Anchor, BucketRule, Concurrency, FixedWindow, Flavour, Mode, Rule, SlidingLog, SlidingWindow,
};
use crate::units::{ConfigError, Period, Quota};

/// # Constructors
///
/// Each returns an error if the name or a number of the quota is out of its range. The error says
/// which, and what to use.
impl Limit {
    /// A bucket that holds `burst` tokens and refills `limit` tokens every `period`, evenly.
    ///
    /// For example, 10 per second with a burst of 20 allows 20 requests at once, and then one every
    /// 100 ms.
    ///
    /// # Errors
    ///
    /// Returns an error if the name or a number is out of range, like all constructors.
    pub fn token_bucket(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::bucket(name, quota, Flavour::TokenBucket)
    }

    /// A queue that holds `burst` units and drains `limit` units every `period`, evenly. An allowed
    /// check has a [`delay`](crate::Decision::delay), which the caller waits out.
    ///
    /// For example, of three requests at once under 10 per second, the second waits for 100 ms and
    /// the third for 200 ms.
    pub fn leaky_bucket(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::bucket(name, quota, Flavour::LeakyBucket(Mode::Queue))
    }

    /// A leaky bucket without delays. A check that fits is allowed at once.
    pub fn leaky_bucket_meter(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::bucket(name, quota, Flavour::LeakyBucket(Mode::Meter))
    }

    pub(super) fn bucket(name: &str, quota: Quota, flavour: Flavour) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            Ok(Rule::Bucket(BucketRule::new(quota, flavour)?))
        })
    }

    /// The generic cell rate algorithm: `limit` units every `period`, `burst` at once.
    ///
    /// For example, 10 per second with a burst of 1 allows requests that are 100 ms apart.
    pub fn gcra(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::bucket(name, quota, Flavour::Gcra)
    }

    /// At most `limit` units in a window that starts with the key's first request and lasts
    /// `period`.
    ///
    /// For example, if the first request comes at 12:00:20, the window of a minute ends at
    /// 12:01:20. With a quota [of the calendar](crate::guide::calendar), all windows start and end
    /// with its days, weeks, months or years.
    pub fn fixed_window(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::fixed(name, quota, Anchor::First)
    }

    /// At most `limit` units in each window aligned to the clock, so a `per_day` window starts at
    /// midnight UTC. Windows are multiples of the period since 1970 in UTC, so a window of 7 days
    /// starts on Thursday. For days, weeks, months and years in a time zone, give
    /// [`fixed_window`](Self::fixed_window) a [quota of the calendar](crate::guide::calendar).
    pub fn fixed_window_aligned(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::fixed(name, quota, Anchor::Clock)
    }

    pub(super) fn fixed(name: &str, quota: Quota, anchor: Anchor) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            Ok(Rule::FixedWindow(FixedWindow::new(quota, anchor)?))
        })
    }

    /// The two-counter sliding window, the count of this period, plus the count of the previous
    /// period weighted by its overlap with the window.
    ///
    /// For example, 15 seconds into a minute, three quarters of the previous minute's requests
    /// count.
    ///
    /// The limit times the period in microseconds is at most 2<sup>52</sup>, so that all numbers
    /// are exact: 52,000 a day, or 1.2 million an hour. With `n` sub-windows, it may be `n` times
    /// larger.
    pub fn sliding_window(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::sliding_window_with(name, quota, 1)
    }

    /// A sliding window of 1 to 100 sub-windows. More sub-windows follow uneven traffic more
    /// closely, at 7 bytes of state each.
    ///
    /// For example, a window of a minute with 6 sub-windows moves on every 10 seconds.
    pub fn sliding_window_with(
        name: &str,
        quota: Quota,
        sub_windows: u32,
    ) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            Ok(Rule::SlidingWindow(SlidingWindow::new(quota, sub_windows)?))
        })
    }

    /// Exactly `limit` units in any window of `period`, wherever it starts.
    ///
    /// For example, under 5 per hour the sixth request is allowed an hour after the first.
    ///
    /// After a change to a shorter period or a smaller limit, the log of a key keeps the size and
    /// the expiry of the larger quota until the key was idle for the longer period, or is reset.
    pub fn sliding_log(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            Ok(Rule::SlidingLog(SlidingLog::new(quota)?))
        })
    }

    /// At most `limit` requests of a key at once. Range: 1 to 1,000,000.
    ///
    /// A rate says how many requests may start in a time. This says how many may be in flight. A
    /// slow endpoint with ten connections to its database needs the second. A layer acquires a
    /// permit for each request, and holds it until the response ends. Without HTTP, see
    /// [`RateLimiter::acquire_permit`](crate::RateLimiter::acquire_permit).
    ///
    /// Its [quota](Self::quota) is `limit`, without a period.
    ///
    /// ```
    /// use tollgate::Limit;
    /// use tollgate::limit::OnStoreFailure;
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let exports = Limit::concurrency("exports", 3)?
    ///     .with_on_store_failure(OnStoreFailure::local(3))?;
    /// assert_eq!(exports.to_string(), "3 at once");
    /// assert_eq!(exports.quota().to_string(), "3 at once");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the name or the number is out of range.
    pub fn concurrency(name: &str, limit: u32) -> Result<Self, ConfigError> {
        let rule = check_name(name)
            .and_then(|()| Concurrency::new(limit).map_err(|error| error.at("limit")))
            .map_err(|error| error.of_limit(name))?;
        let quota = Quota::per(limit.into(), Period::AtOnce);
        Ok(Self::of_rule(name, quota, Rule::Concurrency(rule)))
    }

    /// The parts that replicas have of the [overshoot](Self::with_overshoot_percent) of all limits.
    /// No other limit has its name, because it begins with a space.
    pub(crate) fn of_shares(parts: u32) -> Self {
        let quota = Quota::per(parts.into(), Period::AtOnce);
        let rule = Concurrency::of_shares(parts);
        Self::of_rule(" asynchronous shares", quota, Rule::Concurrency(rule))
    }
}
