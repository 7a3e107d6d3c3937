//! Groups whose keys are in different partitions of a cluster.
//!
//! No script can decide such a group as one. So each part is charged by itself, all at the same
//! time. If a part is denied, the charges of the others are given back, and then the group is
//! denied. So too much is never allowed, because every part was really charged. For about one round
//! trip, other checks may be denied because of charges that are about to be refunded. If this
//! process ends in between, those units are lost until they are replenished.
//!
//! A refund of a bucket gives back the cost less what has drained since. So each denied group would
//! cost the budgets of other keys what drains in a round trip, and a flood of such groups would
//! drain them. In the second after a denied group, groups are peeked first, and charged only if all
//! parts would allow them, which takes one more round trip. Groups whose denials are counted are
//! always charged.
//!
//! A task does that, because a caller that is dropped must not keep the units of a denied group.
//! The denial waits for the refunds: they return the restored budgets, so the caller's next check
//! sees them. A refund that fails without being carried out is repeated for a few seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::Lanes;
use super::cluster::Cluster;
use super::lane::{Lane, Urgency};
use super::submit::submit;
use crate::model::{Change, Check, Decision, Error, Group, Operation, Verdict};
use crate::store::Answer;
use crate::store::answer::all;
use crate::units::{Timestamp, later};

/// The pauses before a refund is repeated, in milliseconds.
const PAUSES: [u64; 5] = [100, 200, 400, 800, 1_600];

/// Charges a group of several partitions, or only peeks. At the deadline its caller returns, and
/// the task goes on.
pub(super) fn ask_parts(
    lanes: &Lanes,
    cluster: &Arc<Cluster>,
    group: Group,
    is_charge: bool,
) -> Answer {
    let deadline = later(Instant::now(), lanes.deadline());
    let deciding = decide(lanes.clone(), Arc::clone(cluster), group, is_charge);
    let decided = timeout_at(deadline, tokio::spawn(deciding));
    Answer::later(async {
        match decided.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::store("the runtime was shut down")),
            Err(_) => Err(Error::timeout()),
        }
    })
}

async fn decide(
    lanes: Lanes,
    cluster: Arc<Cluster>,
    group: Group,
    is_charge: bool,
) -> Result<Decision, Error> {
    let deny_cache = lanes.deny_cache();
    let asked = deny_cache.map(|deny_cache| deny_cache.asked(Instant::now()));
    let parts = parts(&lanes, &group);
    // A peek does not count a denial.
    let counts = group.iter().any(|check| check.limit().counts_denials());
    let mut decision = None;
    if is_charge && !counts && cluster.has_denied_lately() {
        let peeked = ask_all(&parts, false).await?;
        decision = (!peeked.allowed()).then_some(peeked);
    }
    let decision = match decision {
        Some(denied) => denied,
        None => ask_all(&parts, is_charge).await?,
    };
    if is_charge && !decision.allowed() {
        cluster.note_denied();
        // After the refunds: each voids the denials of its budgets.
        if let (Some(deny_cache), Some(asked)) = (deny_cache, asked)
            && let Some(asked) = deny_cache.still_asked(asked, &decision.denied_checks(&group))
        {
            deny_cache.record(&group, asked, &decision);
        }
    }
    Ok(decision)
}

/// Charges all parts, or peeks. If not all are allowed, nothing stays charged.
async fn ask_all(parts: &[Part], is_charge: bool) -> Result<Decision, Error> {
    let answers = all(parts.iter().map(|part| part.submit(is_charge)).collect()).await;
    let is_allowed = |answer: &Result<Decision, _>| answer.as_ref().is_ok_and(Decision::allowed);
    if !answers.iter().all(is_allowed) {
        return deny(is_charge, parts, answers).await;
    }
    let places = parts.iter().map(|part| part.places.clone());
    join(places.zip(answers))
}

/// Gives back what was charged of a group of which a part was denied or failed. The allowed parts
/// then report their budgets after the refund, or before it if the refund fails.
async fn deny(
    is_charge: bool,
    parts: &[Part],
    answers: Vec<Result<Decision, Error>>,
) -> Result<Decision, Error> {
    let mut joined = Vec::new();
    let mut allowed = Vec::new();
    for (part, answer) in parts.iter().zip(answers) {
        match answer {
            Ok(decision) if decision.allowed() => {
                allowed.extend(part.allowed_checks(&decision, is_charge));
            }
            answer => joined.push((part.places.clone(), answer)),
        }
    }
    let undone = all(allowed.iter().map(|it| it.undo()).collect()).await;
    let mut is_kept = false;
    for (check, undone) in allowed.into_iter().zip(undone) {
        let place = vec![check.place];
        let decision = match undone {
            Ok(without) => without.with_shadow_denials_of(&check.decision),
            Err(error) => {
                is_kept |= is_charge;
                let uncharged = check.decision.clone().uncharged();
                if is_charge && !error.may_have_charged() {
                    check.repeat();
                }
                uncharged
            }
        };
        joined.push((place, Ok(decision)));
    }
    join(joined).map_err(|error| match is_kept {
        true => error.that_may_have_charged(),
        false => error,
    })
}

/// One decision of all parts, each with the places of its checks. Of several errors, one that may
/// have charged.
fn join(
    answers: impl IntoIterator<Item = (Vec<usize>, Result<Decision, Error>)>,
) -> Result<Decision, Error> {
    let mut verdicts: Vec<(usize, Verdict)> = Vec::new();
    let mut decided_at = Timestamp::EPOCH;
    let mut failure: Option<Error> = None;
    for (places, answer) in answers {
        match answer {
            Ok(decision) => {
                decided_at = decision.timestamp().max(decided_at);
                let of_part = decision.verdicts().iter().cloned();
                verdicts.extend(places.into_iter().zip(of_part));
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

/// The checks of one partition, and their places in the group.
struct Part {
    lane: Arc<Lane>,
    places: Vec<usize>,
    checks: Vec<Check>,
}

impl Part {
    /// Charges the checks, or peeks.
    fn submit(&self, is_charge: bool) -> Answer {
        let group = Group::of_distinct(self.checks.clone());
        let operation = match is_charge {
            true => Operation::Charge(group),
            false => Operation::Peek(group),
        };
        submit(&self.lane, &operation, Urgency::Usual)
    }

    /// The checks of an allowed part, one by one.
    fn allowed_checks(
        &self,
        decision: &Decision,
        is_charge: bool,
    ) -> impl Iterator<Item = AllowedCheck> {
        let verdicts = decision.verdicts().iter().zip(decision.receipts());
        let checks = self.places.iter().zip(&self.checks).zip(verdicts);
        checks.map(move |((place, check), (verdict, receipt))| AllowedCheck {
            lane: Arc::clone(&self.lane),
            place: *place,
            decision: Decision::from(verdict.clone()).with_timestamp(decision.timestamp()),
            undo: match is_charge {
                true => Operation::Change(
                    check.budget().clone(),
                    Change::give_back(receipt.unwrap_or_default()),
                ),
                false => Operation::Peek(check.clone().with_cost(0).into()),
            },
        })
    }
}

/// An allowed check of a group that is denied.
struct AllowedCheck {
    lane: Arc<Lane>,
    place: usize,
    decision: Decision,
    /// Answers with the budget without the charge.
    undo: Operation,
}

impl AllowedCheck {
    fn undo(&self) -> Answer {
        let urgency = match &self.undo {
            Operation::Change(..) => Urgency::GivesBack,
            Operation::Charge(_) | Operation::Peek(_) => Urgency::Usual,
        };
        submit(&self.lane, &self.undo, urgency)
    }

    /// Repeats a refund that was not carried out.
    fn repeat(self) {
        tokio::spawn(async move {
            for pause in PAUSES {
                sleep(Duration::from_millis(pause)).await;
                match self.undo().await {
                    Err(error) if !error.may_have_charged() => {}
                    Ok(_) | Err(_) => return,
                }
            }
        });
    }
}

fn parts(lanes: &Lanes, group: &[Check]) -> Vec<Part> {
    let mut parts = BTreeMap::<usize, Part>::new();
    for (place, check) in group.iter().enumerate() {
        let index = lanes.index(check.key());
        let part = parts.entry(index).or_insert_with(|| Part {
            lane: Arc::clone(&lanes.all[index]),
            places: Vec::new(),
            checks: Vec::new(),
        });
        part.places.push(place);
        part.checks.push(check.clone());
    }
    parts.into_values().collect()
}
