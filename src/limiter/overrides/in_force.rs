//! Looks up the overrides of keys, before the store is asked.

use std::sync::Arc;

use super::Overrides;
use super::table::{OverrideTable, TableEntry};
use crate::algorithm::range::MAX_PERIOD;
use crate::limiter::RateLimiter;
use crate::model::{Check, Key, Limit, Override, OverrideEffect, Verdict};
use crate::units::{Micros, Timestamp, micros};

/// The overrides of a limiter.
#[derive(Default)]
pub(in crate::limiter) struct LimiterOverrides {
    /// Overrides that were set while the process runs, which win over the others.
    pub(super) at_run_time: Option<Overrides>,
    pub(super) of_files: OverrideTable,
}

/// The override of a key, and the limit with the quota of the override.
pub(crate) struct OverrideInForce {
    entry: Arc<TableEntry>,
    limit: Limit,
    now: Timestamp,
}

/// A check of a key with an override.
pub(crate) enum OverriddenCheck {
    /// The store decides, under another quota or another number of permits.
    Asked(Check),
    /// It is allowed without the store, because the key is exempt or its denial is not enforced.
    Passed(Verdict),
    Denied(Verdict),
}

impl LimiterOverrides {
    pub(in crate::limiter) fn use_handle(&mut self, handle: &Overrides) {
        self.at_run_time = Some(handle.clone());
    }

    pub(in crate::limiter) const fn handle(&self) -> Option<&Overrides> {
        self.at_run_time.as_ref()
    }

    /// Replaces the overrides of a file.
    fn replace_file(&self, set: &Arc<()>, new: Vec<Override>) {
        self.of_files.replace(Some(set), new);
    }

    /// Returns whether no key has an override.
    #[inline]
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        let handle = self.handle();
        let none_is_set = handle.is_none_or(|handle| handle.table().is_empty());
        none_is_set && self.of_files.is_empty()
    }

    /// The override of a key, with the limit that it makes of another. An override that the limit
    /// cannot have has no effect.
    #[cold]
    fn find(&self, limit: &Limit, key: &Key) -> Option<OverrideInForce> {
        let find = |table: &OverrideTable| {
            let (entry, now) = table.find(limit.name(), key, || self.now())?;
            let limit = entry.overridden(limit)?;
            Some(OverrideInForce { entry, limit, now })
        };
        let handle = self.handle();
        handle
            .and_then(|handle| find(handle.table()))
            .or_else(|| find(&self.of_files))
    }

    fn now(&self) -> Timestamp {
        self.handle()
            .map_or_else(|| Timestamp::EPOCH.or_now(), Overrides::now)
    }
}

impl OverrideInForce {
    /// Applies the override to a check of the key.
    pub(crate) fn apply_to(self, check: Check) -> OverriddenCheck {
        let is_shadow = check.is_shadow();
        match self.entry.given.effect() {
            OverrideEffect::Quota(_) | OverrideEffect::Permits(_) => {
                OverriddenCheck::Asked(check.under(self.limit))
            }
            OverrideEffect::Unlimited => {
                OverriddenCheck::Passed(Verdict::unlimited(self.limit).in_shadow(is_shadow))
            }
            OverrideEffect::Denied(_) => {
                let cost = check.cost();
                let ends_after = self.ends_after();
                let denied = Verdict::denied_by_override(self.limit, cost, ends_after);
                // A check of cost 0 always passes.
                match is_shadow || cost == 0 {
                    true => OverriddenCheck::Passed(denied.in_shadow(is_shadow)),
                    false => OverriddenCheck::Denied(denied),
                }
            }
        }
    }

    /// The time until the override ends, or the longest time of a block.
    pub(super) fn ends_after(&self) -> Micros {
        let end = self.entry.given.end();
        end.map_or(micros(MAX_PERIOD), |end| end.saturating_since(self.now))
    }

    /// Returns whether the store decides. Otherwise the override exempts the key, or denies all its
    /// checks.
    pub(in crate::limiter) fn is_asked(&self) -> bool {
        let effect = self.entry.given.effect();
        matches!(
            effect,
            OverrideEffect::Quota(_) | OverrideEffect::Permits(_)
        )
    }

    /// Returns whether the store decides under this limit.
    pub(super) fn asks_under(&self, limit: &Limit) -> bool {
        self.is_asked() && self.limit == *limit
    }
}

impl OverriddenCheck {
    /// The verdict without the store. A check that the store would decide is not limited, because
    /// an override denies its group.
    pub(crate) fn without_store(self) -> Verdict {
        match self {
            Self::Asked(check) => Verdict::unlimited(check.limit().clone()),
            Self::Passed(verdict) | Self::Denied(verdict) => verdict,
        }
    }
}

impl RateLimiter {
    /// The override of a key under a limit.
    #[inline]
    pub(crate) fn override_in_force(&self, limit: &Limit, key: &Key) -> Option<OverrideInForce> {
        match self.has_overrides() {
            true => self.shared.overrides.find(limit, key),
            false => None,
        }
    }

    /// Returns whether any key has an override.
    #[inline]
    pub(crate) fn has_overrides(&self) -> bool {
        !self.shared.overrides.is_empty()
    }

    /// Replaces the overrides of a file.
    #[cfg(feature = "config")]
    pub(crate) fn replace_overrides(&self, set: &Arc<()>, new: Vec<Override>) {
        self.shared.overrides.replace_file(set, new);
    }
}
