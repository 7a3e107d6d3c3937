//! One shard of the embedded store, a table of budgets that sweeps expired ones as it is used.

use crate::algorithm::{Cost, Effect, State};
use crate::model::{Change, Check, Error, Limit};
use crate::store::table::{Cursor, Hashed, Table};
use crate::units::{Micros, Outcome, Timestamp};

/// Places of the table that are swept for each budget that is added. So however many clients come,
/// the shard has a few times as many budgets as are in use.
const SWEPT_PER_BUDGET: usize = 2;

/// Places that are swept at a time, because a few together cost less than one by one.
const SWEEP_STEP: usize = 32;

/// An operation also sweeps [`SWEEP_STEP`] places if the last step was so long ago, to free the
/// memory of clients that left: of a million, within 7 s at 32,000 checks a second of all kinds of
/// keys, and within 5 minutes at 1,000 a second of one key.
const SWEEP_EVERY: Micros = 4_000;

/// The fewest places of a sweep round, even if the table is smaller.
const MIN_ROUND: usize = 64;

/// Budgets that an eviction compares.
const CANDIDATES: usize = 16;

/// The most places that an eviction looks at, so that a full table does not make a check slow.
const MAX_LOOKS: usize = 256;

/// A stored budget.
pub(super) struct StoredBudget {
    /// The upper half of its fingerprint.
    strong: u64,
    /// `None` only outside the table.
    pub(super) state: Option<State>,
    /// The time until which a check of one unit is known to be denied.
    exhausted_until: Timestamp,
    /// The lower half of its fingerprint, which is its hash in the table.
    quick: u64,
}

impl Hashed for StoredBudget {
    fn hash(&self) -> u64 {
        self.quick
    }
}

impl StoredBudget {
    const fn new(of: u128, state: Option<State>) -> Self {
        Self {
            strong: (of >> 64) as u64,
            state,
            exhausted_until: Timestamp::EPOCH,
            quick: of as u64,
        }
    }

    const fn is_of(&self, budget: u128) -> bool {
        self.quick == budget as u64 && self.strong == (budget >> 64) as u64
    }

    fn expires_at(&self) -> Timestamp {
        self.state.as_ref().map_or(Timestamp::EPOCH, State::expiry)
    }

    fn is_deletable(&self, now: Timestamp) -> bool {
        self.state
            .as_ref()
            .is_none_or(|state| state.is_deletable(now))
    }

    /// Notes the time until which the check, or a check of one unit, is denied. Only a refund or a
    /// reset ends a denial earlier.
    #[inline(never)]
    pub(super) fn update_exhaustion(
        &mut self,
        action: BudgetAction<'_>,
        limit: &Limit,
        outcome: &Outcome,
        now: Timestamp,
    ) {
        let known = match action {
            BudgetAction::Peek => return,
            BudgetAction::Charge => self.exhausted_until,
            // A budget with permits is never evicted.
            BudgetAction::Change(Change::Claim(_)) => {
                self.exhausted_until = self.expires_at();
                return;
            }
            // These pass while the key is blocked, so their outcome has no wait.
            BudgetAction::Change(
                Change::Settle { .. } | Change::Pay(_) | Change::Reset | Change::Block(_),
            ) => self
                .state
                .as_ref()
                .map_or(Timestamp::EPOCH, State::blocked_until),
        };
        let wait = outcome.retry_after.or_else(|| {
            let mut next = || {
                limit
                    .rule()
                    .decide(&mut self.state, now, Cost::units(1), Effect::Dry)
            };
            (outcome.remaining == 0).then(&mut next)?.retry_after
        });
        self.exhausted_until = known.max(wait.map_or(Timestamp::EPOCH, |wait| now + wait));
    }
}

/// An action on a budget.
#[derive(Clone, Copy)]
pub(super) enum BudgetAction<'a> {
    Charge,
    Peek,
    Change(&'a Change),
}

/// The shard is full, and no budget may be evicted for one of this limit.
fn full(limit: &Limit) -> Error {
    let full = Error::full(
        "its budgets are exhausted or have permits, and such a budget is never evicted; raise \
         `MemoryStoreBuilder::max_keys`",
    );
    full.of_limit(limit)
}

pub(super) struct Shard {
    table: Table<StoredBudget>,
    /// The most budgets in the table.
    cap: Option<usize>,
    /// The next place to sweep.
    cursor: Cursor,
    /// Places to sweep, counted since the last step.
    due: usize,
    /// The time of the last step.
    stepped_at: Timestamp,
    /// Places swept in this round.
    swept: usize,
    /// The next place of an eviction.
    hand: Cursor,
}

impl Shard {
    pub(super) fn new(cap: Option<usize>) -> Self {
        let cursor = Cursor::default();
        let hand = Cursor::default();
        Self {
            table: Table::default(),
            cap,
            cursor,
            due: 0,
            stepped_at: Timestamp::EPOCH,
            swept: 0,
            hand,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Applies an operation to one budget, in its place.
    #[inline]
    pub(super) fn apply(
        &mut self,
        of: u128,
        limit: &Limit,
        action: BudgetAction<'_>,
        now: Timestamp,
        decide: impl FnOnce(&mut Option<State>) -> Outcome,
    ) -> Result<Outcome, Error> {
        let Some(budget) = self.table.find_mut(of as u64, |budget| budget.is_of(of)) else {
            let mut state = None;
            let outcome = decide(&mut state);
            if state.is_some() {
                self.add(of, state, limit, action, &outcome, now)?;
            }
            return Ok(outcome);
        };
        let outcome = decide(&mut budget.state);
        if self.cap.is_some() {
            budget.update_exhaustion(action, limit, &outcome, now);
        }
        if budget.state.is_none() {
            self.table.remove(of as u64, |budget| budget.is_of(of));
        }
        Ok(outcome)
    }

    /// Adds a budget that was full before an operation.
    #[inline(never)]
    fn add(
        &mut self,
        of: u128,
        state: Option<State>,
        limit: &Limit,
        action: BudgetAction<'_>,
        outcome: &Outcome,
        now: Timestamp,
    ) -> Result<(), Error> {
        self.make_room(1, limit, now)?;
        let mut budget = StoredBudget::new(of, state);
        if self.cap.is_some() {
            budget.update_exhaustion(action, limit, outcome, now);
        }
        self.put(budget);
        Ok(())
    }

    /// The units left in the budget of a check, whatever blocks its key.
    pub(super) fn left_in_budget(&mut self, of: u128, check: &Check, now: Timestamp) -> u64 {
        let budget = self.table.find_mut(of as u64, |budget| budget.is_of(of));
        let mut full = None;
        let state = budget.map_or(&mut full, |budget| &mut budget.state);
        let rule = check.limit().rule();
        rule.decide(state, now, Cost::NONE, Effect::Dry).remaining
    }

    /// Removes a budget from the table, or creates one.
    pub(super) fn take(&mut self, of: u128) -> StoredBudget {
        let Some(found) = self.table.remove(of as u64, |budget| budget.is_of(of)) else {
            return StoredBudget::new(of, None);
        };
        // A budget that is put back is not added.
        self.due = self.due.saturating_sub(SWEPT_PER_BUDGET);
        found
    }

    /// Adds a budget that is not in the table, if it has a state.
    pub(super) fn put(&mut self, budget: StoredBudget) {
        if budget.state.is_some() {
            self.table.insert(budget);
            self.due += SWEPT_PER_BUDGET;
        }
    }

    /// Makes room for `wanted` budgets, the first of `limit`. Evicts an expired budget if it finds
    /// one. Otherwise, evicts the one that expires soonest, among a few that are not exhausted.
    pub(super) fn make_room(
        &mut self,
        wanted: usize,
        limit: &Limit,
        now: Timestamp,
    ) -> Result<(), Error> {
        while self.cap.is_some_and(|cap| self.table.len() + wanted > cap) {
            let place = self.victim(now).ok_or_else(|| full(limit))?;
            self.table.remove_at(place);
        }
        Ok(())
    }

    fn victim(&mut self, now: Timestamp) -> Option<Cursor> {
        let mut least: Option<(Timestamp, Cursor)> = None;
        let mut candidates = 0;
        let start = self.hand;
        for look in 0..MAX_LOOKS {
            if look > 0 && self.hand == start {
                break;
            }
            (self.hand, _) = self.table.next(self.hand);
            let Some(budget) = self.table.get(self.hand) else {
                continue;
            };
            let expires_at = budget.expires_at();
            if expires_at <= now {
                return Some(self.hand);
            }
            if budget.exhausted_until > now {
                continue;
            }
            if least.is_none_or(|(soonest, _)| expires_at < soonest) {
                least = Some((expires_at, self.hand));
            }
            candidates += 1;
            if candidates == CANDIDATES {
                break;
            }
        }
        least.map(|(_, place)| place)
    }

    /// Sweeps [`SWEEP_STEP`] places if as many are due, or [`SWEEP_EVERY`] has passed. Returns
    /// whether this was the last step of a round.
    #[inline]
    pub(super) fn sweep(&mut self, now: Timestamp) -> bool {
        if self.due < SWEEP_STEP && now < self.stepped_at + SWEEP_EVERY {
            return false;
        }
        self.due = self.due.saturating_sub(SWEEP_STEP);
        self.stepped_at = now;
        self.sweep_due(now)
    }

    #[cold]
    fn sweep_due(&mut self, now: Timestamp) -> bool {
        let through = self.sweep_step(now);
        self.swept += SWEEP_STEP;
        if !through || self.swept < MIN_ROUND {
            return false;
        }
        self.swept = 0;
        true
    }

    /// Sweeps up to [`MIN_ROUND`] places, which is a full round of a small table.
    pub(super) fn sweep_round(&mut self, now: Timestamp) {
        for _ in 0..MIN_ROUND / SWEEP_STEP {
            if self.sweep_step(now) {
                return;
            }
        }
    }

    fn sweep_step(&mut self, now: Timestamp) -> bool {
        self.table.sweep(&mut self.cursor, SWEEP_STEP, |budget| {
            budget.is_deletable(now)
        })
    }
}
