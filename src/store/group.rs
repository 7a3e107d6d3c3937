//! The decision of a group of checks: all are charged, or none.

use crate::algorithm::{Effect, State};
use crate::nouns::{Check, Decision, Error, Micros, Op, Verdict, validate_group};

/// Applies `op` to a group of checks and the states of their budgets, in the order of the group.
///
/// This makes the decision of a [`Store`](crate::store::Store), which only has to lock the states
/// meanwhile. `now_us` is the store's time, in microseconds since the Unix epoch. Afterwards, a
/// state of `None` need not be kept. Keep any other until [`State::expires_at`].
///
/// # Errors
///
/// Returns an error if the group [is invalid](validate_group), or if the numbers of checks and
/// states differ. Then it changes no state.
///
/// ```
/// use tollgate::store::{Op, decide};
/// use tollgate::{Check, Key, Limit, Quota};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Key::new("alice");
/// let second = Limit::token_bucket("second", Quota::per_second(5))?;
/// let day = Limit::fixed_window("day", Quota::per_day(1))?;
/// let group = [Check::new(&second, &key), Check::new(&day, &key)];
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
    group: &[Check],
    states: &mut [Option<State>],
    now_us: u64,
) -> Result<Decision, Error> {
    validate_group(group)?;
    if states.len() != group.len() {
        return Err(Error::misuse(format!(
            "the group has {} checks and {} states; pass one state for each check",
            group.len(),
            states.len()
        )));
    }
    if let ([check], [state]) = (group, &mut *states) {
        return Ok(Decision::from(decide_one(op, check, state, now_us)).made_at(now_us));
    }
    let verdicts = decide_group(op, group, states, now_us);
    let decision = Decision::of_group(verdicts).ok_or_else(|| Error::misuse("the group is empty"));
    decision.map(|decision| decision.made_at(now_us))
}

/// Applies `op` to one check, without an allocation.
pub(super) fn decide_one(op: Op, check: &Check, state: &mut Option<State>, now: Micros) -> Verdict {
    match op {
        Op::Charge => verdict(check, state, now, check.cost(), Effect::Commit),
        Op::Peek => verdict(check, state, now, check.cost(), Effect::Dry),
        Op::Refund => {
            if let Some(receipt) = check.receipt() {
                check.limit().rule().refund(state, now, receipt, check.cost());
            }
            verdict(check, state, now, 0, Effect::Dry)
        }
        Op::Reset => {
            *state = None;
            verdict(check, state, now, 0, Effect::Dry)
        }
    }
}

fn verdict(
    check: &Check,
    state: &mut Option<State>,
    now: Micros,
    cost: u32,
    effect: Effect,
) -> Verdict {
    let outcome = check.limit().rule().decide(state, now, cost, effect);
    let is_charged = outcome.allowed && effect == Effect::Commit;
    Verdict::new(check.limit().clone(), outcome, if is_charged { cost } else { 0 })
}

fn decide_group(
    op: Op,
    group: &[Check],
    states: &mut [Option<State>],
    now: Micros,
) -> Vec<Verdict> {
    let mut each = |op: Op| -> Vec<Verdict> {
        let pairs = group.iter().zip(states.iter_mut());
        pairs.map(|(check, state)| decide_one(op, check, state, now)).collect()
    };
    if matches!(op, Op::Refund | Op::Reset) {
        return each(op);
    }
    let mut verdicts = each(Op::Peek);
    if verdicts.iter().all(Verdict::allowed) {
        return if op == Op::Charge { each(op) } else { verdicts };
    }
    for ((answer, check), state) in verdicts.iter_mut().zip(group).zip(states) {
        let settles = op == Op::Charge && check.cost() > 0;
        let effect = if settles { Effect::Settle } else { Effect::Dry };
        // A limit that allows its check is not charged if another limit denies.
        let cost = if answer.allowed() { 0 } else { check.cost() };
        *answer = verdict(check, state, now, cost, effect);
    }
    verdicts
}
