//! The claims of this process for a share of the overshoot.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::Instant;

use super::lease::{ALL_SHARES, LEASE, Lease};
use crate::model::{Budget, Change, Limit, Operation};
use crate::store::Store;
use crate::store::asynchronous::Asynchronous;
use crate::telemetry;
use crate::units::{later, micros};

/// How often the lease is renewed. Two claims in a row may be lost.
const RENEW_EVERY: Duration = LEASE.checked_div(3).unwrap();

/// The same, while the share is smaller than it should be.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The budget of the shares of all replicas. No other limit has its name, which has a space.
static SHARES: LazyLock<Budget> =
    LazyLock::new(|| Budget::new(&Limit::of_shares(ALL_SHARES), "asynchronous"));

/// When the next claim is due.
#[derive(Default)]
pub(super) struct Pace(Option<Instant>);

impl<S: Store> Asynchronous<S> {
    /// Renews the lease, if that is due.
    pub(super) async fn renew(self: &Arc<Self>, pace: &mut Pace) {
        let now = Instant::now();
        if pace.0.is_some_and(|due| now < due) {
            return;
        }
        let given_up = self.update(|lease| {
            lease.give_up(now);
            lease.has_given_up()
        });
        let is_paid = !given_up || self.pay_above_credit().await;
        let now = Instant::now();
        let claim = self.update(|lease| lease.claim(is_paid, now));
        if let Some(claim) = claim {
            let claimed = Operation::Change(SHARES.clone(), Change::Claim(claim));
            let answer = self.store.apply(claimed).await;
            let now = Instant::now();
            self.update(|lease| match &answer {
                Ok(decision) => {
                    let holders = u32::try_from(micros(decision.reset_after())).unwrap_or(u32::MAX);
                    lease.granted_more(decision.remaining(), holders, now);
                }
                Err(_) => lease.not_answered(),
            });
        }
        let wait = match self.credit.lease.lock().is_short() {
            true => ASK_EVERY,
            false => RENEW_EVERY,
        };
        pace.0 = Some(later(now, wait));
    }

    /// Changes the lease, and lets all threads use the share that it has then.
    fn update<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> T {
        let mut lease = self.credit.lease.lock();
        let changed = change(&mut lease);
        self.credit.share.set(&lease.usable());
        telemetry::shared_with(&mut self.credit.replicas.lock(), lease.replicas());
        changed
    }

    /// Pays the accounts that owe more than the share allows. Returns whether none does any more.
    async fn pay_above_credit(self: &Arc<Self>) -> bool {
        let share = self.credit.share.get();
        self.pay_where(|account, overshoot| account.unpaid() > share.credit(overshoot))
            .await;
        let mut is_paid = true;
        self.credit.accounts.for_each(|stored| {
            let overshoot = stored.budget.limit().overshoot().unwrap_or(0);
            is_paid &= stored.account.unpaid() <= share.credit(overshoot);
        });
        is_paid
    }

    /// Pays all that is owed, and gives up the share.
    pub(in crate::store::asynchronous) async fn pay_all(self: &Arc<Self>) {
        if self.credit.accounts.is_empty() {
            return;
        }
        self.update(Lease::give_up_all);
        while !self.pay_above_credit().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.give_up_share().await;
    }

    /// Gives up the share of a process that owes nothing.
    pub(super) async fn give_up_share(&self) {
        if let Some(claim) = self.update(Lease::farewell) {
            let claimed = Operation::Change(SHARES.clone(), Change::Claim(claim));
            // Otherwise the lease ends.
            drop(self.store.apply(claimed).await);
        }
    }
}
