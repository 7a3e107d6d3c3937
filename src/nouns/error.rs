//! What can go wrong: when something is built, and when something is decided.

use std::error::Error as StdError;
use std::fmt;

/// A limit, a layer or a store that cannot be built, and why.
///
/// The message names the part that is wrong, says why it is, and what to do.
///
/// ```
/// use tollgate::{Limit, Quota};
///
/// let error = Limit::fixed_window("api", Quota::per_second(10).burst(20)).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "limit `api`: a fixed window has no burst: it holds exactly the quota's limit; \
///      leave the burst out, or use a token bucket or GCRA"
/// );
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// The same error, about a named limit.
    pub(crate) fn of_limit(self, name: &str) -> Self {
        Self::new(format!("limit `{}`: {}", name.escape_debug(), self.message))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The message as it is: this is what a `main` that returns it prints.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for ConfigError {}

/// A check that could not be decided.
///
/// This is never a refusal: a refusal is a [`Decision`](crate::Decision). What to do about it is
/// the caller's choice; the tower layer's is `RateLimitLayer::on_store_failure`.
pub struct Error {
    kind: Kind,
    may_have_charged: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No answer within the deadline.
    Timeout,
    /// No connection to the store.
    Unreachable,
    /// An answer that is no decision, or a lost one.
    Store,
    /// The store answered that it does not decide at the moment.
    Declined,
    /// More checks at once than can wait.
    Overloaded,
    /// No room for one more budget.
    Full,
    /// A batch that no store can decide.
    Misuse,
}

impl Error {
    const fn new(kind: Kind, may_have_charged: bool) -> Self {
        Self { kind, may_have_charged, source: None }
    }

    fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The store did not answer within its deadline. The charge may have happened.
    #[must_use]
    pub const fn timeout() -> Self {
        Self::new(Kind::Timeout, true)
    }

    /// The deadline, or the caller's time, was over before the check was sent. Nothing was charged.
    pub(crate) const fn timeout_unsent() -> Self {
        Self::new(Kind::Timeout, false)
    }

    /// The same timeout, of a server that it names.
    #[cfg(feature = "redis")]
    pub(crate) fn of(self, server: &str) -> Self {
        self.because(format!("Redis at {server}"))
    }

    /// The store could not be reached. Nothing was charged.
    pub fn unreachable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Kind::Unreachable, false).because(source)
    }

    /// The store answered with something that is no decision, or its answer was lost. The charge
    /// may have happened.
    pub fn store(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Kind::Store, true).because(source)
    }

    /// The store answered that it does not decide at the moment, as a Redis that is out of memory
    /// or still loading. Nothing was charged.
    pub fn declined(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Kind::Declined, false).because(source)
    }

    /// As many checks as may wait for an answer, `max_waiting`, wait already. Nothing was charged.
    #[must_use]
    pub fn overloaded(max_waiting: usize) -> Self {
        Self::new(Kind::Overloaded, false)
            .because(format!("{max_waiting} checks wait for an answer already"))
    }

    /// The store has no room to remember one more budget. Nothing was charged.
    pub fn full(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Kind::Full, false).because(source)
    }

    /// The batch cannot be decided by any store. Nothing was charged.
    pub fn misuse(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Kind::Misuse, false).because(source)
    }

    /// Whether the store is unavailable: it timed out, could not be reached, declined, or answered
    /// with something that is no decision.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self.kind, Kind::Timeout | Kind::Unreachable | Kind::Store | Kind::Declined)
    }

    /// Whether the store did not answer within its deadline, or the caller's.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::Timeout
    }

    /// Whether the store could not be reached.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.kind == Kind::Unreachable
    }

    /// Whether the store answered that it does not decide at the moment.
    #[must_use]
    pub fn is_declined(&self) -> bool {
        self.kind == Kind::Declined
    }

    /// Whether too many checks waited for the store.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.kind == Kind::Overloaded
    }

    /// Whether the store had no room to remember one more budget.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Whether the check itself was wrong, as one that names the same budget twice.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        self.kind == Kind::Misuse
    }

    /// Whether the units may have been charged although no decision came back. A charge whose
    /// answer was lost is never sent again.
    #[must_use]
    pub const fn may_have_charged(&self) -> bool {
        self.may_have_charged
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Timeout if self.may_have_charged => {
                "the rate limit store did not answer within its deadline"
            }
            Kind::Timeout => "the deadline was over before the check was sent",
            Kind::Unreachable => "the rate limit store could not be reached",
            Kind::Store => "the rate limit store did not answer with a decision",
            Kind::Declined => "the rate limit store does not decide at the moment",
            Kind::Overloaded => "the rate limit store is overloaded",
            Kind::Full => "the rate limit store has no room for another budget",
            Kind::Misuse => "the check cannot be decided",
        })?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

/// The message as it is: this is what a `main` that returns it prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The source's message is part of this one's, so its own source comes next in the chain.
        self.source.as_deref().and_then(StdError::source)
    }
}
