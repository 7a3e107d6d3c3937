//! When the keys of a limit are blocked.

#[cfg(feature = "serde")]
mod fields;

use std::fmt;
use std::time::Duration;

#[cfg(feature = "serde")]
pub(crate) use self::fields::BlockFields;

use super::Limit;
use crate::algorithm::MAX_PERIOD;
use crate::algorithm::offences::Blocking;
use crate::model::Key;
use crate::units::quota::period;
use crate::units::{ConfigError, Micros, micros};

const MAX_DENIALS: u64 = 1_000_000;
const MAX_FACTOR: u32 = 100;
const DEFAULT_LENGTH: Duration = Duration::from_secs(10 * 60);

/// When a limit blocks a key that keeps being denied, and for how long.
///
/// The denials of a key are counted in the store, in a window that starts with the first one. The
/// denial that reaches `denials` blocks the key, on all replicas. While a key is blocked, all its
/// checks under the limit are denied, and they are not counted. See the guide about
/// [offenders](crate::guide::offenders).
///
/// ```
/// use std::time::Duration;
/// use tollgate::limit::BlockPolicy;
/// use tollgate::{Limit, Quota};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// // After 20 denials in 5 minutes: for 10 minutes, then 20, 40, and so on, up to a day.
/// let policy = BlockPolicy::after(20, Duration::from_secs(5 * 60))
///     .lasting(Duration::from_secs(10 * 60))
///     .growing(2, Duration::from_secs(24 * 60 * 60));
/// let login = Limit::fixed_window("login", Quota::per_minute(5))?.with_block_policy(policy)?;
/// assert_eq!(login.block_policy(), Some(policy));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct BlockPolicy {
    /// `None` means that only operators block.
    denials: Option<u32>,
    within: Duration,
    length: Duration,
    factor: u32,
    longest: Option<Duration>,
}

impl BlockPolicy {
    /// Blocks a key that is denied `denials` times in a window of `within`, which starts with the
    /// first of these denials. Ranges: 1 to 1,000,000 denials, 1 us to 366 days. Use a window that
    /// is several times as long as the period of the limit. A client that retries once or twice a
    /// period is not an offender.
    pub const fn after(denials: u32, within: Duration) -> Self {
        Self {
            denials: Some(denials),
            within,
            length: DEFAULT_LENGTH,
            ..Self::by_operators()
        }
    }

    /// Blocks only the keys that an operator [blocks](crate::RateLimiter::block), which works under
    /// any limit. With this policy, as with any other, replicas answer every check of a blocked key
    /// from memory, for up to ten seconds. Without a policy, they do so only for the identical
    /// check.
    pub const fn by_operators() -> Self {
        Self {
            denials: None,
            within: Duration::ZERO,
            length: Duration::ZERO,
            factor: 1,
            longest: None,
        }
    }

    /// Sets the length of the first block. Default: 10 minutes. Range: 1 us to 366 days.
    pub const fn lasting(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Makes each further block longer than the last by a factor, up to `longest`. Range of
    /// `factor`: 1 to 100. Range of `longest`: from the length of the first block to 366 days.
    /// Default: all blocks are equally long.
    ///
    /// If a key stays unblocked for `longest`, its next block has the first length again.
    pub const fn growing(mut self, factor: u32, longest: Duration) -> Self {
        self.factor = factor;
        self.longest = Some(longest);
        self
    }

    /// The number of denials that blocks a key, and the length of the window in which they are
    /// counted. `None` if only operators block.
    #[must_use]
    pub fn denials(&self) -> Option<(u32, Duration)> {
        self.denials.map(|denials| (denials, self.within))
    }

    /// The length of the first block. Zero if only operators block, because they say for how long.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// The factor by which blocks grow, and the length of the longest. `None` if they do not grow.
    #[must_use]
    pub fn growth(&self) -> Option<(u32, Duration)> {
        self.longest.map(|longest| (self.factor, longest))
    }

    /// The denials after which a key is blocked, and the time in which they are counted. Both are 0
    /// if only operators block.
    fn threshold(&self) -> Result<(u32, Micros), ConfigError> {
        if let Some((denials, within)) = self.denials() {
            let within = check_denials(denials.into())
                .and_then(|()| in_range(within, "window of denials"))
                .map_err(|error| error.at("block.after"))?;
            return Ok((denials, within));
        }
        let field = match self.longest {
            Some(_) => "block.factor",
            None if !self.length.is_zero() => "block.for",
            None => return Ok((0, 0)),
        };
        Err(ConfigError::new(
            "keys are only blocked by operators, who say for how long, so no length and no growth \
             counts; remove them, or say after how many denials keys are blocked",
        )
        .at(field))
    }

    /// The numbers of a valid policy.
    fn blocking(&self) -> Result<Blocking, ConfigError> {
        let (denials, within) = self.threshold()?;
        if self.factor == 0 || self.factor > MAX_FACTOR {
            return Err(ConfigError::new(format!(
                "the factor by which blocks grow is {}; use 1 to {MAX_FACTOR}",
                self.factor
            ))
            .at("block.factor"));
        }
        let first = match self.denials {
            Some(_) => self.length,
            None => DEFAULT_LENGTH,
        };
        let length = in_range(first, "first block").map_err(|error| error.at("block.for"))?;
        let longest = in_range(self.longest.unwrap_or(first), "longest block")
            .map_err(|error| error.at("block.max"))?;
        if longest < length {
            return Err(ConfigError::new(format!(
                "the longest block is {}, shorter than the first of {}; use at least that",
                period::write(Duration::from_micros(longest)),
                period::write(first),
            ))
            .at("block.max"));
        }
        Ok(Blocking {
            denials,
            within,
            length,
            factor: self.factor,
            longest,
        })
    }
}

fn check_denials(denials: u64) -> Result<(), ConfigError> {
    match denials {
        1..=MAX_DENIALS => Ok(()),
        _ => Err(ConfigError::new(format!(
            "a key is blocked after {denials} denials; use 1 to {MAX_DENIALS}, or \
             `BlockPolicy::by_operators` (in a file: no `after`)"
        ))),
    }
}

fn in_range(time: Duration, what: &str) -> Result<Micros, ConfigError> {
    let micros = micros(time);
    if micros == 0 || time > MAX_PERIOD || Duration::from_micros(micros) != time {
        let written = match micros {
            0 => "0 s".to_owned(),
            _ if Duration::from_micros(micros) == time => period::write(time),
            _ => format!("{time:?}"),
        };
        return Err(ConfigError::new(format!(
            "the {what} is {written}; use whole microseconds, 1 us to 366 days"
        )));
    }
    Ok(micros)
}

impl fmt::Display for BlockPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((denials, within)) = self.denials() else {
            return f.write_str("blocked by operators");
        };
        let within = period::write(within);
        let length = period::write(self.length);
        write!(
            f,
            "blocked for {length} after {denials} denials in {within}"
        )?;
        match self.growth() {
            Some((factor, longest)) => {
                write!(f, ", growing by {factor} up to {}", period::write(longest))
            }
            None => Ok(()),
        }
    }
}

/// # Blocks
impl Limit {
    /// Blocks keys that keep being denied. Default: only operators
    /// [block](crate::RateLimiter::block) keys.
    ///
    /// The store counts denials. So until a key is blocked, its denials are not answered from
    /// [memory](crate::store::RedisStoreBuilder::deny_for). A key in [shadow
    /// mode](Self::with_shadow_mode) is neither counted nor blocked.
    ///
    /// # Errors
    ///
    /// Returns an error if a number of the policy is out of its range, and for a concurrency limit,
    /// which counts no denials.
    pub fn with_block_policy(self, policy: BlockPolicy) -> Result<Self, ConfigError> {
        self.check_is_rate("block", "it counts no denials")?;
        if self.is_asynchronous() {
            return Err(super::asynchronous::blocks_keys()
                .at("block")
                .of_limit(self.name()));
        }
        let blocking = policy
            .blocking()
            .map_err(|error| error.at("block").of_limit(self.name()))?;
        Ok(self.with(|definition| definition.block = Some((policy, blocking))))
    }

    /// The same limit, without blocks.
    pub(crate) fn without_blocks(&self) -> Self {
        self.clone().with(|definition| definition.block = None)
    }

    /// When the limit blocks keys. `None` if it does not.
    #[must_use]
    pub fn block_policy(&self) -> Option<BlockPolicy> {
        self.shared.block.map(|(policy, _)| policy)
    }

    #[inline]
    pub(crate) fn blocking(&self) -> Option<&Blocking> {
        self.shared.block.as_ref().map(|(_, blocking)| blocking)
    }

    /// How a key is blocked, if the limit does that, and is enforced for the key.
    #[inline]
    pub(crate) fn blocking_of(&self, key: &Key) -> Option<&Blocking> {
        self.blocking().filter(|_| self.enforces(key))
    }

    /// Returns whether denials may block a key.
    pub(crate) fn counts_denials(&self) -> bool {
        self.blocking().is_some_and(|blocking| blocking.denials > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Quota;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn error(policy: BlockPolicy) -> String {
        let limit = Limit::gcra("login", Quota::per_minute(5)).unwrap();
        limit.with_block_policy(policy).unwrap_err().to_string()
    }

    #[test]
    fn policy_out_of_range_is_an_error_that_says_the_range() {
        let policy = BlockPolicy::after(20, MINUTE);
        for (policy, expected) in [
            (
                BlockPolicy::after(0, MINUTE),
                "after 0 denials; use 1 to 1000000",
            ),
            (
                BlockPolicy::after(1_000_001, MINUTE),
                "after 1000001 denials; use 1 to 1000000",
            ),
            (
                BlockPolicy::after(1, Duration::ZERO),
                "the window of denials is 0 s; use whole",
            ),
            (
                BlockPolicy::after(1, DAY * 367),
                "the window of denials is 367d; use whole",
            ),
            (
                policy.lasting(Duration::ZERO),
                "the first block is 0 s; use whole",
            ),
            (
                policy.lasting(Duration::from_nanos(1_500)),
                "the first block is 1.5µs; use whole",
            ),
            (
                policy.growing(0, DAY),
                "the factor by which blocks grow is 0; use 1 to 100",
            ),
            (
                policy.growing(101, DAY),
                "the factor by which blocks grow is 101; use 1 to 100",
            ),
            (
                policy.growing(2, DAY * 367),
                "the longest block is 367d; use whole",
            ),
            (
                BlockPolicy::by_operators().lasting(DAY),
                "only blocked by operators",
            ),
            (
                BlockPolicy::by_operators().lasting(DEFAULT_LENGTH),
                "only blocked by operators",
            ),
            (
                policy.growing(2, MINUTE),
                "the longest block is 1m, shorter than the first of 10m",
            ),
        ] {
            let error = error(policy);
            assert!(
                error.contains("`login`") && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    fn policy_is_written_in_words() {
        let policy = BlockPolicy::after(20, MINUTE);
        assert_eq!(policy.to_string(), "blocked for 10m after 20 denials in 1m");
        assert_eq!(
            policy.growing(2, DAY).to_string(),
            "blocked for 10m after 20 denials in 1m, growing by 2 up to 1d"
        );
        assert_eq!(
            BlockPolicy::by_operators().to_string(),
            "blocked by operators"
        );
    }
}
