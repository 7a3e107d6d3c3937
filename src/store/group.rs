//! The decision of an operation. Of a group, all checks are charged, or none.

use std::time::Duration;

use crate::algorithm::{Cost, Effect, State, at_most_a_year, offences};
use crate::model::{Budget, Change, Check, Decision, Error, Key, Limit, Operation, Verdict};
use crate::units::{Micros, Outcome, Receipt, Timestamp};

/// Applies an operation to the states of its [budgets](Operation::budgets), in their order.
///
/// This makes the decision of a [`Store`](crate::store::Store), which only has to lock the states
/// meanwhile. `now` is the store's time since the Unix epoch, in whole microseconds. Afterwards, a
/// state of `None` need not be kept. You keep any other until [`State::expires_at`].
///
/// # Errors
///
/// Returns an error that [is misuse](Error::is_misuse) if the numbers of budgets and states differ.
/// Then it changes no state.
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{Group, Operation, decide};
/// use tollgate::{Check, Key, Limit, Quota};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Key::new("alice");
/// let second = Limit::token_bucket("second", Quota::per_second(5))?;
/// let day = Limit::fixed_window("day", Quota::per_day(1))?;
/// let group = Group::new([Check::new(&second, &key), Check::new(&day, &key)])?;
/// let charge = Operation::Charge(group);
///
/// let mut states = [None, None];
/// assert!(decide(&charge, &mut states, Duration::ZERO)?.allowed());
/// // The day's budget is empty, so the second's is not charged either.
/// let decision = decide(&charge, &mut states, Duration::from_secs(1))?;
/// assert_eq!(decision.limit().name(), "day");
/// assert_eq!(decision.verdicts()[0].remaining(), 5);
/// # Ok(())
/// # }
/// ```
pub fn decide(
    operation: &Operation,
    states: &mut [Option<State>],
    now: Duration,
) -> Result<Decision, Error> {
    let now = Timestamp::from(now);
    let budgets = operation.size();
    if states.len() != budgets {
        return Err(Error::misuse(format!(
            "the operation has {budgets} budgets and {} states; pass one state for each budget",
            states.len()
        )));
    }
    let decision = match (operation, states) {
        (Operation::Change(budget, change), [state]) => {
            let outcome = apply_change(budget, change, state, now);
            Some(Decision::from(verdict(budget, outcome, 0)))
        }
        (Operation::Charge(group), states) => decide_group(group, Effect::Commit, states, now),
        (Operation::Peek(group), states) => decide_group(group, Effect::Dry, states, now),
        (Operation::Change(..), _) => None,
    };
    // Always a decision: an operation has a budget.
    let decision = decision.ok_or_else(|| Error::misuse("the operation has no budget"))?;
    Ok(decision.with_timestamp(now))
}

/// Charges a check. If it is allowed, its cost is charged.
#[inline]
pub(super) fn charge(check: &Check, state: &mut Option<State>, now: Timestamp) -> Outcome {
    charge_key(check.limit(), check.key(), check.asked(), state, now)
}

/// The same, of a check in parts.
#[inline]
pub(super) fn charge_key(
    limit: &Limit,
    key: &Key,
    cost: Cost,
    state: &mut Option<State>,
    now: Timestamp,
) -> Outcome {
    let charged = limit.rule().charge(state, now, cost.units);
    charged.unwrap_or_else(|| decide_with_blocks((limit, key), state, now, cost, Effect::Commit))
}

/// The outcome that a charge would have.
pub(super) fn peek(check: &Check, state: &mut Option<State>, now: Timestamp) -> Outcome {
    let effect = effect_of_peek(check);
    decide_with_blocks(parts(check.budget()), state, now, check.asked(), effect)
}

/// Changes a budget. Returns the outcome of a peek of cost 0 afterwards.
pub(super) fn apply_change(
    budget: &Budget,
    change: &Change,
    state: &mut Option<State>,
    now: Timestamp,
) -> Outcome {
    let limit = budget.limit();
    match change {
        Change::Settle { receipt, cost } => settle(budget, *receipt, *cost, state, now),
        Change::Reset => *state = None,
        Change::Pay(payment) => return pay(budget, payment.units.into(), state, now),
        Change::Block(length) => {
            offences::block(limit.blocking(), state, now, at_most_a_year(*length));
        }
        Change::Claim(claim) => return limit.rule().claim(state, now, &claim.within_range()),
    }
    decide_with_blocks(parts(budget), state, now, Cost::NONE, Effect::Dry)
}

/// Charges a payment. The delay of the outcome is the units that did not fit.
fn pay(budget: &Budget, units: u64, state: &mut Option<State>, now: Timestamp) -> Outcome {
    let rule = budget.limit().rule();
    let left = rule.decide(state, now, Cost::NONE, Effect::Dry).remaining;
    rule.overdraw(state, now, units, u64::MAX);
    Outcome {
        delay: units.saturating_sub(left),
        ..decide_with_blocks(parts(budget), state, now, Cost::NONE, Effect::Dry)
    }
}

fn effect_of_peek(check: &Check) -> Effect {
    if check.is_denied_caller() {
        Effect::Count
    } else {
        Effect::Dry
    }
}

/// The limit and the key of a budget.
const fn parts(budget: &Budget) -> (&Limit, &Key) {
    (budget.limit(), budget.key())
}

/// The outcome of a check of its limit, whose key may be blocked.
#[inline]
fn decide_with_blocks(
    (limit, key): (&Limit, &Key),
    state: &mut Option<State>,
    now: Timestamp,
    cost: Cost,
    effect: Effect,
) -> Outcome {
    let rule = limit.rule();
    match limit.blocking_of(key) {
        Some(policy) => offences::decide(Some(policy), rule, state, now, cost, effect),
        None if offences::has_operator_block(state) => {
            offences::decide(None, rule, state, now, cost, effect)
        }
        None => rule.decide(state, now, cost, effect),
    }
}

/// Gives back what was charged too much, or charges what was charged too little.
fn settle(budget: &Budget, receipt: Receipt, cost: u32, state: &mut Option<State>, now: Timestamp) {
    let limit = budget.limit();
    let charged = receipt.cost;
    if cost < charged {
        limit.rule().refund(state, now, receipt, charged - cost);
    } else if cost > charged {
        let max_debt = limit.max_debt().unwrap_or(u64::MAX);
        let units = u64::from(cost - charged);
        limit.rule().overdraw(state, now, units, max_debt);
    }
}

fn verdict(budget: &Budget, outcome: Outcome, charged: u32) -> Verdict {
    Verdict::new(budget.limit().clone(), outcome, charged).in_shadow(budget.is_shadow())
}

/// Charges a group, or only peeks.
pub(super) fn decide_group(
    group: &[Check],
    effect: Effect,
    states: &mut [Option<State>],
    now: Timestamp,
) -> Option<Decision> {
    let is_charge = effect == Effect::Commit;
    let decide = |(check, state): (&Check, &mut Option<State>)| {
        let outcome = match is_charge {
            true => charge(check, state, now),
            false => peek(check, state, now),
        };
        let is_charged = is_charge && outcome.allowed;
        let charged = if is_charged { check.cost() } else { 0 };
        verdict(check.budget(), outcome, charged)
    };
    if let ([check], [state]) = (group, &mut *states) {
        return Some(Decision::from(decide((check, state))));
    }
    let dry = |(check, state): (&Check, &mut Option<State>)| {
        let cost = check.asked();
        let outcome = decide_with_blocks(parts(check.budget()), state, now, cost, Effect::Dry);
        verdict(check.budget(), outcome, 0)
    };
    let mut verdicts: Vec<_> = group.iter().zip(states.iter_mut()).map(dry).collect();
    if verdicts.iter().all(Verdict::allowed) {
        if is_charge {
            verdicts = group.iter().zip(states).map(decide).collect();
        }
        return Decision::of_group(verdicts);
    }
    let is_blocked = |verdict: &Verdict| {
        let outcome = verdict.outcome();
        outcome.blocked_for > 0 && !outcome.begins_block && !outcome.allowed
    };
    let has_blocked_key = verdicts.iter().any(is_blocked);
    for ((answer, check), state) in verdicts.iter_mut().zip(group).zip(states) {
        let effect = match is_charge {
            true if check.cost() > 0 => Effect::Adopt,
            true => Effect::Dry,
            false => effect_of_peek(check),
        };
        // A limit that allows its check is not charged if another limit denies.
        let mut cost = if answer.outcome().allowed {
            Cost::NONE
        } else {
            check.asked()
        };
        if has_blocked_key {
            cost.patience = Micros::MAX;
        }
        let outcome = decide_with_blocks(parts(check.budget()), state, now, cost, effect);
        *answer = verdict(check.budget(), outcome, 0);
    }
    Decision::of_group(verdicts)
}
