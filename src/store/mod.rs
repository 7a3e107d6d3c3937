//! Stores: the places that keep budgets and decide checks.
//!
//! | store | what it is |
//! |---|---|
//! | [`MemoryStore`] | the embedded store: one process, development, your tests |
//! | `RedisStore` | Redis or Valkey, shared by all replicas (feature `redis`) |
//!
//! A store does one thing: it [applies](Store::apply) an [`Operation`], and answers with the
//! decision. A wrapper of a store is a store. To write your own, implement [`Store`] with
//! [`decide`], and run `conformance::check` (feature `test-util`) on it.

mod announcements;
pub(crate) mod answer;
#[cfg(feature = "redis")]
pub(crate) mod asynchronous;
#[cfg(feature = "redis")]
mod breaker;
#[cfg(feature = "test-util")]
pub mod conformance;
#[cfg(feature = "redis")]
mod deny_cache;
pub(crate) mod fingerprint;
mod group;
pub(crate) mod heartbeat;
mod memory;
mod promise;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod table;

pub use self::announcements::{Announcement, Announcements};
pub use self::answer::Answer;
#[cfg(all(feature = "redis", feature = "test-util"))]
#[doc(hidden)]
pub use self::breaker::CircuitBreaker;
#[cfg(feature = "redis")]
pub use self::breaker::{BreakerSettings, BreakerState};
#[cfg(all(feature = "redis", feature = "test-util"))]
#[doc(hidden)]
pub use self::deny_cache::WithDenyCache;
pub use self::group::decide;
pub use self::memory::{MemoryStore, MemoryStoreBuilder};
#[cfg(feature = "tls")]
pub use self::redis::Tls;
#[cfg(feature = "redis")]
pub use self::redis::{Credentials, RedisChannel, RedisStore, RedisStoreBuilder};
pub use crate::algorithm::State;
#[doc(no_inline)]
pub use crate::model::Check;
pub use crate::model::{Budget, Change, Group, Operation};
pub use crate::units::{Claim, Payment};

use std::fmt;
use std::sync::{Arc, Weak};

use crate::model::Limit;
use crate::units::ConfigError;

/// A check that this process cannot decide, so that the store has to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotHere {
    /// Set if its key has no account in this process, and gets none with the store's answer.
    pub(crate) is_new_key: bool,
}

/// A place that keeps budgets and decides checks.
///
/// `conformance` (feature `test-util`) tests what a store promises:
///
/// 1. A budget has a limit's name, its [kind](Limit#kinds), and a key.
/// 2. A group is decided as one. All checks are charged, or none. Concurrent groups are decided one
///    after another.
/// 3. The decision equals the result of [`decide`] at the store's own time, in every field. Under
///    an [asynchronous](Limit::asynchronous) limit, a store may decide with units that it charged
///    before.
/// 4. A denied check and a peek consume nothing. A peek does not even prolong a state's life.
/// 5. A corrupt state counts as none. It never fails the check.
/// 6. A state is kept until [`State::expires_at`], and not for ever.
/// 7. A check of a [concurrency limit](Limit::concurrency) [is misuse](crate::Error::is_misuse),
///    unless it is a [claim](Change::Claim). A claim may be lost or repeated.
/// 8. `apply` does not block, and its answer comes within a bounded time, so a store that sends
///    checks elsewhere has a deadline. An [`Error`](crate::Error) means that the store did not
///    decide.
///
/// # Example: a wrapper with a key that is never charged
///
/// ```
/// use tollgate::store::{Answer, MemoryStore, Note, Operation, Store};
/// use tollgate::{ConfigError, Key, Limit, Quota, RateLimiter};
///
/// #[derive(Debug)]
/// struct Free<S>(S, Key);
///
/// impl<S: Store> Store for Free<S> {
///     fn apply(&self, operation: Operation) -> Answer {
///         let is_free = operation.budgets().all(|budget| *budget.key() == self.1);
///         self.0.apply(match operation {
///             Operation::Charge(group) if is_free => Operation::Peek(group),
///             operation => operation,
///         })
///     }
///
///     fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
///         self.0.check_limits(limits)
///     }
///
///     fn note(&self, note: Note<'_>) {
///         self.0.note(note);
///     }
///
///     fn is_embedded(&self) -> bool {
///         self.0.is_embedded()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let health_check = Key::new("health-check");
/// let limiter = RateLimiter::new(Free(MemoryStore::new(), health_check.clone()));
/// let limit = Limit::gcra("api", Quota::per_minute(1))?;
/// for _ in 0..5 {
///     assert!(limiter.check(&limit, &health_check).await?.allowed());
/// }
/// # Ok(())
/// # }
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Applies an operation.
    ///
    /// Dropping the answer before it is ready cancels the wait. Whether the charge happens is then
    /// unknown.
    fn apply(&self, operation: Operation) -> Answer;

    /// Checks that these limits can be decided in one group. Layers call this when they are built,
    /// and for each concurrency limit by itself. A store that does not apply
    /// [claims](Change::Claim) returns an error for it.
    ///
    /// Most stores can decide all limits. A wrapper passes the call on:
    /// otherwise layers are built whose limits can never be decided.
    ///
    /// # Errors
    ///
    /// Returns an error that names the limit and the conflict.
    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let _ = limits;
        Ok(())
    }

    /// Passes a note of the limiter on, to other processes and to operators. It decides nothing,
    /// and may be lost. Default: nothing.
    ///
    /// A wrapper passes the call on.
    fn note(&self, note: Note<'_>) {
        let _ = note;
    }

    /// Returns whether the store is part of this process, and never
    /// [unavailable](crate::Error::is_unavailable). Default: `false`, with which a limiter prepares
    /// for a failure of the store with each check.
    ///
    /// A limiter holds a lock while it applies a [claim](Change::Claim) to such a store, so `apply`
    /// must not call that limiter.
    ///
    /// A wrapper passes the call on.
    fn is_embedded(&self) -> bool {
        false
    }
}

/// A note of a limiter to other processes and to operators. See [`Store::note`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Note<'a> {
    /// Registered limits. A name has several limits if plans have quotas of their own.
    Limits {
        /// A limiter or a configuration of this process. Its limits are not registered any more
        /// when nothing owns it.
        owner: &'a Weak<()>,
        /// The limits.
        limits: &'a [&'a Limit],
        /// `true` if they replace all earlier limits of the owner, `false` if they are added.
        replace: bool,
    },
    /// The keys that it denied most often in the last minute, with the limit's name, the key as it
    /// is shown to operators, and the denials.
    Denied(&'a [(&'a str, &'a str, u64)]),
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn apply(&self, operation: Operation) -> Answer {
        (**self).apply(operation)
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        (**self).check_limits(limits)
    }

    fn note(&self, note: Note<'_>) {
        (**self).note(note);
    }

    fn is_embedded(&self) -> bool {
        (**self).is_embedded()
    }
}
