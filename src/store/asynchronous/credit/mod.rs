//! Limits with an overshoot: units that are allowed here and charged later.
//!
//! An account knows the level in the last answer of the store. A check that fits this level is
//! allowed at once, and its units are *owed*. When two thirds of the *credit* are owed, or after a
//! few seconds, a *payment* charges the owed units, even if they do not fit. Its answer has the
//! next level. All other checks ask the store. The module [`account`] explains the bound of the
//! overshoot, and [`lease`] how replicas share it.

pub(super) mod account;
mod due;
pub(super) mod lease;
mod payments;
mod sharing;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::account::{CreditAccount, CreditTerms, LevelReport, Payable};
use self::lease::{LEASE, Lease, UsableShare};
use self::payments::DuePayments;
use super::Asynchronous;
use super::accounts::{Account, Accounts};
use super::asked::SentAt;
use super::decided::DecidedHere;
use crate::model::{Budget, Change, Check, Decision, Key, Limit, Operation, Source, Verdict};
use crate::store::{NotHere, Store};
use crate::telemetry::GaugeLevel;
use crate::units::{AtomicU64, CompactInstant, Mutex, Payment, Receipt};

/// The accounts of a process, its share of the overshoot, and its payments.
pub(super) struct Credit {
    accounts: Accounts<CreditAccount>,
    lease: Mutex<Lease>,
    share: ShareInUse,
    /// The id of this process in its payments.
    payer: [u8; 8],
    due: Mutex<DuePayments>,
    /// The number of processes that share the overshoot, in the metrics.
    replicas: Mutex<GaugeLevel>,
    /// The name of the store in metrics.
    label: Arc<str>,
}

/// The share of the lease, for threads that decide. A thread reads it under the lock of an account.
#[derive(Default)]
struct ShareInUse {
    /// The growths of the share, and its parts in the lowest bits.
    growths_and_parts: AtomicU64,
    /// The end of the lease, as the bits of an instant.
    ends: AtomicU64,
}

/// [`ALL_SHARES`](lease::ALL_SHARES) have fewer bits.
const BITS_OF_PARTS: u32 = 16;

impl ShareInUse {
    fn set(&self, share: &UsableShare) {
        // First the end, so that nobody reads a share that grew with the end of an old lease.
        self.ends.store(share.ends.to_bits(), Ordering::Release);
        let packed = share.growths << BITS_OF_PARTS | u64::from(share.parts);
        self.growths_and_parts.store(packed, Ordering::Release);
    }

    #[inline]
    fn get(&self) -> UsableShare {
        let packed = self.growths_and_parts.load(Ordering::Acquire);
        let ends = self.ends.load(Ordering::Acquire);
        UsableShare {
            parts: (packed & ((1 << BITS_OF_PARTS) - 1)) as u32,
            growths: packed >> BITS_OF_PARTS,
            ends: CompactInstant::from_bits(ends),
        }
    }
}

impl Credit {
    pub(super) fn new(label: Arc<str>) -> Self {
        let lease = Lease::new(random_id(), CompactInstant::now());
        Self {
            accounts: Accounts::default(),
            lease: Mutex::new(lease),
            share: ShareInUse::default(),
            payer: random_id(),
            due: Mutex::default(),
            replicas: Mutex::default(),
            label,
        }
    }
}

/// Eight random bytes, by which the store tells processes apart.
fn random_id() -> [u8; 8] {
    RandomState::new().hash_one(()).to_be_bytes()
}

/// The next steps for an account that owes units.
#[derive(Default)]
struct Next {
    /// A payment to be sent now.
    payment: Option<Payable>,
    /// Set if the account has to be looked at again. It may still owe, or the task that sends the
    /// payment may have stopped.
    is_planned: bool,
}

impl Credit {
    /// The number of times that the share grew. An answer is noted with the number from before its
    /// request.
    pub(super) fn growths(&self) -> u64 {
        self.share.get().growths
    }

    /// Payments of all that is owed.
    pub(super) fn payments(&self, now: CompactInstant) -> Vec<Operation> {
        let mut payments = Vec::new();
        self.accounts.for_each(|stored| {
            let payment = stored.account.pay(|| self.accounts.next_number(), now);
            payments.extend(payment.map(|it| self.payment(&stored.budget, it)));
        });
        payments
    }

    fn payment(&self, budget: &Budget, payable: Payable) -> Operation {
        let payment = Payment::new(self.payer, payable.number, payable.units);
        Operation::Change(budget.clone(), Change::Pay(payment))
    }

    /// Returns whether it is too late to allow units that were held when the share had grown so
    /// often. Its lease is over, or a lease in between may have been, because the share grew since.
    pub(super) fn is_late(&self, held: &DecidedHere, growths: u64) -> bool {
        let now = CompactInstant::now();
        let share = self.share.get();
        let has_grown = share.growths != growths && now >= held.at + LEASE;
        has_grown || !share.is_leased(now)
    }

    /// Returns the next steps for an account, whose last check had so many units.
    fn next(&self, account: &mut CreditAccount, units: u64, share: &UsableShare) -> Next {
        let is_planned = account.plan();
        let payment = match account.is_due(units, share) {
            true => account.pay(|| self.accounts.next_number(), CompactInstant::now()),
            false => None,
        };
        Next {
            payment,
            is_planned,
        }
    }

    /// The units of a budget that are allowed here and not charged.
    pub(super) fn unpaid(&self, budget: &Budget) -> u64 {
        self.accounts
            .with(budget.parts(), |_, account| account.unpaid())
            .unwrap_or(0)
    }
}

impl<S: Store> Asynchronous<S> {
    /// Decides a check, if its account can: allows it on credit, or denies it.
    #[inline]
    pub(super) fn decide_on_credit(
        self: &Arc<Self>,
        budget: (&Limit, &Key),
        cost: u32,
    ) -> Result<DecidedHere, NotHere> {
        let units = u64::from(cost);
        let mut next = Next::default();
        let decided = self.credit.accounts.decide(budget, |terms, account| {
            let share = self.credit.share.get();
            let allowed = account.allow(terms, units, &share, CompactInstant::now);
            let denied = match allowed {
                Some(_) => None,
                None => account.deny(terms, units, CompactInstant::now()),
            };
            if denied.is_none() {
                next = self.credit.next(account, units, &share);
            }
            allowed.or(denied)
        });
        self.start(next, budget);
        decided
    }

    /// Holds the units of a check, whose group is not decided yet.
    pub(super) fn hold(self: &Arc<Self>, check: &Check) -> Option<DecidedHere> {
        // The store answers checks of cost 0.
        if check.cost() == 0 || !check.limit().is_asynchronous() {
            return None;
        }
        let (budget, units) = (check.budget().parts(), check.cost().into());
        let (held, next) = self.credit.accounts.with(budget, |terms, account| {
            let share = self.credit.share.get();
            let held = account.hold(terms, units, &share, CompactInstant::now);
            (held, self.credit.next(account, units, &share))
        })?;
        self.start(next, budget);
        held
    }

    /// Ends the hold on the units of a check. If its group was allowed, the units are owed.
    pub(super) fn end_hold(self: &Arc<Self>, check: &Check, held: &DecidedHere, is_allowed: bool) {
        let budget = check.budget().parts();
        let next = self.credit.accounts.with(budget, |_, account| {
            account.end_hold(held, is_allowed);
            let share = self.credit.share.get();
            self.credit.next(account, held.units, &share)
        });
        if let Some(next) = next {
            self.start(next, budget);
        }
    }

    #[inline]
    fn start(self: &Arc<Self>, next: Next, (limit, key): (&Limit, &Key)) {
        if let Some(payment) = next.payment {
            self.start_payment(Budget::new(limit, key), payment);
        }
        if next.is_planned {
            self.plan_payment(Budget::new(limit, key));
        }
    }

    /// Notes the answer to a check. Returns the units of the budget that are not paid.
    pub(super) fn note_level(self: &Arc<Self>, budget: &Budget, report: &LevelReport) -> u64 {
        let Some(terms) = CreditTerms::of_limit(budget.limit()) else {
            return 0;
        };
        self.open_lease();
        self.ensure_task();
        let accounts = &self.credit.accounts;
        let mut place = accounts.place(budget.parts());
        let new = || CreditAccount::new(accounts.next_number(), &terms, report);
        if let Some(stored) = place.get() {
            if stored.decides_as(budget.limit()) {
                stored.account.note(&terms, report);
            } else if stored.account.is_paid() && stored.account.is_before(report) {
                stored.replace(budget, new());
            }
            return stored.account.unpaid();
        }
        // Otherwise the account may have been forgotten since, with units that this answer lacks.
        if place.forgot_at().is_none_or(|forgot| report.sent > forgot) {
            place.add(budget, new, report.answered);
        }
        0
    }

    /// Takes back units of a check that cost less than it was charged, if they are only owed here.
    /// Returns the decision of a peek of cost 0 afterwards. `None` if the store has to settle.
    pub(super) fn settle_here(
        &self,
        budget: &Budget,
        receipt: Receipt,
        cost: u32,
    ) -> Option<Decision> {
        let units = receipt.cost.checked_sub(cost)?;
        let settled = self.credit.accounts.with(budget.parts(), |terms, account| {
            account.deny_nothing();
            let is_taken = account.take_back(units.into(), receipt.at);
            is_taken.then(|| account.look(terms, CompactInstant::now()))
        });
        let looked = settled.flatten()?;
        let verdict = Verdict::new(budget.limit().clone(), looked.outcome, 0);
        let decision = Decision::from(verdict.in_shadow(budget.is_shadow()));
        Some(
            decision
                .with_timestamp(looked.now)
                .with_source(Source::Asynchronous),
        )
    }

    /// Notes that a reset of a budget is sent.
    pub(super) fn begin_reset(&self, budget: &Budget) {
        let mut place = self.credit.accounts.place(budget.parts());
        if let Some(stored) = place.get() {
            stored.account.begin_reset();
        }
    }

    /// Notes that a reset or a block of a budget has ended. The next check asks the store.
    pub(super) fn end_change(&self, budget: &Budget, is_reset: bool) {
        let mut place = self.credit.accounts.place(budget.parts());
        let Some(stored) = place.get() else {
            // An answer from before the change does not create an account.
            place.note_forgotten();
            return;
        };
        let now = CompactInstant::now();
        if is_reset {
            stored.account.end_reset(now);
        }
        stored.account.forget_level(now);
    }
}

impl LevelReport {
    /// The state of the budget of a check. `None` if the verdict does not tell it.
    pub(super) fn of_verdict(verdict: &Verdict, source: Source, sent: SentAt) -> Option<Self> {
        let outcome = verdict.outcome();
        let is_level = outcome.blocked_for == 0 && source == Source::Store;
        is_level.then(|| Self {
            sent: sent.time,
            growths: sent.growths,
            answered: CompactInstant::now(),
            // Several servers can decide a group, and each has its own clock.
            as_of: verdict.charged_at(),
            left: outcome.remaining,
            full_after: outcome.reset_after,
        })
    }
}

impl Account for CreditAccount {
    type Numbers = CreditTerms;

    #[inline]
    fn numbers_of(limit: &Limit) -> Option<CreditTerms> {
        CreditTerms::of_limit(limit)
    }

    fn can_be_forgotten(&self, _now: CompactInstant) -> bool {
        self.is_paid()
    }
}
