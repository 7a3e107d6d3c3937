//! All or none: a batch of charges against the states of its budgets.

use crate::algorithm::{Effect, State};
use crate::decision::{Micros, Verdict};
use crate::{Charge, Decision, Error, Op, check_batch};

/// Applies `op` to a batch, given the state of each of its budgets, in the order of the batch.
///
/// This is the whole of what a [`Store`](crate::Store) decides; what is left to the store is to
/// hold the states still meanwhile. `now_us` is the store's time, in microseconds since the Unix
/// epoch. Afterwards, a state that is `None` need not be kept, and any other until
/// [`State::ends_at`].
///
/// # Errors
///
/// If the batch [cannot be decided](check_batch), or there is not one state for each of
/// its charges. No state is changed then.
///
/// ```
/// use tollgate::{Key, Limit, Op, Quota, decide};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Key::new("alice");
/// let second = Limit::token_bucket("second", Quota::per_second(5))?;
/// let day = Limit::fixed_window("day", Quota::per_day(1))?;
/// let batch = [second.charge(&key, 1), day.charge(&key, 1)];
///
/// let mut states = [None, None];
/// assert!(decide(Op::Charge, &batch, &mut states, 0)?.allowed());
/// // The day is used up, so the second is not charged either.
/// let decision = decide(Op::Charge, &batch, &mut states, 1_000_000)?;
/// assert!(!decision.allowed());
/// assert_eq!(decision.verdicts()[0].remaining(), 5);
/// # Ok(())
/// # }
/// ```
pub fn decide(
    op: Op,
    batch: &[Charge<'_>],
    states: &mut [Option<State>],
    now_us: u64,
) -> Result<Decision, Error> {
    check_batch(batch)?;
    if states.len() != batch.len() {
        return Err(Error::misuse("there has to be one state for each charge"));
    }
    if let ([charge], [state]) = (batch, &mut *states) {
        return Ok(Decision::from(decide_one(op, charge, state, now_us)).made_at(now_us));
    }
    let verdicts = decide_group(op, batch, states, now_us);
    let decision = Decision::of_group(verdicts).ok_or_else(|| Error::misuse("the batch is empty"));
    decision.map(|decision| decision.made_at(now_us))
}

/// The same for one charge: no collection is needed.
pub(super) fn decide_one(
    op: Op,
    charge: &Charge<'_>,
    state: &mut Option<State>,
    now: Micros,
) -> Verdict {
    let algorithm = charge.limit.algorithm();
    match op {
        Op::Charge => return algorithm.decide(state, now, charge.cost, Effect::Commit),
        Op::Peek => return algorithm.decide(state, now, charge.cost, Effect::Dry),
        Op::Refund => {
            if let Some(receipt) = charge.receipt {
                algorithm.refund(state, now, receipt, charge.cost);
            }
        }
        Op::Reset => *state = None,
    }
    algorithm.decide(state, now, 0, Effect::Dry)
}

fn decide_group(
    op: Op,
    batch: &[Charge<'_>],
    states: &mut [Option<State>],
    now: Micros,
) -> Vec<Verdict> {
    let mut each = |op: Op| -> Vec<Verdict> {
        let pairs = batch.iter().zip(states.iter_mut());
        pairs.map(|(charge, state)| decide_one(op, charge, state, now)).collect()
    };
    if matches!(op, Op::Refund | Op::Reset) {
        return each(op);
    }
    let mut verdicts = each(Op::Peek);
    if verdicts.iter().all(Verdict::allowed) {
        return if op == Op::Charge { each(op) } else { verdicts };
    }
    for ((verdict, charge), state) in verdicts.iter_mut().zip(batch).zip(states) {
        let settles = op == Op::Charge && charge.cost > 0;
        let effect = if settles { Effect::Settle } else { Effect::Dry };
        // Nothing is taken from a limit that agrees with a check that another refuses.
        let cost = if verdict.allowed { 0 } else { charge.cost };
        *verdict = charge.limit.algorithm().decide(state, now, cost, effect);
    }
    verdicts
}
