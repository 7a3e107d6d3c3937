//! The core, without HTTP.

mod acquire;
mod turns;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use self::turns::Turns;
use crate::nouns::{Check, ConfigError, Decision, Error, Key, Limit, Op, Receipt};
use crate::store::{Answer, MemoryStore, Store};

/// Asks a [`Store`] whether a check fits; the core of the crate, without HTTP.
///
/// A limiter is a handle: cheap to clone, and to share between layers, tasks and queues. It does
/// not own limits: each call names the [`Limit`] and the [`Key`], so a quota can change from one
/// call to the next.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Limit, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory();
/// let mails = Limit::gcra("mails", Quota::per_second(2))?;
/// let alice = Key::new("alice");
///
/// let decision = limiter.check(&mails, &alice).await?;
/// assert!(decision.allowed());
/// assert_eq!(decision.remaining(), 1);
///
/// // As much as is needed, at once or not at all.
/// let decision = limiter.check_n(&mails, &alice, 2).await?;
/// assert_eq!(decision.retry_after(), Some(Duration::from_millis(500)));
///
/// // Or waiting for it.
/// let decision = limiter.acquire(&mails, &alice, 2, Duration::from_secs(1)).await?;
/// assert!(decision.allowed());
/// # Ok(())
/// # }
/// ```
///
/// Several limits are decided as one: all are charged, or none is.
///
/// ```
/// # use tollgate::{Check, Key, Limit, Quota, RateLimiter};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = RateLimiter::in_memory();
/// let user = Limit::token_bucket("user", Quota::per_second(5))?;
/// let tenant = Limit::fixed_window("tenant", Quota::per_day(10_000))?;
/// let (alice, acme) = (Key::new("alice"), Key::new("acme"));
///
/// let group = [Check::new(&user, alice), Check::new(&tenant, acme)];
/// let decision = limiter.check_all(&group).await?;
/// assert!(decision.allowed());
/// assert_eq!(decision.verdicts()[1].remaining(), 9_999);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    shared: Arc<Shared>,
}

struct Shared {
    store: Box<dyn Store>,
    /// The limits that layers were built with, by name.
    limits: Mutex<HashMap<String, Limit>>,
    turns: Turns,
}

impl RateLimiter {
    /// A limiter on a store of your choice.
    pub fn new(store: impl Store) -> Self {
        let (limits, turns) = (Mutex::default(), Turns::default());
        Self { shared: Arc::new(Shared { store: Box::new(store), limits, turns }) }
    }

    /// A limiter on the embedded store: for one process, for development and for tests.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::new())
    }

    /// A limiter on the Redis at `url`, shared by all replicas that name it:
    /// `redis://[user:password@]host[:port][/database]`.
    ///
    /// This connects, so that a wrong address or password is known at once. Use
    /// [`RedisStore::builder`](crate::RedisStore::builder) to start without Redis, to set
    /// deadlines and the key prefix, or to bring a pool.
    ///
    /// # Errors
    ///
    /// If the URL is not one, or the Redis behind it cannot be reached.
    #[cfg(feature = "redis")]
    pub async fn redis(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(crate::RedisStore::connect(url).await?))
    }

    /// Whether one unit fits, taking it if it does.
    ///
    /// # Errors
    ///
    /// If the store could not decide; so for all checks. A refusal is not an error.
    pub async fn check(&self, limit: &Limit, key: &Key) -> Result<Decision, Error> {
        self.check_n(limit, key, 1).await
    }

    /// Whether `n` units fit, taking all of them or none. Zero takes nothing and always fits.
    pub async fn check_n(&self, limit: &Limit, key: &Key, n: u32) -> Result<Decision, Error> {
        self.apply(Op::Charge, &[Check::new(limit, key).cost(n)]).await
    }

    /// What [`check_n`](Self::check_n) would answer. Nothing is changed.
    pub async fn peek(&self, limit: &Limit, key: &Key, n: u32) -> Result<Decision, Error> {
        self.apply(Op::Peek, &[Check::new(limit, key).cost(n)]).await
    }

    /// Gives `n` units of a charge back, as after work that was charged and not done. Answers what
    /// is there afterwards.
    ///
    /// The [receipt](Decision::receipt) is that of the decision that charged them, under the same
    /// limit and key. A refund never lets more pass than if its charge had not been made:
    ///
    /// | algorithm | it gives back |
    /// |---|---|
    /// | token bucket, leaky bucket, GCRA | `n`, but no more than the cost of the charge less what the rate gave back since |
    /// | fixed window | `n`, if the window of the charge is in force |
    /// | sliding window | `n`, if the sub-window of the charge still counts |
    /// | sliding log | `n`, if the charge still counts; if more than 1,024 entries are newer, out of the oldest entries |
    ///
    /// It gives nothing back if the budget was reset since, if the store lost it, if the clock was
    /// set back by more than a period, or if the rate or the period of the limit changed. A
    /// receipt is good for one refund: [`Receipt::after`] is for the next one of the same charge.
    ///
    /// ```
    /// # use tollgate::{Key, Limit, Quota, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let tokens = Limit::fixed_window("tokens", Quota::per_hour(1_000))?;
    /// let alice = Key::new("alice");
    ///
    /// let decision = limiter.check_n(&tokens, &alice, 800).await?;
    /// // The work took 300 of them.
    /// if let Some(receipt) = decision.receipt() {
    ///     let left = limiter.refund(&tokens, &alice, 500, receipt).await?;
    ///     assert_eq!(left.remaining(), 700);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(
        &self,
        limit: &Limit,
        key: &Key,
        n: u32,
        receipt: Receipt,
    ) -> Result<Decision, Error> {
        self.apply(Op::Refund, &[Check::new(limit, key).cost(n).of(receipt)]).await
    }

    /// Forgets what `key` has used under `limit`, and under other limits that
    /// [share its budget](Limit). Answers what is there afterwards.
    pub async fn reset(&self, limit: &Limit, key: &Key) -> Result<Decision, Error> {
        self.apply(Op::Reset, &[Check::new(limit, key)]).await
    }

    /// Decides several checks as one group, in one call to the store: all are charged, or none.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and if the group [is invalid](crate::store::validate_group).
    pub async fn check_all(&self, group: &[Check]) -> Result<Decision, Error> {
        self.apply(Op::Charge, group).await
    }

    /// Applies any operation to a group of checks, in one call to the store.
    ///
    /// The answer is an error that [is misuse](Error::is_misuse) if the group
    /// [is invalid](crate::store::validate_group).
    pub fn apply(&self, op: Op, group: &[Check]) -> Answer {
        let answer = self.shared.store.apply(op, group);
        if matches!(op, Op::Refund | Op::Reset)
            && let Some(awaited) = self.shared.turns.awaited(group)
        {
            return Answer::later(async move {
                let decision = answer.await;
                awaited.came_back();
                decision
            });
        }
        answer
    }

    /// Makes sure that a name stands for one quota in this limiter.
    ///
    /// Layers call this when they are built. Call it for limits that are used without a layer, to
    /// be told of a name that is used twice by mistake.
    ///
    /// # Errors
    ///
    /// If another limit of the same name has another quota or algorithm.
    pub fn register(&self, limit: &Limit) -> Result<(), ConfigError> {
        self.register_all(&[limit])
    }

    /// All of them, or none.
    pub(crate) fn register_all(&self, new: &[&Limit]) -> Result<(), ConfigError> {
        self.shared.store.check_limits(new)?;
        let mut limits = self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner);
        for limit in new {
            if let Some(known) = limits.get(limit.name()).filter(|known| !known.decides_as(limit)) {
                return Err(ConfigError::new(format!(
                    "this limiter already has the name for {known}, and the new limit is {limit}: \
                     limits of one name share their budgets; give this one another name, or to \
                     change a quota at run time, build the layer on a new RateLimiter",
                ))
                .of_limit(limit.name()));
            }
        }
        limits.extend(new.iter().map(|&limit| (limit.name().to_owned(), limit.clone())));
        Ok(())
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("store", &self.shared.store).finish_non_exhaustive()
    }
}

impl From<&Self> for RateLimiter {
    fn from(limiter: &Self) -> Self {
        limiter.clone()
    }
}
