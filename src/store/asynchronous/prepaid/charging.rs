//! Charges of blocks.
//!
//! A block of a key whose units are soon spent is charged at once. The others leave in rounds, so
//! that those of many keys are one call. With a task for each block, a server with 10,000 keys made
//! four times as many calls, and answered a tenth fewer requests.
//!
//! A task ends with its runtime, at any await. So a charge or a round that is dropped leaves the
//! accounts usable.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep_until};

use super::account::{Block, PrepaidAccount, ROUND, ReturnedUnits, WindowReport};
use super::count;
use crate::model::{Budget, Check, Decision, Error, Operation};
use crate::store::asynchronous::{AT_ONCE, Asynchronous};
use crate::store::{Answer, Store, answer};
use crate::units::{CompactInstant, later, micros};

/// If a round is so late, its runtime may stand still. The next block then begins another round,
/// which takes the blocks of both.
const LATE: Duration = Duration::from_millis(50);

/// The blocks that wait for a round.
#[derive(Default)]
pub(in crate::store::asynchronous) struct Rounds {
    waiting: Vec<(Budget, Block)>,
    /// When a task charges them.
    next: Option<Instant>,
}

impl<S: Store> Asynchronous<S> {
    /// Charges a block in the background.
    #[cold]
    pub(in crate::store::asynchronous) fn start_charge(
        self: &Arc<Self>,
        budget: Budget,
        block: Block,
    ) {
        let Ok(runtime) = Runtime::try_current() else {
            // Its account knows that it failed when this is dropped.
            drop(BlockCharge::new(self, budget, block));
            return;
        };
        self.ensure_reaper(&runtime);
        if block.may_wait {
            self.add_to_round(budget, block, &runtime);
        } else {
            let charge = BlockCharge::new(self, budget, block);
            runtime.spawn(charge_all(vec![charge]));
        }
    }

    fn add_to_round(self: &Arc<Self>, budget: Budget, block: Block, runtime: &Runtime) {
        let now = Instant::now();
        let mut rounds = self.rounds.lock();
        rounds.waiting.push((budget, block));
        let is_late = |next: Instant| now > later(next, LATE);
        if rounds.next.is_none_or(is_late) {
            let next = self.next_round(now);
            rounds.next = Some(next);
            // Not under the lock: a runtime that shuts down drops the task at once.
            drop(rounds);
            let round = Round {
                asynchronous: Arc::clone(self),
                at: next,
            };
            runtime.spawn(round.run());
        }
    }

    fn next_round(&self, now: Instant) -> Instant {
        let elapsed = micros(now.saturating_duration_since(self.started));
        let round = micros(ROUND);
        later(now, Duration::from_micros(round - elapsed % round))
    }

    /// Takes the blocks that wait for a round.
    fn take_waiting(self: &Arc<Self>) -> Vec<BlockCharge<S>> {
        let Rounds { waiting, .. } = std::mem::take(&mut *self.rounds.lock());
        let charge = |(budget, block)| BlockCharge::new(self, budget, block);
        waiting.into_iter().map(charge).collect()
    }
}

/// A round. If it is dropped before its time, the charges of its blocks have failed.
struct Round<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    at: Instant,
}

impl<S: Store> Round<S> {
    async fn run(self) {
        sleep_until(self.at).await;
        let mut charges = self.asynchronous.take_waiting();
        drop(self);
        // A task polls all of its answers each time that it wakes, so it has not too many.
        while charges.len() > AT_ONCE {
            let more = charges.split_off(charges.len() - AT_ONCE);
            tokio::spawn(charge_all(more));
        }
        charge_all(charges).await;
    }
}

impl<S: Store> Drop for Round<S> {
    fn drop(&mut self) {
        let is_next = self.asynchronous.rounds.lock().next == Some(self.at);
        if is_next {
            drop(self.asynchronous.take_waiting());
        }
    }
}

/// Charges blocks that are sent together.
async fn charge_all<S: Store>(charges: Vec<BlockCharge<S>>) {
    let sent = charges.into_iter().filter_map(BlockCharge::send);
    answer::each(sent.collect(), BlockCharge::end).await;
}

/// A charge of a block that is in flight. When it is dropped, it notes that the charge failed,
/// unless the block was granted.
struct BlockCharge<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    budget: Budget,
    block: Block,
    sent: CompactInstant,
    /// Set if the store may have charged the block, although it is not granted.
    may_be_charged: bool,
}

impl<S: Store> BlockCharge<S> {
    fn new(asynchronous: &Arc<Asynchronous<S>>, budget: Budget, block: Block) -> Self {
        asynchronous.charging.send_modify(|charging| *charging += 1);
        Self {
            asynchronous: Arc::clone(asynchronous),
            budget,
            block,
            sent: CompactInstant::now(),
            may_be_charged: false,
        }
    }

    /// Asks the store for the block, if it is still needed. A reset or a flush takes the account,
    /// and the window may be over.
    fn send(mut self) -> Option<(Self, Answer)> {
        let is_needed =
            |account: &mut PrepaidAccount| account.needs(self.block, CompactInstant::now());
        if self.with_account(is_needed) != Some(true) {
            return None;
        }
        let check = Check::new(self.budget.limit(), self.budget.key()).with_cost(self.block.units);
        self.may_be_charged = true;
        self.sent = CompactInstant::now();
        let charge = Operation::Charge(check.into());
        let answer = self.asynchronous.store.apply(charge);
        Some((self, answer))
    }

    /// Notes the answer. If no account may spend the block, it is given back.
    fn end(mut self, answer: Result<Decision, Error>) {
        self.may_be_charged = answer.as_ref().is_err_and(Error::may_have_charged);
        let report = answer
            .ok()
            .and_then(|it| WindowReport::of_verdict(it.deciding(), it.source(), self.sent));
        let Some(report) = report else {
            return;
        };
        if report.charged == 0 {
            self.with_account(|account| account.note(&report));
            return;
        }
        count(&self.budget, "charged", report.charged);
        let is_granted = self.with_account(|account| account.grant(self.block, &report));
        if is_granted != Some(true) {
            tokio::spawn(async move {
                let returned = (self.budget.clone(), ReturnedUnits::block(&report));
                self.asynchronous.give_back(vec![returned]).await;
            });
        }
    }

    fn with_account<T>(&self, call: impl FnOnce(&mut PrepaidAccount) -> T) -> Option<T> {
        let prepaid = &self.asynchronous.prepaid;
        prepaid.with(self.budget.parts(), |_, account| call(account))
    }
}

impl<S: Store> Drop for BlockCharge<S> {
    fn drop(&mut self) {
        self.with_account(|account| {
            account.fail(self.block, self.may_be_charged, CompactInstant::now());
        });
        self.asynchronous.charging.send_modify(|charging| {
            *charging -= 1;
        });
    }
}
