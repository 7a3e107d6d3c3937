//! The outcome of a check when the store is unavailable.

use crate::units::ConfigError;

/// More replicas are a mistake, such as a port in place of a number.
const MAX_REPLICAS: u32 = 10_000;

/// The outcome of a check when the store is [unavailable](crate::Error::is_unavailable).
///
/// It is a setting [of a layer](crate::RateLimitLayer::on_store_failure), and of [a
/// limit](crate::Limit::with_on_store_failure), which has priority. In a group the strictest
/// decides. If one limit fails closed, the group is denied. Otherwise the limits that fail over
/// decide, and those that fail open are not checked.
///
/// In configuration files it is `"fail_open"`, `"fail_closed"` or `{"local": {"replicas": 3}}`.
///
/// # The local limit
///
/// Each replica of your service decides by its share of the quota, in its own memory. With a quota
/// of `limit` and `burst` per `period`, and `n` replicas:
///
/// | algorithm | the share of a replica | all replicas together allow at most |
/// |---|---|---|
/// | token bucket, leaky bucket, GCRA | `limit` per `n` periods, a burst of `burst / n` | `max(burst, n) + rate * t` in any time `t` |
/// | fixed window | `limit / n` in each window | `max(limit, n)` in one window, twice that in a period across its end |
/// | sliding window | `limit / n` | `max(limit, n)` for even traffic, twice that for any traffic |
/// | sliding log | `limit / n` in any period | `max(limit, n)` in any period |
///
/// A share is rounded down and is at least 1. So three replicas share a limit of 100 as 33 each,
/// which is 99. They share a limit of 2 as 1 each, which is 3: that is why the bound is
/// `max(limit, n)`.
///
/// The bound holds for each outage and key. The store may have allowed units before, which the
/// replicas do not know. Two things limit what a client gains from an outage:
///
/// - A check that the store denied stays denied until its `retry_after`, if the store remembers it,
///   as `RedisStore` does.
/// - When the store answers again, the units that were allowed locally and have not drained since
///   are charged there, once. This is best effort. It is done for at most 100,000 budgets, and only
///   as far as the store's budget has units left. Units that a lost call may have charged are left
///   out. After a restart of the process, nothing is charged.
///
/// Under a [concurrency limit](crate::Limit::concurrency), a replica has `limit / n` permits,
/// rounded down, and at least 1. The permits that it holds already count. If none is free, a
/// request is denied at once, and does not [wait](crate::RateLimitLayer::wait_up_to) for a local
/// permit.
///
/// At most 100,000 local budgets are kept. If more are in use, one that is not used up may be
/// evicted, and its key gets its share again.
///
/// A cost above the share, and not above the quota, is denied until the store is asked again. If
/// the memory of 100,000 budgets is full of used-up ones, the check of a new key fails, because the
/// store [is full](crate::Error::is_full).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(rename_all = "snake_case", deny_unknown_fields)
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// The check is allowed, and consumes nothing. A layer forwards the request without rate limit
    /// headers.
    FailOpen,
    /// The check is decided in this process, by this replica's share of the quota. See
    /// [`local`](Self::local).
    #[non_exhaustive]
    Local {
        /// The number of replicas that share the quota.
        replicas: u32,
    },
    /// The check is denied. A layer answers 503. Its `Retry-After` is the time until the circuit
    /// breaker's next probe, at least a second. Without a breaker it is a second.
    FailClosed,
}

impl OnStoreFailure {
    /// Decides in this process, by the share of one of so many replicas: 1 to 10,000. Use the
    /// largest number that you may run at once, such as the maximum of an autoscaler.
    #[must_use]
    pub const fn local(replicas: u32) -> Self {
        Self::Local { replicas }
    }

    /// The stricter of two.
    pub(crate) const fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::FailClosed, _) | (_, Self::FailOpen) => self,
            (Self::FailOpen, _) | (_, Self::FailClosed) => other,
            (Self::Local { .. }, Self::Local { .. }) => self,
        }
    }

    /// The name in events.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::FailOpen => "fail_open",
            Self::Local { .. } => "local",
            Self::FailClosed => "fail_closed",
        }
    }

    /// Checks the number of replicas.
    pub(crate) fn validate(self) -> Result<(), ConfigError> {
        self.replicas().map(|_| ())
    }

    /// The number of replicas that share a quota. `None` without a local limit.
    pub(super) fn replicas(self) -> Result<Option<u32>, ConfigError> {
        match self {
            Self::Local { replicas } if (1..=MAX_REPLICAS).contains(&replicas) => {
                Ok(Some(replicas))
            }
            Self::Local { replicas } => Err(ConfigError::new(format!(
                "`OnStoreFailure::local` has {replicas} replicas; use 1 to {MAX_REPLICAS}"
            ))),
            Self::FailOpen | Self::FailClosed => Ok(None),
        }
    }
}
