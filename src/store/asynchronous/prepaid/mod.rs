//! Fixed windows: units that are charged before they are spent.
//!
//! The first checks of a key ask the store. A key with more checks gets a *block* of units, which a
//! task charges. Its checks spend them, and when half of them are spent, the next block is charged.
//! Blocks get smaller with the rest of the window, and near its end each check asks. A check that
//! costs more than is here asks for the rest. The module [`account`] says why nothing passes above
//! the limit, and [`charging`] how blocks are charged.

pub(super) mod account;
mod charging;

pub(super) use self::charging::Rounds;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use self::account::{Block, PrepaidAccount, ReturnedUnits, WindowReport};
use super::accounts::{Accounts, StoredAccount};
use super::decided::DecidedHere;
use super::{AT_ONCE, Asynchronous};
use crate::algorithm::FixedWindow;
use crate::model::{Budget, Change, Key, Limit, Operation, Source, Verdict};
use crate::store::{NotHere, Store, answer};
use crate::telemetry;
use crate::units::{CompactInstant, Receipt, spawn_for};

/// The interval at which units that are not spent are looked for.
const PERIOD: Duration = Duration::from_secs(1);

/// A round of that task that takes longer is taken for its end.
const LONGEST_ROUND: Duration = Duration::from_secs(3);

/// The accounts of all budgets of fixed windows.
pub(super) type PrepaidAccounts = Accounts<PrepaidAccount>;

/// The account after an answer.
struct Noted {
    /// The units that are left in the store and here.
    left: u64,
    /// The block that is needed now.
    block: Option<Block>,
    /// Units that were charged under another quota, and are not spent under this one.
    returned: Option<(Budget, ReturnedUnits)>,
}

impl PrepaidAccounts {
    /// The block that an account needs now.
    #[inline]
    fn next_block(
        &self,
        rule: &FixedWindow,
        account: &mut PrepaidAccount,
        now: CompactInstant,
    ) -> Option<Block> {
        account.next_block(rule, || self.next_number(), now)
    }

    /// Notes the answer to a check.
    fn note(&self, budget: &Budget, rule: &FixedWindow, report: &WindowReport) -> Noted {
        let mut place = self.place(budget.parts());
        let new = || PrepaidAccount::new(self.next_number(), report);
        let Some(stored) = place.get() else {
            place.add(budget, new, report.answered);
            return Noted {
                left: report.left,
                block: None,
                returned: None,
            };
        };
        if stored.decides_as(budget.limit()) {
            stored.account.note(report);
            return Noted {
                left: stored.account.left(),
                block: self.next_block(rule, &mut stored.account, report.answered),
                returned: None,
            };
        }
        let mut old = stored.replace(budget, new());
        let returned = old.account.take_all(report.answered);
        Noted {
            left: report.left,
            block: None,
            returned: returned.map(|returned| (old.budget, returned)),
        }
    }

    /// Removes the account of a budget. Returns its units.
    pub(super) fn remove_units(
        &self,
        budget: &Budget,
        now: CompactInstant,
    ) -> Option<(Budget, ReturnedUnits)> {
        let mut removed = self.remove(budget)?;
        let returned = removed.account.take_all(now)?;
        Some((removed.budget, returned))
    }

    /// Takes units out of all accounts, and forgets those whose window is over.
    fn take(
        &self,
        now: CompactInstant,
        take: impl Fn(&mut PrepaidAccount) -> Option<ReturnedUnits>,
    ) -> Vec<(Budget, ReturnedUnits)> {
        let mut taken = Vec::new();
        // First without forgetting any, because that moves others.
        self.for_each(
            |StoredAccount {
                 account, budget, ..
             }| {
                let returned = take(account);
                taken.extend(returned.map(|returned| (budget.clone(), returned)));
            },
        );
        self.forget(|account| account.is_over(now));
        taken
    }

    /// Takes all units out of all accounts.
    pub(super) fn take_all(&self, now: CompactInstant) -> Vec<(Budget, ReturnedUnits)> {
        self.take(now, |account| account.take_all(now))
    }
}

impl<S: Store> Asynchronous<S> {
    /// Spends the units of a check, if all are here.
    #[inline]
    pub(super) fn spend(
        self: &Arc<Self>,
        budget: (&Limit, &Key),
        cost: u32,
    ) -> Result<DecidedHere, NotHere> {
        self.take_units(budget, cost, |rule, account| {
            account.spend(rule, cost.into(), CompactInstant::now)
        })
    }

    /// Spends the units of a check that are here. If they are only a part of its cost, the store is
    /// to be asked for the rest.
    pub(super) fn spend_up_to(
        self: &Arc<Self>,
        budget: (&Limit, &Key),
        cost: u32,
    ) -> Result<DecidedHere, NotHere> {
        let (limit, _) = budget;
        let units = u64::from(cost);
        // Only the store knows the answer to a cost of 0, and to one above the capacity.
        if units == 0 || limit.charged_ahead().is_none_or(|rule| units > rule.limit) {
            return Err(NotHere { is_new_key: false });
        }
        self.take_units(budget, cost, |rule, account| {
            account.take_up_to(rule, units, CompactInstant::now)
        })
    }

    /// Takes units out of the account of a budget, and begins the next block if it is needed.
    #[inline]
    fn take_units(
        self: &Arc<Self>,
        (limit, key): (&Limit, &Key),
        cost: u32,
        take: impl FnOnce(&FixedWindow, &mut PrepaidAccount) -> Option<DecidedHere>,
    ) -> Result<DecidedHere, NotHere> {
        let (taken, block) = self.prepaid.decide((limit, key), |rule, account| {
            let taken = take(rule, account)?;
            // If the store is asked for the rest, its answer tells whether a block is needed.
            let block = match taken.units == u64::from(cost) {
                true => self.prepaid.next_block(rule, account, taken.at),
                false => None,
            };
            Some((taken, block))
        })?;
        if let Some(block) = block {
            self.start_charge(Budget::new(limit, key), block);
        }
        Ok(taken)
    }

    /// Notes the answer to a check of a fixed window. Returns the units that are left.
    pub(super) fn note_window(
        self: &Arc<Self>,
        budget: &Budget,
        rule: &FixedWindow,
        report: &WindowReport,
    ) -> u64 {
        let noted = self.prepaid.note(budget, rule, report);
        if let Some(block) = noted.block {
            self.start_charge(budget.clone(), block);
        }
        if let Some(returned) = noted.returned {
            self.start_give_back(vec![returned]);
        }
        noted.left
    }

    /// Gives units back in the background.
    #[cold]
    pub(super) fn start_give_back(self: &Arc<Self>, units: Vec<(Budget, ReturnedUnits)>) {
        if let Ok(runtime) = Runtime::try_current() {
            let asynchronous = Arc::clone(self);
            runtime.spawn(async move { asynchronous.give_back(units).await });
        }
    }

    /// Gives units back to the store. If it has certainly not taken them, they are kept.
    pub(super) async fn give_back(&self, units: Vec<(Budget, ReturnedUnits)>) {
        for (budget, kept) in give_back(&*self.store, units).await {
            self.prepaid
                .with(budget.parts(), |_, it| it.put_back_returned(&kept));
        }
    }

    /// Starts the task that gives back units that are not spent, if there is none, or if its
    /// runtime does not run it.
    fn ensure_reaper(self: &Arc<Self>, runtime: &Runtime) {
        if self.reaper.lock().begin(LONGEST_ROUND) {
            // Not under the lock: a runtime that shuts down drops the task at once.
            let end = |it: &Self| it.reaper.lock().end();
            spawn_for(self, runtime, end, reap(Arc::downgrade(self)));
        }
    }
}

impl WindowReport {
    /// The state of the window of a check. `None` if the verdict does not tell it.
    pub(super) fn of_verdict(
        verdict: &Verdict,
        source: Source,
        sent: CompactInstant,
    ) -> Option<Self> {
        let outcome = verdict.outcome();
        let is_of_window = outcome.reset_after > 0 && outcome.blocked_for == 0;
        (is_of_window && source == Source::Store).then(|| Self {
            sent,
            answered: CompactInstant::now(),
            // Several servers can decide a group, and each has its own clock.
            as_of: verdict.charged_at(),
            ends_after: outcome.reset_after,
            left: outcome.remaining,
            charged: verdict.receipt().map_or(0, |receipt| receipt.cost().into()),
        })
    }
}

/// Gives back units that are not spent, until no account is left.
async fn reap<S: Store>(asynchronous: Weak<Asynchronous<S>>) {
    loop {
        sleep(PERIOD).await;
        let Some(asynchronous) = asynchronous.upgrade() else {
            return;
        };
        let now = Instant::now();
        asynchronous.reaper.lock().beat(now);
        let now = CompactInstant::from(now);
        let prepaid = &asynchronous.prepaid;
        let stale = prepaid.take(now, |account| account.take_stale(now));
        asynchronous.give_back(stale).await;
        if prepaid.is_empty() {
            return;
        }
    }
}

/// Gives units back to the store. Returns those that it has certainly not taken.
pub(super) async fn give_back<S: Store>(
    store: &S,
    units: Vec<(Budget, ReturnedUnits)>,
) -> Vec<(Budget, ReturnedUnits)> {
    let mut kept = Vec::new();
    for some in units.chunks(AT_ONCE) {
        let refunds = some.iter().map(|(budget, returned)| {
            let units = u32::try_from(returned.units).unwrap_or(u32::MAX);
            let receipt = Receipt::of_charge(returned.charged_at, units);
            let refund = Change::Settle { receipt, cost: 0 };
            store.apply(Operation::Change(budget.clone(), refund))
        });
        let answers = answer::all(refunds.collect()).await;
        for ((budget, returned), answer) in some.iter().zip(answers) {
            match answer {
                Ok(_) => count(budget, "returned", returned.units),
                Err(error) if !error.may_have_charged() => kept.push((budget.clone(), *returned)),
                Err(_) => {}
            }
        }
    }
    kept
}

/// Counts units that were charged in a block, or given back.
fn count(budget: &Budget, event: &'static str, units: u64) {
    telemetry::prepaid(budget.limit().name(), event, units);
}
