//! Limits: a name, a quota and an algorithm.

// The documentation has the methods in the order of these groups.
mod constructors;

mod settings;

mod asynchronous;
mod block;

#[cfg(feature = "serde")]
mod config;
mod enforced;
mod overridden;
mod range;
mod share;
#[cfg(feature = "serde")]
mod written;

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use self::asynchronous::ChargeTime;
#[cfg(feature = "config")]
pub(crate) use self::block::BlockFields;
pub use self::block::BlockPolicy;
#[cfg(feature = "config")]
pub(crate) use self::config::LimitFields;
pub(crate) use self::enforced::Enforced;
pub(super) use self::range::{check_name, check_quota};
#[cfg(feature = "config")]
pub(crate) use self::written::{Written, WrittenStart};
use super::OnStoreFailure;
use crate::algorithm::offences::Blocking;
use crate::algorithm::{Anchor, FixedWindow, Flavour, Mode, Rule, SlidingWindow};
use crate::units::{ConfigError, Quota};

/// A name, a quota and an algorithm (the quota policy of the IETF draft).
///
/// The name is part of the key in the store, and fits into an HTTP header. It has 1 to 64 printable
/// ASCII characters without `"` and `\`, and no space at the start or end.
///
/// # Kinds
///
/// Two limits share the budgets of their keys if they have the same name and the same kind of
/// state. The token bucket, the leaky bucket and GCRA have one kind of state. The fixed window, the
/// sliding window, the sliding log and the concurrency limit have one each. A change of the
/// algorithm within a kind keeps the consumed units. Two algorithms of different kinds can be in
/// use under one name, as in a rolling deployment. Then each counts its own checks, and together
/// they allow at most the sum of both limits.
///
/// # Algorithms
///
/// | algorithm | use it for | guarantee | state in Redis |
/// |---|---|---|---|
/// | [`token_bucket`](Self::token_bucket) | APIs: a burst, then a rate | at most `burst + rate * t` in any time `t` | one small string |
/// | [`gcra`](Self::gcra) | the same, as a schedule | the same | one small string |
/// | [`leaky_bucket`](Self::leaky_bucket) | smoothing calls to a slow service | requests leave evenly, each after its `delay` | one small string |
/// | [`sliding_window`](Self::sliding_window) | "n per period" without the jump at the border | even traffic: at most n; any traffic: at most 2 n | one small string |
/// | [`sliding_log`](Self::sliding_log) | contracts: exactly n in any period | at most `limit` in any window | 2 to 13 bytes a request |
/// | [`fixed_window`](Self::fixed_window) | quotas an hour or a day | at most `limit` in each window | one small string |
/// | [`concurrency`](Self::concurrency) | slow endpoints, streams, jobs | at most `limit` at once | 31 bytes, and 40 for each replica |
///
/// The constructors check all numbers, so every store decides your `Limit` exactly.
///
/// A concurrency limit says how many requests of a key may be in flight, and the others how many
/// may start in a time. A charge is final. Under a concurrency limit, a request in flight holds a
/// [`Permit`](crate::Permit), and gives it back.
///
/// # Configuration
///
/// With serde, a limit is its own configuration format, with the fields that it has in a [file of
/// limits](crate::guide::limit_files). Unknown fields and fields of another algorithm are also
/// errors.
///
/// ```
/// use tollgate::{Limit, Quota};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limit: Limit = serde_json::from_str(
///     r#"{"name":"login","algorithm":"gcra","quota":"5/15m","burst":10}"#,
/// )?;
/// assert_eq!(limit, Limit::gcra("login", "5/15m".parse::<Quota>()?.burst(10))?);
/// # Ok(())
/// # }
/// ```
///
/// | field | of | default |
/// |---|---|---|
/// | `name`, `algorithm` | all | none: they are required |
/// | `quota`, such as `"5/15m"`: [units per period](Quota#as-text) | all but `concurrency` | none: it is required |
/// | `limit`, such as `3` | `concurrency` | none: it is required |
/// | `retry_after`, such as `"10s"`: [advice](Self::with_retry_after) | `concurrency` | `"1s"` |
/// | `starts`, such as `15` or `"monday"`, and `time_zone`, such as `"Europe/Berlin"`: [the start of a calendar window](crate::guide::calendar) | `fixed_window` | the first day, 00:00, UTC |
/// | `burst` | `token_bucket`, `leaky_bucket`, `gcra` | the units of the quota |
/// | `sub_windows` | `sliding_window` | 1 |
/// | `mode`: `queue` or `meter` | `leaky_bucket` | `queue` |
/// | `anchor`: `first` or `clock` | `fixed_window` | `first` |
/// | `on_store_failure`: [`OnStoreFailure`](crate::limit::OnStoreFailure) | all | the layer's |
/// | `shadow_percent`: [percent of keys in shadow mode](Self::with_shadow_percent) | all | 0 |
/// | `asynchronous`: [whether replicas decide without waiting](Self::asynchronous) | `fixed_window` | false |
/// | `overshoot_percent`: [the same, and up to so many percent above the limit](Self::with_overshoot_percent) | `token_bucket`, `gcra`, `leaky_bucket` as a meter, `sliding_window`, `sliding_log` | checks wait |
/// | `max_debt`: [units](Self::with_max_debt) | all but `concurrency` | no bound |
/// | `warn_at_percent`: [when a key is near the limit](Self::with_warn_at_percent) | all but `concurrency` | never |
/// | `block`: [when keys are blocked](Self::with_block_policy), such as `{"after": "20/5min", "for": "10m", "factor": 2, "max": "1d"}`. Without `after`, only operators block | all but `concurrency` | no key is blocked |
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(try_from = "config::LimitFields", into = "config::LimitFields")
)]
#[must_use = "a limit does nothing until it is checked"]
pub struct Limit {
    shared: Arc<Definition>,
}

/// The `Retry-After` of a request without a permit.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The parts of a limit, which all of its clones share.
///
/// The counts of an `Arc` stand before its value. The alignment puts them on another cache line, so
/// that counting does not slow down readers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Definition {
    name: Box<str>,
    /// The hash of the name and the kind. Hashed once, because stores hash a budget for each check.
    budget_hash: u64,
    quota: Quota,
    rule: Rule,
    on_store_failure: Option<OnStoreFailure>,
    /// A replica's share, for [`OnStoreFailure::Local`]. Its settings follow the limit's.
    share: Option<Limit>,
    enforced: Enforced,
    /// `None` if each check waits for the store.
    asynchronous: Option<ChargeTime>,
    /// In units.
    max_debt: Option<u64>,
    warn_at_percent: Option<u8>,
    /// The policy, with its numbers.
    block: Option<(BlockPolicy, Blocking)>,
    /// The `Retry-After` of a concurrency limit.
    retry_after: Duration,
    /// `true` if the requests that it denies are shed load, because the server is busy, not the
    /// client.
    sheds_load: bool,
    /// Set for the limit of a key with an override. Boxed, so that it does not move the fields that
    /// each check reads to another cache line.
    applied_override: Option<Box<AppliedOverride>>,
}

/// The override that a limit has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AppliedOverride {
    /// The limit without it.
    plain: Limit,
    /// The text for a client that it denies.
    denial: Option<String>,
}

/// The algorithm of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum Algorithm {
    /// A fixed window. See [`Limit::fixed_window`].
    FixedWindow,
    /// A sliding window. See [`Limit::sliding_window`].
    SlidingWindow,
    /// A sliding log. See [`Limit::sliding_log`].
    SlidingLog,
    /// A token bucket. See [`Limit::token_bucket`].
    TokenBucket,
    /// A leaky bucket. See [`Limit::leaky_bucket`].
    LeakyBucket,
    /// The generic cell rate algorithm. See [`Limit::gcra`].
    Gcra,
    /// A concurrency limit. See [`Limit::concurrency`].
    Concurrency,
}

impl Algorithm {
    /// The name in a configuration file, such as `token_bucket`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Gcra => "gcra",
            Self::Concurrency => "concurrency",
        }
    }
}

impl Limit {
    fn new(
        name: &str,
        quota: Quota,
        rule: impl FnOnce(&Quota) -> Result<Rule, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let rule = check_name(name)
            .and_then(|()| check_quota(&quota))
            .and_then(|()| rule(&quota).map_err(|error| error.at("quota")))
            .map_err(|error| error.of_limit(name))?;
        Ok(Self::of_rule(name, quota, rule))
    }

    fn of_rule(name: &str, quota: Quota, rule: Rule) -> Self {
        let definition = Definition {
            name: name.into(),
            budget_hash: BuildHasherDefault::<DefaultHasher>::default()
                .hash_one((name, rule.kind())),
            quota,
            rule,
            on_store_failure: None,
            share: None,
            enforced: Enforced::default(),
            asynchronous: None,
            max_debt: None,
            warn_at_percent: None,
            block: None,
            retry_after: DEFAULT_RETRY_AFTER,
            sheds_load: false,
            applied_override: None,
        };
        Self {
            shared: Arc::new(definition),
        }
    }

    /// Changes a setting. The share of a replica is derived last, so the order of setters does not
    /// matter.
    fn with(self, set: impl FnOnce(&mut Definition)) -> Self {
        let mut definition = (*self.shared).clone();
        set(&mut definition);
        let share = definition.share.take();
        definition.share = share.map(|share| share::with_settings_of(&definition, &share));
        Self {
            shared: Arc::new(definition),
        }
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The limit's quota.
    pub fn quota(&self) -> Quota {
        self.shared.quota
    }

    /// The limit's algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.rule() {
            Rule::FixedWindow(_) => Algorithm::FixedWindow,
            Rule::SlidingWindow(_) => Algorithm::SlidingWindow,
            Rule::SlidingLog(_) => Algorithm::SlidingLog,
            Rule::Bucket(rule) => match rule.flavour {
                Flavour::TokenBucket => Algorithm::TokenBucket,
                Flavour::LeakyBucket(_) => Algorithm::LeakyBucket,
                Flavour::Gcra => Algorithm::Gcra,
            },
            Rule::Concurrency(_) => Algorithm::Concurrency,
        }
    }

    /// The hash of the part of a budget that is the limit's: the name and the kind.
    #[inline]
    pub(crate) fn budget_hash(&self) -> u64 {
        self.shared.budget_hash
    }

    /// Returns whether this limits the requests in flight, by permits, and charges no budget.
    #[inline]
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.rule(), Rule::Concurrency(_))
    }

    /// The same limit, whose denials say that the server is busy, and not the client.
    pub(crate) fn shedding_load(self) -> Self {
        self.with(|limit| limit.sheds_load = true)
    }

    /// Returns whether the requests that it denies are shed load.
    pub(crate) fn sheds_load(&self) -> bool {
        self.shared.sheds_load
    }

    /// The most permits of a key of a concurrency limit.
    pub(crate) fn permits(&self) -> u32 {
        match self.rule() {
            Rule::Concurrency(rule) => rule.limit(),
            _ => 0,
        }
    }

    /// The letter of its kind of state in a key of Redis. Tools use
    /// [`redis_key`](crate::RedisStore::redis_key).
    #[doc(hidden)]
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.rule().kind()
    }

    /// Returns whether checks of one key under both limits charge the same budget.
    #[inline]
    pub(crate) fn shares_budgets_with(&self, other: &Self) -> bool {
        // The fast path, without a comparison of names.
        self.is_clone_of(other) || (self.name() == other.name() && self.kind() == other.kind())
    }

    /// Returns whether one of two limits was cloned from the other. If not, they may be equal all
    /// the same.
    #[inline]
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns whether two limits make the same decisions, even if their quotas are written
    /// differently.
    #[inline]
    pub(crate) fn decides_as(&self, other: &Self) -> bool {
        self.is_clone_of(other) || self.rule() == other.rule()
    }

    /// Returns whether a check that waits reserves its units. See
    /// [`Check::with_max_wait`](crate::Check::with_max_wait).
    pub(crate) fn reserves(&self) -> bool {
        self.rule().reserves()
    }

    /// Returns whether an allowed check has a delay until its turn, as in the queue of a leaky
    /// bucket.
    pub(crate) fn queues(&self) -> bool {
        self.rule().queues()
    }

    /// The time in which a bucket refills so many units. Zero for other algorithms.
    pub(crate) fn refill_time(&self, units: u64) -> Duration {
        Duration::from_micros(self.rule().refill_time(units))
    }

    pub(crate) fn rule(&self) -> &Rule {
        &self.shared.rule
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.is_clone_of(other) || self.shared == other.shared
    }
}

impl Eq for Limit {}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({}: {self})", self.name())
    }
}

/// So that a layer takes what the constructors of a limit return.
impl TryFrom<Result<Self, ConfigError>> for Limit {
    type Error = ConfigError;

    fn try_from(built: Result<Self, ConfigError>) -> Result<Self, ConfigError> {
        built
    }
}

impl fmt::Display for Limit {
    /// The quota, the algorithm, shadow mode, decisions without waiting, and blocks, in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quota().fmt(f)?;
        self.write_algorithm(f)?;
        self.shared.enforced.fmt(f)?;
        match self.overshoot_percent() {
            0 if self.is_asynchronous() => f.write_str(", asynchronous")?,
            0 => {}
            percent => write!(f, ", asynchronous with an overshoot of {percent} %")?,
        }
        match self.block_policy() {
            Some(policy) => write!(f, ", {policy}"),
            None => Ok(()),
        }
    }
}

impl Limit {
    fn write_algorithm(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.rule() {
            Rule::FixedWindow(FixedWindow {
                anchor: Anchor::First | Anchor::Calendar(_),
                ..
            }) => " (fixed window)",
            Rule::FixedWindow(_) => " (fixed window aligned to the clock)",
            Rule::SlidingWindow(SlidingWindow { sub_windows, .. }) => {
                let s = if *sub_windows == 1 { "" } else { "s" };
                return write!(f, " (sliding window of {sub_windows} sub-window{s})");
            }
            Rule::SlidingLog(_) => " (sliding log)",
            Rule::Bucket(rule) => match rule.flavour {
                Flavour::TokenBucket => " (token bucket)",
                Flavour::LeakyBucket(Mode::Queue) => " (leaky bucket)",
                Flavour::LeakyBucket(Mode::Meter) => " (leaky bucket as a meter)",
                Flavour::Gcra => " (GCRA)",
            },
            Rule::Concurrency(_) => "",
        })
    }
}
