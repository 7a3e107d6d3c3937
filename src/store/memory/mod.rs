//! The embedded store.

#[cfg(test)]
mod model;
mod shard;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::DefaultHashBuilder;

use self::shard::{Full, Shard};
use super::group::decide;
use super::{Answer, Store};
use crate::nouns::clock::ProcessClock;
use crate::nouns::{Check, Decision, Error, ManualClock, Micros, Op, validate_group};

/// A power of two. More than there are cores, so that two threads rarely meet in one.
const SHARDS: usize = 64;

/// A capped store has fewer shards, so that each has room for at least this many.
const MIN_PER_SHARD: usize = 64;

/// The embedded store: one process, no network, the same decisions as Redis.
///
/// - Exact under concurrency: each check is decided under the lock of its keys' shards.
/// - The time is the process's own and never steps back. In a test with tokio's paused time it
///   is paused, too.
/// - A budget that is whole again is forgotten, a few with each operation, so memory is bounded
///   by the keys in use: no task has to be spawned.
/// - With a [cap](Self::max_keys), memory is bounded whatever clients do.
///
/// ```
/// use tollgate::{Key, Limit, MemoryStore, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::new(MemoryStore::new().max_keys(100_000));
/// let limit = Limit::token_bucket("api", Quota::per_second(10))?;
/// assert_eq!(limiter.check(&limit, &Key::new("alice")).await?.remaining(), 9);
/// # Ok(())
/// # }
/// ```
pub struct MemoryStore {
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<Shard>]>,
    clock: Clock,
    /// Whether there is a cap on what is remembered.
    capped: bool,
    /// The shard that is next to be swept on behalf of another.
    idle: AtomicUsize,
}

#[derive(Debug)]
enum Clock {
    Process(ProcessClock),
    Manual(ManualClock),
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store without a cap.
    #[must_use]
    pub fn new() -> Self {
        Self::build(Clock::Process(ProcessClock::new()), SHARDS, None)
    }

    /// An empty store that decides by a clock set by hand, and forgets nothing because of its
    /// age.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self::build(Clock::Manual(clock), SHARDS, None)
    }

    fn build(clock: Clock, shards: usize, cap: Option<usize>) -> Self {
        let shard = |_| Mutex::new(Shard::new(cap));
        Self {
            shards: (0..shards).map(shard).collect(),
            hasher: DefaultHashBuilder::default(),
            clock,
            capped: cap.is_some(),
            idle: AtomicUsize::new(0),
        }
    }

    /// Remembers at most `max_keys` budgets (a key under a limit), 1 at the least.
    ///
    /// When a new key finds its part of the store full, a budget that is not exhausted is
    /// forgotten: of the next few, the one that would be whole again soonest. A key that is
    /// refused is never forgotten in favour of a fresh one, so nobody gets rid of a refusal by
    /// sending other keys. If all that are remembered are exhausted, a fresh key's check fails because the store
    /// [is full](crate::Error::is_full); the tower layer answers 503 then, whatever it does when
    /// a store fails, so that a flood of keys is no way around the limit.
    ///
    /// Whatever the store remembers is forgotten: this is for building one.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        let mut shards = SHARDS;
        while shards > 1 && max_keys / shards < MIN_PER_SHARD {
            shards /= 2;
        }
        Self::build(self.clock, shards, Some((max_keys / shards).max(1)))
    }

    /// How many budgets are remembered at the moment.
    #[must_use]
    pub fn len(&self) -> usize {
        (0..self.shards.len()).map(|index| self.lock(index).len()).sum()
    }

    /// Whether no budget is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn apply_one(&self, op: Op, check: &Check) -> Result<Decision, Error> {
        let now = self.now();
        let (hash, index) = self.place(check);
        let mut shard = self.lock(index);
        let verdict = shard.apply(hash, op, check, now).map_err(full)?;
        self.sweep(&mut shard, now);
        Ok(Decision::from(verdict).made_at(now))
    }

    fn apply_group(&self, op: Op, group: &[Check]) -> Result<Decision, Error> {
        let places: Vec<_> = group.iter().map(|check| self.place(check)).collect();
        let mut shards = self.lock_all(places.iter().map(|&(_, index)| index));
        let now = self.now();

        let mut budgets = Vec::with_capacity(group.len());
        for (check, (hash, index)) in group.iter().zip(&places) {
            budgets.extend(shards.get_mut(index).map(|shard| shard.take(*hash, check)));
        }
        let mut states: Vec<_> = budgets.iter_mut().map(|budget| budget.state.take()).collect();

        // Whoever is refused is refused, whether there is room or not: only what will be
        // remembered needs some. All budgets of the group are out of the table meanwhile.
        let needs_room: Vec<bool> = group
            .iter()
            .zip(&states)
            .map(|(check, state)| check.units() > 0 || state.is_some())
            .collect();
        let mut decide = |op| decide(op, group, &mut states, now);
        let decision = match op {
            Op::Charge if self.capped => decide(Op::Peek).and_then(|peeked| {
                if peeked.allowed() {
                    for (index, shard) in &mut shards {
                        let here = places.iter().zip(&needs_room);
                        let wanted = here.filter(|((_, place), needs)| place == index && **needs);
                        shard.make_room(wanted.count(), now).map_err(full)?;
                    }
                }
                decide(op)
            }),
            op => decide(op),
        };

        let taken = budgets.into_iter().zip(states).zip(places).zip(group);
        for (i, (((mut budget, state), (hash, index)), check)) in taken.enumerate() {
            budget.state = state;
            if let Some(verdict) = decision.as_ref().ok().and_then(|it| it.verdicts().get(i)) {
                budget.note(op, check, verdict, now);
            }
            if let Some(shard) = shards.get_mut(&index) {
                shard.put(hash, budget);
            }
        }
        for shard in shards.values_mut() {
            self.sweep(shard, now);
        }
        decision
    }

    /// Locks several shards, always in the same order: two groups cannot wait for each other.
    fn lock_all(
        &self,
        indices: impl Iterator<Item = usize>,
    ) -> BTreeMap<usize, MutexGuard<'_, Shard>> {
        let order: BTreeSet<usize> = indices.collect();
        order.into_iter().map(|index| (index, self.lock(index))).collect()
    }

    /// Forgets what has ended, a few with each operation. A shard that is through goes on with a
    /// step for another, so that one busy key is enough to clean up after all others.
    fn sweep(&self, shard: &mut Shard, now: Micros) {
        if matches!(self.clock, Clock::Manual(_)) || !shard.sweep(now) {
            return;
        }
        let idle = self.idle.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        // Never waited for: it may be this very shard, or another thread's.
        if let Ok(mut idle) = self.shards[idle].try_lock() {
            idle.sweep_round(now);
        }
    }

    /// The hash of a check's budget, and its shard.
    fn place(&self, check: &Check) -> (u64, usize) {
        let hash = shard::hash(&self.hasher, check.limit().name(), check.key().as_str());
        // The table inside goes by the lowest and the highest bits.
        (hash, (hash >> 32) as usize & (self.shards.len() - 1))
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        match &self.clock {
            Clock::Process(clock) => clock.now(),
            Clock::Manual(clock) => clock.now(),
        }
    }
}

fn full(_: Full) -> Error {
    Error::full(
        "the budgets it remembers are exhausted, and none of those is forgotten for a fresh key; \
         raise MemoryStore::max_keys",
    )
}

impl Store for MemoryStore {
    fn apply(&self, op: Op, group: &[Check]) -> Answer {
        Answer::ready(match group {
            [check] => self.apply_one(op, check),
            group => validate_group(group).and_then(|()| self.apply_group(op, group)),
        })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("shards", &self.shards.len())
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
