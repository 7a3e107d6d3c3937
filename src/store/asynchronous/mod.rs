//! A store whose asynchronous limits are decided in this process.
//!
//! A fixed window is [prepaid](prepaid): its units are charged before they are spent, so nothing
//! passes above the limit. Other limits allow units on [credit](credit), up to their overshoot, and
//! charge them later. A group is decided here if all of its checks are. Otherwise the store is
//! asked for the rest, while the units that are here are [held](held_units).

mod accounts;
mod asked;
mod credit;
mod decided;
mod held_units;
mod prepaid;
mod seen_keys;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::credit::Credit;
use self::decided::DecidedHere;
use self::held_units::HeldUnits;
use self::prepaid::{PrepaidAccounts, Rounds, give_back};
use super::heartbeat::Heartbeat;
use super::{Answer, NotHere, Store, answer};
use crate::algorithm::Cost;
use crate::model::{Budget, Change, Check, Decision, Group, Key, Limit, Operation, Source};
use crate::units::{CompactInstant, Mutex, Outcome, Timestamp};

/// The longest time for paying what is owed, and for giving back units, when a process ends.
const LONGEST_RELEASE: Duration = Duration::from_secs(5);

/// The most refunds and payments that are sent at once. The rest follows when they are answered. It
/// is also the most blocks of one task.
const AT_ONCE: usize = 512;

/// A store, and the accounts by which this process decides in its place.
pub(crate) struct Asynchronous<S: Store> {
    store: Arc<S>,
    /// The longest time until the store answers.
    deadline: Duration,
    /// Rounds of blocks are at multiples of a time since then.
    started: Instant,
    prepaid: PrepaidAccounts,
    rounds: Mutex<Rounds>,
    credit: Credit,
    /// The task that gives back units that are not spent.
    reaper: Mutex<Heartbeat>,
    /// The number of blocks that are being charged.
    charging: watch::Sender<usize>,
}

impl<S: Store> Asynchronous<S> {
    /// `label` is the name of the store in metrics.
    pub(crate) fn new(store: S, deadline: Duration, label: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            deadline,
            started: Instant::now(),
            prepaid: PrepaidAccounts::default(),
            rounds: Mutex::default(),
            credit: Credit::new(label),
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
        let may_be_here = |check: &Check| check.limit().is_asynchronous() && !check.is_of_new_key();
        let may_be_decided = |group: &Group| group.iter().any(may_be_here);
        match operation {
            Operation::Charge(group) if may_be_decided(&group) => match group.into_one() {
                Ok(check) => self.charge_one(check),
                Err(group) => HeldUnits::take(self, group).ask_for_rest(),
            },
            Operation::Peek(group) if may_be_decided(&group) => {
                HeldUnits::look(self, group).ask_for_rest()
            }
            Operation::Change(budget, change @ (Change::Reset | Change::Block(_))) => {
                self.change(budget, change)
            }
            Operation::Change(budget, change @ Change::Settle { receipt, cost })
                if budget.limit().overshoot().is_some() =>
            {
                match self.settle_here(&budget, receipt, cost) {
                    Some(decision) => Answer::ready(Ok(decision)),
                    None if cost < receipt.cost => self.refund_when_paid(budget, change, receipt),
                    None => self.store.apply(Operation::Change(budget, change)),
                }
            }
            Operation::Change(budget, change @ Change::Settle { .. })
                if budget.limit().charged_ahead().is_some() =>
            {
                self.settle_window(budget, change)
            }
            _ => self.store.apply(operation),
        }
    }

    /// Settles a charge of a fixed window. The units that are here also count as left.
    fn settle_window(self: &Arc<Self>, budget: Budget, change: Change) -> Answer {
        let asynchronous = Arc::clone(self);
        let settled = budget.clone();
        let answer = self.store.apply(Operation::Change(budget, change));
        answer.resolved(move |answer| {
            Ok(answer?.map_only(|verdict| asynchronous.with_account(&settled, verdict)))
        })
    }

    fn charge_one(self: &Arc<Self>, check: Check) -> Answer {
        let budget = check.budget().parts();
        let here = match check.limit().charged_ahead() {
            Some(_) => self.spend_up_to(budget, check.cost()),
            None => self.decide_here(budget, check.cost()),
        };
        // Only the store knows the turn of a check that waits.
        let waits = check.asked() != Cost::units(check.cost().into());
        match here {
            Err(NotHere { is_new_key: true }) => self.store.apply(Operation::Charge(check.into())),
            Ok(here) if here.outcome.allowed && !here.is_all_of(&check) => {
                HeldUnits::of_one(self, check, here).ask_for_rest()
            }
            Ok(here) if here.outcome.allowed || !waits => {
                let decision = Decision::from(here.verdict(&check))
                    .with_timestamp(here.now)
                    .with_source(Source::Asynchronous);
                Answer::ready(Ok(match here.outcome.allowed {
                    true => decision.charged(check.cost(), here.charged_at),
                    false => decision,
                }))
            }
            _ => self.ask(check),
        }
    }

    /// Charges a check here, if that is possible. Returns its outcome, and the time of the store.
    #[inline]
    pub(crate) fn charge_here(
        self: &Arc<Self>,
        limit: &Limit,
        key: &Key,
        cost: u32,
    ) -> Result<(Outcome, Timestamp), NotHere> {
        let here = self.decide_here((limit, key), cost)?;
        Ok((here.outcome, here.now))
    }

    #[inline]
    fn decide_here(
        self: &Arc<Self>,
        budget: (&Limit, &Key),
        cost: u32,
    ) -> Result<DecidedHere, NotHere> {
        let (limit, _) = budget;
        // The store answers checks of cost 0.
        if cost == 0 || !limit.is_asynchronous() {
            return Err(NotHere { is_new_key: false });
        }
        match limit.charged_ahead() {
            Some(_) => self.spend(budget, cost),
            None => self.decide_on_credit(budget, cost),
        }
    }

    /// Resets a budget, or blocks its key. Its units are not spent any more after that, whether the
    /// change is answered or not.
    fn change(self: &Arc<Self>, budget: Budget, change: Change) -> Answer {
        let ends_block = matches!(change, Change::Block(time) if time.is_zero());
        if ends_block {
            return self.store.apply(Operation::Change(budget, change));
        }
        if change == Change::Reset {
            self.begin_reset(&budget);
        }
        let mut forget = Forget {
            asynchronous: Arc::clone(self),
            budget: budget.clone(),
            gives_back: change != Change::Reset,
            is_reset: false,
        };
        let answer = self.store.apply(Operation::Change(budget, change));
        answer.resolved(move |answer| {
            forget.is_reset = answer.is_ok() && !forget.gives_back;
            drop(forget);
            answer
        })
    }

    /// Pays what is owed, and gives back all units that are not spent, and those that are being
    /// charged.
    pub(crate) async fn release(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else {
            return;
        };
        // If it takes longer and the process ends, what is owed is not charged, and the rest of the
        // units is lost until the windows end.
        let asynchronous = Arc::clone(self);
        let pay = async move { asynchronous.pay_all().await };
        let paying = runtime.spawn(timeout(LONGEST_RELEASE, pay));
        let give_back = async {
            let taken = self.prepaid.take_all(CompactInstant::now());
            self.give_back(taken).await;
            // The sender is here, so it does not fail.
            drop(self.charging.subscribe().wait_for(|it| *it == 0).await);
        };
        drop(timeout(LONGEST_RELEASE, give_back).await);
        drop(paying.await);
    }
}

impl<S: Store> Drop for Asynchronous<S> {
    /// Pays what is owed and gives back the units that are not spent, if a runtime still runs that.
    fn drop(&mut self) {
        let now = CompactInstant::now();
        let taken = self.prepaid.take_all(now);
        let payments = self.credit.payments(now);
        let is_empty = taken.is_empty() && payments.is_empty();
        if let (Ok(runtime), false) = (Runtime::try_current(), is_empty) {
            let store = Arc::clone(&self.store);
            runtime.spawn(async move {
                let mut payments = payments.into_iter().peekable();
                while payments.peek().is_some() {
                    let some = payments.by_ref().take(AT_ONCE);
                    let answers = some.map(|payment| store.apply(payment)).collect();
                    drop(answer::all(answers).await);
                }
                drop(give_back(&*store, taken).await);
            });
        }
    }
}

/// Forgets the account of a budget when it is dropped. So a block that was charged before a reset,
/// and whose answer comes after it, is not spent either.
struct Forget<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    budget: Budget,
    /// Set if the store still counts its units.
    gives_back: bool,
    /// Set if the store has reset the budget. Then what was owed before is void.
    is_reset: bool,
}

impl<S: Store> Drop for Forget<S> {
    fn drop(&mut self) {
        let Self {
            asynchronous,
            budget,
            gives_back,
            is_reset,
        } = self;
        asynchronous.end_change(budget, *is_reset);
        let removed = asynchronous
            .prepaid
            .remove_units(budget, CompactInstant::now());
        if let Some(returned) = removed.filter(|_| *gives_back) {
            asynchronous.start_give_back(vec![returned]);
        }
    }
}

// They take a minute, and features change nothing of them, so they run with all features alone.
#[cfg(all(test, feature = "test-util"))]
mod tests;
