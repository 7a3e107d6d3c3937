//! Payments, and the task that sends them when they are due.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::account::{CreditAccount, CreditTerms, LevelReport, Payable};
use super::due::{DueBudget, DueBudgets, LOOK_AFTER, UnansweredPayment};
use super::lease::Lease;
use super::sharing::ClaimTimer;
use crate::model::{Budget, Change, Decision, Error, Operation};
use crate::store::asynchronous::accounts::StoredAccount;
use crate::store::asynchronous::asked::SentAt;
use crate::store::asynchronous::{AT_ONCE, Asynchronous};
use crate::store::heartbeat::Heartbeat;
use crate::store::{Answer, Store, answer};
use crate::telemetry::{self, GaugeLevel};
use crate::units::{CompactInstant, Receipt, later, spawn_for};

/// The pause between rounds of payments.
const PERIOD: Duration = Duration::from_millis(25);

/// The first pause between two looks whether a payment is answered, while a refund waits for that.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The interval at which unused accounts are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(10);

const REPORT_EVERY: Duration = Duration::from_secs(1);

/// If a round of the task takes longer, another task replaces it.
const LONGEST_ROUND: Duration = Duration::from_secs(3);

/// The payments that are due, and the task that sends them.
#[derive(Default)]
pub(super) struct DuePayments {
    budgets: DueBudgets,
    task: Heartbeat,
    keys_in_metrics: GaugeLevel,
    seconds_in_metrics: GaugeLevel,
    reported_at: Option<Instant>,
    /// The number of the task that is at work. Another one ends.
    number: u64,
}

impl DuePayments {
    /// Reports the budgets in metrics, at most once a second while there are any, because it looks
    /// at each of them.
    fn report(&mut self, store: &str) {
        let is_recent = |at: Instant| at.elapsed() < REPORT_EVERY;
        if !self.budgets.is_empty() && self.reported_at.is_some_and(is_recent) {
            return;
        }
        self.reported_at = Some(Instant::now());
        let oldest = self.budgets.oldest_repeated();
        let repeated_for = oldest.map_or(Duration::ZERO, |since| since.elapsed());
        telemetry::unpaid_keys(store, &mut self.keys_in_metrics, self.budgets.len());
        telemetry::unpaid_for(store, &mut self.seconds_in_metrics, repeated_for);
    }
}

/// A payment that is sent. When it is dropped without an answer, it is planned again.
struct SentPayment<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    budget: Budget,
    payment: Payable,
    sent: SentAt,
    is_answered: bool,
}

impl<S: Store> SentPayment<S> {
    fn new(asynchronous: &Arc<Asynchronous<S>>, budget: Budget, payment: Payable) -> Self {
        Self {
            asynchronous: Arc::clone(asynchronous),
            sent: asynchronous.sent_now(),
            budget,
            payment,
            is_answered: false,
        }
    }

    fn send(&self) -> Answer {
        let payment = self.asynchronous.credit.payment(&self.budget, self.payment);
        self.asynchronous.store.apply(payment)
    }

    fn note(mut self, answer: &Result<Decision, Error>) {
        let Ok(decision) = answer else {
            return;
        };
        self.is_answered = true;
        let report = LevelReport::of_verdict(decision.deciding(), decision.source(), self.sent);
        let Payable { units, number, .. } = self.payment;
        let credit = &self.asynchronous.credit;
        let next = self.with_account(|terms, account| {
            let is_first = account.paid(terms, number, report.as_ref());
            is_first.then(|| credit.next(account, 0, &credit.share.get()))
        });
        if let Some(next) = next.flatten() {
            // The store tells in the delay how many units did not fit.
            let above_limit = decision.deciding().outcome().delay;
            telemetry::paid(self.budget.limit().name(), units.into(), above_limit);
            self.asynchronous.start(next, self.budget.parts());
        }
    }

    fn with_account<T>(
        &self,
        call: impl FnOnce(&CreditTerms, &mut CreditAccount) -> T,
    ) -> Option<T> {
        let accounts = &self.asynchronous.credit.accounts;
        accounts.with(self.budget.parts(), call)
    }
}

impl<S: Store> Drop for SentPayment<S> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let is_new = self.with_account(|_, account| {
            account.not_answered(self.payment.number);
            !std::mem::replace(&mut account.is_planned, true)
        });
        if is_new == Some(true) {
            self.asynchronous.plan_payment(self.budget.clone());
        }
    }
}

impl<S: Store> Asynchronous<S> {
    /// Sends a payment in the background.
    #[cold]
    pub(super) fn start_payment(self: &Arc<Self>, budget: Budget, payment: Payable) {
        let payment = SentPayment::new(self, budget, payment);
        if let Ok(runtime) = Runtime::try_current() {
            self.ensure_task();
            runtime.spawn(send_all(vec![payment]));
        }
    }

    /// Has the store give back units of a charge. If the charge is in a payment without an answer,
    /// that comes first, because the store would find no charge.
    pub(in crate::store::asynchronous) fn refund_when_paid(
        self: &Arc<Self>,
        budget: Budget,
        refund: Change,
        receipt: Receipt,
    ) -> Answer {
        let payment = self.payment_of(&budget, receipt);
        let (Some(number), Ok(runtime)) = (payment, Runtime::try_current()) else {
            return self.store.apply(Operation::Change(budget, refund));
        };
        let asynchronous = Arc::clone(self);
        // A task, because a refund is also made if its caller goes away.
        let refunded = runtime.spawn(async move {
            let deadline = later(Instant::now(), asynchronous.deadline);
            let mut pause = FIRST_PAUSE;
            while asynchronous.payment_of(&budget, receipt) == Some(number) {
                let now = Instant::now();
                if now >= deadline {
                    return Err(Error::timeout_unsent());
                }
                sleep_until(later(now, pause).min(deadline)).await;
                // Many refunds may wait for a store that does not answer.
                pause = pause.saturating_mul(2);
            }
            let refund = Operation::Change(budget, refund);
            asynchronous.store.apply(refund).await
        });
        Answer::later(async move { refunded.await.unwrap_or_else(|_| Err(Error::timeout())) })
    }

    fn payment_of(&self, budget: &Budget, receipt: Receipt) -> Option<u64> {
        let accounts = &self.credit.accounts;
        accounts.with(budget.parts(), |_, account| account.payment_of(receipt.at))?
    }

    /// Has the units of a budget paid in a while.
    pub(super) fn plan_payment(self: &Arc<Self>, budget: Budget) {
        self.look_again(budget, None);
        self.ensure_task();
    }

    fn look_again(&self, budget: Budget, unanswered: Option<UnansweredPayment>) {
        let at = later(Instant::now(), LOOK_AFTER);
        self.credit.due.lock().budgets.add(DueBudget {
            at,
            budget,
            unanswered,
        });
    }

    /// Starts the task that pays and renews the lease, if there is none, or if its runtime does not
    /// run it.
    pub(super) fn ensure_task(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else {
            return;
        };
        let mut due = self.credit.due.lock();
        if !due.task.begin(LONGEST_ROUND) {
            return;
        }
        due.number += 1;
        let number = due.number;
        // Not under the lock: a runtime that shuts down drops the task at once.
        drop(due);
        let end = move |it: &Self| {
            let mut due = it.credit.due.lock();
            if due.number == number {
                due.task.end();
            }
        };
        let task = pay_and_renew(Arc::downgrade(self), number);
        spawn_for(self, &runtime, end, task);
    }

    /// Looks at budgets that are due, and at so many that are early. Returns the payments of some
    /// of them, and whether these were the last budgets.
    fn payments_due(
        self: &Arc<Self>,
        now: Instant,
        early: &mut usize,
    ) -> (Vec<SentPayment<S>>, bool) {
        let mut due = Vec::new();
        for _ in 0..AT_ONCE {
            let Some(looked_at) = self.credit.due.lock().budgets.take(now, early) else {
                return (due, true);
            };
            let budget = looked_at.budget;
            let accounts = &self.credit.accounts;
            let looked = accounts.with(budget.parts(), |_, account| {
                let payment = match account.can_wait(&self.credit.share.get(), now.into()) {
                    true => None,
                    false => account.pay(|| accounts.next_number(), now.into()),
                };
                // Until it is answered, it may have to be sent again.
                account.is_planned = !account.is_paid();
                (payment, account.is_planned, account.payment_number())
            });
            let Some((payment, is_planned, number)) = looked else {
                continue;
            };
            if is_planned {
                let last = looked_at.unanswered;
                let unanswered = number.map(|it| UnansweredPayment::after(last, it, now));
                self.look_again(budget.clone(), unanswered);
            }
            if let Some(payment) = payment {
                due.push(SentPayment::new(self, budget, payment));
            }
        }
        (due, false)
    }

    /// Pays what is due. The lease is renewed meanwhile, however much that is.
    async fn pay_due(self: &Arc<Self>, timer: &mut ClaimTimer) {
        let mut early = self.credit.due.lock().budgets.early(Instant::now());
        loop {
            let (due, is_last) = self.payments_due(Instant::now(), &mut early);
            send_all(due).await;
            self.renew_when_due(timer).await;
            self.credit.due.lock().report(&self.credit.label);
            if is_last {
                return;
            }
            self.beat();
            // If no payment was due, nothing else has let other tasks run.
            yield_now().await;
        }
    }

    /// Pays all accounts for which a function returns true.
    pub(super) async fn pay_where(self: &Arc<Self>, is_due: impl Fn(&CreditAccount) -> bool) {
        let now = CompactInstant::now();
        let accounts = &self.credit.accounts;
        let mut due = Vec::new();
        accounts.for_each(
            |StoredAccount {
                 budget, account, ..
             }| {
                if is_due(account)
                    && let Some(payment) = account.pay(|| accounts.next_number(), now)
                {
                    due.push((budget.clone(), payment));
                }
            },
        );
        for some in due.chunks(AT_ONCE) {
            let sent = |(budget, payment): &(Budget, Payable)| {
                SentPayment::new(self, budget.clone(), *payment)
            };
            send_all(some.iter().map(sent).collect()).await;
            self.renew_meanwhile().await;
            self.beat();
        }
    }

    fn beat(&self) {
        self.credit.due.lock().task.beat(Instant::now());
    }

    /// Returns whether another task is at work.
    fn is_replaced(&self, task: u64) -> bool {
        self.credit.due.lock().number != task
    }

    /// Gives up the share if no account is left. Returns whether the task ends then.
    async fn is_over(self: &Arc<Self>) -> bool {
        let credit = &self.credit;
        if !credit.accounts.is_empty() {
            return false;
        }
        // From now on, no new account has credit.
        self.update(Lease::close);
        if !credit.accounts.is_empty() {
            self.update(Lease::open);
            return false;
        }
        self.renew().await;
        let mut due = credit.due.lock();
        due.report(&credit.label);
        let is_over = due.budgets.is_empty() && credit.accounts.is_empty();
        if is_over {
            due.task.end();
        }
        is_over
    }
}

async fn send_all<S: Store>(payments: Vec<SentPayment<S>>) {
    let answers = answer::all(payments.iter().map(SentPayment::send).collect()).await;
    for (payment, answer) in payments.into_iter().zip(&answers) {
        payment.note(answer);
    }
}

/// Pays what is due and renews the lease, until no account is left.
async fn pay_and_renew<S: Store>(asynchronous: Weak<Asynchronous<S>>, task: u64) {
    let mut timer = ClaimTimer::default();
    let mut forgot_at = Instant::now();
    loop {
        let Some(asynchronous) = asynchronous.upgrade() else {
            return;
        };
        if asynchronous.is_replaced(task) {
            return;
        }
        asynchronous.beat();
        asynchronous.pay_due(&mut timer).await;
        let credit = &asynchronous.credit;
        let now = Instant::now();
        if now.saturating_duration_since(forgot_at) >= FORGET_EVERY {
            forgot_at = now;
            credit
                .accounts
                .forget(|account| account.is_unused(now.into()));
        }
        if asynchronous.is_over().await {
            return;
        }
        drop(asynchronous);
        sleep(PERIOD).await;
    }
}
