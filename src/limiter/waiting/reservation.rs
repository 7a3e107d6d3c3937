//! Units that are charged before their caller may use them.

use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use crate::limiter::RateLimiter;
use crate::model::{Change, Check, Decision, Error, Group, Source};
use crate::store::answer::{Answer, all};
use crate::units::later;

/// An allowed group whose delay is not over. If it is dropped before it is used, its units are
/// given back.
pub(super) struct Reservation {
    limiter: RateLimiter,
    group: Group,
    decision: Decision,
    /// When the units may be used.
    turn: Instant,
    /// `true` if the units are used, given back or void.
    is_over: bool,
}

impl Reservation {
    /// A group that was allowed just now.
    pub(super) fn new(limiter: &RateLimiter, group: &Group, decision: Decision) -> Self {
        let turn = later(Instant::now(), decision.delay());
        Self {
            limiter: limiter.clone(),
            group: group.clone(),
            decision,
            turn,
            is_over: false,
        }
    }

    /// Returns whether the units were reserved by the same checks, with a turn from now to
    /// `deadline`. Units whose turn is over may be in the bucket again.
    pub(super) fn suits(&self, group: &Group, deadline: Instant) -> bool {
        let is_same = |(one, other): (&Check, &Check)| {
            one.limit().decides_as(other.limit()) && one.cost() == other.cost()
        };
        let is_in_time = (Instant::now()..=deadline).contains(&self.turn);
        is_in_time && self.group.iter().zip(group).all(is_same)
    }

    /// The time from `deadline` to the turn.
    pub(super) fn is_late_by(&self, deadline: Instant) -> Duration {
        self.turn.saturating_duration_since(deadline)
    }

    /// The decision of the charge.
    pub(super) const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// When the units may be used.
    pub(super) const fn turn(&self) -> Instant {
        self.turn
    }

    /// Returns whether the units may have been used before `now`. They may be in the bucket again.
    pub(super) fn is_late_for(&self, now: Instant) -> bool {
        self.turn < now
    }

    /// Leaves the units as they are: used, or given back by a reset.
    pub(super) fn close(mut self) {
        self.is_over = true;
    }

    /// Gives the units back. Returns the decision of the charge, and the answer of the refund.
    pub(super) fn give_back(mut self) -> (Decision, Answer) {
        self.is_over = true;
        let answer = self.refund();
        (self.decision.clone(), answer)
    }

    /// Gives the charges back. The decision equals a peek of cost 0 afterwards.
    fn refund(&self) -> Answer {
        let charges = self.group.iter().zip(self.decision.receipts());
        let answers = charges.map(|(check, receipt)| {
            let give_back = Change::give_back(receipt.unwrap_or_default());
            let budget = check.charged_budget(self.decision.source() == Source::Local);
            self.limiter.change(budget, give_back)
        });
        match <[Answer; 1]>::try_from(answers.collect::<Vec<_>>()) {
            Ok([answer]) => answer,
            Err(answers) => Answer::later(joined(answers)),
        }
    }
}

/// The decision of a group, from the answers of its checks.
async fn joined(answers: Vec<Answer>) -> Result<Decision, Error> {
    let answered = all(answers).await;
    let decisions: Vec<Decision> = answered.into_iter().collect::<Result<_, _>>()?;
    let Some(first) = decisions.first() else {
        return Err(Error::misuse("the group is empty"));
    };
    let source = first.source();
    let decided_at = decisions.iter().map(Decision::timestamp).max();
    let verdicts = decisions.iter().flat_map(Decision::verdicts).cloned();
    Decision::of_parts(verdicts.collect(), decided_at.unwrap_or_default())
        .map(|decision| decision.with_source(source))
        .ok_or_else(|| Error::misuse("the group is empty"))
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut answer = self.refund();
        // A task finishes what is not ready at once. Without a runtime, the units count until they
        // are replenished.
        if answer.take_ready().is_none()
            && let Ok(runtime) = Runtime::try_current()
        {
            runtime.spawn(answer);
        }
    }
}
