//! Applies the overrides of keys to checks, before the store is asked.

use std::sync::Arc;

use super::Overrides;
use super::table::{Exception, OverrideTable};
use crate::algorithm::range::MAX_PERIOD;
use crate::limiter::RateLimiter;
use crate::model::{
    Budget, Change, Check, Decision, Error, Group, Key, Limit, Override, OverrideEffect, Source,
    Verdict,
};
use crate::store::Answer;
use crate::telemetry::{self, CheckSpan};
use crate::units::{Micros, Timestamp, micros};

/// The overrides of a limiter.
#[derive(Default)]
pub(in crate::limiter) struct Gate {
    /// Overrides that operators set, which win over the others.
    set: Option<Overrides>,
    of_files: OverrideTable,
}

/// The limit of a key that has an override.
pub(crate) enum Overridden {
    /// Another quota, or another number of permits, on the same budget.
    Limit(Limit),
    Unlimited(Limit),
    Denied {
        limit: Limit,
        /// For the client.
        text: String,
        /// The time until the override ends, or the longest time of a block.
        ends_after: Micros,
    },
}

impl Gate {
    pub(in crate::limiter) fn set(&mut self, overrides: &Overrides) {
        self.set = Some(overrides.clone());
    }

    pub(in crate::limiter) const fn overrides(&self) -> Option<&Overrides> {
        self.set.as_ref()
    }

    /// Replaces the overrides of a file.
    pub(in crate::limiter) fn replace_file(&self, set: &Arc<()>, new: Vec<Override>) {
        self.of_files.replace(Some(set), new);
    }

    /// Returns whether no key has an override.
    #[inline]
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        let none_is_set = self.set.as_ref().is_none_or(|set| set.table().is_empty());
        none_is_set && self.of_files.is_empty()
    }

    /// The override of a key, and the limit that it makes of another. An override that the limit
    /// cannot have has no effect.
    fn find(&self, limit: &Limit, key: &Key) -> Option<(Arc<Exception>, Limit)> {
        let find = |table: &OverrideTable| {
            let found = table.find(limit.name(), key, || self.now())?;
            let overridden = found.overridden(limit)?;
            Some((found, overridden))
        };
        let set = self.set.as_ref();
        set.and_then(|set| find(set.table()))
            .or_else(|| find(&self.of_files))
    }

    fn now(&self) -> Timestamp {
        self.set
            .as_ref()
            .map_or_else(|| Timestamp::EPOCH.or_now(), Overrides::now)
    }
}

impl RateLimiter {
    /// The override of a key under a limit.
    #[inline]
    pub(crate) fn overridden(&self, limit: &Limit, key: &Key) -> Option<Overridden> {
        let gate = &self.shared.gate;
        match gate.is_empty() {
            true => None,
            false => gate.overridden(limit, key),
        }
    }

    /// Returns whether any key has an override.
    #[inline]
    pub(crate) fn has_overrides(&self) -> bool {
        !self.shared.gate.is_empty()
    }

    /// Changes a budget, with the override of its key.
    pub(in crate::limiter) fn change_through_gate(&self, budget: Budget, change: Change) -> Answer {
        match self.overridden(budget.limit(), budget.key()) {
            Some(Overridden::Limit(limit)) => self.change(budget.under(limit), change),
            // Nothing was charged, so the real cost is not charged either.
            Some(Overridden::Unlimited(limit)) if change.settles_no_charge() => {
                let verdicts = vec![Verdict::unlimited(limit)];
                Answer::ready(Decision::in_place_of_store(verdicts, Source::Override))
            }
            _ => self.change(budget, change),
        }
    }

    /// Replaces the overrides of a file.
    #[cfg(feature = "config")]
    pub(crate) fn replace_overrides(&self, set: &Arc<()>, new: Vec<Override>) {
        self.shared.gate.replace_file(set, new);
    }

    /// Applies an operation, with the overrides of its keys.
    pub(in crate::limiter) fn through_gate(
        &self,
        group: Group,
        is_charge: bool,
        apply: impl FnOnce(Group) -> Answer,
    ) -> Answer {
        let overridden = |check: &Check| self.overridden(check.limit(), check.key());
        if !group.iter().any(|check| overridden(check).is_some()) {
            return apply(group);
        }
        let gated = GatedGroup::new(&group, overridden, is_charge);
        match gated.asked {
            Some(asked) => {
                let lifted = gated.lifted;
                apply(asked).resolved(move |answer| answer.and_then(|it| with(lifted, &it)))
            }
            None => {
                let verdicts = gated.lifted.into_iter().map(|(_, verdict)| verdict);
                let decided = Decision::in_place_of_store(verdicts.collect(), Source::Override);
                if let Ok(decision) = &decided
                    && is_charge
                {
                    telemetry::decided(&CheckSpan::begin(), decision);
                }
                Answer::ready(decided)
            }
        }
    }
}

impl Gate {
    #[cold]
    fn overridden(&self, limit: &Limit, key: &Key) -> Option<Overridden> {
        let (entry, limit) = self.find(limit, key)?;
        Some(match entry.given.effect() {
            OverrideEffect::Unlimited => Overridden::Unlimited(limit),
            OverrideEffect::Denied(text) => Overridden::Denied {
                limit,
                text: text.clone(),
                ends_after: match entry.given.end() {
                    Some(end) => end.saturating_since(self.now()),
                    None => micros(MAX_PERIOD),
                },
            },
            OverrideEffect::Quota(_) | OverrideEffect::Permits(_) => Overridden::Limit(limit),
        })
    }
}

/// A group whose checks have overrides.
struct GatedGroup {
    /// The checks that the store decides.
    asked: Option<Group>,
    /// The verdicts of the others, with their places in the group.
    lifted: Vec<(usize, Verdict)>,
}

impl GatedGroup {
    /// A charge with a denied key asks nothing, because all its checks are charged, or none.
    fn new(
        group: &Group,
        overridden: impl Fn(&Check) -> Option<Overridden>,
        is_charge: bool,
    ) -> Self {
        let found: Vec<_> = group.iter().map(overridden).collect();
        let is_denied = |(check, it): (&Check, &Option<Overridden>)| {
            matches!(it, Some(Overridden::Denied { .. })) && !check.is_shadow() && check.cost() > 0
        };
        let is_denied = is_charge && group.iter().zip(&found).any(is_denied);
        let mut asked = Vec::new();
        let mut lifted = Vec::new();
        for (place, (check, found)) in group.iter().zip(found).enumerate() {
            let is_shadow = check.is_shadow();
            let unlimited = |limit: Limit| Verdict::unlimited(limit).in_shadow(is_shadow);
            match found {
                Some(Overridden::Unlimited(limit)) => lifted.push((place, unlimited(limit))),
                Some(Overridden::Denied {
                    limit, ends_after, ..
                }) => {
                    let denied = Verdict::denied_by_override(limit, check.cost(), ends_after);
                    lifted.push((place, denied.in_shadow(is_shadow)));
                }
                Some(Overridden::Limit(limit)) if is_denied => {
                    lifted.push((place, unlimited(limit)));
                }
                None if is_denied => lifted.push((place, unlimited(check.limit().clone()))),
                Some(Overridden::Limit(limit)) => asked.push(check.clone().under(limit)),
                None => asked.push(check.clone()),
            }
        }
        Self {
            asked: (!asked.is_empty()).then(|| Group::of_distinct(asked)),
            lifted,
        }
    }
}

/// A decision with further verdicts, each at its place in the group.
fn with(lifted: Vec<(usize, Verdict)>, decision: &Decision) -> Result<Decision, Error> {
    if lifted.is_empty() {
        return Ok(decision.clone());
    }
    let mut verdicts = decision.verdicts().to_vec();
    for (place, verdict) in lifted {
        verdicts.insert(place.min(verdicts.len()), verdict);
    }
    Decision::of_parts(verdicts, decision.timestamp())
        .map(|it| it.with_source(decision.source()))
        .ok_or_else(|| Error::misuse("the group is empty"))
}
