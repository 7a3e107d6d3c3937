//! The numbers of changes, by which the deny cache sees that a denial is older than a change.

use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

use hashbrown::DefaultHashBuilder;

use crate::model::{Budget, Check};
use crate::units::AtomicU64;

/// A change of one budget also voids the denials of the budgets that share its place, one in 4096.
/// A model with that many would take hours.
pub(super) const PLACES: usize = if cfg!(tollgate_loom) { 1 } else { 4096 };

/// The changes (refunds, settlements, resets, blocks) of all budgets, numbered in one sequence as
/// the store confirms them. Each budget has the number of its last change.
pub(super) struct BudgetChanges {
    last: AtomicU64,
    /// The last number of each budget, by its hash.
    places: Box<[AtomicU64]>,
    hasher: DefaultHashBuilder,
}

impl BudgetChanges {
    pub(super) fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// The number of the last change of any budget.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Returns whether no budget of a group was changed after the change of this number.
    pub(super) fn is_unchanged_since(&self, number: u64, group: &[Check]) -> bool {
        group.iter().all(|check| {
            let place = self.place(check.budget());
            self.places[place].load(Ordering::Acquire) <= number
        })
    }

    /// Gives the next number to a change of a budget with this place.
    pub(super) fn confirm(&self, place: usize) {
        let number = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        self.places[place].fetch_max(number, Ordering::AcqRel);
    }

    /// The place of a budget.
    pub(super) fn place(&self, budget: &Budget) -> usize {
        self.hasher.hash_one(budget) as usize % PLACES
    }
}
