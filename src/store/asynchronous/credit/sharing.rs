//! The claims of this process for a share of the overshoot.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lease::{ALL_SHARES, Lease, RENEW_EVERY, UsableShare};
use crate::model::{Budget, Change, Limit, Operation};
use crate::store::Store;
use crate::store::asynchronous::Asynchronous;
use crate::telemetry;
use crate::units::{CompactInstant, later, micros};

/// The pause after a claim that was not answered.
const RETRY_AFTER: Duration = Duration::from_millis(300);

/// The interval while the share differs from the fair one.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Between two looks whether all is paid.
const PAUSE: Duration = Duration::from_millis(10);

/// The budget of the shares of all replicas.
static SHARES: LazyLock<Budget> =
    LazyLock::new(|| Budget::new(&Limit::of_shares(ALL_SHARES), "asynchronous"));

/// When the next claim is due.
#[derive(Default)]
pub(super) struct ClaimTimer(Option<Instant>);

impl<S: Store> Asynchronous<S> {
    /// Renews the lease, if that is due.
    pub(super) async fn renew_when_due(self: &Arc<Self>, timer: &mut ClaimTimer) {
        if timer.0.is_some_and(|due| Instant::now() < due) {
            return;
        }
        let began = Instant::now();
        let is_renewed = self.renew().await;
        let is_unfair = self.credit.lease.lock().is_unfair();
        timer.0 = Some(match (is_renewed, is_unfair) {
            (false, _) => later(Instant::now(), RETRY_AFTER),
            (true, true) => later(Instant::now(), ASK_EVERY),
            (true, false) => later(began, RENEW_EVERY),
        });
    }

    /// Gives up what is above the fair share, pays what is owed above the rest, and claims. Returns
    /// whether the store answered.
    pub(super) async fn renew(self: &Arc<Self>) -> bool {
        let (kept, gives_up) = self.update(|lease| lease.give_up(CompactInstant::now()));
        let is_paid = !gives_up || self.pay_above(&kept).await;
        self.claim(is_paid.then_some(kept)).await
    }

    /// Claims, and releases parts down to the share that no account exceeds. Returns whether the
    /// store answered.
    async fn claim(self: &Arc<Self>, paid_to: Option<UsableShare>) -> bool {
        let claim = self.update(|lease| lease.claim(paid_to, CompactInstant::now()));
        let Some((number, claim)) = claim else {
            return false;
        };
        let claimed = Operation::Change(SHARES.clone(), Change::Claim(claim));
        let Ok(decision) = self.store.apply(claimed).await else {
            return false;
        };
        let holders = u32::try_from(micros(decision.reset_after())).unwrap_or(u32::MAX);
        self.update(|lease| {
            lease.granted_more(number, decision.remaining(), holders, CompactInstant::now());
        });
        true
    }

    /// Renews the lease, if that is due, while units are paid so that parts can be released.
    pub(super) async fn renew_meanwhile(self: &Arc<Self>) {
        if self.credit.lease.lock().is_due(CompactInstant::now()) {
            self.claim(None).await;
        }
    }

    /// Changes the lease, and lets all threads use the share that it has then.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> T {
        let mut lease = self.credit.lease.lock();
        let changed = change(&mut lease);
        let credit = &self.credit;
        credit.share.set(&lease.usable());
        let mut level = credit.replicas.lock();
        telemetry::shared_with(&credit.label, &mut level, lease.replicas());
        changed
    }

    /// Has this process claim a share, also after it gave up the last one.
    pub(super) fn open_lease(&self) {
        if self.credit.lease.lock().is_closed() {
            self.update(Lease::open);
        }
    }

    /// Pays the accounts that owe more than a share allows. Returns whether none does any more.
    async fn pay_above(self: &Arc<Self>, share: &UsableShare) -> bool {
        self.pay_where(|account| account.owes_more_than(share))
            .await;
        !self
            .credit
            .accounts
            .any(|account| account.owes_more_than(share))
    }

    /// Pays all that is owed, and gives up the share. The next answer to a check has it claim
    /// again.
    pub(crate) async fn pay_all(self: &Arc<Self>) {
        self.update(Lease::close);
        while self.credit.accounts.any(|account| !account.is_paid()) {
            self.pay_where(|account| !account.is_paid()).await;
            sleep(PAUSE).await;
        }
        self.renew().await;
    }
}
