//! After an outage: what was allowed locally is charged to the store.
//!
//! Without it, each outage would give every client a second budget. A charge is made once: if its answer is lost,
//! it is not repeated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::Shared;
use super::local::Local;
use crate::nouns::{Check, Decision, Error, Op};
use crate::telemetry;

/// The charges that are made at once: a store that has just recovered must not be flooded.
const AT_ONCE: usize = 64;

/// The pause before another attempt, of one charge, if the store is unavailable again.
const PAUSE: Duration = Duration::from_millis(250);

/// Held by the task that settles, of which there is one at a time.
struct Turn(Arc<AtomicBool>);

impl Turn {
    fn take(taken: &Arc<AtomicBool>) -> Option<Self> {
        (!taken.swap(true, Ordering::AcqRel)).then(|| Self(Arc::clone(taken)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Starts a task that charges what is owed, if anything is. Outside of a runtime, a later answer of the store
/// starts it.
#[inline]
pub(super) fn start(shared: &Arc<Shared>) {
    if let Some(local) = shared.local.get().filter(|local| !local.ledger.is_empty())
        && let Ok(runtime) = Runtime::try_current()
        && let Some(turn) = Turn::take(&local.is_settling)
    {
        runtime.spawn(settle(Arc::downgrade(shared), turn));
    }
}

/// Charges all that is owed. It does not keep the store.
async fn settle(shared: Weak<Shared>, _turn: Turn) {
    let (mut budgets, mut units) = (0, 0);
    let mut at_once = AT_ONCE;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let Some(local) = shared.local.get() else { return };
        let owed = local.ledger.take(at_once);
        if owed.is_empty() {
            break;
        }
        if let Some(charged) = charge(&shared, local, owed).await {
            budgets += charged.len();
            units += charged.iter().sum::<u64>();
            at_once = AT_ONCE;
            // An embedded store answers at once, and other tasks have to run.
            yield_now().await;
        } else {
            drop(shared);
            at_once = 1;
            sleep(PAUSE).await;
        }
    }
    telemetry::settled(budgets, units);
}

/// Charges budgets. Returns the units of each, or `None` if the store is unavailable. What it certainly did not
/// charge is owed again.
async fn charge(shared: &Shared, local: &Local, owed: Vec<(Check, u64)>) -> Option<Vec<u64>> {
    let charges = owed.into_iter().map(|(check, units)| {
        // What has drained since is not owed.
        let units = units.min(local.used(&check));
        let check = check.with_cost(u32::try_from(units).unwrap_or(u32::MAX));
        let answer = shared.store.apply(Op::Charge, check.clone().into());
        (check, answer)
    });
    // All are asked before the first answer is awaited, so that they share a call.
    let charges: Vec<_> = charges.collect();
    let mut charged = Some(Vec::with_capacity(charges.len()));
    for (check, answer) in charges {
        match answer.await {
            Ok(decision) => {
                let units = if decision.allowed() {
                    check.cost().into()
                } else {
                    charge_rest(shared, &check, &decision).await
                };
                charged.iter_mut().for_each(|charged| charged.push(units));
            }
            Err(error) => {
                if !error.may_have_charged() {
                    local.ledger.enter(&check, check.cost().into());
                }
                charged = None;
            }
        }
    }
    charged
}

/// Charges the units that a budget has left, because it has fewer than are owed.
async fn charge_rest(shared: &Shared, check: &Check, denied: &Decision) -> u64 {
    let rest = u32::try_from(denied.remaining()).unwrap_or(u32::MAX);
    let check = check.clone().with_cost(rest.min(check.cost()));
    let answer: Result<_, Error> = shared.store.apply(Op::Charge, check.into()).await;
    if answer.is_ok_and(|decision| decision.allowed()) { rest.into() } else { 0 }
}
