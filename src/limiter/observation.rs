//! The observation of a check: its span, its metrics, and its key if it is denied.
//!
//! A check has an outcome when its caller gets it. So a request that waits for units counts once,
//! however often the store was asked, and a call whose caller is gone counts as none.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use super::RateLimiter;
use super::permits::PermitAnswer;
use crate::model::{Budget, Change, Check, Decision, Error, Group, Operation, Source};
use crate::store::Answer;
use crate::telemetry::{self, CheckSpan, OutcomeLabel};

/// Returns whether a limit of a group warns before it is reached.
fn warns(group: &Group) -> bool {
    let warns = |check: &Check| check.limit().warn_at_percent().is_some();
    group.iter().any(warns)
}

/// A check that is asked.
pub(crate) struct Observation {
    pub(crate) span: CheckSpan,
    /// If its limits or its keys have to be known at the end.
    group: Option<Box<Group>>,
}

impl RateLimiter {
    /// Begins to observe a charge.
    #[inline]
    pub(crate) fn observe(&self, span: CheckSpan, group: &Group) -> Observation {
        // An error of the embedded store has its limit, so that no request in memory copies its
        // group.
        let names_limits = cfg!(feature = "metrics") && !self.shared.failover.is_embedded();
        let is_kept = names_limits || self.shared.denied_keys.is_some() || warns(group);
        Observation {
            span,
            group: is_kept.then(|| Box::new(group.clone())),
        }
    }

    /// Ends to observe a charge.
    #[inline]
    pub(crate) fn observe_decision(&self, observation: &Observation, decision: &Decision) {
        telemetry::decided(&observation.span, decision);
        if let Some(group) = observation.group.as_deref().filter(|group| warns(group)) {
            self.shared.near_limit.observe(group, decision);
        }
        if decision.allowed() {
            return;
        }
        if decision.exceeds_capacity() {
            telemetry::exceeds_capacity(&self.shared.exceeded, decision);
        }
        if let (Some(denied), Some(group)) = (&self.shared.denied_keys, &observation.group) {
            denied.count(group, decision);
        }
    }

    /// Ends to observe a charge that the store did not decide. `source` stands in for it. `None`:
    /// the caller got an error.
    pub(crate) fn observe_error(
        &self,
        observation: &Observation,
        error: &Error,
        source: Option<Source>,
    ) {
        let group = observation.group.as_deref();
        let group = group.map(|group| &**group).unwrap_or_default();
        let named = error.limit().filter(|_| group.is_empty());
        let limits = group.iter().map(Check::limit).chain(named);
        telemetry::undecided(&observation.span, limits, error, source);
    }

    pub(super) fn observe_answer(
        &self,
        observation: &Observation,
        answer: &Result<Decision, Error>,
    ) {
        match answer {
            Ok(decision) => self.observe_decision(observation, decision),
            Err(error) => self.observe_error(observation, error, None),
        }
    }

    /// Charges a group, with the overrides of its keys.
    pub(super) fn charge(&self, group: Group) -> Answer {
        self.apply_with_overrides(group, true, |group| self.charge_observed(group))
    }

    /// Charges a group, and observes it.
    fn charge_observed(&self, group: Group) -> Answer {
        let observation = self.observe(CheckSpan::begin(), &group);
        let mut answer = observation
            .span
            .within(|| self.apply_unobserved(Operation::Charge(group)));
        if let Some(answer) = answer.take_ready() {
            self.observe_answer(&observation, &answer);
            return Answer::ready(answer);
        }
        let limiter = self.clone();
        Answer::later(async move {
            let answer = poll_fn(|cx| observation.span.poll(&mut answer, cx)).await;
            limiter.observe_answer(&observation, &answer);
            answer
        })
    }
}

impl RateLimiter {
    /// Changes a budget. A settlement may bring its key near the limit.
    pub(crate) fn change_observed(&self, budget: Budget, change: Change) -> Answer {
        let more = match change {
            Change::Settle { receipt, cost } => cost.saturating_sub(receipt.cost()),
            _ => return self.change(budget, change),
        };
        let limit = budget.limit();
        let is_limited = || {
            self.override_in_force(limit, budget.key())
                .is_none_or(|it| it.is_asked())
        };
        if limit.warn_at_percent().is_none() || !is_limited() {
            return self.change(budget, change);
        }
        // A settlement that is never answered does not keep the limiter.
        let shared = Arc::downgrade(&self.shared);
        let settled = budget.clone();
        self.change(budget, change).resolved(move |answer| {
            if let (Ok(decision), Some(shared)) = (&answer, shared.upgrade()) {
                let near_limit = &shared.near_limit;
                near_limit.observe_settlement(&settled, more, decision);
            }
            answer
        })
    }
}

impl RateLimiter {
    /// Acquires a permit as `acquiring` does, and observes it. It is borrowed, because a future
    /// that is moved into another one takes its place twice.
    pub(crate) async fn observe_permit(
        &self,
        check: &Check,
        is_enforced: bool,
        mut acquiring: Pin<&mut impl Future<Output = Result<PermitAnswer, Error>>>,
    ) -> Result<PermitAnswer, Error> {
        let limit = check.limit();
        let span = CheckSpan::begin();
        let answer = poll_fn(|cx| span.poll(&mut acquiring, cx)).await;
        let denied = match is_enforced {
            true if limit.sheds_load() => OutcomeLabel::Shed,
            true => OutcomeLabel::Denied,
            false => OutcomeLabel::ShadowDenied,
        };
        match &answer {
            Ok(PermitAnswer {
                permit: Some(_),
                source,
                ..
            }) => {
                telemetry::decided_in_flight(&span, limit, OutcomeLabel::Allowed, *source);
            }
            Ok(PermitAnswer {
                permit: None,
                source,
                limit: decided,
            }) => {
                let denied = match decided.denial() {
                    Some(_) => OutcomeLabel::Blocked,
                    None => denied,
                };
                telemetry::decided_in_flight(&span, limit, denied, *source);
                let is_of_key = denied == OutcomeLabel::Denied;
                if let Some(keys) = self.shared.denied_keys.as_ref().filter(|_| is_of_key) {
                    keys.count_one(limit.name(), check.key());
                }
            }
            Err(error) => {
                let outcome = if error.is_unavailable() {
                    denied
                } else {
                    OutcomeLabel::Error
                };
                telemetry::undecided_in_flight(&span, limit, outcome, error);
            }
        }
        answer
    }
}
