//! Applies the overrides of keys to the checks of a group.

use super::in_force::OverriddenCheck;
use crate::limiter::RateLimiter;
use crate::model::{Budget, Change, Check, Decision, Error, Group, Source, Verdict};
use crate::store::Answer;
use crate::telemetry::{self, CheckSpan};

/// A group of which some keys have overrides.
pub(in crate::limiter) struct OverriddenGroup {
    /// The checks that the store decides.
    asked: Option<Group>,
    /// The verdicts without the store, with their places in the group.
    given: Vec<(usize, Verdict)>,
}

impl RateLimiter {
    /// Applies an operation, with the overrides of its keys.
    pub(in crate::limiter) fn apply_with_overrides(
        &self,
        group: Group,
        is_charge: bool,
        apply: impl FnOnce(Group) -> Answer,
    ) -> Answer {
        match self.overridden_group(&group, is_charge) {
            None => apply(group),
            Some(overridden) => overridden.decide(apply, is_charge),
        }
    }

    /// The group with the overrides of its keys. `None` if it has none.
    pub(in crate::limiter) fn overridden_group(
        &self,
        group: &Group,
        is_charge: bool,
    ) -> Option<OverriddenGroup> {
        let is_overridden =
            |check: &Check| self.override_in_force(check.limit(), check.key()).is_some();
        if !group.iter().any(is_overridden) {
            return None;
        }
        let checks = group
            .iter()
            .map(|check| self.overridden_check(check.clone()));
        Some(OverriddenGroup::new(checks.collect(), is_charge))
    }

    /// A check with the override of its key, if it has one.
    pub(in crate::limiter) fn overridden_check(&self, check: Check) -> OverriddenCheck {
        match self.override_in_force(check.limit(), check.key()) {
            Some(in_force) => in_force.apply_to(check),
            None => OverriddenCheck::Asked(check),
        }
    }

    /// Changes a budget, with the override of its key.
    pub(in crate::limiter) fn change_with_overrides(
        &self,
        budget: Budget,
        change: Change,
    ) -> Answer {
        let in_force = self.override_in_force(budget.limit(), budget.key());
        let check = |budget: &Budget| Check::new(budget.limit(), budget.key()).with_cost(0);
        match in_force.map(|it| it.apply_to(check(&budget))) {
            Some(OverriddenCheck::Asked(check)) => {
                self.change_observed(check.budget().clone(), change)
            }
            // Nothing was charged, so the real cost is not charged either.
            Some(OverriddenCheck::Passed(verdict))
                if verdict.is_unlimited() && change.settles_no_charge() =>
            {
                Answer::ready(Decision::in_place_of_store(vec![verdict], Source::Override))
            }
            _ => self.change_observed(budget, change),
        }
    }
}

impl OverriddenGroup {
    /// A group without overrides, or whose overrides were applied.
    pub(in crate::limiter) const fn all_asked(group: Group) -> Self {
        Self {
            asked: Some(group),
            given: Vec::new(),
        }
    }

    /// A charge with a denied key asks nothing, because all its checks are charged, or none.
    fn new(checks: Vec<OverriddenCheck>, is_charge: bool) -> Self {
        let denies =
            |overridden: &OverriddenCheck| matches!(overridden, OverriddenCheck::Denied(_));
        let is_denied = is_charge && checks.iter().any(denies);
        let mut asked = Vec::new();
        let mut given = Vec::new();
        for (place, overridden) in checks.into_iter().enumerate() {
            match overridden {
                OverriddenCheck::Asked(check) if !is_denied => asked.push(check),
                overridden => given.push((place, overridden.without_store())),
            }
        }
        Self {
            asked: (!asked.is_empty()).then(|| Group::of_distinct(asked)),
            given,
        }
    }

    /// Applies an operation to the checks that the store decides, if there are any. Those are
    /// observed where they are decided, and the others of a charge here.
    fn decide(mut self, apply: impl FnOnce(Group) -> Answer, is_charge: bool) -> Answer {
        let Some(asked) = self.asked.take() else {
            let decided = self.of_overrides();
            if let (true, Ok(decision)) = (is_charge, &decided) {
                telemetry::decided(&CheckSpan::begin(), decision);
            }
            return Answer::ready(decided);
        };
        apply(asked).resolved(move |answer| {
            let decision = self.with(&answer?)?;
            if is_charge {
                let verdicts = self.given.iter().map(|(_, verdict)| verdict);
                let is_charged = decision.allowed();
                verdicts.for_each(|it| telemetry::decided_by_override(it, is_charged));
            }
            Ok(decision)
        })
    }

    /// The checks that the store decides. `None` if overrides decide alone.
    pub(in crate::limiter) const fn asked(&self) -> Option<&Group> {
        self.asked.as_ref()
    }

    /// The decision that overrides make alone.
    pub(in crate::limiter) fn of_overrides(&self) -> Result<Decision, Error> {
        let verdicts = self.given.iter().map(|(_, verdict)| verdict.clone());
        Decision::in_place_of_store(verdicts.collect(), Source::Override)
    }

    /// The store's decision with the verdicts of overrides, each at its place in the group.
    pub(in crate::limiter) fn with(&self, decision: &Decision) -> Result<Decision, Error> {
        if self.given.is_empty() {
            return Ok(decision.clone());
        }
        let mut verdicts = decision.verdicts().to_vec();
        for (place, verdict) in &self.given {
            verdicts.insert((*place).min(verdicts.len()), verdict.clone());
        }
        Decision::of_parts(verdicts, decision.timestamp())
            .map(|it| it.with_source(decision.source()))
            .ok_or_else(|| Error::misuse("the group is empty"))
    }
}
