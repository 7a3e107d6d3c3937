//! Denials of blocked keys, by limit and key, whatever else a group asks.

use std::hash::BuildHasher;

use tokio::time::Instant;

use super::{CheckId, Denial, DenyCache};
use crate::model::{Budget, Check, Decision, Verdict};

impl DenyCache {
    /// The denial of a group with blocked keys. Of the other budgets nothing is known.
    pub(super) fn of_blocked_keys(&self, group: &[Check], now: Instant) -> Option<(Denial, bool)> {
        if group.iter().all(|check| check.blocking().is_none()) {
            return None;
        }
        let denials = group.iter().map(|check| {
            let (mut denial, is_fresh) = self.of_blocked_key(check, now)?;
            denial.decision = denial.again_at(now);
            denial.decided = now;
            Some((denial, is_fresh))
        });
        let denials: Vec<Option<(Denial, bool)>> = denials.collect();
        let verdicts = group
            .iter()
            .zip(&denials)
            .map(|(check, denial)| match denial {
                Some((denial, _)) => denial.decision.deciding().clone(),
                None => Verdict::unlimited(check.limit().clone()).in_shadow(check.is_shadow()),
            });
        let verdicts = verdicts.collect();
        let longest = denials
            .into_iter()
            .flatten()
            .max_by_key(|(denial, is_fresh)| (*is_fresh, denial.falls_back_until));
        let (mut denial, is_fresh) = longest?;
        let decided_at = denial.decision.timestamp();
        denial.decision = Decision::of_group(verdicts)?.with_timestamp(decided_at);
        Some((denial, is_fresh))
    }

    /// The denial of a blocked key under a limit, and whether it is the answer without asking the
    /// store.
    fn of_blocked_key(&self, check: &Check, now: Instant) -> Option<(Denial, bool)> {
        let is_possible = (1..=check.limit().quota().capacity()).contains(&check.cost().into());
        if !is_possible || check.blocking().is_none() {
            return None;
        }
        let alone = std::slice::from_ref(check);
        let denial = self.standing(self.blocked_id(check.budget()), alone, now)?;
        let is_fresh = self.is_fresh(&denial, alone, now);
        Some((denial, is_fresh))
    }

    /// The identities of a group, and of its keys that may be blocked.
    pub(super) fn ids_of(&self, group: &[Check]) -> Vec<CheckId> {
        let blockable = group.iter().filter(|check| check.blocking().is_some());
        blockable
            .map(|check| self.blocked_id(check.budget()))
            .chain([self.id_of(group)])
            .collect()
    }

    /// The identity of a key under a limit that may block it.
    pub(super) fn blocked_id(&self, budget: &Budget) -> CheckId {
        let key = ("blocked", budget, budget.limit().kind());
        let [high, low] = [0, 1].map(|half| u128::from(self.hashers[half].hash_one(key)));
        CheckId {
            hash: high << 64 | low,
            quota: 0,
        }
    }
}
