//! Overrides: exceptions for one key under a limit.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::limit::{check_name, check_quota};
use super::{Key, Limit};
use crate::units::{ConfigError, Quota, Timestamp};

/// The most overrides of a limiter, or of a store.
pub(crate) const MAX_OVERRIDES: usize = 100_000;

/// The time from 1970 on at which the year 9999 ends.
const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

/// The longest author, reason and text for clients, in bytes.
const LONGEST: usize = 200;

/// An exception for one key under a limit, such as a larger quota for a week.
///
/// An override applies to the limit of a name, whatever plan the key has. It
/// ends at a time, or stands until it is removed. [`Overrides`](crate::overrides::Overrides) has
/// the overrides of a limiter.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
/// use tollgate::overrides::Override;
///
/// let raised = Override::quota("api", "acme", Quota::per_minute(1_000))
///     .lasting(Duration::from_secs(7 * 24 * 60 * 60))
///     .with_author("maria")
///     .with_reason("launch of their shop");
/// assert_eq!(raised.to_string(), "1000 per 1m");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an override has no effect until it is set"]
pub struct Override {
    limit: Box<str>,
    key: Key,
    effect: OverrideEffect,
    until: Option<Timestamp>,
    author: Option<Box<str>>,
    reason: Option<Box<str>>,
}

/// The effect of an [`Override`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrideEffect {
    /// The key has this quota. Units that it used stay used.
    Quota(Quota),
    /// The key may have this many requests in flight, under a [concurrency
    /// limit](crate::Limit::concurrency).
    Permits(u32),
    /// The limit does not apply to the key. Nothing is charged.
    Unlimited,
    /// All checks of the key are denied. A layer answers 403 with this text.
    Denied(String),
}

impl Override {
    /// Gives a key another quota under the limit of this name. If the limit has a month, or another
    /// window of the calendar, and so has this quota, the limit's start and time zone stand.
    pub fn quota(limit: &str, key: impl Into<Key>, quota: Quota) -> Self {
        Self::new(limit, key.into(), OverrideEffect::Quota(quota))
    }

    /// Gives a key another number of permits under the concurrency limit of this name: 1 to
    /// 1,000,000.
    pub fn permits(limit: &str, key: impl Into<Key>, permits: u32) -> Self {
        Self::new(limit, key.into(), OverrideEffect::Permits(permits))
    }

    /// Exempts a key from the limit of this name. Its requests are neither charged nor counted.
    pub fn unlimited(limit: &str, key: impl Into<Key>) -> Self {
        Self::new(limit, key.into(), OverrideEffect::Unlimited)
    }

    /// Denies all checks of a key under the limit of this name. A layer answers 403, and the text
    /// is for the client. For direct calls and in [`Usage`](crate::decision::Usage), the key counts
    /// as blocked until the override ends, and for 366 days if it has no end.
    pub fn denied(limit: &str, key: impl Into<Key>, text: impl Into<String>) -> Self {
        Self::new(limit, key.into(), OverrideEffect::Denied(text.into()))
    }

    pub(crate) fn new(limit: &str, key: Key, effect: OverrideEffect) -> Self {
        Self {
            limit: limit.into(),
            key,
            effect,
            until: None,
            author: None,
            reason: None,
        }
    }

    /// Sets the time at which the override ends, by the clock of each process. Default: it stands
    /// until it is removed, as it does for an end after the year 9999.
    pub fn until(mut self, end: SystemTime) -> Self {
        let since_epoch = end.duration_since(SystemTime::UNIX_EPOCH);
        let since_epoch = since_epoch.unwrap_or_default();
        // Later times cannot be written.
        self.until = (since_epoch < YEAR_10000).then(|| Timestamp::from(since_epoch));
        self
    }

    /// Ends the override after this time, from now on.
    pub fn lasting(self, length: Duration) -> Self {
        match SystemTime::now().checked_add(length) {
            Some(end) => self.until(end),
            None => self,
        }
    }

    /// Notes the operator who set it. At most 200 bytes.
    pub fn with_author(mut self, author: impl Into<String>) -> Self {
        self.author = Some(author.into().into());
        self
    }

    /// Notes the reason, for operators. Clients do not get it. At most 200 bytes.
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into().into());
        self
    }

    /// The name of the limit.
    #[must_use]
    pub fn limit_name(&self) -> &str {
        &self.limit
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The effect.
    #[must_use]
    pub const fn effect(&self) -> &OverrideEffect {
        &self.effect
    }

    /// The time at which it ends. `None` if it stands until it is removed.
    #[must_use]
    pub fn ends_at(&self) -> Option<SystemTime> {
        let end = self.until?.since_epoch();
        SystemTime::UNIX_EPOCH.checked_add(end)
    }

    /// Returns whether it has ended.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|end| now >= end)
    }

    /// The operator who set it.
    #[must_use]
    pub fn author(&self) -> Option<&str> {
        self.author.as_deref()
    }

    /// The reason, for operators.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    pub(crate) const fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// Checks the fields that do not depend on the limit.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check_name(&self.limit)?;
        match &self.effect {
            OverrideEffect::Quota(quota) => check_override_quota(quota)?,
            OverrideEffect::Permits(permits) => drop(Limit::concurrency(&self.limit, *permits)?),
            OverrideEffect::Unlimited | OverrideEffect::Denied(_) => {}
        }
        let text = match &self.effect {
            OverrideEffect::Denied(text) => Some(text.as_str()),
            _ => None,
        };
        check_text("the author", self.author())?;
        check_text("the reason", self.reason())?;
        check_text("the text for clients", text)
    }
}

fn check_override_quota(quota: &Quota) -> Result<(), ConfigError> {
    check_quota(quota)?;
    match quota.has_start_or_zone() {
        true => Err(start_of_override()),
        false => Ok(()),
    }
}

pub(crate) fn start_of_override() -> ConfigError {
    let error = "the quota of an override cannot have a start or a time zone, because the limit \
                 has them; leave them out";
    ConfigError::new(error).at("quota")
}

fn check_text(what: &str, text: Option<&str>) -> Result<(), ConfigError> {
    let Some(text) = text else {
        return Ok(());
    };
    let length = text.len();
    if length == 0 || length > LONGEST || text.chars().any(char::is_control) {
        return Err(ConfigError::new(format!(
            "{what} has {length} bytes; use 1 to {LONGEST}, on one line, without control characters"
        )));
    }
    Ok(())
}

/// The effect, in words.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.effect.fmt(f)
    }
}

impl fmt::Display for OverrideEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(quota) => quota.fmt(f),
            Self::Permits(permits) => write!(f, "{permits} at once"),
            Self::Unlimited => f.write_str("unlimited"),
            Self::Denied(_) => f.write_str("denied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_more_than_a_line_is_an_error_that_names_it() {
        let raised = || Override::unlimited("api", "acme");
        assert_eq!(raised().with_reason("x".repeat(200)).validate(), Ok(()));
        let wrong = [
            (raised().with_reason("x".repeat(201)), "the reason has 201"),
            (raised().with_author(""), "the author has 0 bytes"),
            (raised().with_author("a\nb"), "the author has 3 bytes"),
            (Override::denied("api", "acme", ""), "the text for clients"),
            (Override::unlimited("a\"b", "acme"), "the name does not fit"),
            (
                Override::quota("api", "acme", Quota::per_minute(0)),
                "the limit is 0",
            ),
            (Override::permits("api", "acme", 0), "1 to 1000000"),
        ];
        for (wrong, expected) in wrong {
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn override_is_over_at_its_end() {
        let second = Duration::from_secs(1);
        let raised = || Override::unlimited("api", "acme");
        let now = Timestamp::EPOCH.or_now();
        assert!(!raised().is_over(now));
        assert!(!raised().lasting(second * 60).is_over(now));
        assert!(!raised().lasting(Duration::MAX).is_over(now));
        assert_eq!(raised().lasting(YEAR_10000).ends_at(), None);
        let at = SystemTime::UNIX_EPOCH + now.since_epoch();
        assert!(raised().until(at).is_over(now));
        assert!(!raised().until(at + second).is_over(now));
        assert!(raised().until(SystemTime::UNIX_EPOCH - second).is_over(now));
    }
}
