//! Denials that this process remembers, and when each expires.
//!
//! Units come back with time, with a refund, a reset or another quota; until then a check that was
//! denied is denied. A denial is kept with the whole check (limits with their numbers, keys,
//! costs), so that it is exactly what the store would answer.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::Answer;
use crate::nouns::{Check, Decision, Error, Op, Source};

/// Counters of what was taken back. A change of one budget also voids what is known of those that
/// share its counter: one in so many.
const COUNTERS: usize = 4096;

/// A denial of more limits weighs more: about as many bytes as a denial of one limit for each
/// four.
const VERDICTS_PER_WEIGHT: usize = 4;

/// No denial lasts longer; it also keeps the arithmetic of times in range.
const MAX_AGE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// For how long a refund or a reset may still run after its caller gave it up, or its answer was
/// lost: the longest deadline of a store.
const UNSETTLED_FOR: Duration = Duration::from_secs(60);

pub(super) struct Denials {
    cache: Cache<u128, Denial, ByVerdicts>,
    max_age: Duration,
    /// Two, each with a seed of its own: a check is known by 128 bits that no client can foresee.
    hashers: [DefaultHashBuilder; 2],
    counters: Box<[Counter]>,
    started: Instant,
    /// When the last denial that is answered without asking is over, in microseconds since the
    /// start. Most of the time there is none, and nothing to look up.
    last_ends: AtomicU64,
    /// The same for the last denial that stands in for a store.
    last_stands: AtomicU64,
}

#[derive(Clone)]
struct Denial {
    known: Known,
    decision: Decision,
    decided: Instant,
    /// Until when it is answered without asking the store.
    until: Instant,
    /// Until when it stands in for a store that does not answer: its `retry_after`.
    stands_until: Instant,
}

/// Changes of budgets that void what is known of them.
#[derive(Default)]
struct Counter {
    /// Changes that began, or ended in whatever way.
    changes: AtomicU64,
    /// Changes that the store confirmed.
    confirmed: AtomicU64,
    /// Until when a change may still happen, in microseconds since the start.
    unsettled_until: AtomicU64,
}

/// By what a check is known.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    /// Its budgets and costs.
    id: u128,
    /// Its limits' numbers.
    quota: u64,
    /// What was known to have changed in its budgets when it was asked.
    generation: u64,
    /// The same, of changes that were confirmed.
    confirmed: u64,
}

#[derive(Clone)]
struct ByVerdicts;

impl Weighter<u128, Denial> for ByVerdicts {
    fn weight(&self, _: &u128, denial: &Denial) -> u64 {
        1 + (denial.decision.verdicts().len() / VERDICTS_PER_WEIGHT) as u64
    }
}

impl Denials {
    /// Remembers denials for `max_age`, about `capacity` of a single limit.
    pub(super) fn new(max_age: Duration, capacity: usize) -> Self {
        Self {
            cache: Cache::with_weighter(capacity, capacity as u64, ByVerdicts),
            max_age: max_age.min(MAX_AGE),
            hashers: [DefaultHashBuilder::default(), DefaultHashBuilder::default()],
            counters: (0..COUNTERS).map(|_| Counter::default()).collect(),
            started: Instant::now(),
            last_ends: AtomicU64::new(0),
            last_stands: AtomicU64::new(0),
        }
    }

    /// Answers what is known, or asks. The question takes a ticket along, to be told the decision.
    pub(super) fn around(
        self: &Arc<Self>,
        op: Op,
        group: &[Check],
        ask: impl FnOnce(Option<Ticket>) -> Answer,
    ) -> Answer {
        match op {
            Op::Peek => ask(None),
            Op::Refund | Op::Reset => ask(Some(Ticket::of_change(self, group))),
            Op::Charge => {
                let now = Instant::now();
                let (known, unsettled_until) = self.known(group);
                if let Some(decision) = self.get(&known, group, now) {
                    return Answer::ready(Ok(decision));
                }
                let is_settled = unsettled_until <= self.micros(now);
                let denials = || Arc::clone(self);
                let ticket = is_settled.then(|| Ticket {
                    denials: denials(),
                    subject: Subject::Charge { known, asked: now },
                });
                ask(ticket).or_standing(Standing { denials: denials(), known })
            }
        }
    }

    /// By what a check is known, and until when one of its budgets may still change.
    fn known(&self, group: &[Check]) -> (Known, u64) {
        let half = |hasher: &DefaultHashBuilder| {
            let mut hasher = hasher.build_hasher();
            for check in group {
                (check.limit().name(), check.limit().kind(), check.key(), check.units())
                    .hash(&mut hasher);
            }
            u128::from(hasher.finish())
        };
        let id = half(&self.hashers[0]) << 64 | half(&self.hashers[1]);
        let mut quota = self.hashers[0].build_hasher();
        let (mut generation, mut confirmed, mut unsettled_until) = (0_u64, 0_u64, 0);
        for check in group {
            check.limit().rule().hash(&mut quota);
            let counter = &self.counters[self.counter(check)];
            generation = generation.wrapping_add(counter.changes.load(Ordering::Acquire));
            confirmed = confirmed.wrapping_add(counter.confirmed.load(Ordering::Acquire));
            unsettled_until = counter.unsettled_until.load(Ordering::Acquire).max(unsettled_until);
        }
        (Known { id, quota: quota.finish(), generation, confirmed }, unsettled_until)
    }

    fn counter(&self, check: &Check) -> usize {
        let budget = (check.limit().name(), check.limit().kind(), check.key());
        self.hashers[0].hash_one(budget) as usize % COUNTERS
    }

    fn counters_of(&self, group: &[Check]) -> impl Iterator<Item = &Counter> {
        group.iter().map(|check| &self.counters[self.counter(check)])
    }

    fn get(&self, known: &Known, group: &[Check], now: Instant) -> Option<Decision> {
        if self.last_ends.load(Ordering::Acquire) <= self.micros(now) {
            return None;
        }
        let denial = self.cache.get(&known.id)?;
        if denial.known.quota != known.quota {
            // Under another quota the budgets change in another way.
            self.cache.remove(&known.id);
            self.counters_of(group).for_each(|counter| {
                counter.count();
                counter.confirm();
            });
            return None;
        }
        (denial.known == *known && now < denial.until).then(|| denial.again_at(now))
    }

    fn record(&self, known: Known, asked: Instant, decision: &Decision) {
        if decision.allowed() {
            // What was denied before is taken back by now.
            if self.last_stands.load(Ordering::Acquire) > self.micros(asked)
                && self.cache.contains_key(&known.id)
            {
                self.cache.remove(&known.id);
            }
            return;
        }
        // What exceeds the capacity now exceeds it later, too.
        let wait = decision.retry_after().unwrap_or(self.max_age);
        // From when it was asked: the store decided later than that, so this is never too long.
        let after = |wait: Duration| asked.checked_add(wait.min(MAX_AGE)).unwrap_or(asked);
        let (decided, until) = (Instant::now(), after(wait.min(self.max_age)));
        let stands_until = after(wait);
        if decided < stands_until {
            let decision = decision.clone();
            let denial = Denial { known, decision, decided, until, stands_until };
            self.cache.insert(known.id, denial);
            self.last_ends.fetch_max(self.micros(until), Ordering::AcqRel);
            self.last_stands.fetch_max(self.micros(stands_until), Ordering::AcqRel);
        }
    }

    fn micros(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

impl Denial {
    fn again_at(&self, now: Instant) -> Decision {
        let elapsed = now.saturating_duration_since(self.decided);
        self.decision.clone().repeated_after(elapsed).from_source(Source::DenyCache)
    }
}

impl Counter {
    fn count(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn confirm(&self) {
        self.confirmed.fetch_add(1, Ordering::AcqRel);
    }
}

/// Goes along with a question, and learns what becomes of it.
pub(super) struct Ticket {
    denials: Arc<Denials>,
    subject: Subject,
}

enum Subject {
    Charge {
        known: Known,
        asked: Instant,
    },
    /// A refund or a reset. It voids denials recorded before it was sent and until it is answered.
    Change {
        /// The numbers of the counters.
        counters: Vec<usize>,
        /// Whether it is known to be over.
        settled: bool,
    },
}

impl Ticket {
    fn of_change(denials: &Arc<Denials>, group: &[Check]) -> Self {
        denials.counters_of(group).for_each(Counter::count);
        let counters = group.iter().map(|check| denials.counter(check)).collect();
        let denials = Arc::clone(denials);
        Self { denials, subject: Subject::Change { counters, settled: false } }
    }

    /// Learns the answer, whether its caller still waits for it or not.
    pub(super) fn answered(&mut self, answer: &Result<Decision, Error>) {
        match (&mut self.subject, answer) {
            (Subject::Charge { known, asked }, Ok(decision)) => {
                self.denials.record(*known, *asked, decision);
            }
            (Subject::Charge { .. }, Err(_)) => {}
            (Subject::Change { counters, settled }, Ok(_)) => {
                *settled = true;
                for &number in &*counters {
                    self.denials.counters[number].confirm();
                }
            }
            (Subject::Change { settled, .. }, Err(error)) => *settled = !error.may_have_charged(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Subject::Change { counters, settled } = &self.subject else { return };
        let until = Instant::now().checked_add(UNSETTLED_FOR);
        for counter in counters.iter().map(|&number| &self.denials.counters[number]) {
            if let (false, Some(until)) = (*settled, until) {
                counter.unsettled_until.fetch_max(self.denials.micros(until), Ordering::AcqRel);
            }
            counter.count();
        }
    }
}

/// A denial that may still be in force when the store does not answer.
pub(super) struct Standing {
    denials: Arc<Denials>,
    known: Known,
}

impl Standing {
    /// The answer, or the denial that stands in for an unavailable store.
    pub(super) fn over(
        standing: &Option<Self>,
        answer: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        match (answer, standing) {
            (Err(error), Some(standing)) if error.is_unavailable() || error.is_overloaded() => {
                standing.denial().ok_or(error)
            }
            (answer, _) => answer,
        }
    }

    fn denial(&self) -> Option<Decision> {
        let denial = self.denials.cache.get(&self.known.id)?;
        let now = Instant::now();
        // A refund or a reset that the store did not confirm takes no denial back.
        let stands = denial.known.quota == self.known.quota
            && denial.known.confirmed == self.known.confirmed
            && now < denial.stands_until;
        stands.then(|| denial.again_at(now))
    }
}
