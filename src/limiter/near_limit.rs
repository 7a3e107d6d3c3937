//! Keys that are near a limit, each of which is reported once.

use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::model::{Check, Decision, Key, Limit, Verdict};
use crate::store::fingerprint::fingerprint;
use crate::telemetry::{self, Throttles};
use crate::units::{Mutex, Timestamp};

/// The most keys that are known, in each of two tables. A key that is forgotten may be reported
/// again.
const MAX_KEYS: usize = 50_000;

/// The application's function.
type OnNearLimit = dyn Fn(&Key, &Verdict) + Send + Sync;

/// The keys that were reported, and the application's function.
#[derive(Clone, Default)]
pub(super) struct NearLimit {
    function: Option<Arc<OnNearLimit>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    secrets: (RandomState, DefaultHashBuilder),
    reported: Mutex<ReportedKeys>,
    /// Whether any is known.
    some_reported: AtomicBool,
    events: Throttles,
}

/// Budgets that were near their limits, by fingerprint, and when they are full again.
#[derive(Default)]
struct ReportedKeys {
    recent: HashMap<u128, Timestamp>,
    older: HashMap<u128, Timestamp>,
}

impl NearLimit {
    pub(super) fn set(&mut self, function: impl Fn(&Key, &Verdict) + Send + Sync + 'static) {
        self.function = Some(Arc::new(function));
    }

    /// Returns whether a decision that leaves a key so many units has to be observed.
    #[inline]
    pub(super) fn observes(&self, limit: &Limit, remaining: u64) -> bool {
        limit.is_near(remaining).is_some_and(|is_near| {
            is_near
                || is_half_full(remaining, limit.quota().capacity())
                    && self.shared.some_reported.load(Ordering::Relaxed)
        })
    }

    /// Reports the keys of a group that are near a limit now, and were not before.
    #[cold]
    pub(super) fn observe(&self, group: &[Check], decision: &Decision) {
        for (check, verdict) in group.iter().zip(decision.verdicts()) {
            if check.limit().warn_at_percent().is_some()
                && self.is_new(check, verdict, decision.timestamp())
            {
                telemetry::near_limit(&self.shared.events, check.key(), verdict);
                if let Some(function) = &self.function {
                    function(check.key(), verdict);
                }
            }
        }
    }

    /// Returns whether a key is near a limit, and was not since its budget was half full.
    fn is_new(&self, check: &Check, verdict: &Verdict, now: Timestamp) -> bool {
        let Shared {
            secrets,
            reported,
            some_reported,
            ..
        } = &*self.shared;
        let (left, capacity) = (verdict.remaining(), verdict.capacity());
        let is_near = verdict.is_near_limit();
        if !is_near && !is_half_full(left, capacity) {
            return false;
        }
        let budget = fingerprint(secrets, check.limit(), check.key());
        let mut reported = reported.lock();
        let known = match is_near {
            true => {
                let full_at = now.saturating_add(verdict.outcome().reset_after);
                reported.insert(budget, full_at)
            }
            false => reported.remove(budget),
        };
        some_reported.store(!reported.is_empty(), Ordering::Relaxed);
        let before = left.saturating_add(verdict.units_charged());
        let is_known = known.is_some_and(|full_at| full_at > now);
        is_near && (!is_known || is_half_full(before, capacity))
    }
}

/// Returns whether a budget is more than half full.
const fn is_half_full(left: u64, capacity: u64) -> bool {
    left > capacity / 2
}

impl ReportedKeys {
    /// Returns what was known.
    fn insert(&mut self, budget: u128, full_at: Timestamp) -> Option<Timestamp> {
        let known = self.remove(budget);
        if self.recent.len() >= MAX_KEYS {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(budget, full_at);
        known
    }

    fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.older.is_empty()
    }

    fn remove(&mut self, budget: u128) -> Option<Timestamp> {
        let recent = self.recent.remove(&budget);
        recent.or_else(|| self.older.remove(&budget))
    }
}

impl fmt::Debug for NearLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NearLimit")
            .field("has_function", &self.function.is_some())
            .finish_non_exhaustive()
    }
}
