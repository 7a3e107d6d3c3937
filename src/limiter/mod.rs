//! The rate limiter, the core of the crate, without HTTP.

// The documentation has the methods in the order of these groups.
mod builder;
mod constructors;

mod direct;

mod waiting;

mod permits;

mod blocks;
mod denied_keys;
mod near_limit;
mod overrides;

mod failover;
mod observation;
mod registry;
mod unanswered;

use std::fmt;
use std::sync::Weak;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;

pub use self::builder::RateLimiterBuilder;
pub use self::denied_keys::{DeniedKey, DeniedKeys, DeniedSummary};
use self::failover::Failover;
use self::near_limit::NearLimit;
pub(crate) use self::observation::Observation;
use self::overrides::LimiterOverrides;
pub use self::overrides::Overrides;
pub(crate) use self::overrides::{OverriddenCheck, OverrideInForce};
use self::permits::Agents;
pub use self::permits::Permit;
pub(crate) use self::permits::PermitAnswer;
use self::registry::Registry;
pub(crate) use self::unanswered::UnansweredSettlement;
use self::waiting::Turns;
pub(crate) use self::waiting::WaitSettings;
use crate::model::{Budget, Change, Key, Limit, Operation};
use crate::store::{Answer, MemoryStore, NotHere, Note};
use crate::telemetry::{self, Throttles};
use crate::units::{ConfigError, Outcome, Timestamp};

/// A rate limiter on a [`Store`](crate::store::Store), the core of the crate, without HTTP.
///
/// A limiter is a handle, which you clone and share between layers, tasks and queues. It does not
/// own limits. Each call takes the [`Limit`] and the [`Key`](crate::Key), so a quota can change
/// between calls. Limits of one name share what they count. To find a name that is used twice by
/// mistake, [`register`](Self::register) each limit of direct calls once, as layers do.
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
/// let decision = limiter.acquire(&mails, "alice", 2, Duration::from_secs(1)).await?;
/// assert!(decision.allowed());
/// # Ok(())
/// # }
/// ```
///
/// You can have several checks decided as one group. All are charged, or none.
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
    failover: Arc<Failover>,
    registry: Registry,
    turns: Turns,
    /// The throttles of events about blocks.
    blocked: Throttles,
    /// The throttles of events about costs, by limit.
    exceeded: Throttles,
    /// Where denials are counted by key.
    denied_keys: Option<DeniedKeys>,
    near_limit: NearLimit,
    overrides: LimiterOverrides,
    /// The permits of this process.
    agents: OnceLock<Agents>,
    permit_lease: Duration,
    /// The number of settlements in flight. Those that are left when this is dropped are reported
    /// (`unanswered`).
    unanswered: watch::Sender<usize>,
    /// Owns the registered limits.
    owner: Arc<()>,
}

impl RateLimiter {
    /// Applies an operation, without observing it.
    #[inline]
    pub(crate) fn apply_unobserved(&self, operation: Operation) -> Answer {
        match operation {
            Operation::Charge(ref group) | Operation::Peek(ref group)
                if group.iter().any(|check| check.limit().counts_denials()) =>
            {
                self.apply_reporting_blocks(operation)
            }
            Operation::Charge(_) | Operation::Peek(_) => self.shared.failover.apply(operation),
            Operation::Change(budget, change) => self.change(budget, change),
        }
    }

    /// The store, if it is in memory, for charges whose outcome is all that is needed.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        self.shared.failover.memory()
    }

    /// Charges a check of an asynchronous limit, if this process can decide it. Returns its
    /// outcome, and the time of the store.
    #[inline]
    pub(crate) fn charge_here(
        &self,
        limit: &Limit,
        key: &Key,
        cost: u32,
    ) -> Result<(Outcome, Timestamp), NotHere> {
        self.shared.failover.charge_here(limit, key, cost)
    }

    /// Returns whether a charge that leaves a key so many units has to be observed as a whole,
    /// because the limit warns.
    #[inline]
    pub(crate) fn may_warn(&self, limit: &Limit, key: &Key, left: u64) -> bool {
        self.shared.near_limit.concerns(limit, key, left)
    }

    /// Changes a budget. Wakes its waiters when the store has answered.
    pub(crate) fn change(&self, budget: Budget, change: Change) -> Answer {
        // A limiter that is dropped has no waiters.
        let shared = Arc::downgrade(&self.shared);
        let is_reset = matches!(change, Change::Reset);
        let changed = budget.clone();
        let answer = self
            .shared
            .failover
            .apply(Operation::Change(budget, change));
        answer.resolved(move |answer| {
            if let Some(shared) = shared.upgrade() {
                shared.turns.changed(&changed, is_reset);
            }
            answer
        })
    }

    /// Returns whether both are handles of one limiter.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Registers the name of a limit, so that no other quota can use it in this limiter.
    ///
    /// Layers register their limits when they are built. You register limits without a layer to
    /// detect a name that is used twice by mistake.
    ///
    /// Two services with one prefix and one limit name count on the same budgets. So on Redis, a
    /// process also notes the quotas of its first thousand registered limits, under
    /// `prefix:limits`: 5 seconds after the first limit or check in a tokio runtime, and then once
    /// a minute. If a name has two quotas for an hour, both services log an event. A rolling
    /// deployment that takes longer than an hour also causes it. The quota of a process that has
    /// ended is forgotten after two and a half minutes.
    ///
    /// Closures and direct calls can use unregistered limits. The process takes their quotas from
    /// the first 1,024 charges of each minute, for up to 32 names, and may miss a limit that is
    /// rarely charged. A name with several quotas, for example by plan, is not compared.
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
        self.shared.registry.register_all(new)?;
        self.note_limits(&Arc::downgrade(&self.shared.owner), new, false);
        telemetry::announce(new.iter().copied());
        Ok(())
    }

    /// Checks that the store can decide these limits, those that are charged in one group, and
    /// concurrency limits one by one.
    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        let (claimed, charged): (Vec<&Limit>, Vec<&Limit>) =
            limits.iter().partition(|limit| limit.is_concurrency());
        self.shared.failover.check_limits(&charged)?;
        claimed.iter().try_for_each(|limit| {
            let checked = self.shared.failover.check_limits(&[limit]);
            checked.map_err(|error| error.of_limit(limit.name()))
        })
    }

    /// Registers the limits of a set in place of those that it had, or leaves them as they are. An
    /// error comes with its limit.
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
            .replace_set(set, limits.iter().map(|limit| limit.name()))?;
        self.note_limits(&Arc::downgrade(set), limits, true);
        telemetry::announce(limits.iter().copied());
        Ok(())
    }

    /// Passes limits to the store, which compares them with the limits of other processes.
    fn note_limits(&self, owner: &Weak<()>, limits: &[&Limit], replace: bool) {
        let note = Note::Limits {
            owner,
            limits,
            replace,
        };
        self.shared.failover.store().note(note);
    }

    /// A handle that does not keep the limiter.
    pub(crate) fn downgrade(&self) -> WeakLimiter {
        WeakLimiter(Arc::downgrade(&self.shared))
    }
}

/// # The end of a program
impl RateLimiter {
    /// Waits until the work in the background has ended. The
    /// [settlements](crate::layer::Settlement) in flight are answered, which takes at most five
    /// seconds, and the store has confirmed all released [permits](Permit), which takes at most
    /// one. Units of [asynchronous](Limit::asynchronous) limits that are not spent are given back,
    /// and those that were allowed under an [overshoot](Limit::with_overshoot_percent) are charged,
    /// which takes at most five seconds. Other replicas get the share of this process within about
    /// two seconds.
    ///
    /// If a program ends before that, the estimates of its last requests stand, its last permits
    /// count until their lease expires, and units that it owes are never charged. So call this last
    /// in your `main`, also after a graceful shutdown of a server. Outside of a tokio runtime it
    /// does nothing.
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
        // Without a runtime, nothing in flight is answered.
        if Runtime::try_current().is_err() {
            return;
        }
        self.flush_settlements().await;
        self.flush_permits().await;
        self.shared.failover.release().await;
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
            .field("store", &self.shared.failover)
            .finish_non_exhaustive()
    }
}

impl From<&Self> for RateLimiter {
    fn from(limiter: &Self) -> Self {
        limiter.clone()
    }
}
