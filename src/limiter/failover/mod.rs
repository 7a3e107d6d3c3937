//! The outcome of a check when the store is unavailable, by the policies of its limits.
//!
//! The policies apply outside of all wrappers of a store. Inside, they would hide failures from a
//! wrapper. So they are part of the limiter. All layers of a limiter share its local budgets.

mod ledger;
mod local;
mod repayment;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::local::Local;
use crate::model::{
    Budget, Change, Check, Decision, Error, Key, Limit, OnStoreFailure, Operation, Source, Verdict,
};
#[cfg(feature = "redis")]
use crate::store::RedisStore;
use crate::store::{Answer, MemoryStore, NotHere, Store};
use crate::telemetry::{self, Throttle};
use crate::units::{ConfigError, Outcome, Receipt, Timestamp, micros};

/// The time until the next try, if no circuit breaker knows better.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// A caller that waits for the store must not ask all the time.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// A store, and what decides in its place.
pub(super) struct Failover {
    store: Arc<dyn Store>,
    is_embedded: bool,
    /// The store, if it is in memory. Its decisions are a part of the request's code then.
    memory: Option<Arc<MemoryStore>>,
    /// The store, if it is Redis. It decides some checks ahead.
    #[cfg(feature = "redis")]
    redis: Option<Arc<RedisStore>>,
    /// Made for the first check that is decided locally.
    local: OnceLock<Local>,
    /// A throttle for each policy, so that one does not hide the outcomes of another.
    events: [Throttle; 3],
}

impl Failover {
    pub(super) fn new(store: impl Store) -> Arc<Self> {
        let store = Arc::new(store);
        let any = || -> Arc<dyn Any + Send + Sync> { Arc::clone(&store) as _ };
        Arc::new(Self {
            is_embedded: store.is_embedded(),
            memory: any().downcast().ok(),
            #[cfg(feature = "redis")]
            redis: any().downcast().ok(),
            store,
            local: OnceLock::new(),
            events: Default::default(),
        })
    }

    const fn events_of(&self, policy: OnStoreFailure) -> &Throttle {
        let [fail_open, local, fail_closed] = &self.events;
        match policy {
            OnStoreFailure::FailOpen => fail_open,
            OnStoreFailure::Local { .. } => local,
            OnStoreFailure::FailClosed => fail_closed,
        }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The store, if it is in memory.
    #[inline]
    pub(super) fn memory(&self) -> Option<&MemoryStore> {
        self.memory.as_deref()
    }

    /// Charges a check of an asynchronous limit, if this process can decide it.
    #[inline]
    pub(super) fn charge_here(
        &self,
        limit: &Limit,
        key: &Key,
        cost: u32,
    ) -> Result<(Outcome, Timestamp), NotHere> {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            return redis.charge_here(limit, key, cost);
        }
        let _ = (limit, key, cost);
        Err(NotHere { is_new_key: false })
    }

    /// Charges what is owed, and gives back units that are not spent.
    pub(super) async fn release(&self) {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            redis.release().await;
        }
    }

    pub(super) fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        self.store().check_limits(limits)
    }

    pub(super) const fn is_embedded(&self) -> bool {
        self.is_embedded
    }

    #[inline]
    pub(super) fn apply(self: &Arc<Self>, operation: Operation) -> Answer {
        if let Operation::Change(budget, Change::Settle { receipt, cost }) = &operation
            && let Some(charged) = receipt.local()
        {
            return self.settle_local_charge(budget, charged, *cost);
        }
        if let Some(memory) = &self.memory {
            return memory.apply(operation);
        }
        if self.is_embedded {
            return self.store().apply(operation);
        }
        match &operation {
            Operation::Charge(group) | Operation::Peek(group) => match policy(group) {
                Some(policy) => self.ask_with_policy(operation, policy),
                None => self.ask_store(operation),
            },
            Operation::Change(budget, change @ (Change::Reset | Change::Block(_))) => {
                // Otherwise a client that an operator lets in again stays denied locally.
                if let Some(local) = self.local.get() {
                    local.change(budget, change);
                }
                self.store().apply(operation)
            }
            Operation::Change(_, Change::Settle { .. } | Change::Claim(_) | Change::Pay(_)) => {
                self.ask_store(operation)
            }
        }
    }

    /// Asks the store. If it is unavailable, the policy decides.
    fn ask_with_policy(self: &Arc<Self>, operation: Operation, policy: OnStoreFailure) -> Answer {
        let failover = Arc::clone(self);
        let answer = failover.store.apply(operation.clone());
        answer.resolved(move |answer| failover.resolve(answer, &operation, policy))
    }

    /// Asks the store, without anything to decide in its place. Its answer also starts the
    /// repayment of local charges.
    fn ask_store(self: &Arc<Self>, operation: Operation) -> Answer {
        let answer = self.store().apply(operation);
        if !self.owes_charges() {
            return answer;
        }
        let failover = Arc::clone(self);
        answer.resolved(move |answer| {
            if answer
                .as_ref()
                .is_ok_and(|decision| decision.source() == Source::Store)
            {
                repayment::start(&failover);
            }
            answer
        })
    }

    /// Settles a charge of which the store does not know yet, or, after the outage, only that it
    /// was made.
    fn settle_local_charge(
        self: &Arc<Self>,
        budget: &Budget,
        charged: Receipt,
        cost: u32,
    ) -> Answer {
        if let Some(local) = self.local.get()
            && let Some(left) = local.settle(budget, charged, cost)
        {
            return Answer::ready(left);
        }
        let more = Change::Settle {
            receipt: Receipt::default(),
            cost: cost.saturating_sub(charged.cost),
        };
        self.ask_store(Operation::Change(budget.clone(), more))
    }
}

/// The strictest policy of a group. `None` if a limit has none. Then the check fails. A limit in
/// shadow mode never denies, so it does not count.
fn policy(group: &[Check]) -> Option<OnStoreFailure> {
    let policies = group.iter().map(|check| match check.is_shadow() {
        true => check.failure_policy().and(Some(OnStoreFailure::FailOpen)),
        false => check.failure_policy(),
    });
    policies
        .reduce(|one, other| Some(one?.stricter(other?)))
        .flatten()
}

/// Returns whether a check can be decided without the store. A limit in shadow mode never denies,
/// so it always can.
fn has_outcome(check: &Check) -> bool {
    check.is_shadow() || check.of_share().is_ok()
}

impl Failover {
    /// Returns whether the store is to be charged for what was decided locally.
    fn owes_charges(&self) -> bool {
        self.local
            .get()
            .is_some_and(|local| !local.ledger.is_empty())
    }

    fn resolve(
        self: &Arc<Self>,
        answer: Result<Decision, Error>,
        operation: &Operation,
        policy: OnStoreFailure,
    ) -> Result<Decision, Error> {
        match answer {
            Err(error) if error.is_unavailable() => self.decide_by_policy(error, operation, policy),
            Err(error) => Err(error),
            Ok(decision) => {
                if decision.source() == Source::Store {
                    telemetry::available(self.events_of(policy));
                    repayment::start(self);
                }
                Ok(decision)
            }
        }
    }

    /// The decision in place of the store's.
    fn decide_by_policy(
        &self,
        error: Error,
        operation: &Operation,
        policy: OnStoreFailure,
    ) -> Result<Decision, Error> {
        let (group, is_charge) = match operation {
            Operation::Charge(group) => (group, true),
            Operation::Peek(group) => (group, false),
            Operation::Change(..) => return Err(error),
        };
        telemetry::unavailable(self.events_of(policy), group, &error, policy.name());
        let wait = error
            .probe_after()
            .unwrap_or(UNKNOWN_WAIT)
            .max(SHORTEST_WAIT);
        let wait = micros(wait);
        let (source, verdicts) = match policy {
            OnStoreFailure::Local { .. } if group.iter().all(has_outcome) => {
                let local = self.local.get_or_init(Local::new);
                return local.decide(group, is_charge, wait, error.may_have_charged());
            }
            OnStoreFailure::FailOpen => {
                let unlimited = group.iter().map(|check| {
                    Verdict::unlimited(check.limit().clone()).in_shadow(check.is_shadow())
                });
                (Source::FailOpen, unlimited.collect())
            }
            // A share that cannot be decided must not open the limit.
            OnStoreFailure::FailClosed | OnStoreFailure::Local { .. } => {
                let unavailable = group.iter().map(|check| {
                    let verdict = Verdict::unavailable(check.limit().clone(), wait);
                    verdict.in_shadow(check.is_shadow())
                });
                (Source::FailClosed, unavailable.collect())
            }
        };
        Decision::in_place_of_store(verdicts, source)
    }
}

impl fmt::Debug for Failover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store().fmt(f)
    }
}
