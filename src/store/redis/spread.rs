//! Groups whose keys are in different partitions of a cluster.
//!
//! No script can decide such a group as one. So each part is charged by itself, all at the same time. If a part is
//! denied, the charges of the others are given back, and then the group is denied. So nothing is ever over-admitted,
//! because every part was really charged. For about one round trip, others may be denied by units that come back. If
//! this process ends in between, those units are lost until they are replenished.
//!
//! The denial waits for the refunds: their answers have the budgets as they are without the charges, and the next
//! check of this caller finds them so.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::Lanes;
use super::ask::ask;
use super::lane::Lane;
use crate::nouns::{Check, Decision, Error, Group, Op, Verdict};
use crate::store::Answer;
use crate::store::denials::{Asked, Change};

/// The checks of one partition, and their places in the group.
struct Part {
    lane: Arc<Lane>,
    places: Vec<usize>,
    checks: Vec<Check>,
}

/// Applies an operation to a group of several partitions.
pub(super) fn ask_parts(lanes: &Lanes, op: Op, group: Group, change: Option<Change>) -> Answer {
    let parts = parts(lanes, &group);
    let asked = lanes.denials().map(|denials| denials.asked(Instant::now()));
    let answers: Vec<_> =
        parts.iter().map(|part| ask(&part.lane, op, &part.checks, None)).collect();
    let lanes = lanes.clone();
    Answer::later(async move {
        let answers = all(answers).await;
        let is_allowed =
            |answer: &Result<Decision, _>| answer.as_ref().is_ok_and(Decision::allowed);
        let is_asked = matches!(op, Op::Charge | Op::Peek);
        let answer = if is_asked && !answers.iter().all(is_allowed) {
            // A caller that is dropped meanwhile must not keep the units.
            let denied = Denied { lanes, op, group, asked };
            let runtime = Runtime::try_current().map_err(Error::misuse)?;
            let answer = runtime.spawn(denied.conclude(parts, answers)).await;
            answer.unwrap_or_else(|_| Err(Error::store("the runtime was shut down")))
        } else {
            join(&parts, answers)
        };
        if let Some(mut change) = change {
            change.answered(&answer);
        }
        answer
    })
}

fn parts(lanes: &Lanes, group: &[Check]) -> Vec<Part> {
    let mut parts: Vec<(usize, Part)> = Vec::new();
    for (place, check) in group.iter().enumerate() {
        let index = lanes.index(check.key());
        let known = parts.iter().position(|(of, _)| *of == index);
        let part = known.unwrap_or_else(|| {
            let lane = Arc::clone(&lanes.lanes[index]);
            parts.push((index, Part { lane, places: Vec::new(), checks: Vec::new() }));
            parts.len() - 1
        });
        let (_, part) = &mut parts[part];
        part.places.push(place);
        part.checks.push(check.clone());
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// All answers, which are awaited at the same time.
async fn all(answers: Vec<Answer>) -> Vec<Result<Decision, Error>> {
    let mut pending: Vec<_> = answers.into_iter().map(|answer| (answer, None)).collect();
    poll_fn(|cx| {
        let mut is_ready = true;
        for (answer, result) in pending.iter_mut().filter(|(_, result)| result.is_none()) {
            match Pin::new(answer).poll(cx) {
                Poll::Ready(answer) => *result = Some(answer),
                Poll::Pending => is_ready = false,
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, result)| result).collect()
}

/// A charge or a peek of which a part is denied, or failed.
struct Denied {
    lanes: Lanes,
    op: Op,
    group: Group,
    /// When it was asked, if denials are remembered.
    asked: Option<Asked>,
}

impl Denied {
    /// Gives the other parts back. If that fails, their budgets are reported as far as they are known.
    async fn conclude(
        self,
        parts: Vec<Part>,
        mut answers: Vec<Result<Decision, Error>>,
    ) -> Result<Decision, Error> {
        let (mut allowed, mut without) = (Vec::new(), Vec::new());
        for (part, answer) in parts.iter().zip(&mut answers) {
            if let Ok(decision) = answer
                && decision.allowed()
            {
                without.push(self.without_charge(part, decision));
                allowed.push(decision);
            }
        }
        for (allowed, without) in allowed.into_iter().zip(all(without).await) {
            *allowed = without.unwrap_or_else(|_| allowed.clone().given_back());
        }
        let answer = join(&parts, answers);
        // After the refunds: each voids the denials of its budgets.
        if let (Op::Charge, Some(denials), Some(asked), Ok(denial)) =
            (self.op, self.lanes.denials(), self.asked, &answer)
            && let Some(asked) = denials.still_asked(asked, &denied(&self.group, denial))
        {
            denials.record(denials.known(&self.group), asked, denial);
        }
        answer
    }

    /// The budgets of an allowed part without its charges, which are refunded.
    fn without_charge(&self, part: &Part, decision: &Decision) -> Answer {
        let checks = part.checks.iter().cloned();
        if self.op == Op::Peek {
            let free: Vec<_> = checks.map(|check| check.with_cost(0)).collect();
            return ask(&part.lane, Op::Peek, &free, None);
        }
        let back = checks.zip(decision.receipts());
        let back: Vec<_> = back.map(|(check, receipt)| check.with_receipt(receipt)).collect();
        let change = self.lanes.denials().map(|denials| denials.change(&back));
        ask(&part.lane, Op::Refund, &back, change)
    }
}

/// The checks that a denial denies.
fn denied(group: &[Check], denial: &Decision) -> Vec<Check> {
    let verdicts = group.iter().zip(denial.verdicts());
    verdicts.filter(|(_, verdict)| !verdict.allowed()).map(|(check, _)| check.clone()).collect()
}

/// One decision of all parts, with the verdicts in the order of the group. Of several errors, one that may have
/// charged.
fn join(parts: &[Part], answers: Vec<Result<Decision, Error>>) -> Result<Decision, Error> {
    let mut verdicts: Vec<(usize, Verdict)> = Vec::new();
    let (mut decided_at, mut failure): (_, Option<Error>) = (0, None);
    for (part, answer) in parts.iter().zip(answers) {
        match answer {
            Ok(decision) => {
                decided_at = decision.decided_at().max(decided_at);
                let of_part = decision.verdicts().iter().cloned();
                verdicts.extend(part.places.iter().copied().zip(of_part));
            }
            Err(error) => match &failure {
                Some(known) if known.may_have_charged() || !error.may_have_charged() => {}
                _ => failure = Some(error),
            },
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    verdicts.sort_unstable_by_key(|(place, _)| *place);
    let verdicts = verdicts.into_iter().map(|(_, verdict)| verdict).collect();
    let decision = Decision::of_parts(verdicts, decided_at);
    decision.ok_or_else(|| Error::misuse("the group is empty"))
}
