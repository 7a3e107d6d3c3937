//! Background tasks: charging blocks, and giving back units that are not spent.
//!
//! A task ends with its runtime, at any await. So a charge of a block leaves its account usable
//! when it is dropped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use super::account::{Account, Refill, Report, Spent};
use super::{Asynchronous, count};
use crate::model::{Budget, Change, Check, Decision, Operation, Source};
use crate::store::{Store, answer};
use crate::units::{Receipt, spawn_for};

/// How often units without checks are looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// The most refunds in flight.
const AT_ONCE: usize = 256;

impl<S: Store> Asynchronous<S> {
    /// Charges a block in the background.
    #[cold]
    pub(super) fn start_refill(self: &Arc<Self>, budget: Budget, refill: Refill) {
        let refilling = Refilling {
            local: Arc::clone(self),
            budget,
            refill,
        };
        if let Ok(runtime) = Runtime::try_current() {
            self.ensure_reaper(&runtime);
            runtime.spawn(refilling.charge());
        }
    }

    /// Starts the task that gives back units that are not spent, if there is none.
    fn ensure_reaper(self: &Arc<Self>, runtime: &Runtime) {
        let has_reaper = &self.has_reaper;
        if !has_reaper.load(Ordering::Acquire) && !has_reaper.swap(true, Ordering::AcqRel) {
            let end = |local: &Self| local.has_reaper.store(false, Ordering::Release);
            spawn_for(self, runtime, end, reap(Arc::downgrade(self)));
        }
    }
}

/// A charge of a block that is in flight. Dropped, it notes that no block was charged, unless one
/// was granted.
struct Refilling<S: Store> {
    local: Arc<Asynchronous<S>>,
    budget: Budget,
    refill: Refill,
}

impl<S: Store> Refilling<S> {
    async fn charge(self) {
        let Self {
            local,
            budget,
            refill,
        } = &self;
        let asked = Instant::now();
        let block = Check::new(budget.limit(), budget.key()).with_cost(refill.units);
        let answer = local.store.apply(Operation::Charge(block.into())).await;
        let Some(report) = answer.ok().and_then(|it| Report::of(&it, 0, asked)) else {
            return;
        };
        if report.charged > 0 {
            self.with_account(|account| account.grant(*refill, &report));
            count(budget, "charged", report.charged);
        } else {
            self.with_account(|account| {
                account.hear(&report);
            });
        }
    }

    fn with_account(&self, call: impl FnOnce(&mut Account)) {
        let limit = self.budget.limit();
        if let Some(rule) = limit.decided_ahead() {
            let of = (limit, self.budget.key());
            self.local.accounts.with(of, rule, call);
        }
    }
}

impl<S: Store> Drop for Refilling<S> {
    fn drop(&mut self) {
        self.with_account(|account| account.fail_refill(self.refill.number, Instant::now()));
    }
}

impl Report {
    /// What the store said of one of the checks that it was asked. `None` if it said nothing of a
    /// window.
    pub(super) fn of(decision: &Decision, index: usize, asked: Instant) -> Option<Self> {
        let verdict = decision.verdicts().get(index)?;
        let outcome = verdict.outcome();
        let is_of_window = decision.source() == Source::Store && outcome.reset_after > 0;
        is_of_window.then(|| Self {
            asked,
            heard: Instant::now(),
            as_of: decision.timestamp(),
            ends_after: outcome.reset_after,
            left: outcome.remaining,
            charged: verdict.receipt().map_or(0, |receipt| receipt.cost().into()),
        })
    }
}

/// Gives back units that are not spent until no account is left.
async fn reap<S: Store>(local: Weak<Asynchronous<S>>) {
    loop {
        sleep(PERIOD).await;
        let Some(local) = local.upgrade() else {
            return;
        };
        let now = Instant::now();
        let idle = local.accounts.take(now, |account| account.take_idle(now));
        give_back(&*local.store, idle).await;
        if local.accounts.is_empty() {
            return;
        }
    }
}

/// Gives units back to the store. If that fails, nobody spends them, and they end with their
/// window.
pub(super) async fn give_back<S: Store>(store: &S, taken: Vec<(Budget, Spent)>) {
    for some in taken.chunks(AT_ONCE) {
        let refunds = some.iter().map(|(budget, spent)| {
            let units = u32::try_from(spent.units).unwrap_or(u32::MAX);
            let receipt = Receipt::of_charge(spent.charged_at, units);
            let refund = Change::Settle { receipt, cost: 0 };
            store.apply(Operation::Change(budget.clone(), refund))
        });
        let refunded = answer::all(refunds.collect()).await;
        for ((budget, spent), _) in some
            .iter()
            .zip(refunded)
            .filter(|(_, answer)| answer.is_ok())
        {
            count(budget, "returned", spent.units);
        }
    }
}
