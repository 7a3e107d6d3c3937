//! After an outage, what was allowed locally is charged to the store.
//!
//! Without it, each outage would give every client a second budget. A charge is made once. If its
//! answer is lost, it is not repeated.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::OwnedMutexGuard;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::Failover;
use crate::model::{Budget, Change, Check, Decision, Error, Operation};
use crate::telemetry;
use crate::units::{Receipt, Timestamp};

/// The charges that are made at once, in a round trip. More would hold up the checks of a store
/// that has just recovered, and fewer would make a distant one take long for many budgets.
const AT_ONCE: usize = 512;

/// After so many failures, the store as a whole seems to be unavailable.
const GIVE_UP_AFTER: usize = 4 * AT_ONCE;

/// The pause before another attempt. It doubles each time.
const PAUSE: Duration = Duration::from_millis(250);

const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Starts a task that charges what is owed, if anything is. Outside of a runtime, a later answer of
/// the store starts it.
#[inline]
pub(super) fn start(failover: &Arc<Failover>) {
    if let Some(local) = failover
        .local
        .get()
        .filter(|local| !local.ledger.is_empty())
        && let Ok(runtime) = Runtime::try_current()
        && let Ok(only_one) = Arc::clone(&local.repaying).try_lock_owned()
    {
        runtime.spawn(repay(Arc::downgrade(failover), only_one));
    }
}

/// Charges all that is owed. It does not keep the store.
async fn repay(failover: Weak<Failover>, _only_one: OwnedMutexGuard<()>) {
    // The budgets and the units that were charged.
    let mut repaid = (0, 0);
    let mut pause = PAUSE;
    loop {
        let Some(unpaid) = repay_once(&failover, &mut repaid).await else {
            return;
        };
        if unpaid.is_empty() {
            break;
        }
        if let Some(failover) = failover.upgrade()
            && let Some(local) = failover.local.get()
        {
            unpaid
                .iter()
                .for_each(|(owed, since)| local.ledger.add(owed, *since));
        }
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
    let (budgets, units) = repaid;
    if budgets > 0 {
        telemetry::repaid(budgets, units);
    }
}

/// Charges what is owed, each budget once. Returns the units that were certainly not charged, for
/// another attempt, because a node of a cluster may be unavailable. `None` if the limiter is gone.
async fn repay_once(
    failover: &Weak<Failover>,
    (budgets, repaid): &mut (usize, u64),
) -> Option<Vec<(Check, Timestamp)>> {
    let mut unpaid = Vec::new();
    let mut failed_in_a_row = 0;
    while failed_in_a_row < GIVE_UP_AFTER {
        let failover = failover.upgrade()?;
        let local = failover.local.get()?;
        let owed = local.ledger.take(AT_ONCE);
        if owed.is_empty() {
            break;
        }
        let charges = owed.into_iter().filter_map(|(check, units, since)| {
            // Units that have drained since are not owed.
            let units = units.min(local.used(&check));
            // It is not a request of the client, so it is not blocked, and its denial is not an
            // offence.
            let check = check.without_blocks();
            let check = check.with_cost(u32::try_from(units).unwrap_or(u32::MAX));
            let charge = || Operation::Charge(check.clone().into());
            let answer = (units > 0).then(|| failover.store.apply(charge()))?;
            Some((check, since, answer))
        });
        // All are asked before the first answer is awaited, so that they share a call.
        let charges: Vec<_> = charges.collect();
        for (check, since, answer) in charges {
            match finish(&failover, &check, answer.await).await {
                Ok(units) => {
                    *budgets += 1;
                    *repaid += units;
                    failed_in_a_row = 0;
                }
                Err(left) => {
                    failed_in_a_row += 1;
                    unpaid.extend(left.map(|check| (check, since)));
                }
            }
        }
        // An embedded store answers at once, and other tasks have to run.
        yield_now().await;
    }
    Some(unpaid)
}

/// Finishes the charge of a budget. If fewer units are left than are owed, charges what is left.
/// Returns the charged units, or the check that is certainly not charged.
async fn finish(
    failover: &Failover,
    check: &Check,
    answer: Result<Decision, Error>,
) -> Result<u64, Option<Check>> {
    let mut check = check.clone();
    let mut answer = answer;
    loop {
        match answer {
            Ok(decision) if decision.allowed() => return Ok(check.cost().into()),
            Ok(denied) if denied.is_blocked() => {
                let cost = check.cost().into();
                let settled = repay_blocked(failover, &check).await;
                return settled.map(|_| cost).map_err(|error| left(&error, check));
            }
            Ok(denied) => {
                let rest = u32::try_from(denied.remaining()).unwrap_or(u32::MAX);
                if rest == 0 || rest >= check.cost() {
                    return Ok(0);
                }
                check = check.with_cost(rest);
                let charge = Operation::Charge(check.clone().into());
                answer = failover.store.apply(charge).await;
            }
            Err(error) => return Err(left(&error, check)),
        }
    }
}

/// The check, if it is certainly not charged and may be charged later.
fn left(error: &Error, check: Check) -> Option<Check> {
    let may_pass = error.is_unavailable() || error.is_overloaded();
    (may_pass && !error.may_have_charged()).then_some(check)
}

/// Charges a key that an operator blocked. A settlement is not denied, and without debts it charges
/// what is left at most.
async fn repay_blocked(failover: &Failover, check: &Check) -> Result<Decision, Error> {
    let limit = check
        .limit()
        .clone()
        .with_max_debt(0)
        .map_err(Error::misuse)?;
    let settle = Change::Settle {
        receipt: Receipt::default(),
        cost: check.cost(),
    };
    let operation = Operation::Change(Budget::new(&limit, check.key()), settle);
    failover.store.apply(operation).await
}
