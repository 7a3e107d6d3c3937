//! Decisions of this process: a store whose asynchronous limits are decided here, with units that
//! were charged ahead.
//!
//! The first checks of a key ask the store. A key with more checks gets a *block* of units, which a
//! task charges. Its checks spend them without a question, and the next block is charged before the
//! last one is spent. Blocks get smaller as the rest of the window does, and near its end each
//! check asks. A check that costs more than is here asks for the rest, and a group for the checks
//! whose units are not here, so nothing is denied that this process has the units for.
//!
//! Only fixed windows are decided so. The module [`account`] says why nothing passes above the
//! limit.

mod account;
mod accounts;
mod background;
mod pending;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use self::account::{Account, Report, Spent};
use self::accounts::Accounts;
use self::background::give_back;
use self::pending::Pending;
use super::{Answer, Store};
use crate::algorithm::FixedWindow;
use crate::model::{Budget, Change, Check, Decision, Key, Limit, Operation, Source, Verdict};
use crate::telemetry;
use crate::units::{Outcome, Timestamp};

/// A store, and the accounts by which this process decides in its place.
pub(crate) struct Asynchronous<S: Store> {
    store: Arc<S>,
    /// The longest time until the store answers.
    deadline: Duration,
    accounts: Accounts,
    /// Whether a task gives back units that are not spent.
    has_reaper: AtomicBool,
}

impl<S: Store> Asynchronous<S> {
    pub(crate) fn new(store: S, deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            deadline,
            accounts: Accounts::default(),
            has_reaper: AtomicBool::new(false),
        })
    }

    /// The store, which decides what is not decided here.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// Applies an operation.
    pub(crate) fn apply(self: &Arc<Self>, operation: Operation) -> Answer {
        match operation {
            Operation::Charge(group) => match group.into_one() {
                Ok(check) if rule(&check).is_some() => self.charge_one(check),
                Err(group) if group.iter().any(|check| rule(check).is_some()) => {
                    Pending::take(self, group).ask()
                }
                Ok(check) => self.store.apply(Operation::Charge(check.into())),
                Err(group) => self.store.apply(Operation::Charge(group)),
            },
            Operation::Peek(group) if group.iter().any(|check| rule(check).is_some()) => {
                Pending::look(self, group).ask()
            }
            Operation::Peek(_) => self.store.apply(operation),
            Operation::Change(budget, change) => self.change(budget, change),
        }
    }

    fn charge_one(self: &Arc<Self>, check: Check) -> Answer {
        match self.spend(check.limit(), check.key(), check.cost()) {
            Some(spent) => {
                let verdict = spent.verdict(&check, check.cost());
                Answer::ready(Ok(Decision::from(verdict)
                    .with_timestamp(spent.now)
                    .charged(check.cost(), spent.charged_at)
                    .with_source(Source::Asynchronous)))
            }
            None => Pending::take(self, check.into()).ask(),
        }
    }

    /// Charges a check, if its units are here. Returns its outcome, and the time of the store.
    #[inline]
    pub(crate) fn charge_here(
        self: &Arc<Self>,
        limit: &Limit,
        key: &Key,
        cost: u32,
    ) -> Option<(Outcome, Timestamp)> {
        let spent = self.spend(limit, key, cost)?;
        Some((spent.outcome, spent.now))
    }

    #[inline]
    fn spend(self: &Arc<Self>, limit: &Limit, key: &Key, cost: u32) -> Option<Spent> {
        // Whatever costs nothing is for the store to answer.
        let rule = limit.decided_ahead().filter(|_| cost > 0)?;
        let spend = |account: &mut Account| {
            let spent = account.spend(cost.into(), Instant::now)?;
            let refill = self.accounts.refill(account, spent.at);
            Some((spent, refill))
        };
        let (spent, refill) = self.accounts.with((limit, key), rule, spend)??;
        if let Some(refill) = refill {
            self.start_refill(Budget::new(limit, key), refill);
        }
        Some(spent)
    }

    /// Notes what the store said of a check. Returns the units that are here.
    fn hear(self: &Arc<Self>, check: &Check, asked: &Decision, index: usize, at: Instant) -> u64 {
        let report = rule(check).and_then(|rule| Some((rule, Report::of(asked, index, at)?)));
        let Some((rule, report)) = report else {
            return 0;
        };
        let (ahead, refill) = self.accounts.hear(check.budget(), rule, &report);
        if let Some(refill) = refill {
            self.start_refill(check.budget().clone(), refill);
        }
        ahead
    }

    /// Changes a budget. Its units are not spent after a reset or a block by an operator, whether
    /// its answer comes or not.
    fn change(self: &Arc<Self>, budget: Budget, change: Change) -> Answer {
        let ends_units = matches!(change, Change::Reset | Change::Block(_));
        if !ends_units || budget.limit().decided_ahead().is_none() {
            return self.store.apply(Operation::Change(budget, change));
        }
        let forget = Forget(Arc::clone(self), budget.clone());
        let answer = self.store.apply(Operation::Change(budget, change));
        answer.resolved(move |answer| {
            drop(forget);
            answer
        })
    }

    /// Gives back all units that are not spent.
    pub(crate) async fn release(&self) {
        let now = Instant::now();
        let taken = self.accounts.take(now, |account| account.take_all(now));
        give_back(&*self.store, taken).await;
    }
}

impl<S: Store> Drop for Asynchronous<S> {
    /// Gives back the units that are not spent, if a runtime still runs that.
    fn drop(&mut self) {
        let now = Instant::now();
        let taken = self.accounts.take(now, |account| account.take_all(now));
        if let (Ok(runtime), false) = (Runtime::try_current(), taken.is_empty()) {
            let store = Arc::clone(&self.store);
            runtime.spawn(async move { give_back(&*store, taken).await });
        }
    }
}

/// Forgets the account of a budget when it is dropped. A block that is charged before a reset, and
/// whose answer comes after it, is not spent then either.
struct Forget<S: Store>(Arc<Asynchronous<S>>, Budget);

impl<S: Store> Drop for Forget<S> {
    fn drop(&mut self) {
        self.0.accounts.remove(&self.1);
    }
}

/// The rule of a check that may be decided here.
fn rule(check: &Check) -> Option<&FixedWindow> {
    check.limit().decided_ahead()
}

impl Spent {
    /// The verdict on a check whose units are all here.
    fn verdict(&self, check: &Check, charged: u32) -> Verdict {
        Verdict::new(check.limit().clone(), self.outcome, charged).in_shadow(check.is_shadow())
    }
}

/// Counts units that were charged in a block, or given back.
fn count(budget: &Budget, event: &'static str, units: u64) {
    telemetry::prefetched(budget.limit().name(), event, units);
}

#[cfg(test)]
mod tests;
