//! An agent claims what the callers of its keys want, hold and give back.
//!
//! On an embedded store, each change is claimed at once. For any other store, holders with changes
//! are queued, and the [`task`](super::task) claims them.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::callers::PermitCaller;
use super::hashed_budget::HashedBudget;
use super::local_holder::{Delivery, LocalHolder};
use super::local_holders::{LocalHolders, MOST_QUEUED};
use super::pace::Paces;
use super::permit::{Grantor, Permit, PermitAnswer};
use super::runtimes::Runtimes;
use super::{AGENTS, LOOK_AFTER, PermitWaiter};
use crate::model::{Check, Error, OnStoreFailure, Source};
use crate::store::Store;
use crate::telemetry::{self, Throttle};
use crate::units::{MAX_LEASE, Mutex, MutexGuard};

/// The interval between the claims of a holder with waiters.
const POLL: Duration = Duration::from_millis(25);

/// A holder that was claimed so recently waits for the next poll. About the resolution of timers.
const RECENT: Duration = Duration::from_millis(2);

/// The shortest and the longest time after which a claim counts as lost.
const LOST_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(200)];

/// The most claims of a holder in a row while its agent is locked. A few are enough, unless a
/// wrapper of the store goes on granting too much.
const MOST_IN_A_ROW: usize = 16;

/// A store that has answered so recently is not away.
const RECENT_ANSWER: Duration = Duration::from_millis(500);

/// The pause before a claim that failed is repeated.
const RETRY: Duration = Duration::from_millis(250);

pub(super) struct Agent {
    pub(super) store: Arc<dyn Store>,
    pub(super) is_embedded: bool,
    pub(super) lease: Duration,
    pub(super) paces: Paces,
    state: Mutex<LocalHolders>,
    pub(super) wake: Notify,
    /// Notified when claims have ended.
    pub(super) claims_ended: Notify,
    /// Seeded by the operating system, because two processes must not have equal holders.
    hasher: RandomState,
    pub(super) runtimes: Arc<Runtimes>,
    reports: Arc<PermitEvents>,
}

/// The throttles of events, shared by the agents of a limiter.
#[derive(Default)]
pub(super) struct PermitEvents {
    unavailable: Throttle,
    not_renewed: Throttle,
}

/// The error of a caller for whom there is no room.
fn overloaded() -> Error {
    Error::overloaded(MOST_QUEUED * AGENTS)
}

impl Grantor for Agent {
    fn take_back(self: Arc<Self>, budget: &Arc<HashedBudget>) {
        let mut state = self.lock();
        // A holder is kept while a permit of it is held.
        if let Some(holder) = state.holders.get_mut(budget) {
            holder.release();
        }
        self.submit(state, budget);
    }

    fn is_renewed(&self, budget: &Arc<HashedBudget>, granted_here: Option<Instant>) -> bool {
        let state = self.lock();
        let confirmed = state
            .holders
            .get(budget)
            .and_then(LocalHolder::confirmed_at);
        confirmed.is_some_and(|at| {
            granted_here.is_none_or(|granted| at >= granted) && at.elapsed() < self.lease
        })
    }
}

impl Agent {
    pub(super) fn new(
        store: Arc<dyn Store>,
        lease: Duration,
        runtimes: Arc<Runtimes>,
        reports: Arc<PermitEvents>,
    ) -> Self {
        // An embedded store is gone with its process, and no task renews what it keeps.
        let is_embedded = store.is_embedded();
        let lease = if is_embedded { MAX_LEASE } else { lease };
        let [shortest, longest] = LOST_AFTER;
        // Three renewals in each lease, also in a short one.
        let [renew, shortest_retry] = [3, 12].map(|part| lease.checked_div(part).unwrap_or(lease));
        Self {
            store,
            is_embedded,
            lease,
            paces: Paces {
                poll: POLL,
                recent: RECENT,
                renew,
                retry: RETRY.min(shortest_retry),
                lost: renew.clamp(shortest, longest),
            },
            state: Mutex::default(),
            wake: Notify::new(),
            claims_ended: Notify::new(),
            hasher: RandomState::new(),
            runtimes,
            reports,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LocalHolders> {
        self.state.lock()
    }

    /// Adds a caller. With `most_waiters`, it waits, and is not added if as many of its key wait
    /// already. Without, it wants a permit at once.
    pub(super) fn add_caller<'a>(
        self: &'a Arc<Self>,
        budget: &'a Arc<HashedBudget>,
        limit: u32,
        most_waiters: Option<usize>,
    ) -> Result<Option<PermitWaiter<'a>>, Error> {
        // Not under the lock, because threads wait for each other there.
        let (sender, outcome) = oneshot::channel();
        let caller = PermitCaller {
            outcome: sender,
            limit,
        };
        let mut state = self.lock();
        if state.is_overloaded_for(budget) {
            return Err(overloaded());
        }
        state.places += 1;
        let place = state.places;
        let holder = self.holder(&mut state, budget, limit);
        let place = match most_waiters {
            None => {
                holder.add_at_once(caller);
                None
            }
            Some(most) if holder.waiters() >= most => {
                self.submit(state, budget);
                return Ok(None);
            }
            Some(_) => {
                holder.add_waiter(place, caller);
                state.watched.insert(budget.clone());
                Some(place)
            }
        };
        self.submit(state, budget);
        Ok(Some(PermitWaiter {
            agent: self,
            budget,
            place,
            outcome,
        }))
    }

    /// The error for a caller whose outcome takes too long. If the store answers others, and the
    /// claim for this caller had to wait for them, there are too many callers. That is not an
    /// outage.
    pub(super) fn late_error(&self, budget: &HashedBudget) -> Error {
        let now = Instant::now();
        let state = self.lock();
        let age = |at| now.saturating_duration_since(at);
        let answers_others = state.answered_at.is_some_and(|at| age(at) <= RECENT_ANSWER);
        let holder = state.holders.get(budget);
        if answers_others
            && holder.is_some_and(|holder| holder.is_unsent_or_recent(now, RECENT_ANSWER))
        {
            overloaded()
        } else {
            Error::timeout()
        }
    }

    /// Gives up the place of a waiter.
    pub(super) fn remove_waiter(self: &Arc<Self>, budget: &Arc<HashedBudget>, place: u64) {
        let mut state = self.lock();
        if let Some(holder) = state.holders.get_mut(budget) {
            holder.remove_waiter(place);
            self.submit(state, budget);
        }
    }

    /// Decides by the failure policy, while the store is unavailable.
    pub(super) fn decide_locally(
        self: &Arc<Self>,
        budget: &Arc<HashedBudget>,
        check: &Check,
        error: Error,
    ) -> Result<PermitAnswer, Error> {
        let limit = check.limit();
        let policy = check.failure_policy().unwrap_or(OnStoreFailure::FailOpen);
        telemetry::permits_unavailable(
            &self.reports.unavailable,
            limit.name(),
            &error,
            policy.name(),
        );
        let (most, source, limit_in_force) = match policy {
            OnStoreFailure::FailOpen => (u32::MAX, Source::FailOpen, limit.clone()),
            OnStoreFailure::Local { .. } => {
                // A share is at least one permit, so there always is one.
                let share = check.of_share().ok().flatten();
                let share = share.map_or_else(|| limit.clone(), |share| share.limit().clone());
                (share.permits(), Source::Local, share)
            }
            OnStoreFailure::FailClosed => return Err(error),
        };
        // Taken before the claim is sent, whose answer confirms the permit.
        let granted_here = Instant::now();
        let mut state = self.lock();
        let is_free = self
            .holder(&mut state, budget, limit.permits())
            .take_locally(most);
        self.submit(state, budget);
        let permit = is_free
            .then(|| Permit::new(self.grantor(), budget.clone(), source, Some(granted_here)));
        Ok(PermitAnswer {
            permit,
            source,
            limit: limit_in_force,
        })
    }

    /// Waits until the store has confirmed all changes.
    pub(super) async fn flush(self: &Arc<Self>) {
        loop {
            // A permit that was dropped outside of a runtime may have started no task.
            self.ensure_task();
            let mut claims_ended = pin!(self.claims_ended.notified());
            claims_ended.as_mut().enable();
            if self.lock().are_confirmed() {
                return;
            }
            // The task may be blocked.
            drop(timeout(LOOK_AFTER, claims_ended).await);
        }
    }

    fn grantor(self: &Arc<Self>) -> Arc<dyn Grantor> {
        Arc::<Self>::clone(self)
    }

    pub(super) fn keys(&self) -> usize {
        self.lock().holders.len()
    }

    pub(super) fn held(&self, budget: &HashedBudget) -> u64 {
        self.lock().holders.get(budget).map_or(0, LocalHolder::held)
    }

    fn holder<'a>(
        &self,
        state: &'a mut LocalHolders,
        budget: &Arc<HashedBudget>,
        limit: u32,
    ) -> &'a mut LocalHolder {
        let LocalHolders {
            holders, created, ..
        } = state;
        holders.entry(budget.clone()).or_insert_with(|| {
            *created += 1;
            let id = self.hasher.hash_one(*created);
            LocalHolder::new(id.to_be_bytes(), limit)
        })
    }

    /// Claims a holder that has changed, at once on an embedded store, else by the task. A wrapper
    /// of an embedded store may answer later, and then the task awaits its answer.
    fn submit(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, LocalHolders>,
        budget: &Arc<HashedBudget>,
    ) {
        if self.is_embedded {
            self.claim_now(state, budget);
            return;
        }
        let LocalHolders {
            holders, queues, ..
        } = &mut *state;
        let Some(holder) = holders.get_mut(budget) else {
            return;
        };
        queues.enqueue(budget, holder);
        if holder.is_over() {
            state.remove(budget);
        }
        drop(state);
        self.ensure_task();
        self.wake.notify_one();
    }

    /// Claims a holder on an embedded store. The state stays locked meanwhile.
    fn claim_now(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, LocalHolders>,
        budget: &Arc<HashedBudget>,
    ) {
        let LocalHolders {
            holders, queues, ..
        } = &mut *state;
        let Some(holder) = holders.get_mut(budget) else {
            return;
        };
        let mut deliveries = Vec::new();
        let mut failure = None;
        let now = Instant::now();
        // A permit that was granted to a caller that is gone needs another claim, which gives it
        // back.
        for _ in 0..MOST_IN_A_ROW {
            if holder.next_claim().is_none() {
                break;
            }
            let claim = holder.claim(budget, self.lease, now);
            let mut answer = self.store.apply(claim);
            match answer.take_ready() {
                Some(Ok(decision)) => {
                    holder.apply_answer(decision.remaining(), now, &mut deliveries);
                }
                Some(Err(error)) => {
                    holder.apply_failure(&error, now, &mut deliveries);
                    failure = Some(error);
                }
                // A wrapper of the store does not answer at once. The task awaits it.
                None => queues.keep_answer(budget, holder, answer),
            }
        }
        self.requeue_or_remove(&mut state, budget);
        let needs_task = !self.has_nothing_to_do(&state);
        drop(state);
        self.deliver(budget, deliveries, failure.as_ref());
        if needs_task {
            // Another limiter on this store may give back what a caller waits for.
            self.ensure_task();
            self.wake.notify_one();
        }
    }

    /// Gives callers their outcomes. The state must not be locked, because a caller that is gone
    /// drops its permit.
    pub(super) fn deliver(
        self: &Arc<Self>,
        budget: &Arc<HashedBudget>,
        deliveries: Vec<Delivery>,
        error: Option<&Error>,
    ) {
        for delivery in deliveries {
            drop(match delivery {
                Delivery::Permit(caller) => caller.send(Ok(Some(Permit::new(
                    self.grantor(),
                    budget.clone(),
                    Source::Store,
                    None,
                )))),
                Delivery::None(caller) => caller.send(Ok(None)),
                Delivery::Error(caller) => {
                    let error = error.map(Error::repeated);
                    caller.send(Err(error.unwrap_or_else(|| Error::store("no answer"))))
                }
            });
        }
    }

    /// Claims the holders whose time has come. Watched holders are looked at each time, and all
    /// holders at longer intervals, because there may be many.
    pub(super) fn claim_due(self: &Arc<Self>) {
        let now = Instant::now();
        let mut guard = self.lock();
        let LocalHolders {
            holders,
            queues,
            watched,
            scanned,
            ..
        } = &mut *guard;
        watched.retain(|budget| holders.get(budget).is_some_and(LocalHolder::is_watched));
        let mut due = Vec::new();
        let mut unrenewed = Vec::new();
        let mut claim_if_due = |budget: &Arc<HashedBudget>, holder: &mut LocalHolder| {
            if !holder.mark_if_due(now, &self.paces) {
                return;
            }
            match self.is_embedded {
                true => due.push(budget.clone()),
                false => queues.enqueue(budget, holder),
            }
        };
        let is_recent = |at: Instant| now.saturating_duration_since(at) < self.paces.retry;
        // Nothing expires in an embedded store.
        if self.is_embedded || scanned.is_some_and(is_recent) {
            for budget in watched.iter() {
                if let Some(holder) = holders.get_mut(budget) {
                    claim_if_due(budget, holder);
                }
            }
        } else {
            *scanned = Some(now);
            for (budget, holder) in holders {
                claim_if_due(budget, holder);
                if holder.has_expired(now, self.lease) {
                    unrenewed.push((budget.clone(), holder.held()));
                }
            }
        }
        drop(guard);
        for (budget, held) in unrenewed {
            telemetry::permits_not_renewed(&self.reports.not_renewed, budget.limit().name(), held);
        }
        due.iter()
            .for_each(|budget| self.submit(self.lock(), budget));
    }

    /// Returns whether no task is needed.
    pub(super) fn has_nothing_to_do(&self, state: &LocalHolders) -> bool {
        match self.is_embedded {
            true => state.watched.is_empty() && state.queues.is_empty(),
            false => state.holders.is_empty() && state.queues.is_empty(),
        }
    }
}
