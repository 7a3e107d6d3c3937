//! Keys that are near a limit, each of which is reported once.
//!
//! A key is reported when its budget comes near the limit, and again after its window is over, or
//! for other algorithms after its budget was more than half full. Two decisions may be observed in
//! another order than they were made in, so a key is only forgotten by a later one.

use std::fmt;
use std::hash::RandomState;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::algorithm::Rule;
use crate::model::{Check, Decision, Key, Limit, Verdict};
use crate::store::fingerprint::fingerprint;
use crate::telemetry::{self, Throttles};
use crate::units::{Mutex, Timestamp};

/// A power of two.
const SHARDS: usize = 16;

/// The most keys that are known, in each of the two tables of a shard. A key that is forgotten may
/// be reported again.
const MAX_KEYS: usize = 50_000 / SHARDS;

/// A power of two. A decision on a key whose mark is 0 needs no table.
const MARKS: usize = 4_096;

/// The application's function.
type OnNearLimit = dyn Fn(&Key, &Verdict) + Send + Sync;

/// The keys that were reported, and the application's function.
#[derive(Clone, Default)]
pub(super) struct NearLimit {
    function: Option<Arc<OnNearLimit>>,
    reported: Arc<OnceLock<ReportedKeys>>,
    events: Arc<Throttles>,
}

struct ReportedKeys {
    secrets: (RandomState, DefaultHashBuilder),
    /// The numbers of known keys, by a part of their fingerprints.
    marks: Box<[AtomicU32]>,
    shards: [Mutex<Shard>; SHARDS],
}

/// Keys by the fingerprints of their budgets.
#[derive(Default)]
struct Shard {
    recent: HashMap<u128, ReportedKey>,
    older: HashMap<u128, ReportedKey>,
}

/// A key that was reported.
#[derive(Clone, Copy)]
struct ReportedKey {
    /// The time of the last decision near the limit.
    near_at: Timestamp,
    /// When the budget is full, if nothing else is charged.
    full_at: Timestamp,
}

impl NearLimit {
    pub(super) fn set(&mut self, function: impl Fn(&Key, &Verdict) + Send + Sync + 'static) {
        self.function = Some(Arc::new(function));
    }

    /// Returns whether a charge that leaves a key so many units can change what is known of it.
    #[inline]
    pub(super) fn concerns(&self, limit: &Limit, key: &Key, left: u64) -> bool {
        let Some(is_near) = limit.is_near(left) else {
            return false;
        };
        is_near
            || !has_windows(limit)
                && self
                    .reported
                    .get()
                    .is_some_and(|reported| reported.has_mark(limit, key))
    }

    /// Reports the keys of a group that are near a limit now, and were not before.
    pub(super) fn observe(&self, group: &[Check], decision: &Decision) {
        let now = decision.timestamp().or_now();
        for (check, verdict) in group.iter().zip(decision.verdicts()) {
            let is_news = verdict.tells_budget()
                && self.concerns(check.limit(), check.key(), verdict.remaining())
                && self
                    .reported
                    .get_or_init(ReportedKeys::new)
                    .note(check, verdict, now);
            if is_news {
                telemetry::near_limit(&self.events, check.key(), verdict);
                if let Some(function) = &self.function {
                    function(check.key(), verdict);
                }
            }
        }
    }
}

/// Returns whether the budget is full again at the end of a window, and not before.
fn has_windows(limit: &Limit) -> bool {
    matches!(limit.rule(), Rule::FixedWindow(_))
}

impl ReportedKeys {
    fn new() -> Self {
        Self {
            secrets: Default::default(),
            marks: (0..MARKS).map(|_| AtomicU32::new(0)).collect(),
            shards: Default::default(),
        }
    }

    fn has_mark(&self, limit: &Limit, key: &Key) -> bool {
        let budget = fingerprint(&self.secrets, limit, key);
        self.mark(budget).load(Ordering::Relaxed) > 0
    }

    fn mark(&self, budget: u128) -> &AtomicU32 {
        &self.marks[budget as usize % MARKS]
    }

    /// Notes a decision. Returns whether its key is to be reported.
    fn note(&self, check: &Check, verdict: &Verdict, now: Timestamp) -> bool {
        let limit = check.limit();
        let budget = fingerprint(&self.secrets, limit, check.key());
        let mut shard = self.shards[(budget >> 64) as usize % SHARDS].lock();
        let known = shard.get(budget).filter(|known| now < known.full_at);
        let left_before = verdict.remaining().saturating_add(verdict.units_charged());
        let was_half_full = !has_windows(limit) && left_before > verdict.capacity() / 2;
        let is_near = verdict.is_near_limit();
        let is_news = match known {
            Some(known) => was_half_full && now > known.near_at,
            None => is_near,
        };
        let full_at = now.saturating_add(verdict.outcome().reset_after);
        match known {
            Some(_) if is_news && !is_near => self.forget(&mut shard, budget),
            _ if is_near => self.keep(
                &mut shard,
                budget,
                ReportedKey {
                    near_at: now,
                    full_at,
                },
            ),
            Some(known) => self.keep(&mut shard, budget, ReportedKey { full_at, ..known }),
            None => {}
        }
        is_news && is_near
    }

    fn keep(&self, shard: &mut Shard, budget: u128, key: ReportedKey) {
        if let Some(known) = shard.get_mut(budget) {
            // A decision that is observed late changes nothing.
            known.near_at = known.near_at.max(key.near_at);
            known.full_at = known.full_at.max(key.full_at);
            return;
        }
        if shard.recent.len() >= MAX_KEYS {
            let older = std::mem::take(&mut shard.recent);
            for forgotten in std::mem::replace(&mut shard.older, older).into_keys() {
                self.mark(forgotten).fetch_sub(1, Ordering::Relaxed);
            }
        }
        shard.recent.insert(budget, key);
        self.mark(budget).fetch_add(1, Ordering::Relaxed);
    }

    fn forget(&self, shard: &mut Shard, budget: u128) {
        let recent = shard.recent.remove(&budget);
        if recent.or_else(|| shard.older.remove(&budget)).is_some() {
            self.mark(budget).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shard {
    fn get(&self, budget: u128) -> Option<ReportedKey> {
        let recent = self.recent.get(&budget);
        recent.or_else(|| self.older.get(&budget)).copied()
    }

    fn get_mut(&mut self, budget: u128) -> Option<&mut ReportedKey> {
        let recent = self.recent.get_mut(&budget);
        recent.or_else(|| self.older.get_mut(&budget))
    }
}

impl fmt::Debug for NearLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NearLimit")
            .field("has_function", &self.function.is_some())
            .finish_non_exhaustive()
    }
}
