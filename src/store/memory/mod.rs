//! The embedded store.

mod shard;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::RandomState;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::DefaultHashBuilder;

use self::shard::{BudgetAction, Shard};
use super::fingerprint::fingerprint;
use super::group::{apply_change, charge_key, decide_group, peek};
use super::{Answer, Store};
use crate::algorithm::{Cost, Effect, State};
use crate::model::{Budget, Change, Check, Decision, Error, Group, Key, Limit, Operation, Verdict};
use crate::units::clock::ProcessClock;
use crate::units::{ManualClock, Mutex, MutexGuard, Outcome, Timestamp};

/// A power of two. More shards than cores, so that threads rarely contend for a shard.
const SHARDS: usize = 64;

/// The smallest cap of a shard: a store with a small cap has fewer shards.
const MIN_PER_SHARD: usize = 64;

/// The embedded store: one process, no network, the same decisions as Redis.
///
/// - Decisions are exact under concurrency: each check holds the locks of its keys' shards.
/// - The time is the process's own and never steps back.
/// - Operations also delete full budgets, so memory is bounded by the keys in use, except [with a
///   clock](Self::with_clock) that you set. The store spawns no task, so an idle one frees
///   nothing.
/// - With a [cap](MemoryStoreBuilder::max_keys), memory is bounded for any number of keys.
/// - Keys are not kept. A budget is found by 128 bits of two hashes with random secrets, so no
///   client can choose a key that shares the budget of another.
///
/// In your tests, tokio's paused time controls the store: in `#[tokio::test(start_paused = true)]`,
/// `tokio::time::advance` or `sleep` refills budgets at once. If you want to set the time by
/// hand, also backwards, use [`with_clock`](Self::with_clock).
///
/// ```
/// use tollgate::{Key, Limit, MemoryStore, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::new(MemoryStore::builder().max_keys(100_000).build());
/// let limit = Limit::token_bucket("api", Quota::per_second(10))?;
/// assert_eq!(limiter.check(&limit, &Key::new("alice")).await?.remaining(), 9);
/// # Ok(())
/// # }
/// ```
pub struct MemoryStore {
    /// The random secrets of the two hashes that make a fingerprint.
    secrets: (RandomState, DefaultHashBuilder),
    shards: Box<[Mutex<Shard>]>,
    process: ProcessClock,
    /// In place of the time of the process.
    clock: Option<ManualClock>,
    /// `true` if there is a cap on the budgets.
    capped: bool,
    /// The next shard to be swept by an operation on another shard.
    idle: AtomicUsize,
}

/// Builds a [`MemoryStore`]. See [`MemoryStore::builder`].
#[derive(Clone, Debug)]
#[must_use = "call `build`"]
pub struct MemoryStoreBuilder {
    clock: Option<ManualClock>,
    max_keys: Option<usize>,
}

impl MemoryStoreBuilder {
    /// Sets the maximum of budgets (a key under a limit), at least 1. Default: no maximum.
    ///
    /// When the shard of a new key is full, a budget that is not exhausted is evicted: of the next
    /// few, the one that would be full soonest. An exhausted budget is never evicted, so a client
    /// cannot end a denial by sending other keys, and neither is one whose permits are held. If
    /// only such budgets are left, the check of a new key fails: the store [is
    /// full](crate::Error::is_full). The tower layer answers 503 then, even if it fails open, so a
    /// flood of keys cannot bypass the limit.
    pub const fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = Some(max_keys);
        self
    }

    /// Sets a clock that is set by hand. Default: the time of the process.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Creates the store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let mut shards = SHARDS;
        while shards > 1
            && self
                .max_keys
                .is_some_and(|max| max / shards < MIN_PER_SHARD)
        {
            shards /= 2;
        }
        let cap = self.max_keys.map(|max| (max / shards).max(1));
        let shard = |_| Mutex::new(Shard::new(cap));
        MemoryStore {
            shards: (0..shards).map(shard).collect(),
            secrets: Default::default(),
            process: ProcessClock::new(),
            clock: self.clock,
            capped: cap.is_some(),
            idle: AtomicUsize::new(0),
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Creates an empty store without a cap.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Creates an empty store with a clock that is set by hand. Without a cap, full budgets stay in
    /// memory.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self::builder().clock(clock).build()
    }

    /// Returns a builder of an empty store, for a cap.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            clock: None,
            max_keys: None,
        }
    }

    /// The number of budgets in the store. To ask for it later, give the limiter an `Arc` of the
    /// store: `RateLimiter::new(Arc::clone(&store))`.
    #[must_use]
    pub fn len(&self) -> usize {
        (0..self.shards.len())
            .map(|index| self.lock(index).len())
            .sum()
    }

    /// Returns whether the store has no budgets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn apply_now(&self, operation: Operation) -> Result<Decision, Error> {
        match operation {
            Operation::Charge(group) => match group.into_one() {
                Ok(check) => self.charge_one(check),
                Err(group) => self.apply_group(&group, Effect::Commit),
            },
            Operation::Peek(group) => match group.into_one() {
                Ok(check) => self.peek_one(check),
                Err(group) => self.apply_group(&group, Effect::Dry),
            },
            Operation::Change(budget, change) => self.change(budget, &change),
        }
    }

    fn charge_one(&self, check: Check) -> Result<Decision, Error> {
        let applied = self.charge(check.limit(), check.key(), check.asked())?;
        Ok(Self::decision(check, applied))
    }

    /// The decision of a charge.
    #[inline]
    pub(crate) fn decision(check: Check, applied: (Outcome, Timestamp)) -> Decision {
        let charged = if applied.0.allowed { check.cost() } else { 0 };
        decision(check.into(), applied, charged)
    }

    /// Charges the budget of a key. Returns the outcome and its time, which are a small part of a
    /// [decision](Self::decision), and often all that is needed of it.
    #[inline]
    pub(crate) fn charge(
        &self,
        limit: &Limit,
        key: &Key,
        cost: Cost,
    ) -> Result<(Outcome, Timestamp), Error> {
        let charge = |state: &mut Option<State>, now| charge_key(limit, key, cost, state, now);
        self.apply_one((limit, key), BudgetAction::Charge, charge)
    }

    #[inline(never)]
    fn peek_one(&self, check: Check) -> Result<Decision, Error> {
        let peek = |state: &mut Option<State>, now| peek(&check, state, now);
        let applied = self.apply_one((check.limit(), check.key()), BudgetAction::Peek, peek)?;
        Ok(decision(check.into(), applied, 0))
    }

    #[inline(never)]
    fn change(&self, budget: Budget, change: &Change) -> Result<Decision, Error> {
        let apply = |state: &mut Option<State>, now| apply_change(&budget, change, state, now);
        let of = (budget.limit(), budget.key());
        let applied = self.apply_one(of, BudgetAction::Change(change), apply)?;
        Ok(decision(budget, applied, 0))
    }

    /// The units left in a check's budget, whatever blocks its key.
    pub(crate) fn left_in_budget(&self, check: &Check) -> u64 {
        let (fingerprint, index) = self.place_of(check.limit(), check.key());
        let mut shard = self.lock(index);
        let now = self.now();
        shard.left_in_budget(fingerprint, check, now)
    }

    /// Applies an operation on the budget of a key. Returns the outcome and its time.
    #[inline]
    fn apply_one(
        &self,
        (limit, key): (&Limit, &Key),
        action: BudgetAction<'_>,
        decide: impl FnOnce(&mut Option<State>, Timestamp) -> Outcome,
    ) -> Result<(Outcome, Timestamp), Error> {
        let (fingerprint, index) = self.place_of(limit, key);
        let mut shard = self.lock(index);
        // Under the lock, so that the times of a budget never step back.
        let now = self.now();
        let decide = |state: &mut Option<State>| decide(state, now);
        let outcome = shard.apply(fingerprint, limit, action, now, decide)?;
        self.sweep(&mut shard, now);
        Ok((outcome, now))
    }

    /// Charges a group, or only peeks.
    fn apply_group(&self, group: &Group, effect: Effect) -> Result<Decision, Error> {
        let places = group
            .iter()
            .map(|check| self.place_of(check.limit(), check.key()));
        let places: Vec<_> = places.collect();
        let mut shards = self.lock_all(places.iter().map(|&(_, index)| index));
        let now = self.now();

        let mut budgets = Vec::with_capacity(group.len());
        for (fingerprint, index) in &places {
            let shard = shards.get_mut(index);
            budgets.extend(shard.map(|shard| shard.take(*fingerprint)));
        }
        let mut states: Vec<_> = budgets
            .iter_mut()
            .map(|budget| budget.state.take())
            .collect();

        // Only a budget that will be stored needs room, so a full shard still denies. Meanwhile,
        // all budgets of the group are out of the table.
        let needs_room: Vec<bool> = group
            .iter()
            .zip(&states)
            .map(|(check, state)| check.cost() > 0 || state.is_some())
            .collect();
        let is_charge = effect == Effect::Commit;
        let may_add = self.capped
            && is_charge
            && decide_group(group, Effect::Dry, &mut states, now)
                .is_some_and(|peeked| peeked.allowed());
        let room = match may_add {
            true => make_room(&mut shards, group, &places, &needs_room, now),
            false => Ok(()),
        };
        let decision = room.and_then(|()| {
            // Always a decision: a group is not empty.
            let decision = decide_group(group, effect, &mut states, now);
            decision.ok_or_else(|| Error::misuse("the group is empty"))
        });

        let action = if is_charge {
            BudgetAction::Charge
        } else {
            BudgetAction::Peek
        };
        let all = budgets
            .into_iter()
            .zip(states)
            .zip(places)
            .zip(group.iter());
        for (i, (((mut budget, state), (_, index)), check)) in all.enumerate() {
            budget.state = state;
            if let Some(verdict) = decision.as_ref().ok().and_then(|it| it.verdicts().get(i)) {
                budget.update_exhaustion(action, check.limit(), verdict.outcome(), now);
            }
            if let Some(shard) = shards.get_mut(&index) {
                shard.put(budget);
            }
        }
        for shard in shards.values_mut() {
            self.sweep(shard, now);
        }
        Ok(decision?.with_timestamp(now))
    }

    /// Locks several shards, always in the same order, so that two groups cannot deadlock.
    fn lock_all(
        &self,
        indices: impl Iterator<Item = usize>,
    ) -> BTreeMap<usize, MutexGuard<'_, Shard>> {
        let order: BTreeSet<usize> = indices.collect();
        order
            .into_iter()
            .map(|index| (index, self.lock(index)))
            .collect()
    }

    /// Sweeps the shard if that is due. At the end of a round, also sweeps another shard,
    /// so that the traffic of one key is enough to sweep all shards.
    fn sweep(&self, shard: &mut Shard, now: Timestamp) {
        if self.clock.is_some() || !shard.sweep(now) {
            return;
        }
        let idle = self.idle.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        // Not a blocking lock: it may be this shard, or in use by another thread.
        if let Some(mut idle) = self.shards[idle].try_lock() {
            idle.sweep_round(now);
        }
    }

    /// The fingerprint of a budget, and its shard.
    #[inline]
    fn place_of(&self, limit: &Limit, key: &Key) -> (u128, usize) {
        let fingerprint = fingerprint(&self.secrets, limit, key);
        // The table uses the lower half.
        let index = (fingerprint >> 64) as usize & (self.shards.len() - 1);
        (fingerprint, index)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock()
    }

    fn now(&self) -> Timestamp {
        match &self.clock {
            None => self.process.now(),
            Some(clock) => clock.now(),
        }
    }
}

/// The limit is moved, not cloned, because threads share its reference count.
#[inline]
fn decision(budget: Budget, (outcome, now): (Outcome, Timestamp), charged: u32) -> Decision {
    let is_shadow = budget.is_shadow();
    let verdict = Verdict::new(budget.into_limit(), outcome, charged).in_shadow(is_shadow);
    Decision::from(verdict).with_timestamp(now)
}

/// Makes room for the budgets of a group, in each of its shards.
fn make_room(
    shards: &mut BTreeMap<usize, MutexGuard<'_, Shard>>,
    group: &Group,
    places: &[(u128, usize)],
    needs_room: &[bool],
    now: Timestamp,
) -> Result<(), Error> {
    for (index, shard) in shards {
        let here = group.iter().zip(places.iter().zip(needs_room));
        let mut wanted = here
            .filter(|(_, ((_, place), needs))| place == index && **needs)
            .peekable();
        if let Some((first, _)) = wanted.peek().copied() {
            shard.make_room(wanted.count(), first.limit(), now)?;
        }
    }
    Ok(())
}

impl Store for MemoryStore {
    #[inline]
    fn apply(&self, operation: Operation) -> Answer {
        Answer::ready(
            operation
                .validate()
                .and_then(|()| self.apply_now(operation)),
        )
    }

    fn is_embedded(&self) -> bool {
        true
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

#[cfg(test)]
mod tests;
