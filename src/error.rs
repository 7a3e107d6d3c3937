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
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No answer within the deadline.
    Timeout,
    /// The caller's time was over before the store was asked to charge.
    NotAsked,
    /// Nobody to ask.
    Unreachable,
    /// An answer that is no decision.
    Store,
    /// More checks at once than can wait.
    Overloaded,
    /// No room for one more budget.
    Full,
    /// A batch that no store can decide.
    Misuse,
}

impl Error {
    /// The store did not answer within its deadline. The charge may have happened.
    #[must_use]
    pub fn timeout() -> Self {
        Self { kind: Kind::Timeout, source: None }
    }

    /// The caller's time was over before the store charged anything.
    pub(crate) const fn not_asked() -> Self {
        Self { kind: Kind::NotAsked, source: None }
    }

    /// The store could not be reached. Nothing was charged.
    pub fn unreachable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Unreachable, source: Some(source.into()) }
    }

    /// The store answered with an error, or with something that is no decision, or its answer was
    /// lost on the way. The charge may have happened.
    pub fn store(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Store, source: Some(source.into()) }
    }

    /// So many checks wait for the store, `max_waiting` of them, that one more would only wait in
    /// vain. Nothing was charged.
    #[must_use]
    pub fn overloaded(max_waiting: usize) -> Self {
        let source = format!("{max_waiting} checks wait for their turn already");
        Self { kind: Kind::Overloaded, source: Some(source.into()) }
    }

    /// The store has no room to remember one more budget. Nothing was charged.
    pub fn full(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Full, source: Some(source.into()) }
    }

    /// The batch cannot be decided by any store. Nothing was charged.
    pub fn misuse(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Misuse, source: Some(source.into()) }
    }

    /// Whether the store did not answer within its deadline, or the caller's.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind, Kind::Timeout | Kind::NotAsked)
    }

    /// Whether the store could not be reached.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.kind == Kind::Unreachable
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
    pub fn may_have_charged(&self) -> bool {
        matches!(self.kind, Kind::Timeout | Kind::Store)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Timeout => "the rate limit store did not answer within its deadline",
            Kind::NotAsked => "the wait ended before the rate limit store charged anything",
            Kind::Unreachable => "the rate limit store could not be reached",
            Kind::Store => "the rate limit store did not answer with a decision",
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
