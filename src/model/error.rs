//! Errors of deciding.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Limit;
use crate::units::ConfigError;

/// A failed call of a store, such as a check that it did not decide.
///
/// A denial is never an error. It is a [`Decision`](crate::Decision). You choose whether to fail
/// open or closed. [`Limit::with_on_store_failure`](crate::Limit::with_on_store_failure) sets
/// that, and for the tower layer `RateLimitLayer::on_store_failure`.
pub struct Error {
    kind: ErrorKind,
    may_have_charged: bool,
    goes_elsewhere: bool,
    /// The time until an open circuit breaker probes.
    probe_after_ms: u32,
    /// The limit of the check that failed, if the store said so.
    limit: Option<Limit>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorKind {
    /// No answer within the deadline.
    Timeout,
    /// The circuit breaker is open, so the store was not asked.
    CircuitOpen,
    /// No connection to the store.
    Unreachable,
    /// The answer was invalid or lost.
    Store,
    /// The store answered that it cannot decide for now.
    Declined,
    /// The maximum of queued and in-flight checks is reached.
    Overloaded,
    /// No room for one more budget.
    Full,
    /// A group that no store can decide, or a call outside a tokio runtime.
    Misuse,
    /// A configuration that a call reads or writes is invalid.
    Configuration,
}

impl Error {
    const fn new(kind: ErrorKind, may_have_charged: bool) -> Self {
        Self {
            kind,
            may_have_charged,
            goes_elsewhere: false,
            probe_after_ms: 0,
            limit: None,
            source: None,
        }
    }

    fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    /// Creates the error that the store did not answer within its deadline. Units may have been
    /// charged.
    #[must_use]
    pub const fn timeout() -> Self {
        Self::new(ErrorKind::Timeout, true)
    }

    /// Creates the error that the store's deadline, or the caller's, expired before the check was
    /// sent. Nothing was charged.
    pub(crate) const fn timeout_unsent() -> Self {
        Self::new(ErrorKind::Timeout, false)
    }

    /// The same error, with the server's address.
    pub(crate) fn at_server(self, server: &str) -> Self {
        self.because(format!("Redis at {server}"))
    }

    /// The same error, of a check under this limit.
    pub(crate) fn of_limit(mut self, limit: &Limit) -> Self {
        self.limit = Some(limit.clone());
        self
    }

    /// The limit of the check that failed, if the store named one.
    pub(crate) const fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    /// The same error, marked if the call's connection ended or its server no longer has the keys.
    /// The next call then goes to another connection.
    pub(crate) const fn going_elsewhere(mut self, goes_elsewhere: bool) -> Self {
        self.goes_elsewhere = goes_elsewhere;
        self
    }

    /// Returns whether the same call may soon succeed on another connection.
    pub(crate) const fn goes_elsewhere(&self) -> bool {
        self.goes_elsewhere
    }

    /// The same error, of an operation that may have charged units.
    pub(crate) const fn that_may_have_charged(mut self) -> Self {
        self.may_have_charged = true;
        self
    }

    /// Creates the error that the circuit breaker is open. Nothing was charged. It is made for each
    /// check of an outage, so it needs no allocation.
    pub(crate) fn circuit_open(probe_after: Duration) -> Self {
        let probe_after_ms = u32::try_from(probe_after.as_millis()).unwrap_or(u32::MAX);
        Self {
            probe_after_ms,
            ..Self::new(ErrorKind::CircuitOpen, false)
        }
    }

    /// Creates the error that the store is unreachable. Nothing was charged.
    pub fn unreachable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Unreachable, false).because(source)
    }

    /// Creates the error that the store's answer was invalid or lost. Units may have been charged.
    pub fn store(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Store, true).because(source)
    }

    /// Creates the error that the store answered that it cannot decide for now. A Redis that is out
    /// of memory or still loading does so. Nothing was charged.
    pub fn declined(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Declined, false).because(source)
    }

    /// Creates the error that the queue of `max_waiting` checks is full. Nothing was charged.
    #[must_use]
    pub fn overloaded(max_waiting: usize) -> Self {
        Self::new(ErrorKind::Overloaded, false)
            .because(format!("the queue of {max_waiting} checks is full"))
    }

    /// Creates the error that the store has no room for one more budget. Nothing was charged.
    pub fn full(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Full, false).because(source)
    }

    /// Creates the error that the call is invalid, such as one with an empty group. Nothing was
    /// charged.
    pub fn misuse(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Misuse, false).because(source)
    }

    /// Returns whether the store is unavailable. It timed out, was unreachable, declined, its
    /// answer was invalid or lost, or its circuit breaker is open.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        use ErrorKind::{CircuitOpen, Declined, Store, Timeout, Unreachable};
        matches!(
            self.kind,
            Timeout | CircuitOpen | Unreachable | Store | Declined
        )
    }

    /// Returns whether the store was not asked, because its [circuit
    /// breaker](crate::store::BreakerSettings) is open.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn is_circuit_open(&self) -> bool {
        self.kind == ErrorKind::CircuitOpen
    }

    /// The time until the store is probed, if its circuit breaker is open. Before that, no check is
    /// decided.
    #[must_use]
    pub fn probe_after(&self) -> Option<Duration> {
        (self.kind == ErrorKind::CircuitOpen)
            .then(|| Duration::from_millis(self.probe_after_ms.into()))
    }

    /// Returns whether the store did not answer within its deadline, or the caller's.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.kind == ErrorKind::Timeout
    }

    /// Returns whether the store was unreachable.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.kind == ErrorKind::Unreachable
    }

    /// Returns whether the store answered that it cannot decide for now.
    #[must_use]
    pub fn is_declined(&self) -> bool {
        self.kind == ErrorKind::Declined
    }

    /// Returns whether the maximum of checks was queued or in flight.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.kind == ErrorKind::Overloaded
    }

    /// Returns whether the store had no room for one more budget.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind == ErrorKind::Full
    }

    /// Returns whether the call was invalid, such as a group with a budget twice, or a call to
    /// Redis outside a tokio runtime.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(self.kind, ErrorKind::Misuse | ErrorKind::Configuration)
    }

    /// The cause, in one word, as the label `cause` of metrics. `timeout`, `circuit_open`,
    /// `unreachable`, `invalid_answer`, `declined`, `overloaded`, `full` or `misuse`.
    #[must_use]
    pub const fn cause(&self) -> &'static str {
        match self.kind {
            ErrorKind::Timeout => "timeout",
            ErrorKind::CircuitOpen => "circuit_open",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Store => "invalid_answer",
            ErrorKind::Declined => "declined",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Full => "full",
            ErrorKind::Misuse | ErrorKind::Configuration => "misuse",
        }
    }

    /// Returns whether units may have been charged without a decision. A charge with a lost
    /// answer is never sent again.
    #[must_use]
    pub const fn may_have_charged(&self) -> bool {
        self.may_have_charged
    }
}

/// A conversion into a [`Group`](crate::store::Group) that cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Error {
    /// A call outside of a tokio runtime.
    pub(crate) fn outside_of_runtime(error: impl fmt::Display) -> Self {
        Self::misuse(format!(
            "{error}; call it from async code, or enter a `tokio::runtime::Handle` before"
        ))
    }

    /// The same error, for another caller of the same call.
    pub(crate) fn repeated(&self) -> Self {
        Self {
            limit: self.limit.clone(),
            source: self.source.clone(),
            ..*self
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (ErrorKind::Configuration, Some(source)) = (self.kind, &self.source) {
            return write!(f, "{source}");
        }
        f.write_str(match self.kind {
            ErrorKind::Timeout if self.may_have_charged => {
                "the rate limit store did not answer within its deadline"
            }
            ErrorKind::Timeout => "the deadline expired before the check was sent",
            ErrorKind::CircuitOpen => {
                "the circuit breaker is open: the rate limit store did not answer earlier checks"
            }
            ErrorKind::Unreachable => "the rate limit store is unreachable",
            ErrorKind::Store => "the rate limit store's answer was lost or invalid",
            ErrorKind::Declined => "the rate limit store declined the check",
            ErrorKind::Overloaded => "the rate limit store is overloaded",
            ErrorKind::Full => "the rate limit store is full",
            ErrorKind::Misuse | ErrorKind::Configuration => "invalid call of the rate limit store",
        })?;
        if let Some(limit) = &self.limit {
            write!(f, " for limit `{}`", limit.name().escape_debug())?;
        }
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

/// An error of calls that read or write a configuration.
impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        let kind = match error.is_of_server() {
            true => ErrorKind::Unreachable,
            false => ErrorKind::Configuration,
        };
        Self::new(kind, false).because(error)
    }
}

/// The message without quotes, because a `main` that returns this error prints it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // This message contains the source's, so the chain goes on with the source's own source.
        self.source.as_deref().and_then(StdError::source)
    }
}
