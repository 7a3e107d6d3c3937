//! The decision of a group of checks. All are charged, or none.

use crate::algorithm::{Cost, Effect, State, offences};
use crate::model::{Check, Decision, Error, Group, Op, Verdict};
use crate::units::{Micros, Outcome};

/// Applies `op` to a group of checks and the states of their budgets, in the order of the group.
///
/// This makes the decision of a [`Store`](crate::store::Store), which only has to lock the states
/// meanwhile. `now_us` is the store's time, in microseconds since the Unix epoch. Afterwards, a
/// state of `None` need not be kept. Keep any other until [`State::expires_at`].
///
/// # Errors
///
/// Returns an error that [is misuse](Error::is_misuse) if the numbers of checks and states differ.
/// Then it changes no state.
///
/// ```
/// use tollgate::store::{Group, Op, decide};
/// use tollgate::{Check, Key, Limit, Quota};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Key::new("alice");
/// let second = Limit::token_bucket("second", Quota::per_second(5))?;
/// let day = Limit::fixed_window("day", Quota::per_day(1))?;
/// let group = Group::new([Check::new(&second, &key), Check::new(&day, &key)])?;
///
/// let mut states = [None, None];
/// assert!(decide(Op::Charge, &group, &mut states, 0)?.allowed());
/// // The day's budget is empty, so the second's is not charged either.
/// let decision = decide(Op::Charge, &group, &mut states, 1_000_000)?;
/// assert_eq!(decision.limit().name(), "day");
/// assert_eq!(decision.verdicts()[0].remaining(), 5);
/// # Ok(())
/// # }
/// ```
pub fn decide(
    op: Op,
    group: &Group,
    states: &mut [Option<State>],
    now_us: u64,
) -> Result<Decision, Error> {
    if states.len() != group.len() {
        return Err(Error::misuse(format!(
            "the group has {} checks and {} states; pass one state for each check",
            group.len(),
            states.len()
        )));
    }
    if let ([check], [state]) = (&**group, &mut *states) {
        let (outcome, charged) = decide_one(op, check, state, now_us);
        let verdict = verdict(check, outcome, charged);
        return Ok(Decision::from(verdict).made_at(now_us));
    }
    // Always a decision: a group is not empty.
    Decision::of_group(decide_group(op, group, states, now_us))
        .map(|decision| decision.made_at(now_us))
        .ok_or_else(|| Error::misuse("the group is empty"))
}

/// Applies `op` to one check. Returns the outcome and the charged units.
#[inline]
pub(super) fn decide_one(
    op: Op,
    check: &Check,
    state: &mut Option<State>,
    now: Micros,
) -> (Outcome, u32) {
    let cost = check.cost();
    let rule = check.limit().rule();
    match op {
        Op::Charge => {
            let outcome = decide_unless_blocked(check, state, now, check.asked(), Effect::Commit);
            return (outcome, if outcome.allowed { cost } else { 0 });
        }
        Op::Peek => {
            return (
                decide_unless_blocked(check, state, now, check.asked(), effect_of_peek(check)),
                0,
            );
        }
        Op::Block => {
            let cost = Cost::units(cost.into());
            let policy = check.limit().blocking();
            offences::block(policy, state, now, check.block_us());
            return (
                offences::decide(policy, rule, state, now, cost, Effect::Dry),
                0,
            );
        }
        Op::Claim => {
            if let Some(claim) = check.claim() {
                return (rule.claim(state, now, claim), 0);
            }
        }
        Op::Refund => {
            if let Some(receipt) = check.receipt() {
                rule.refund(state, now, receipt, cost);
            }
        }
        Op::Settle => settle(check, state, now),
        Op::Reset => *state = None,
    }
    let left = decide_unless_blocked(check, state, now, Cost::NONE, Effect::Dry);
    (left, 0)
}

fn effect_of_peek(check: &Check) -> Effect {
    if check.is_denied_caller() {
        Effect::Count
    } else {
        Effect::Dry
    }
}

/// The outcome of a check of its limit, whose key may be blocked.
#[inline]
fn decide_unless_blocked(
    check: &Check,
    state: &mut Option<State>,
    now: Micros,
    cost: Cost,
    effect: Effect,
) -> Outcome {
    let rule = check.limit().rule();
    match check.blocking() {
        Some(policy) => offences::decide(Some(policy), rule, state, now, cost, effect),
        None if offences::has_operator_block(state) => {
            offences::decide(None, rule, state, now, cost, effect)
        }
        None => rule.decide(state, now, cost, effect),
    }
}

/// Gives back what was charged too much, or charges what was charged too little.
fn settle(check: &Check, state: &mut Option<State>, now: Micros) {
    let cost = check.cost();
    let limit = check.limit();
    let charged = check.receipt().map_or(0, |receipt| receipt.cost);
    match check.receipt() {
        Some(receipt) if cost < charged => {
            limit.rule().refund(state, now, receipt, charged - cost);
        }
        _ if cost > charged => {
            let units = u64::from(cost - charged);
            limit
                .rule()
                .overdraw(state, now, units, limit.max_debt().unwrap_or(u64::MAX));
        }
        _ => {}
    }
}

fn verdict(check: &Check, outcome: Outcome, charged: u32) -> Verdict {
    Verdict::new(check.limit().clone(), outcome, charged).in_shadow(check.is_shadow())
}

fn decide_group(
    op: Op,
    group: &[Check],
    states: &mut [Option<State>],
    now: Micros,
) -> Vec<Verdict> {
    if op.changes_each() {
        return decide_each(op, group, states, now);
    }
    let dry = |(check, state): (&Check, &mut Option<State>)| {
        verdict(
            check,
            decide_unless_blocked(check, state, now, check.asked(), Effect::Dry),
            0,
        )
    };
    let mut verdicts: Vec<_> = group.iter().zip(states.iter_mut()).map(dry).collect();
    if verdicts.iter().all(Verdict::allowed) {
        return if op == Op::Charge {
            decide_each(op, group, states, now)
        } else {
            verdicts
        };
    }
    let is_blocked = |verdict: &Verdict| {
        let outcome = verdict.outcome();
        outcome.blocked.stands() && !outcome.allowed
    };
    let has_blocked_key = verdicts.iter().any(is_blocked);
    for ((answer, check), state) in verdicts.iter_mut().zip(group).zip(states) {
        let effect = match op {
            Op::Charge if check.cost() > 0 => Effect::Adopt,
            Op::Peek => effect_of_peek(check),
            _ => Effect::Dry,
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
        let outcome = decide_unless_blocked(check, state, now, cost, effect);
        *answer = verdict(check, outcome, 0);
    }
    verdicts
}

/// Applies an operation to each check by itself.
fn decide_each(op: Op, group: &[Check], states: &mut [Option<State>], now: Micros) -> Vec<Verdict> {
    let pairs = group.iter().zip(states.iter_mut());
    let decide = |(check, state): (&Check, _)| {
        let (outcome, charged) = decide_one(op, check, state, now);
        verdict(check, outcome, charged)
    };
    pairs.map(decide).collect()
}
