//! Where budgets are remembered.
//!
//! A store answers one question: [`apply`](Store::apply) an operation to a batch of charges. A
//! wrapper of a store is a store.

mod answer;
mod batch;
#[cfg(feature = "redis")]
mod denials;
#[cfg(feature = "redis")]
mod deny_cache;
#[cfg(feature = "redis")]
mod leased;
mod memory;
#[cfg(feature = "redis")]
mod promise;
#[cfg(feature = "redis")]
mod redis;

pub use self::answer::Answer;
pub use self::batch::decide;
#[cfg(feature = "redis")]
pub use self::deny_cache::DenyCache;
#[cfg(feature = "redis")]
pub use self::leased::{Leased, LeasedBuilder};
pub use self::memory::MemoryStore;
#[cfg(feature = "tls")]
pub use self::redis::Tls;
#[cfg(feature = "redis")]
pub use self::redis::{RedisStore, RedisStoreBuilder};

use std::fmt;
use std::sync::Arc;

use crate::{Charge, ConfigError, Limit, Op};

/// Where budgets are remembered, and decided.
///
/// What a store has to hold to, and what `tollgate::conformance` (feature `test-util`) tests:
///
/// 0. A budget has a limit's name, its [kind of state](Limit::kind), and a key.
/// 1. A batch is decided as one: charged whole, or not at all. Concurrent batches are decided one
///    after another.
/// 2. The decision is that of [`decide`] at the store's own time, in every field. In a
///    refused batch, the verdict of a limit that would have allowed the check is that of a peek
///    of cost 0.
/// 3. A refused check and a peek take nothing; a peek does not even prolong a state's life.
/// 4. A state that cannot be read counts as none. It never fails the check.
/// 5. A state is kept until [`State::ends_at`](crate::State::ends_at), and not for ever.
/// 6. `apply` does not block, and its answer comes within a bounded time: a store that talks to
///    others has a deadline of its own. An [`Error`](crate::Error) means "could not decide".
/// 7. The batch is [checked](crate::check_batch) before anything else.
///
/// # Example: a wrapper that lets one key pass
///
/// ```
/// use tollgate::{Answer, Charge, Key, Limit, MemoryStore, Op, Quota, RateLimiter, Store};
///
/// #[derive(Debug)]
/// struct Peeking<S>(S, Key);
///
/// impl<S: Store> Store for Peeking<S> {
///     fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
///         let free = batch.iter().all(|charge| *charge.key == self.1);
///         self.0.apply(if free && op == Op::Charge { Op::Peek } else { op }, batch)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let health_check = Key::new("health-check");
/// let limiter = RateLimiter::new(Peeking(MemoryStore::new(), health_check.clone()));
/// let limit = Limit::gcra("api", Quota::per_minute(1))?;
/// for _ in 0..5 {
///     assert!(limiter.check(&limit, &health_check).await?.allowed());
/// }
/// # Ok(())
/// # }
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Applies `op` to every charge of the batch, as one.
    ///
    /// Dropping the answer before it is ready gives the decision up; whether the charge happens
    /// is then unknown.
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer;

    /// Whether these limits can be decided together, in one check. Layers ask when they are built.
    ///
    /// Most stores can decide all limits. A wrapper should pass the question on.
    ///
    /// # Errors
    ///
    /// What is wrong with which of them.
    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let _ = limits;
        Ok(())
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
        (**self).apply(op, batch)
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        (**self).check_limits(limits)
    }
}
