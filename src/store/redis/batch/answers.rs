//! From the script's reply to the answers of a batch's checks.

use super::{Batch, Run};
use crate::model::{Decision, Error, Verdict};
use crate::store::redis::wire::{IN_SHORT, Op, RawVerdict, Reply};
use crate::telemetry::RedisEvents;
use crate::units::Timestamp;

/// The indices of a run's verdicts, for its next group, and for its last.
struct RunCursor {
    next: usize,
    last: usize,
}

impl Batch {
    /// Answers every group with its part of the script's reply. Returns how many were declined, or
    /// what is wrong with a malformed reply. It leaves groups without an answer then.
    pub(in super::super) fn read_reply(
        &mut self,
        reply: &[i64],
        events: &RedisEvents,
    ) -> Result<usize, String> {
        let mut declined = 0;
        let mut numbers = Reply::new(reply);
        let decided_at = numbers.number().map(Timestamp::from_micros);
        let answers = decided_at.and_then(|at| Some((at, self.read(numbers, events)?)));
        let Some((decided_at, (verdicts, mut cursors))) = answers else {
            return Err(malformed(reply));
        };
        for caller in self.callers.iter_mut().filter(|caller| caller.sent) {
            let run = &self.runs[caller.run];
            let cursor = &mut cursors[caller.run];
            let verdicts = &verdicts[cursor.next..][..run.size];
            // The last verdicts are the answer for all groups that follow.
            cursor.next = usize::min(cursor.next + run.size, cursor.last);
            let charges = &self.charges[run.first..][..run.size];
            let mut budgets = run.operation.budgets().zip(verdicts);
            let is_charged = run.op == Op::Charge
                && budgets.all(|(budget, raw)| raw.is_allowed() || budget.is_shadow());
            let budgets = run.operation.budgets().zip(verdicts).zip(charges);
            let mut verdicts = budgets.map(|((budget, raw), charge)| {
                let charged = if is_charged && raw.is_allowed() {
                    charge.cost
                } else {
                    0
                };
                let limit = budget.limit();
                let outcome = raw.outcome(limit.rule(), charged > 0);
                Verdict::new(limit.clone(), outcome, charged).in_shadow(budget.is_shadow())
            });
            let decision = match run.size {
                1 => verdicts.next().map(Decision::from),
                _ => Decision::of_group(verdicts.collect()),
            };
            let Some(decision) = decision.map(|decision| decision.with_timestamp(decided_at))
            else {
                return Err(malformed(reply));
            };
            caller.set_answer(match &self.read_only {
                Some(reason) if run.is_peeked() && decision.allowed() => {
                    declined += usize::from(caller.promise.is_some());
                    Err(Error::declined(reason.to_string()))
                }
                _ => Ok(decision),
            });
        }
        Ok(declined)
    }

    /// All verdicts of a reply, with the indices for each run. Reports each unreadable value.
    fn read(
        &self,
        mut reply: Reply<'_>,
        events: &RedisEvents,
    ) -> Option<(Vec<RawVerdict>, Vec<RunCursor>)> {
        let mut verdicts = Vec::with_capacity(self.callers.len());
        let mut cursors = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            let next = verdicts.len();
            let answers = match run.times {
                times @ 0..=1 => times,
                times => reply.number().filter(|answers| *answers <= times)?,
            };
            if run.times > 1 && answers == IN_SHORT {
                self.read_in_short(run, &mut reply, &mut verdicts, events)?;
            } else {
                for _ in 0..answers {
                    self.read_answer(run, &mut reply, &mut verdicts, events)?;
                }
            }
            let last = verdicts
                .len()
                .checked_sub(run.size)
                .filter(|last| *last >= next);
            // The indices of a run that was not sent are never used.
            cursors.push(RunCursor {
                next,
                last: last.or((run.times == 0).then_some(next))?,
            });
        }
        reply.is_empty().then_some((verdicts, cursors))
    }

    /// Reads the verdicts of one group of a run. A block is reported here, whether its caller still
    /// waits or not.
    fn read_answer(
        &self,
        run: &Run,
        reply: &mut Reply<'_>,
        into: &mut Vec<RawVerdict>,
        events: &RedisEvents,
    ) -> Option<()> {
        let charges = &self.charges[run.first..][..run.size];
        for (charge, budget) in charges.iter().zip(run.operation.budgets()) {
            let raw = reply.verdict()?;
            if raw.is_unreadable() {
                events.unreadable(self.keys.get(charge.budget.key.into()));
            }
            if let Some(length) = raw.begins_block()
                && (run.op == Op::Charge || charge.counts_denied_peek())
            {
                events.blocked(budget, length);
            }
            into.push(raw);
        }
        Some(())
    }

    /// Reads the verdicts of a run of single charges. The verdicts of allowed charges follow from
    /// the first.
    fn read_in_short(
        &self,
        run: &Run,
        reply: &mut Reply<'_>,
        into: &mut Vec<RawVerdict>,
        events: &RedisEvents,
    ) -> Option<()> {
        let charge = &self.charges[run.first];
        let rule = self.rule(charge);
        let allowed: u16 = reply.number().filter(|allowed| *allowed <= run.times)?;
        if allowed > 0 {
            let first = reply.first_of_several()?;
            for before in 0..allowed {
                into.push(RawVerdict::following(first, before, charge.cost, rule)?);
            }
        }
        if allowed < run.times {
            self.read_answer(run, reply, into, events)
        } else {
            Some(())
        }
    }
}

/// Describes a malformed reply by its start, because it may be as long as the server likes.
fn malformed(reply: &[i64]) -> String {
    const SHOWN: usize = 8;
    let start = &reply[..reply.len().min(SHOWN)];
    format!(
        "malformed reply of {} numbers, starting with {start:?}",
        reply.len()
    )
}
