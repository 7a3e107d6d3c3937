//! A budget with its hash.

use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;

use super::AGENTS;
use crate::model::Budget;

/// The key of an agent's tables. The budget is hashed once, because an agent looks it up several
/// times for each permit, while threads wait for its lock.
pub(super) struct HashedBudget {
    budget: Budget,
    hash: u64,
}

impl HashedBudget {
    pub(super) fn new(budget: &Budget, hasher: &impl BuildHasher) -> Self {
        Self {
            budget: budget.clone(),
            hash: hasher.hash_one(budget),
        }
    }

    /// The number of the agent that has the holder. The tables use the lowest and the highest bits.
    pub(super) const fn agent(&self) -> usize {
        (self.hash >> 32) as usize % AGENTS
    }
}

impl Deref for HashedBudget {
    type Target = Budget;

    fn deref(&self) -> &Budget {
        &self.budget
    }
}

impl PartialEq for HashedBudget {
    fn eq(&self, other: &Self) -> bool {
        self.budget == other.budget
    }
}

impl Eq for HashedBudget {}

impl Hash for HashedBudget {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}
