//! The numbers of changes, by which a caller sees that an answer is older than a change.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;

use super::{Budget, Check};

/// The changes (refunds, settlements, resets, blocks) of all budgets, numbered in one sequence.
/// Each budget has the number of its last change.
///
/// A change of one budget also counts for the budgets that share its place. Then the store is asked
/// too often, and never too rarely.
pub(crate) struct BudgetChanges<const PLACES: usize> {
    last: AtomicU64,
    /// The last number of each budget, by its hash.
    places: Box<[AtomicU64; PLACES]>,
    hasher: DefaultHashBuilder,
}

impl<const PLACES: usize> Default for BudgetChanges<PLACES> {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(0),
            places: Box::new([const { AtomicU64::new(0) }; PLACES]),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<const PLACES: usize> BudgetChanges<PLACES> {
    /// The number of the last change of any budget.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// Returns whether no budget of a group was changed after the change of this number.
    pub(crate) fn is_unchanged_since(&self, number: u64, group: &[Check]) -> bool {
        group.iter().all(|check| {
            let place = self.place(check.budget());
            self.places[place].load(Ordering::SeqCst) <= number
        })
    }

    /// Gives the next number to a change of a budget with this place.
    pub(crate) fn confirm(&self, place: usize) {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        self.places[place].fetch_max(number, Ordering::SeqCst);
    }

    /// The place of a budget.
    pub(crate) fn place(&self, budget: &Budget) -> usize {
        self.hasher.hash_one(budget) as usize % PLACES
    }
}
