//! The rate limiter: the core of the crate, without HTTP.

mod blocks;
mod denied_keys;
mod failover;
mod observed;
mod permits;
mod registry;
mod unanswered;
mod waiting;

use std::fmt;
use std::sync::Weak;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use self::denied_keys::{DeniedKey, DeniedKeys, DeniedSummary};
use self::failover::Failover;
pub(crate) use self::observed::Observed;
pub(crate) use self::permits::Acquired;
use self::permits::Agents;
pub use self::permits::Permit;
use self::registry::Registry;
use self::unanswered::Unanswered;
pub(crate) use self::unanswered::UnansweredSettlement;
use self::waiting::Turns;
pub(crate) use self::waiting::WaitSettings;
use crate::nouns::{Check, ConfigError, Decision, Error, Group, Key, Limit, Op, Receipt};
use crate::store::{Answer, MemoryStore, Store};
use crate::telemetry::Throttles;

/// A rate limiter on a [`Store`]: the core of the crate, without HTTP.
///
/// A limiter is a handle: cheap to clone and to share between layers, tasks and queues. It does not
/// own limits. Each call takes the [`Limit`] and the [`Key`], so a quota can change between calls.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Limit, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory();
/// let mails = Limit::gcra("mails", Quota::per_second(2))?;
///
/// let decision = limiter.check(&mails, "alice").await?;
/// assert!(decision.allowed());
/// assert_eq!(decision.remaining(), 1);
///
/// // Two units, all or none.
/// let decision = limiter.check_n(&mails, "alice", 2).await?;
/// assert_eq!(decision.retry_after(), Some(Duration::from_millis(500)));
///
/// // The same, with a wait of at most one second.
/// let decision = limiter.acquire_n(&mails, "alice", 2, Duration::from_secs(1)).await?;
/// assert!(decision.allowed());
/// # Ok(())
/// # }
/// ```
///
/// Several checks can be decided as one group: all are charged, or none.
///
/// ```
/// # use tollgate::{Check, Key, Limit, Quota, RateLimiter};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = RateLimiter::in_memory();
/// let user = Limit::token_bucket("user", Quota::per_second(5))?;
/// let tenant = Limit::fixed_window("tenant", Quota::per_day(10_000))?;
/// let alice = Key::new("alice");
/// let acme = Key::new("acme");
///
/// let group = [Check::new(&user, alice), Check::new(&tenant, acme)];
/// let decision = limiter.check_all(group).await?;
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
    store: Failover,
    registry: Registry,
    turns: Turns,
    /// Of events about blocks.
    blocked: Throttles,
    /// Where denials are counted by key.
    denied_keys: OnceLock<DeniedKeys>,
    /// The permits of this process. `None` if the store grants none.
    agents: OnceLock<Option<Agents>>,
    permit_lease: OnceLock<Duration>,
    unanswered: Unanswered,
}

impl RateLimiter {
    /// Creates a limiter on a store.
    pub fn new(store: impl Store) -> Self {
        let shared = Shared {
            store: Failover::new(store),
            registry: Registry::default(),
            turns: Turns::default(),
            blocked: Throttles::default(),
            denied_keys: OnceLock::new(),
            agents: OnceLock::new(),
            permit_lease: OnceLock::new(),
            unanswered: Unanswered::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Creates a limiter on the embedded store: for one process, for development and for tests. In
    /// tests, tokio's paused time controls it: see [`MemoryStore`].
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::new())
    }

    /// Connects to Redis and creates a limiter that shares its budgets with all replicas on that
    /// Redis. The URL is `redis://[user:password@]host[:port][/database]`. The prefix of the keys is a name for the service:
    /// limiters with the same prefix [share](crate::RedisStore::builder) the budgets of limits with the same name.
    ///
    /// A wrong address or password is an error at once. Use
    /// [`RedisStore::builder`](crate::RedisStore::builder) to start without Redis, to set
    /// deadlines, or to bring a pool.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid, or if the server cannot be used.
    #[cfg(feature = "redis")]
    pub async fn redis(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(crate::RedisStore::connect(url, prefix).await?))
    }

    /// Creates a limiter as [`redis`](Self::redis) does, but without connecting: a service that restarts during an outage
    /// starts. The first check connects. Until Redis answers, requests are decided by their [failure
    /// policy](crate::guide::outages).
    ///
    /// ```
    /// # #[cfg(feature = "redis")]
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let limiter = tollgate::RateLimiter::redis_lazy("redis://127.0.0.1/", "shop")?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "redis"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the prefix is invalid.
    #[cfg(feature = "redis")]
    pub fn redis_lazy(url: &str, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(
            crate::RedisStore::builder(prefix).url(url).build()?,
        ))
    }

    /// Consumes one unit if the budget has it.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide, as every check does, unless the limit has a [failure
    /// policy](Limit::with_on_store_failure). A denial is not an error.
    pub async fn check(&self, limit: &Limit, key: impl Into<Key>) -> Result<Decision, Error> {
        self.check_n(limit, key, 1).await
    }

    /// Consumes `n` units, all or none. Zero units are always allowed.
    pub async fn check_n(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        n: u32,
    ) -> Result<Decision, Error> {
        self.apply(Op::Charge, Check::new(limit, key).with_cost(n))
            .await
    }

    /// Returns the decision that [`check_n`](Self::check_n) would return. Changes nothing: no denial counts, and no block
    /// begins.
    pub async fn peek(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        n: u32,
    ) -> Result<Decision, Error> {
        self.apply(Op::Peek, Check::new(limit, key).with_cost(n))
            .await
    }

    /// Gives back `n` units of a charge, for example of work that was not done. Returns the decision
    /// of a peek of cost 0 afterwards.
    ///
    /// The [receipt](Decision::receipt) comes from the decision that charged the units, under the
    /// same limit and key. A refund never allows more than if its charge had not been made:
    ///
    /// | algorithm | units given back |
    /// |---|---|
    /// | token bucket, leaky bucket, GCRA | `n`, but at most the cost of the charge less the refill since then, or, if that is more, the level of the bucket after the charge less the refill and other refunds since then |
    /// | fixed window | `n`, if the window of the charge is in force. A window that starts with a charge keeps its end if that charge is refunded |
    /// | sliding window | `n`, if the sub-window of the charge still counts |
    /// | sliding log | `n`, if the charge still counts; with more than 1,024 newer entries, from the oldest entries |
    ///
    /// A receipt is void after a reset of the budget, after its loss by the store, after a clock was
    /// set back by more than a period, and after a change of the limit's rate or period. A refund
    /// gives nothing back then. After a smaller step of the clock, receipts of new charges are void until the clock has
    /// caught up with the first charge that the budget counts: a charge is known by its time, and a charge from before
    /// that budget began may have the same. Giving back the wrong one would mint units.
    ///
    /// A receipt is valid for one refund. For the next refund of the same charge, use [`Receipt::after`].
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
    /// // The work used only 300 of them.
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
        key: impl Into<Key>,
        n: u32,
        receipt: Receipt,
    ) -> Result<Decision, Error> {
        let refund = Check::new(limit, key).with_cost(n).with_receipt(receipt);
        self.apply(Op::Refund, refund).await
    }

    /// Replaces the cost of a charge by its real cost, when that is known: tokens of a language model, bytes sent,
    /// the cost of a query. Returns the decision of a peek of cost 0 afterwards.
    ///
    /// If `cost` is less than was charged, the difference is given back, as by a [refund](Self::refund). If it is more,
    /// the difference is charged now, even if the budget has fewer units: the debt delays later checks. It is
    /// [bounded](Limit::with_max_debt). Without a receipt, the whole cost is charged.
    ///
    /// A charge that was decided [locally](crate::decision::Source::Local) is settled where it counts: here, until the store
    /// is charged for it after the outage. After that, a higher cost is charged to the store, and a lower one gives nothing
    /// back.
    ///
    /// To settle a group in one call, [apply](Self::apply) [`Op::Settle`] to checks with their receipts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Key, Limit, Quota, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let tokens = Limit::token_bucket("tokens", Quota::per_minute(6_000))?;
    /// let alice = Key::new("alice");
    ///
    /// let estimate = limiter.check_n(&tokens, &alice, 500).await?;
    /// // The answer of the model was longer than the bucket.
    /// limiter.settle(&tokens, &alice, 7_000, estimate.receipt()).await?;
    /// let denied = limiter.check_n(&tokens, &alice, 500).await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(15)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer. If it [may have charged](Error::may_have_charged), do not settle
    /// again: the difference would count twice.
    pub async fn settle(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        cost: u32,
        receipt: impl Into<Option<Receipt>>,
    ) -> Result<Decision, Error> {
        let settled = Check::new(limit, key).with_cost(cost).with_receipt(receipt);
        self.apply(Op::Settle, settled).await
    }

    /// Resets the budget of `key` under `limit`, and under all limits that [share it](Limit), to
    /// full. Also deletes the local budget, even if the store then fails. Returns the decision of a peek of cost 0 afterwards.
    pub async fn reset(&self, limit: &Limit, key: impl Into<Key>) -> Result<Decision, Error> {
        self.apply(Op::Reset, Check::new(limit, key)).await
    }

    /// Decides several checks as one [group](Group), in one call to the store: all are charged, or
    /// none.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide. It [is misuse](Error::is_misuse) if there are
    /// no checks, more than 255, or two checks of one budget.
    pub async fn check_all(
        &self,
        group: impl TryInto<Group, Error: Into<Error>>,
    ) -> Result<Decision, Error> {
        self.apply(Op::Charge, group).await
    }

    /// Applies an operation to a check or to a group of checks, in one call to the store.
    ///
    /// The answer is an error that [is misuse](Error::is_misuse) if the checks
    /// [are no group](Group::new), if the store cannot decide their limits together, or, on Redis, if this is called outside
    /// of a tokio runtime.
    pub fn apply(&self, op: Op, group: impl TryInto<Group, Error: Into<Error>>) -> Answer {
        let group = match group.try_into() {
            Ok(group) => group,
            Err(error) => return Answer::ready(Err(error.into())),
        };
        match op {
            Op::Charge => self.charge(group),
            _ => self.apply_unobserved(op, group),
        }
    }

    /// Applies an operation, without observing it.
    #[inline]
    pub(crate) fn apply_unobserved(&self, op: Op, group: Group) -> Answer {
        match op {
            Op::Charge | Op::Peek if group.iter().any(|check| check.limit().counts_denials()) => {
                self.decide_offenders(op, group)
            }
            Op::Charge | Op::Peek => self.shared.store.apply(op, group),
            Op::Refund | Op::Settle | Op::Reset | Op::Block => self.give_back(op, group),
        }
    }

    /// Applies a refund, a settlement or a reset. Wakes the waiters of its budgets when it is answered.
    fn give_back(&self, op: Op, group: Group) -> Answer {
        let answer = self.shared.store.apply(op, group.clone());
        match self.shared.turns.awaited(&group) {
            None => answer,
            Some(awaited) => answer.resolved(move |answer| {
                awaited.replenished(op);
                answer
            }),
        }
    }

    /// Whether both are handles of one limiter.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Registers the name of a limit, so that no other quota can use it in this limiter.
    ///
    /// Layers register their limits when they are built. Register limits without a layer to detect
    /// a name that is used twice by mistake.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is registered with another quota or algorithm.
    pub fn register(&self, limit: &Limit) -> Result<(), ConfigError> {
        self.register_all(&[limit])
    }

    /// Registers all limits, or none.
    pub(crate) fn register_all(&self, new: &[&Limit]) -> Result<(), ConfigError> {
        self.check_limits(new)?;
        self.shared.registry.register_all(new)
    }

    /// Checks that the store can decide these limits in one group, and grants the permits of those that need some.
    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let (permits, rates): (Vec<&Limit>, Vec<&Limit>) =
            limits.iter().partition(|limit| limit.is_concurrency());
        self.shared.store.check_limits(&rates)?;
        match permits.first() {
            Some(limit) if !self.grants_permits() => Err(ConfigError::new(
                "the store grants no permits; use a store that does, and let a wrapper pass on `Store::permits`",
            )
            .of_limit(limit.name())),
            _ => Ok(()),
        }
    }

    /// Registers the limits of a set in place of those that it had, or leaves them as they are. An error comes with its
    /// limit.
    pub(crate) fn register_set<'a>(
        &self,
        set: &Arc<()>,
        limits: &[&'a Limit],
    ) -> Result<(), (&'a str, ConfigError)> {
        for &limit in limits {
            self.check_limits(&[limit])
                .map_err(|error| (limit.name(), error))?;
        }
        self.shared
            .registry
            .replace_set(set, limits.iter().map(|limit| limit.name()))
    }

    /// A handle that does not keep the limiter.
    pub(crate) fn downgrade(&self) -> WeakLimiter {
        WeakLimiter(Arc::downgrade(&self.shared))
    }
}

impl RateLimiter {
    /// Waits until the work in the background has ended: the [settlements](crate::layer::Settlement) in flight are answered,
    /// which takes at most five seconds, and the store has confirmed all released [permits](Permit), which takes at most one.
    ///
    /// If a program ends before that, the estimates of its last requests stand, and its last permits count until their lease
    /// expires. Call this last, also after a graceful shutdown of a server.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let limiter = RateLimiter::in_memory();
    /// limiter.flush().await;
    /// # }
    /// ```
    pub async fn flush(&self) {
        self.flush_settlements().await;
        self.flush_permits().await;
    }
}

/// A handle of a limiter that may be gone.
pub(crate) struct WeakLimiter(Weak<Shared>);

impl WeakLimiter {
    pub(crate) fn upgrade(&self) -> Option<RateLimiter> {
        self.0.upgrade().map(|shared| RateLimiter { shared })
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}

impl From<&Self> for RateLimiter {
    fn from(limiter: &Self) -> Self {
        limiter.clone()
    }
}
