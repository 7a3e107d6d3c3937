//! A store whose asynchronous limits are decided in this process, with units that were charged
//! ahead.
//!
//! The first checks of a key ask the store. A key with more checks gets a *block* of units, which a
//! task charges. Its checks spend them, and the next block is charged before the last one is spent.
//! Blocks get smaller with the rest of the window, and near its end each check asks. A check that
//! costs more than is here asks for the rest, and a group for the checks whose units are not here.
//!
//! Only fixed windows are decided so. The module [`account`] says why nothing passes above the
//! limit.

mod account;
mod accounts;
mod background;
mod held_units;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::account::{Account, Spent, WindowReport};
use self::accounts::Accounts;
use self::background::give_back;
use self::held_units::HeldUnits;
use super::heartbeat::Heartbeat;
use super::{Answer, Store};
use crate::algorithm::FixedWindow;
use crate::model::{Budget, Change, Check, Decision, Key, Limit, Operation, Source, Verdict};
use crate::telemetry;
use crate::units::{Mutex, Outcome, Timestamp};

/// The longest time for giving back units when a process ends.
const LONGEST_RELEASE: Duration = Duration::from_secs(5);

/// A store, and the accounts by which this process decides in its place.
pub(crate) struct Asynchronous<S: Store> {
    store: Arc<S>,
    /// The longest time until the store answers.
    deadline: Duration,
    accounts: Accounts,
    /// The task that gives back units that are not spent.
    reaper: Mutex<Heartbeat>,
    /// The number of blocks that are being charged.
    charging: watch::Sender<usize>,
}

impl<S: Store> Asynchronous<S> {
    pub(crate) fn new(store: S, deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            deadline,
            accounts: Accounts::default(),
            reaper: Mutex::default(),
            charging: watch::Sender::new(0),
        })
    }

    /// The store, which decides what is not decided here.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// Applies an operation.
    pub(crate) fn apply(self: &Arc<Self>, operation: Operation) -> Answer {
        let is_for_store = match &operation {
            Operation::Charge(group) | Operation::Peek(group) => {
                group.iter().all(|check| rule(check).is_none())
            }
            Operation::Change(_, Change::Reset | Change::Block(_)) => false,
            Operation::Change(..) => true,
        };
        if is_for_store {
            return self.store.apply(operation);
        }
        match operation {
            Operation::Charge(group) => match group.into_one() {
                Ok(check) => self.charge_one(check),
                Err(group) => HeldUnits::take(self, group).ask(),
            },
            Operation::Peek(group) => HeldUnits::look(self, group).ask(),
            Operation::Change(budget, change) => self.change(budget, change),
        }
    }

    fn charge_one(self: &Arc<Self>, check: Check) -> Answer {
        match self.spend(check.limit(), check.key(), check.cost()) {
            Some(spent) => {
                let verdict = spent.verdict(&check);
                Answer::ready(Ok(Decision::from(verdict)
                    .with_timestamp(spent.now)
                    .charged(check.cost(), spent.charged_at)
                    .with_source(Source::Asynchronous)))
            }
            None => HeldUnits::take(self, check.into()).ask(),
        }
    }

    /// Charges a check with units that are here. Returns its outcome, and the time of the store.
    #[inline]
    pub(crate) fn spend_ahead(
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
        // The store answers checks of cost 0.
        let rule = limit.decided_ahead().filter(|_| cost > 0)?;
        let spend = |account: &mut Account| {
            let spent = account.spend(cost.into(), Instant::now)?;
            let block = self.accounts.next_block(account, spent.at);
            Some((spent, block))
        };
        let (spent, block) = self.accounts.with((limit, key), rule, spend)??;
        if let Some(block) = block {
            self.start_charge(Budget::new(limit, key), block);
        }
        Some(spent)
    }

    /// Notes the answer to a check. Returns the units that are here.
    fn note(self: &Arc<Self>, check: &Check, report: &WindowReport) -> u64 {
        let Some(rule) = rule(check) else {
            return 0;
        };
        let noted = self.accounts.note(check.budget(), rule, report);
        if let Some(block) = noted.block {
            self.start_charge(check.budget().clone(), block);
        }
        if let Some(returned) = noted.returned {
            self.start_give_back(vec![returned]);
        }
        noted.ahead
    }

    /// Resets a budget, or blocks its key. Its units are not spent any more after that, whether the
    /// change is answered or not.
    fn change(self: &Arc<Self>, budget: Budget, change: Change) -> Answer {
        let ends_block = matches!(change, Change::Block(time) if time.is_zero());
        if ends_block {
            return self.store.apply(Operation::Change(budget, change));
        }
        let forget = Forget {
            asynchronous: Arc::clone(self),
            budget: budget.clone(),
            gives_back: change != Change::Reset,
        };
        let answer = self.store.apply(Operation::Change(budget, change));
        answer.resolved(move |answer| {
            drop(forget);
            answer
        })
    }

    /// Gives back all units that are not spent, and those that are being charged.
    pub(crate) async fn release(&self) {
        let release = async {
            let now = Instant::now();
            let taken = self.accounts.take(now, |account| account.take_all(now));
            self.give_back(taken).await;
            // The sender is here, so it does not fail.
            drop(self.charging.subscribe().wait_for(|it| *it == 0).await);
        };
        // If it takes longer, the rest is lost until the windows end.
        drop(timeout(LONGEST_RELEASE, release).await);
    }
}

impl<S: Store> Drop for Asynchronous<S> {
    /// Gives back the units that are not spent, if a runtime still runs that.
    fn drop(&mut self) {
        let now = Instant::now();
        let taken = self.accounts.take(now, |account| account.take_all(now));
        if let (Ok(runtime), false) = (Runtime::try_current(), taken.is_empty()) {
            let store = Arc::clone(&self.store);
            runtime.spawn(async move { drop(give_back(&*store, taken).await) });
        }
    }
}

/// Forgets the account of a budget when it is dropped. So a block that was charged before a reset,
/// and whose answer comes after it, is not spent either.
struct Forget<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    budget: Budget,
    /// Whether the store still counts its units.
    gives_back: bool,
}

impl<S: Store> Drop for Forget<S> {
    fn drop(&mut self) {
        let Self {
            asynchronous,
            budget,
            gives_back,
        } = self;
        let removed = asynchronous.accounts.remove(budget, Instant::now());
        if let Some(returned) = removed.filter(|_| *gives_back) {
            asynchronous.start_give_back(vec![returned]);
        }
    }
}

/// The rule of a check that may be decided here.
fn rule(check: &Check) -> Option<&FixedWindow> {
    check.limit().decided_ahead()
}

impl Spent {
    /// The verdict on a check whose units are all here, before it is charged.
    fn verdict(&self, check: &Check) -> Verdict {
        Verdict::new(check.limit().clone(), self.outcome, 0).in_shadow(check.is_shadow())
    }
}

/// Counts units that were charged in a block, or given back.
fn count(budget: &Budget, event: &'static str, units: u64) {
    telemetry::prefetched(budget.limit().name(), event, units);
}

#[cfg(test)]
mod tests;
