//! Keys that are near a limit, each of which is reported once.
//!
//! A key is reported when its budget comes near the limit, and again after its window is over. For
//! other algorithms, it is reported again after its budget was more than half full, and at the
//! earliest after the time in which an empty budget becomes half full. Without that time, a bucket
//! whose estimates are settled would be reported with each request. Two decisions may be observed
//! in another order than they were made in, so a key is only forgotten by a later one.

use std::fmt;
use std::hash::RandomState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::algorithm::Rule;
use crate::model::{Budget, Check, Decision, Key, Limit, Usage, Verdict};
use crate::store::fingerprint::fingerprint;
use crate::telemetry::{self, Throttles};
use crate::units::{Micros, Mutex, Timestamp, micros};

/// A power of two.
const SHARDS: usize = 16;

/// The most keys that are known, in each of the two tables of a shard. A key that is forgotten may
/// be reported again.
const MAX_KEYS: usize = 50_000 / SHARDS;

/// A power of two. A decision on a key whose mark is 0 needs no table.
const MARKS: usize = 4_096;

/// Two decisions that are observed in another order than they were made in differ by less.
const LONGEST_DELAY: Micros = 10_000_000;

/// Ends of one window differ by less.
const SECOND: Micros = 1_000_000;

/// The application's function.
type OnNearLimit = dyn Fn(&Key, &Usage) + Send + Sync;

/// The keys that were reported, and the application's function.
#[derive(Clone, Default)]
pub(super) struct NearLimit {
    function: Option<Arc<OnNearLimit>>,
    reported: Arc<OnceLock<ReportedKeys>>,
    events: Arc<Throttles>,
    panics: Arc<Throttles>,
}

struct ReportedKeys {
    secrets: (RandomState, DefaultHashBuilder),
    /// The numbers of known keys, by a part of their fingerprints.
    marks: Box<[AtomicU32]>,
    shards: [Mutex<ReportedShard>; SHARDS],
}

/// Keys by the fingerprints of their budgets.
#[derive(Default)]
struct ReportedShard {
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
    /// `true` if it is in the marks. Keys of windows are looked up near the limit only.
    is_marked: bool,
}

impl NearLimit {
    pub(super) fn set(&mut self, function: impl Fn(&Key, &Usage) + Send + Sync + 'static) {
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
            self.observe_budget(check.budget(), verdict, verdict.units_charged(), now);
        }
    }

    /// Reports the key of a budget if a settlement, which charged so many units more, has brought
    /// it near its limit.
    pub(super) fn observe_settlement(&self, budget: &Budget, more: u32, decision: &Decision) {
        let now = decision.timestamp().or_now();
        // After an overdraft, fewer units than that may have been left before. Then a key is warned
        // of once too often, and not once too seldom.
        if !budget.is_shadow() {
            self.observe_budget(budget, decision.deciding(), more.into(), now);
        }
    }

    fn observe_budget(&self, budget: &Budget, verdict: &Verdict, charged: u64, now: Timestamp) {
        let (limit, key) = budget.parts();
        if !verdict.tells_budget() || !self.concerns(limit, key, verdict.remaining()) {
            return;
        }
        let reported = self.reported.get_or_init(ReportedKeys::new);
        if !reported.note(budget, verdict, charged, now) {
            return;
        }
        telemetry::near_limit(&self.events, key, verdict);
        if let Some(function) = &self.function {
            let usage = Usage::from_verdict(verdict, now);
            // A settlement may run while a thread panics, and another panic would end the process.
            let called = catch_unwind(AssertUnwindSafe(|| function(key, &usage)));
            if called.is_err() {
                telemetry::near_limit_panicked(&self.panics, key, limit);
            }
        }
    }
}

/// The time in which an empty budget becomes half full.
fn half_full_after(limit: &Limit) -> Micros {
    let quota = limit.quota();
    let units = u128::from(quota.limit().max(1));
    let full_after = u128::from(micros(quota.length())) * u128::from(quota.capacity()) / units;
    Micros::try_from(full_after / 2).unwrap_or(Micros::MAX)
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

    /// Notes a decision that charged so many units. Returns whether its key is to be reported.
    fn note(&self, budget: &Budget, verdict: &Verdict, charged: u64, now: Timestamp) -> bool {
        let (limit, key) = budget.parts();
        let budget = fingerprint(&self.secrets, limit, key);
        let mut shard = self.shards[(budget >> 64) as usize % SHARDS].lock();
        let full_at = now.saturating_add(verdict.outcome().reset_after);
        let stored = shard.get(budget);
        let known = stored.filter(|known| match has_windows(limit) {
            // Another end is of another window, such as after a reset.
            true => {
                let distance = known.full_at.as_micros().abs_diff(full_at.as_micros());
                distance < SECOND.min(micros(limit.quota().length()) / 2)
            }
            false => now < known.full_at,
        });
        let is_near = verdict.is_near_limit();
        let is_latest = stored.is_none_or(|stored| {
            let has_clock_stepped_back = stored.near_at.saturating_since(now) > LONGEST_DELAY;
            now > stored.near_at || has_clock_stepped_back
        });
        let left_before = verdict.remaining().saturating_add(charged);
        let was_half_full = !has_windows(limit) && left_before > verdict.capacity() / 2;
        let is_forgotten = known.is_none_or(|known| {
            was_half_full && now >= known.near_at.saturating_add(half_full_after(limit))
        });
        let near = ReportedKey {
            near_at: now,
            full_at,
            is_marked: !has_windows(limit),
        };
        match known {
            _ if is_near && is_latest => self.remember(&mut shard, budget, near),
            _ if is_forgotten && is_latest => self.forget(&mut shard, budget),
            Some(known) => {
                let full_at = known.full_at.max(full_at);
                self.remember(&mut shard, budget, ReportedKey { full_at, ..known });
            }
            None => {}
        }
        is_near && is_forgotten && is_latest
    }

    fn remember(&self, shard: &mut ReportedShard, budget: u128, key: ReportedKey) {
        if let Some(known) = shard.get_mut(budget) {
            *known = key;
            return;
        }
        if shard.recent.len() >= MAX_KEYS {
            let older = std::mem::take(&mut shard.recent);
            let forgotten = std::mem::replace(&mut shard.older, older);
            for (budget, key) in forgotten {
                self.unmark(budget, key);
            }
        }
        shard.recent.insert(budget, key);
        if key.is_marked {
            self.mark(budget).fetch_add(1, Ordering::Relaxed);
        }
    }

    fn forget(&self, shard: &mut ReportedShard, budget: u128) {
        let recent = shard.recent.remove(&budget);
        if let Some(key) = recent.or_else(|| shard.older.remove(&budget)) {
            self.unmark(budget, key);
        }
    }

    fn unmark(&self, budget: u128, key: ReportedKey) {
        if key.is_marked {
            self.mark(budget).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl ReportedShard {
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
