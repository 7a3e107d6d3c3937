//! Usage: the remaining budget of a key.

use std::time::Duration;

use super::Verdict;
use crate::units::{Quota, Timestamp};

/// The used and the remaining budget of a key under a limit, for a page or an API of the user. A
/// limit in shadow mode is reported as if it were enforced.
///
/// See [`RateLimiter::usage`](crate::RateLimiter::usage). With the feature `serde` it can be
/// serialized. Times are whole seconds then, rounded up, and `null` stands for none:
///
/// ```
/// # #[cfg(feature = "serde")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tollgate::{Check, Limit, Quota, RateLimiter};
///
/// let limiter = RateLimiter::in_memory();
/// let api = Limit::fixed_window("api", Quota::per_hour(50))?;
/// limiter.check_n(&api, "alice", 8).await?;
/// let usage = limiter.usage(Check::new(&api, "alice")).await?;
/// let [api_usage] = &*usage else { unreachable!() };
/// let mut json = serde_json::to_value(api_usage)?;
/// // Seconds since 1970, which differ with each run.
/// let reset_at = json.as_object_mut().and_then(|json| json.remove("reset_at"));
/// assert!(reset_at.is_some_and(|it| it.is_u64()));
/// assert_eq!(
///     json,
///     serde_json::json!({
///         "limit": "api",
///         "quota": "50 per 1h",
///         "capacity": 50,
///         "used": 8,
///         "used_percent": 16,
///         "remaining": 42,
///         "reset_after": 3600,
///         "blocked_for": null,
///         "shadow": false,
///         "overridden": false,
///         "denied": false,
///     })
/// );
///
/// limiter.block(&api, "alice", Duration::from_secs(7_200)).await?;
/// let [usage] = &*limiter.usage(Check::new(&api, "alice")).await? else { unreachable!() };
/// assert_eq!(usage.remaining, 0);
/// assert!(usage.blocked_for.is_some());
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "serde"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Usage {
    /// The limit's name.
    pub limit: String,
    /// The quota of the key's override, or else of its plan, or else of the limit. It is serialized
    /// as text, such as `10000 per month from 15 in Europe/Berlin`.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub quota: Quota,
    /// The most units that the budget holds, the burst, or else the limit of the quota.
    pub capacity: u64,
    /// The units that are used now: the capacity without [`remaining`](Self::remaining). So it is
    /// the capacity while the key is blocked, whatever it has used.
    pub used: u64,
    /// The same in percent of the capacity, 0 to 100, rounded down.
    pub used_percent: u8,
    /// The units that are left now, rounded down. 0 while the key is blocked, or has consumed more
    /// than it had.
    pub remaining: u64,
    /// The time until the budget is full again, and no block stands.
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_seconds"))]
    pub reset_after: Duration,
    /// The same as a time since the Unix epoch, by the clock of the store. In a fixed window, it is
    /// the end of the window for all charges, unless the key is blocked. With other algorithms it
    /// moves with each charge.
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_seconds"))]
    pub reset_at: Duration,
    /// The time until the block of the key ends. `None` if it is not blocked.
    #[cfg_attr(feature = "serde", serde(serialize_with = "in_seconds_if_any"))]
    pub blocked_for: Option<Duration>,
    /// `true` if the limit is in [shadow mode](crate::Limit::with_shadow_mode) for the key, and
    /// never denies.
    pub shadow: bool,
    /// `true` if an [override](crate::overrides::Override) of the key is in force.
    pub overridden: bool,
    /// `true` if that override denies all checks of the key. It is shown as blocked, until the
    /// override ends, or for 366 days if it does not end.
    pub denied: bool,
}

impl Usage {
    /// The usage that a check, a peek or a settlement leaves.
    pub(crate) fn from_verdict(verdict: &Verdict, decided_at: Timestamp) -> Self {
        let capacity = verdict.capacity();
        let remaining = verdict.remaining();
        let used = capacity.saturating_sub(remaining);
        let percent = u128::from(used) * 100 / u128::from(capacity.max(1));
        let reset_after = verdict.reset_after();
        Self {
            limit: verdict.limit().name().to_owned(),
            quota: verdict.limit().quota(),
            capacity,
            used,
            used_percent: u8::try_from(percent).unwrap_or(100),
            remaining,
            reset_after,
            reset_at: decided_at
                .or_now()
                .saturating_add(verdict.outcome().reset_after)
                .since_epoch(),
            blocked_for: verdict.blocked_for(),
            shadow: verdict.is_shadow(),
            overridden: verdict.is_overridden(),
            denied: verdict.limit().denial().is_some(),
        }
    }
}

#[cfg(feature = "serde")]
fn as_text<S: serde::Serializer>(quota: &Quota, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(quota)
}

#[cfg(feature = "serde")]
fn in_seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(seconds(*time))
}

#[cfg(feature = "serde")]
fn in_seconds_if_any<S: serde::Serializer>(
    time: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&time.map(seconds), to)
}

#[cfg(feature = "serde")]
fn seconds(time: Duration) -> u64 {
    time.as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0))
}
