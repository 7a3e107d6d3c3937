//! Permits of requests in flight, with at most so many of a key at once, on all replicas.

mod agent;
mod callers;
mod hashed_budget;
mod load_shedder;
mod local_holder;
mod local_holders;
mod pace;
mod permit;
mod runtimes;
mod task;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_core::future::BoxFuture;
use hashbrown::DefaultHashBuilder;
use tokio::runtime::Handle as Runtime;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

use self::agent::{Agent, PermitEvents};
use self::callers::PermitOutcome;
use self::hashed_budget::HashedBudget;
use self::load_shedder::LoadShedder;
pub use self::permit::Permit;
pub(crate) use self::permit::PermitAnswer;
use self::runtimes::Runtimes;
use super::{OverriddenCheck, RateLimiter};
use crate::model::{Budget, Check, Error, Key, Limit};
use crate::store::Store;
use crate::units::later;

/// The longest wait for the store's answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The interval at which waiting callers, and `flush`, check that the task runs.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// Threads rarely contend for one of so many. With more, each sends fewer claims at a time: 16 were
/// a tenth slower on Redis.
const AGENTS: usize = 4;

/// The interval at which callers check that all tasks run. A task that stands still is replaced
/// before a lease of a second expires.
const CHECK_TASKS_EVERY: Duration = Duration::from_millis(250);

/// The permits of this process. Each key has one of the agents.
pub(super) struct Agents {
    agents: [Arc<Agent>; AGENTS],
    load_shedder: Arc<LoadShedder>,
    hasher: DefaultHashBuilder,
    runtimes: Arc<Runtimes>,
    created: Instant,
    /// When the tasks were last checked, in milliseconds since the creation.
    checked_ms: AtomicU64,
}

impl Agents {
    fn new(store: &Arc<dyn Store>, lease: Duration) -> Self {
        let runtimes = Arc::<Runtimes>::default();
        let reports = Arc::new(PermitEvents::default());
        let agent = |_| {
            let store = Arc::clone(store);
            Agent::new(store, lease, Arc::clone(&runtimes), Arc::clone(&reports))
        };
        Self {
            agents: std::array::from_fn(|number| Arc::new(agent(number))),
            load_shedder: Arc::default(),
            hasher: DefaultHashBuilder::default(),
            runtimes: Arc::clone(&runtimes),
            created: Instant::now(),
            checked_ms: AtomicU64::new(0),
        }
    }

    /// Sees to it that all agents have a task that runs. A runtime that is blocked or shut down may
    /// run the tasks that renew the permits of other runtimes.
    fn check_tasks(&self, runtime: &Runtime) {
        let is_new = self.runtimes.add(runtime);
        // Nothing expires in an embedded store.
        if is_new || (!self.agents[0].is_embedded && self.is_check_due()) {
            self.agents.iter().for_each(Agent::ensure_task);
        }
    }

    fn is_check_due(&self) -> bool {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = self.checked_ms.load(Ordering::Relaxed);
        let next = last.saturating_add(CHECK_TASKS_EVERY.as_millis() as u64);
        let take = || {
            let exchange =
                self.checked_ms
                    .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
            exchange.is_ok()
        };
        now >= next && take()
    }

    fn hashed(&self, budget: &Budget) -> HashedBudget {
        HashedBudget::new(budget, &self.hasher)
    }

    fn agent(&self, budget: &HashedBudget) -> &Arc<Agent> {
        &self.agents[budget.agent()]
    }
}

/// # Requests in flight
///
/// Acquiring a permit needs a tokio runtime. Outside of one, the error [is
/// misuse](Error::is_misuse).
impl RateLimiter {
    /// Acquires a permit of a [concurrency limit](Limit::concurrency), if one is free and no caller
    /// waits. `None` if no permit is free, or if other callers already wait for one.
    ///
    /// The permit is held until it is dropped, so bind it to a name:
    /// `let Some(_permit) = ... else { ... }`. With `.is_some()` or `let Some(_)` it is given back
    /// at once, and nothing is limited.
    ///
    /// While the store is unavailable, the [failure policy](Limit::with_on_store_failure) of the
    /// limit decides. Without a policy, permits are granted, and [`Permit::source`] says so. (For a
    /// check without a policy, [`check`](Self::check) returns an error.)
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unavailable and the limit fails closed. The error [is
    /// overloaded](Error::is_overloaded) if callers of more than about 16,384 keys wait for the
    /// store. It [is misuse](Error::is_misuse) if the limit is not a concurrency limit.
    pub async fn try_acquire_permit(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
    ) -> Result<Option<Permit>, Error> {
        let check = Check::new(limit, key);
        let acquiring = pin!(async {
            match self.overridden_for_permit(&check) {
                None => self.request_permit(&check).await,
                Some(ControlFlow::Continue(check)) => self.request_permit(&check).await,
                Some(ControlFlow::Break(answer)) => Ok(answer),
            }
        });
        Ok(self.observe_permit(&check, true, acquiring).await?.permit)
    }

    /// Acquires a permit of a [concurrency limit](Limit::concurrency), and waits for it for at most
    /// `max_wait`. `None` if no permit was free in time. With a permit, do the work, and then drop
    /// the permit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limit, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let exports = Limit::concurrency("exports", 2)?;
    /// let acme = Key::new("acme");
    ///
    /// let first = limiter.try_acquire_permit(&exports, &acme).await?.expect("none is in flight");
    /// let second = limiter.try_acquire_permit(&exports, &acme).await?.expect("one is in flight");
    /// assert!(limiter.try_acquire_permit(&exports, &acme).await?.is_none());
    ///
    /// // The next in the queue gets the permit of the first that is done.
    /// let waiting = limiter.acquire_permit(&exports, &acme, Duration::from_secs(1));
    /// drop(first);
    /// assert!(waiting.await?.is_some());
    /// # drop(second);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `max_wait` bounds only the time in the queue. The store's first answer may take up to a
    /// second, and if a permit is free then, it is granted even after `max_wait`. Dropping the
    /// future gives up the place in the queue. If the store becomes unavailable, the [failure
    /// policy](Limit::with_on_store_failure) decides all waiting callers at once.
    ///
    /// # Guarantees
    ///
    /// - **At most the limit.** The store counts the permits of all processes, atomically.
    /// - **First come, first served**, on all replicas. A new caller does not pass callers that
    ///   wait. A process has one place for each of its callers. If a caller gives up, the later
    ///   callers of the same process move up. A permit that another process has released reaches a
    ///   waiting caller within about 25 ms and two round trips to the store.
    /// - **Leases.** A process renews its permits three times in a
    ///   [lease](crate::RateLimiterBuilder::permit_lease) of 10 seconds. If the process crashes,
    ///   its permits and its places in the queue count as released when the lease expires.
    /// - **Lost state.** After a failover, the new Redis master may lack the last permits, or all
    ///   of them. Each process restores its own within a third of a lease. Until then at most twice
    ///   the limit is in flight. Afterwards, a new permit is granted as soon as fewer than the
    ///   limit are in flight.
    /// - **Store unavailable.** The limit's policy decides. Permits stay valid. Permits that were
    ///   granted meanwhile count when the store answers again. [`Permit::source`] returns the
    ///   source of a grant.
    /// - **Expired leases.** A process that was blocked, or could not reach Redis, for longer than
    ///   a lease may hold permits that other processes also have. [`Permit::is_renewed`] and an
    ///   event report that.
    /// - **The end of a program.** Permits are released in the background. You
    ///   call [`flush`](Self::flush) last.
    ///
    /// The process tells the store its permits and its waiters of a key in a message, a claim.
    /// Claims are sent to Redis together with checks. Tasks in a runtime that uses the limiter
    /// renew the permits. If that runtime is blocked, the next caller in another runtime starts
    /// these tasks there. A current-thread runtime drives them only inside `block_on`.
    ///
    /// # Errors
    ///
    /// Returns an error like [`try_acquire_permit`](Self::try_acquire_permit).
    pub async fn acquire_permit(
        &self,
        limit: &Limit,
        key: impl Into<Key>,
        max_wait: Duration,
    ) -> Result<Option<Permit>, Error> {
        let check = Check::new(limit, key);
        let acquiring = pin!(async {
            let started = Instant::now();
            let replaced = match self.overridden_for_permit(&check) {
                None => None,
                Some(ControlFlow::Continue(check)) => Some(check),
                Some(ControlFlow::Break(answer)) => return Ok(answer),
            };
            let check = replaced.as_ref().unwrap_or(&check);
            let acquired = self.request_permit(check).await?;
            let left = max_wait.saturating_sub(started.elapsed());
            if !acquired.may_wait() || left.is_zero() {
                return Ok(acquired);
            }
            self.wait_for_permit(check, left, usize::MAX).await
        });
        Ok(self.observe_permit(&check, true, acquiring).await?.permit)
    }

    /// The permits that this process holds of a key.
    #[must_use]
    pub fn held_permits(&self, limit: &Limit, key: impl Into<Key>) -> u64 {
        let check = Check::new(limit, key);
        let agents = self.shared.agents.get();
        agents.map_or(0, |agents| {
            let budget = agents.hashed(check.budget());
            agents.agent(&budget).held(&budget)
        })
    }

    /// The number of keys with permits, callers or unconfirmed releases in this process, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn keys_with_permits(&self) -> usize {
        let agents = self.shared.agents.get();
        agents.map_or(0, |agents| {
            agents.agents.iter().map(|agent| agent.keys()).sum()
        })
    }

    /// The check for a permit with the override that its key has now, or the answer of an override.
    /// `None` if the check stays as it is.
    #[inline]
    pub(crate) fn overridden_for_permit(
        &self,
        check: &Check,
    ) -> Option<ControlFlow<PermitAnswer, Check>> {
        match self.has_overrides() || check.limit().is_overridden() {
            true => self.overridden_permit(check),
            false => None,
        }
    }

    #[cold]
    fn overridden_permit(&self, check: &Check) -> Option<ControlFlow<PermitAnswer, Check>> {
        if !check.limit().is_concurrency() {
            return None;
        }
        Some(match self.overridden_check(check.without_override()) {
            OverriddenCheck::Asked(check) => ControlFlow::Continue(check),
            OverriddenCheck::Passed(verdict) => {
                let permit = Permit::unlimited(self.agents().hashed(check.budget()));
                ControlFlow::Break(PermitAnswer::of_override(Some(permit), verdict.limit()))
            }
            OverriddenCheck::Denied(verdict) => {
                ControlFlow::Break(PermitAnswer::of_override(None, verdict.limit()))
            }
        })
    }

    /// Asks for a permit, without a wait.
    pub(crate) fn request_permit(
        &self,
        check: &Check,
    ) -> impl Future<Output = Result<PermitAnswer, Error>> {
        self.claim_permit(check, ANSWERS_WITHIN, None)
    }

    /// Queues for a permit. Returns none at once if `most_waiters` callers of the key wait in this
    /// process. If the override of the key changes, the caller queues again.
    ///
    /// It is boxed, because most requests need not wait, and the future of each has room for it.
    pub(crate) fn wait_for_permit(
        &self,
        check: &Check,
        max_wait: Duration,
        most_waiters: usize,
    ) -> BoxFuture<'_, Result<PermitAnswer, Error>> {
        Box::pin(self.follow_and_wait(check.clone(), max_wait, most_waiters))
    }

    async fn follow_and_wait(
        &self,
        mut check: Check,
        max_wait: Duration,
        mut most_waiters: usize,
    ) -> Result<PermitAnswer, Error> {
        let deadline = later(Instant::now(), max_wait);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let claiming = self.claim_permit(&check, left, Some(most_waiters));
            let checks = std::slice::from_ref(&check);
            match self.unless_override_changes(checks, claiming).await {
                Some(answer) => return answer,
                None => match self.overridden_for_permit(&check) {
                    None => {}
                    Some(ControlFlow::Continue(other)) => check = other,
                    Some(ControlFlow::Break(answer)) => return Ok(answer),
                },
            }
            // It waited before those that came since then.
            most_waiters = usize::MAX;
        }
    }

    async fn claim_permit(
        &self,
        check: &Check,
        max_wait: Duration,
        most_waiters: Option<usize>,
    ) -> Result<PermitAnswer, Error> {
        if check.limit().sheds_load() {
            let agents = self.agents();
            let permit = agents.load_shedder.grant(agents.hashed(check.budget()));
            return Ok(PermitAnswer::of_store(permit, check.limit()));
        }
        let agents = self.agents_for(check)?;
        let budget = Arc::new(agents.hashed(check.budget()));
        let agent = agents.agent(&budget);
        let outcome = match agent.add_caller(&budget, check.limit().permits(), most_waiters)? {
            None => Ok(None),
            Some(mut waiter) => match within(agent, max_wait, &mut waiter.outcome).await {
                Some(outcome) => {
                    waiter.place = None;
                    outcome
                }
                None if most_waiters.is_some() => Ok(None),
                None => Err(agent.late_error(&budget)),
            },
        };
        match outcome {
            Ok(permit) => Ok(PermitAnswer::of_store(permit, check.limit())),
            // The limit's policy decides.
            Err(error) if error.is_unavailable() => agent.decide_locally(&budget, check, error),
            Err(error) => Err(error),
        }
    }

    /// Waits until the store has confirmed all released permits, for at most a second.
    pub(super) async fn flush_permits(&self) {
        let Some(agents) = self.shared.agents.get() else {
            return;
        };
        let deadline = later(Instant::now(), ANSWERS_WITHIN);
        // All tasks start first, so that no agent waits for the task of another.
        agents.agents.iter().for_each(Agent::ensure_task);
        for agent in &agents.agents {
            drop(timeout_at(deadline, agent.flush()).await);
        }
    }

    fn agents(&self) -> &Agents {
        self.shared.agents.get_or_init(|| {
            let lease = self.shared.permit_lease;
            Agents::new(self.shared.failover.store(), lease)
        })
    }

    fn agents_for(&self, check: &Check) -> Result<&Agents, Error> {
        let runtime = Runtime::try_current().map_err(Error::outside_of_runtime)?;
        let name = check.limit().name();
        if !check.limit().is_concurrency() {
            return Err(Error::misuse(format!(
                "limit `{name}` is not a concurrency limit, and has no permits; use \
                 `RateLimiter::check`"
            )));
        }
        let agents = self.agents();
        agents.check_tasks(&runtime);
        Ok(agents)
    }
}

/// A caller that may wait for a permit. If it is dropped before its outcome, its place is given up.
struct PermitWaiter<'a> {
    agent: &'a Arc<Agent>,
    budget: &'a Arc<HashedBudget>,
    /// `None` after the outcome, and for a caller that does not wait.
    place: Option<u64>,
    outcome: oneshot::Receiver<PermitOutcome>,
}

impl Drop for PermitWaiter<'_> {
    fn drop(&mut self) {
        // The agent, which is locked when it removes the place, must not wake this caller.
        self.outcome.close();
        if let Some(place) = self.place {
            self.agent.remove_waiter(self.budget, place);
        }
    }
}

/// The outcome, if it comes in time.
async fn within(
    agent: &Arc<Agent>,
    max_wait: Duration,
    outcome: &mut oneshot::Receiver<PermitOutcome>,
) -> Option<PermitOutcome> {
    let lost = |_| Err(Error::store("the runtime was shut down"));
    match outcome.try_recv() {
        Err(TryRecvError::Empty) => {}
        decided => return Some(decided.unwrap_or_else(lost)),
    }
    let deadline = later(Instant::now(), max_wait);
    loop {
        let look = later(Instant::now(), LOOK_AFTER).min(deadline);
        match timeout_at(look, &mut *outcome).await {
            Ok(outcome) => return Some(outcome.unwrap_or_else(|_| lost(TryRecvError::Closed))),
            Err(_) if look >= deadline => return None,
            // The task may be blocked.
            Err(_) => agent.ensure_task(),
        }
    }
}
