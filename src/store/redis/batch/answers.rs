//! From the script's reply to the answers of a batch's checks.

use super::{Batch, Run};
use crate::nouns::{Decision, Error, Op, Verdict};
use crate::store::redis::wire::{IN_SHORT, RawVerdict, Reply};
use crate::telemetry::RedisEvents;

/// The indices of a run's verdicts: for its next group, and for its last.
struct Place {
    next: usize,
    last: usize,
}

impl Batch {
    /// Answers every group with its part of the script's reply. Returns how many were declined, or
    /// what is wrong with a malformed reply. It leaves groups without an answer then.
    pub(in super::super) fn conclude(
        &mut self,
        reply: &[i64],
        events: &RedisEvents,
    ) -> Result<usize, String> {
        let mut declined = 0;
        let mut numbers = Reply::new(reply);
        let decided_at = numbers.number();
        let answers = decided_at.and_then(|at| Some((at, self.read(numbers, events)?)));
        let Some((decided_at, (verdicts, mut places))) = answers else {
            return Err(malformed(reply));
        };
        for check in self.waiters.iter_mut().filter(|check| check.sent) {
            let (run, place) = (&self.runs[check.run], &mut places[check.run]);
            let verdicts = &verdicts[place.next..][..run.size];
            // The last verdicts are the answer for all groups that follow.
            place.next = usize::min(place.next + run.size, place.last);
            let group = &self.checks[run.first..][..run.size];
            let is_charged = run.op == Op::Charge && verdicts.iter().all(RawVerdict::is_allowed);
            let mut verdicts = verdicts.iter().zip(group).map(|(told, check)| {
                let charged = if is_charged { check.units() } else { 0 };
                Verdict::new(check.limit().clone(), told.outcome(), charged)
            });
            let decision = match run.size {
                1 => verdicts.next().map(Decision::from),
                _ => Decision::of_group(verdicts.collect()),
            };
            let Some(decision) = decision.map(|decision| decision.made_at(decided_at)) else {
                return Err(malformed(reply));
            };
            check.answer(match &self.read_only {
                Some(reason) if run.is_peeked && decision.allowed() => {
                    declined += 1;
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
    ) -> Option<(Vec<RawVerdict>, Vec<Place>)> {
        let mut verdicts = Vec::with_capacity(self.waiters.len());
        let mut places = Vec::with_capacity(self.runs.len());
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
            let last = verdicts.len().checked_sub(run.size).filter(|last| *last >= next);
            // The indices of a run that was not sent are never used.
            places.push(Place { next, last: last.or((run.times == 0).then_some(next))? });
        }
        reply.is_empty().then_some((verdicts, places))
    }

    /// Reads the verdicts of one group of a run.
    fn read_answer(
        &self,
        run: &Run,
        reply: &mut Reply<'_>,
        into: &mut Vec<RawVerdict>,
        events: &RedisEvents,
    ) -> Option<()> {
        for charge in &self.charges[run.first..][..run.size] {
            let told = reply.verdict()?;
            if told.is_unreadable() {
                events.unreadable(self.keys.get(charge.key.into()));
            }
            into.push(told);
        }
        Some(())
    }

    /// Reads the verdicts of a run of single charges. Those of allowed charges follow from the first.
    fn read_in_short(
        &self,
        run: &Run,
        reply: &mut Reply<'_>,
        into: &mut Vec<RawVerdict>,
        events: &RedisEvents,
    ) -> Option<()> {
        let charge = &self.charges[run.first];
        let rule = self.limits[usize::from(charge.limit)].rule();
        let admitted: u16 = reply.number().filter(|admitted| *admitted <= run.times)?;
        if admitted > 0 {
            let first = reply.first_of_several()?;
            for before in 0..admitted {
                into.push(first.later(before, charge.cost, rule)?);
            }
        }
        if admitted < run.times { self.read_answer(run, reply, into, events) } else { Some(()) }
    }
}

/// Describes a malformed reply by its start: it may be as long as the server likes.
fn malformed(reply: &[i64]) -> String {
    const SHOWN: usize = 8;
    let start = &reply[..reply.len().min(SHOWN)];
    format!("the script answered {} numbers that are no decisions, from {start:?}", reply.len())
}
