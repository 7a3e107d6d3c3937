//! From the script's reply to the answers of a batch's checks.

use std::ops::Range;
use std::time::Duration;

use super::{Batch, Run};
use crate::model::{Decision, Error, Verdict};
use crate::store::redis::wire::{self, IN_SHORT, Op};
use crate::telemetry::RedisEvents;
use crate::units::{Outcome, Timestamp};

/// Why a limit with a calendar is not decided.
const OTHER_TIME: &str = "the clocks of Redis and of this process differ by half a window of the \
                          calendar or more; set them right";

impl Batch {
    /// Answers every group with its part of the script's reply. Returns how many were declined, or
    /// what is wrong with a malformed reply. It leaves groups without an answer then.
    pub(in super::super) fn read_reply(
        &mut self,
        reply: &[i64],
        events: &RedisEvents,
    ) -> Result<usize, String> {
        let mut declined = 0;
        let mut rest = reply;
        let decided_at = wire::number(&mut rest).map(Timestamp::from_micros);
        let answers = decided_at.and_then(|at| Some((at, self.read(rest, events)?)));
        let Some((decided_at, (outcomes, mut of_runs))) = answers else {
            return Err(malformed(reply));
        };
        for caller in self.callers.iter_mut().filter(|caller| caller.sent) {
            let run = &self.runs[caller.run];
            let of_run = &mut of_runs[caller.run];
            let outcomes = &outcomes[of_run.start..][..run.size];
            // The last outcomes are the answer for all groups that follow.
            of_run.start = usize::min(of_run.start + run.size, of_run.end - run.size);
            let mut budgets = run.operation.budgets().zip(outcomes);
            let is_charged = run.op == Op::Charge
                && budgets.all(|(budget, outcome)| outcome.allowed || budget.is_shadow());
            let is_undecided = !is_charged && outcomes.iter().any(|it| it.is_undecided);
            let charges = &self.charges[run.first..][..run.size];
            let budgets = run.operation.budgets().zip(outcomes).zip(charges);
            let mut verdicts = budgets.map(|((budget, outcome), charge)| {
                let mut outcome = *outcome;
                let charged = match is_charged && outcome.allowed {
                    true => charge.cost,
                    false => 0,
                };
                let limit = budget.limit();
                if outcome.is_undecided {
                    // A limit in shadow mode does not keep the others from being charged.
                    return Verdict::unlimited(limit.clone()).in_shadow(budget.is_shadow());
                }
                if charged == 0 || !limit.rule().drains() {
                    outcome.drains_after = 0;
                }
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
            caller.answer = Some(match &self.read_only {
                Some(reason) if run.is_peeked() && decision.allowed() => {
                    declined += usize::from(caller.promise.is_some());
                    Err(Error::declined(reason.to_string()))
                }
                _ if is_undecided => {
                    declined += usize::from(caller.promise.is_some());
                    Err(Error::declined(OTHER_TIME))
                }
                _ => Ok(decision),
            });
        }
        Ok(declined)
    }

    /// Returns all outcomes of a reply, and the range of them that belongs to each run. Reports
    /// each unreadable value.
    fn read(
        &self,
        mut reply: &[i64],
        events: &RedisEvents,
    ) -> Option<(Vec<Outcome>, Vec<Range<usize>>)> {
        let mut outcomes = Vec::with_capacity(self.callers.len());
        let mut of_runs = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            let start = outcomes.len();
            let answers = match run.times {
                times @ 0..=1 => times,
                times => wire::number(&mut reply).filter(|answers| *answers <= times)?,
            };
            if run.times > 1 && answers == IN_SHORT {
                self.read_in_short(run, &mut reply, &mut outcomes, events)?;
            } else {
                for _ in 0..answers {
                    self.read_answer(run, &mut reply, &mut outcomes, events)?;
                }
            }
            let of_run = start..outcomes.len();
            if run.times > 0 && of_run.len() < run.size {
                return None;
            }
            of_runs.push(of_run);
        }
        reply.is_empty().then_some((outcomes, of_runs))
    }

    /// Reads the outcomes of one group of a run. A block is reported here, whether its caller still
    /// waits or not.
    fn read_answer(
        &self,
        run: &Run,
        reply: &mut &[i64],
        into: &mut Vec<Outcome>,
        events: &RedisEvents,
    ) -> Option<()> {
        let charges = &self.charges[run.first..][..run.size];
        for (charge, budget) in charges.iter().zip(run.operation.budgets()) {
            let (outcome, is_unreadable) = wire::outcome(reply)?;
            if is_unreadable {
                events.unreadable(self.keys.get(charge.key.into()));
            }
            if outcome.begins_block && (run.op == Op::Charge || charge.counts_denied_peek()) {
                events.blocked(budget, Duration::from_micros(outcome.blocked_for));
            }
            into.push(outcome);
        }
        Some(())
    }

    /// Reads the outcomes of a run of single charges. Those of allowed charges follow from the
    /// first.
    fn read_in_short(
        &self,
        run: &Run,
        reply: &mut &[i64],
        into: &mut Vec<Outcome>,
        events: &RedisEvents,
    ) -> Option<()> {
        let charge = &self.charges[run.first];
        let rule = self.rule(charge);
        let allowed: u16 = wire::number(reply).filter(|allowed| *allowed <= run.times)?;
        if allowed > 0 {
            let first = wire::first_of_several(reply)?;
            for before in 0..allowed {
                into.push(wire::following(first, before, charge.cost, rule)?);
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
