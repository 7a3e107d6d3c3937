//! Groups whose keys are in different partitions of a cluster.
//!
//! No script can decide such a group as one. So each part is charged by itself, all at the same
//! time. If a part is denied, the charges of the others are given back, and then the group is
//! denied. So too much is never allowed, because every part was really charged. For about one round
//! trip, others may be denied by units that come back. If this process ends in between, those units
//! are lost until they are replenished.
//!
//! A refund of a bucket gives back the cost less what has drained since. So a flood of denied
//! groups would take from the budgets of others, a little for each. In the second after a denied
//! group, groups are peeked first, and charged only if all parts would allow them, which takes one
//! more round trip. Groups whose denials are counted are always charged.
//!
//! A task does that, because a caller that is dropped must not keep the units of a denied group.
//! The denial waits for the refunds: they return the restored budgets, so the caller's next check
//! sees them. A refund that fails without being carried out is repeated for a few seconds.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::Lanes;
use super::cluster::Cluster;
use super::lane::{Lane, Urgency};
use super::submit::submit;
use crate::model::{Check, Decision, Error, Group, Op, Verdict};
use crate::store::Answer;
use crate::store::denials::ChangeUnderWay;
use crate::units::later;

/// The pauses before a refund is repeated, in milliseconds.
const PAUSES: [u64; 5] = [100, 200, 400, 800, 1_600];

/// The checks of one partition, and their places in the group.
struct Part {
    lane: Arc<Lane>,
    places: Vec<usize>,
    checks: Vec<Check>,
}

/// Applies an operation to a group of several partitions.
pub(super) fn ask_parts(
    lanes: &Lanes,
    cluster: &Arc<Cluster>,
    op: Op,
    group: Group,
    change: Option<ChangeUnderWay>,
) -> Answer {
    let lanes = lanes.clone();
    let cluster = Arc::clone(cluster);
    let deadline = later(Instant::now(), lanes.deadline());
    let spread = Spread {
        lanes,
        cluster,
        op,
        group,
        change,
    };
    Answer::later(within(deadline, tokio::spawn(spread.decide())))
}

/// The answer of a task. At the deadline its caller returns, and the task goes on.
fn within(
    deadline: Instant,
    deciding: JoinHandle<Result<Decision, Error>>,
) -> impl Future<Output = Result<Decision, Error>> {
    let decided = timeout_at(deadline, deciding);
    async {
        match decided.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::store("the runtime was shut down")),
            Err(_) => Err(Error::timeout()),
        }
    }
}

/// An operation on a group of several partitions.
struct Spread {
    lanes: Lanes,
    cluster: Arc<Cluster>,
    op: Op,
    group: Group,
    change: Option<ChangeUnderWay>,
}

impl Spread {
    async fn decide(mut self) -> Result<Decision, Error> {
        let parts = parts(&self.lanes, &self.group);
        // A peek does not count a denial.
        let counts = self
            .group
            .iter()
            .any(|check| check.limit().counts_denials());
        if self.op == Op::Charge && !counts && self.cluster.has_denied_lately() {
            let answer = self.ask_all(&parts, Op::Peek).await;
            if !answer.as_ref().is_ok_and(Decision::allowed) {
                return answer;
            }
        }
        let answer = self.ask_all(&parts, self.op).await;
        if let Some(mut change) = self.change.take() {
            change.answered(&answer);
        }
        answer
    }

    /// Applies an operation to all parts.
    async fn ask_all(&self, parts: &[Part], op: Op) -> Result<Decision, Error> {
        let asked = self
            .lanes
            .denials()
            .map(|denials| denials.asked(Instant::now()));
        let answers = parts
            .iter()
            .map(|part| submit(&part.lane, op, &part.checks, None, Urgency::Usual));
        let answers = all(answers.collect()).await;
        let is_allowed =
            |answer: &Result<Decision, _>| answer.as_ref().is_ok_and(Decision::allowed);
        if op.changes_each() || answers.iter().all(is_allowed) {
            return self.join(parts, answers);
        }
        let denial = self.deny(op, parts, answers).await?;
        if self.op == Op::Charge {
            self.cluster.note_denied();
            // After the refunds: each voids the denials of its budgets.
            if let (Some(denials), Some(asked)) = (self.lanes.denials(), asked)
                && let Some(asked) = denials.still_asked(asked, &denial.denied_checks(&self.group))
            {
                denials.record(&self.group, asked, &denial);
            }
        }
        Ok(denial)
    }

    /// Gives the allowed parts back, of a group of which a part was denied or failed. Their budgets
    /// are then reported as they are without the charges, or as they were after them if that fails.
    async fn deny(
        &self,
        op: Op,
        parts: &[Part],
        mut answers: Vec<Result<Decision, Error>>,
    ) -> Result<Decision, Error> {
        let mut allowed = Vec::new();
        let mut without = Vec::new();
        for (part, answer) in parts.iter().zip(&mut answers) {
            if let Ok(decision) = answer
                && decision.allowed()
            {
                let checks = without_charge(op, part, decision);
                without.push(ask_without(&self.lanes, op, &part.lane, &checks));
                allowed.push((decision, checks, Arc::clone(&part.lane)));
            }
        }
        let mut is_kept = false;
        for ((allowed, checks, lane), without) in allowed.into_iter().zip(all(without).await) {
            let without = without.map(|without| without.with_shadow_denials_of(allowed));
            *allowed = without.unwrap_or_else(|error| {
                is_kept |= op == Op::Charge;
                if op == Op::Charge && !error.may_have_charged() {
                    repeat(self.lanes.clone(), lane, checks);
                }
                allowed.clone().uncharged()
            });
        }
        let answer = self.join(parts, answers);
        answer.map_err(|error| {
            if is_kept {
                error.that_may_have_charged()
            } else {
                error
            }
        })
    }

    /// One decision of all parts, with the verdicts in the order of the group. Of several errors,
    /// one that may have charged. If a refund or a reset was carried out in part, it must not be
    /// repeated.
    fn join(
        &self,
        parts: &[Part],
        answers: Vec<Result<Decision, Error>>,
    ) -> Result<Decision, Error> {
        let is_in_part = self.op.changes_each() && answers.iter().any(Result::is_ok);
        let mut verdicts: Vec<(usize, Verdict)> = Vec::new();
        let mut decided_at = 0;
        let mut failure: Option<Error> = None;
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
            return Err(if is_in_part {
                failure.that_may_have_charged()
            } else {
                failure
            });
        }
        verdicts.sort_unstable_by_key(|(place, _)| *place);
        let verdicts = verdicts.into_iter().map(|(_, verdict)| verdict).collect();
        let decision = Decision::of_parts(verdicts, decided_at);
        decision.ok_or_else(|| Error::misuse("the group is empty"))
    }
}

fn parts(lanes: &Lanes, group: &[Check]) -> Vec<Part> {
    let mut parts: Vec<(usize, Part)> = Vec::new();
    for (place, check) in group.iter().enumerate() {
        let index = lanes.index(check.key());
        let known = parts.iter().position(|(of, _)| *of == index);
        let part = known.unwrap_or_else(|| {
            let lane = Arc::clone(&lanes.all[index]);
            parts.push((
                index,
                Part {
                    lane,
                    places: Vec::new(),
                    checks: Vec::new(),
                },
            ));
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
        if is_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    pending
        .into_iter()
        .filter_map(|(_, result)| result)
        .collect()
}

/// The checks that tell the budgets of an allowed part without its charges: refunds of these, or
/// peeks.
fn without_charge(op: Op, part: &Part, decision: &Decision) -> Vec<Check> {
    let checks = part.checks.iter().cloned();
    if op == Op::Peek {
        return checks.map(|check| check.with_cost(0)).collect();
    }
    let back = checks.zip(decision.receipts());
    back.map(|(check, receipt)| check.with_receipt(receipt))
        .collect()
}

/// Asks for the budgets of an allowed part without its charges.
fn ask_without(lanes: &Lanes, op: Op, lane: &Arc<Lane>, checks: &[Check]) -> Answer {
    if op == Op::Peek {
        return submit(lane, Op::Peek, checks, None, Urgency::Usual);
    }
    let change = lanes.denials().map(|denials| denials.change(checks));
    submit(lane, Op::Refund, checks, change, Urgency::GivesBack)
}

/// Repeats a refund that was not carried out.
fn repeat(lanes: Lanes, lane: Arc<Lane>, checks: Vec<Check>) {
    tokio::spawn(async move {
        for pause in PAUSES {
            sleep(Duration::from_millis(pause)).await;
            match ask_without(&lanes, Op::Charge, &lane, &checks).await {
                Err(error) if !error.may_have_charged() => {}
                Ok(_) | Err(_) => return,
            }
        }
    });
}
