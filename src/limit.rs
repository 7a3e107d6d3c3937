//! A named quota under one algorithm.

mod config;
mod range;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::config::Config;
use self::range::{bucket, cell_length, check_log, check_name, check_quota, window};
use crate::algorithm::{
    Algorithm, Anchor, FixedWindow, Gcra, LeakyBucket, Mode, SlidingLog, SlidingWindow, TokenBucket,
};
use crate::{Charge, ConfigError, Key, Quota};

/// A named quota under one algorithm (the IETF draft's quota policy).
///
/// The name is part of the key in the store, and can stand in a header: 1 to 64 printable ASCII
/// characters, without `"` and `\`, not starting or ending with a space.
///
/// Two limits share a budget if they have the same name and the same kind of state, and are asked
/// about the same key. The token bucket, the leaky bucket and GCRA have one kind of state; the fixed
/// window, the sliding window and the sliding log have one each. A change of the algorithm within a
/// kind keeps what was used. While two algorithms of different kinds are in use under one name, as in
/// a rolling deployment, each counts its own checks: together they allow at most the sum of both
/// limits.
///
/// Which to choose:
///
/// | algorithm | use it for | it promises | state in Redis |
/// |---|---|---|---|
/// | [`token_bucket`](Self::token_bucket) | APIs: a burst, then a rate | at most `burst + rate * t` in any time `t` | one small string |
/// | [`gcra`](Self::gcra) | the same, thought of as a schedule | the same | one small string |
/// | [`leaky_bucket`](Self::leaky_bucket) | smoothing calls to something slow | requests leave evenly, each after its `delay` | one small string |
/// | [`sliding_window`](Self::sliding_window) | "n per period" without the jump at the border | even traffic exactly, any traffic at most twice | one small string |
/// | [`sliding_log`](Self::sliding_log) | contracts: exactly n in any period | never more than `limit` in any window | 2 to 13 bytes a request |
/// | [`fixed_window`](Self::fixed_window) | quotas a day or a month, billing | at most `limit` in each window | one small string |
///
/// The constructors check the numbers: a `Limit` that exists can be decided, exactly.
///
/// # Configuration
///
/// A limit is also its own configuration format, through serde. A period has a unit: a bare number
/// is an error. Unknown fields and fields of another algorithm are errors, too.
///
/// ```
/// use tollgate::{Limit, Quota};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limit: Limit = serde_json::from_str(
///     r#"{"name":"login","algorithm":"gcra","limit":5,"period":"15m","burst":10}"#,
/// )?;
/// let same: Limit = serde_json::from_str(
///     r#"{"name":"login","algorithm":"gcra","quota":"5/15m","burst":10}"#,
/// )?;
/// assert_eq!(limit, same);
/// assert_eq!(limit, Limit::gcra("login", "5/15m".parse::<Quota>()?.burst(10))?);
/// # Ok(())
/// # }
/// ```
///
/// | field | of | default |
/// |---|---|---|
/// | `name`, `algorithm` | all | none: they are required |
/// | `limit` and `period`, such as `5` and `"15m"` | all | none: both are required without `quota` |
/// | `quota`, such as `"5/15m"`: [the two in one](Quota#as-text) | all | none |
/// | `burst` | `token_bucket`, `leaky_bucket`, `gcra` | `limit` |
/// | `cells` | `sliding_window` | 1 |
/// | `mode`: `queue` or `meter` | `leaky_bucket` | `queue` |
/// | `anchor`: `first` or `clock` | `fixed_window` | `first` |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Config", into = "Config")]
pub struct Limit {
    name: Arc<str>,
    quota: Quota,
    algorithm: Algorithm,
}

impl Limit {
    /// A bucket that holds `burst` tokens and gains `limit` every `period`, evenly.
    ///
    /// # Errors
    ///
    /// If the name or the numbers are out of range; so for all constructors.
    pub fn token_bucket(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| Ok(Algorithm::TokenBucket(TokenBucket(bucket(quota)?))))
    }

    /// A queue that lets `limit` units out every `period`, evenly, and holds `burst` units: an
    /// admitted check carries a [`delay`](crate::Decision::delay) to be waited out.
    pub fn leaky_bucket(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::leaky(name, quota, Mode::Queue)
    }

    /// A leaky bucket that only measures: what fits passes without delay.
    pub fn leaky_bucket_meter(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::leaky(name, quota, Mode::Meter)
    }

    fn leaky(name: &str, quota: Quota, mode: Mode) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            Ok(Algorithm::LeakyBucket(LeakyBucket { bucket: bucket(quota)?, mode }))
        })
    }

    /// The generic cell rate algorithm: `limit` units every `period`, `burst` at once.
    pub fn gcra(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| Ok(Algorithm::Gcra(Gcra(bucket(quota)?))))
    }

    /// At most `limit` units in a window that starts with the key's first request and lasts
    /// `period`.
    pub fn fixed_window(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::fixed(name, quota, Anchor::First)
    }

    /// At most `limit` units in each window aligned to the clock: `per_day` starts at midnight
    /// UTC.
    pub fn fixed_window_aligned(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::fixed(name, quota, Anchor::Clock)
    }

    fn fixed(name: &str, quota: Quota, anchor: Anchor) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            let (limit, period) = window(quota, "a fixed window")?;
            Ok(Algorithm::FixedWindow(FixedWindow { limit, period, anchor }))
        })
    }

    /// The two-counter sliding window: this period's count, plus the previous one's weighted by
    /// how much of it the window still overlaps.
    pub fn sliding_window(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::sliding_window_of(name, quota, 1)
    }

    /// A sliding window that moves in `cells` cells, 1 to 100: more follow uneven traffic more
    /// closely, at 7 bytes of state each.
    pub fn sliding_window_of(name: &str, quota: Quota, cells: u32) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            let (limit, period) = window(quota, "a sliding window")?;
            let length = cell_length(limit, period, cells)?;
            Ok(Algorithm::SlidingWindow(SlidingWindow { limit, length, cells }))
        })
    }

    /// Exactly `limit` units in any window of `period`, wherever it starts.
    pub fn sliding_log(name: &str, quota: Quota) -> Result<Self, ConfigError> {
        Self::new(name, quota, |quota| {
            let (limit, period) = window(quota, "a sliding log")?;
            check_log(limit)?;
            Ok(Algorithm::SlidingLog(SlidingLog { limit, period }))
        })
    }

    fn new(
        name: &str,
        quota: Quota,
        algorithm: impl FnOnce(&Quota) -> Result<Algorithm, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let checked = check_name(name)
            .and_then(|()| check_quota(&quota))
            .and_then(|()| algorithm(&quota))
            .map_err(|error| error.of_limit(name))?;
        Ok(Self { name: name.into(), quota, algorithm: checked })
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of state that the limit's algorithm keeps: `"b"` for the token bucket, the leaky
    /// bucket and GCRA, `"w"` for the fixed window, `"s"` for the sliding window, `"l"` for the
    /// sliding log.
    ///
    /// A store keeps a budget for each name, key and kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.algorithm.kind()
    }

    /// Whether charges of one key under both limits count together.
    pub(crate) fn shares_budgets_with(&self, other: &Self) -> bool {
        self.name == other.name && self.kind() == other.kind()
    }

    /// The limit's quota.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// A charge of `cost` units to `key` under this limit, for a check of
    /// [several limits](crate::RateLimiter::apply).
    #[must_use]
    pub const fn charge<'a>(&'a self, key: &'a Key, cost: u32) -> Charge<'a> {
        Charge { limit: self, key, cost, receipt: None }
    }

    /// Whether two limits decide alike, however their quotas were written.
    pub(crate) fn decides_as(&self, other: &Self) -> bool {
        self.algorithm == other.algorithm
    }

    /// Whether this is its name. Most often it is its own, shared.
    pub(crate) fn is_named(&self, name: &Arc<str>) -> bool {
        Arc::ptr_eq(&self.name, name) || self.name == *name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(crate) const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }
}

impl fmt::Display for Limit {
    /// The algorithm and the quota, in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, period) = (self.quota.limit(), self.quota.period());
        let what = match &self.algorithm {
            Algorithm::FixedWindow(FixedWindow { anchor: Anchor::First, .. }) => "fixed window",
            Algorithm::FixedWindow(_) => "fixed window aligned to the clock",
            Algorithm::SlidingWindow(window) => {
                return write!(
                    f,
                    "{limit} per {period:?} (sliding window of {} cells)",
                    window.cells
                );
            }
            Algorithm::SlidingLog(_) => "sliding log",
            Algorithm::TokenBucket(_) => "token bucket",
            Algorithm::LeakyBucket(LeakyBucket { mode: Mode::Queue, .. }) => "leaky bucket",
            Algorithm::LeakyBucket(_) => "leaky bucket as a meter",
            Algorithm::Gcra(_) => "GCRA",
        };
        write!(f, "{limit} per {period:?}")?;
        if let Some(burst) = self.quota.explicit_burst() {
            write!(f, ", burst {burst}")?;
        }
        write!(f, " ({what})")
    }
}
