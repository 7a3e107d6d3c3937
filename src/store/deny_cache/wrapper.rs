//! A wrapper of a store that answers repeated denials, for tests (feature `test-util`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{DEFAULT_CAPACITY, DEFAULT_DENY_BLOCKED_FOR, DEFAULT_DENY_FOR, DenyCache};
use crate::model::{Change, Limit, Operation};
use crate::store::{Answer, Note, Store};
use crate::units::ConfigError;

/// Any store with a memory of its denials. It exists for tests in virtual time, because
/// `RedisStore` has its own, which notes a denial also if its caller is gone.
#[derive(Clone)]
pub struct WithDenyCache<S> {
    store: S,
    deny_cache: Arc<DenyCache>,
    ages: [Duration; 2],
    capacity: usize,
}

impl<S: Store> WithDenyCache<S> {
    /// Wraps a store. A clone shares the denials, so the store's clone has to be a handle on the
    /// same store.
    pub fn new(store: S) -> Self {
        let ages = [DEFAULT_DENY_FOR, DEFAULT_DENY_BLOCKED_FOR];
        let capacity = DEFAULT_CAPACITY;
        Self {
            store,
            deny_cache: Arc::new(DenyCache::new(ages, capacity)),
            ages,
            capacity,
        }
    }

    /// Sets the longest time for which a denial is answered without asking the store. Default: 1
    /// second. For that time another replica's refund or reset is not seen. Zero always asks the
    /// store, but for blocked keys. See [`deny_blocked_for`](Self::deny_blocked_for). While the
    /// store is unavailable, a denial stands in any case.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.ages[0] = max_age;
        self.rebuilt()
    }

    /// Sets the longest time for which a [blocked](Limit::with_block_policy) key is denied without
    /// asking the store. Default: 10 seconds. For that time, it is not seen that another replica
    /// ends the block. Zero always asks the store. At most 366 days.
    #[must_use]
    pub fn deny_blocked_for(mut self, at_most: Duration) -> Self {
        self.ages[1] = at_most;
        self.rebuilt()
    }

    /// Sets the number of denials that are remembered at most. Default: 100,000, about 40 MB. A
    /// denial of several limits counts as one more for each four of them. With zero, none is.
    #[must_use]
    pub fn capacity(mut self, denials: usize) -> Self {
        self.capacity = denials;
        self.rebuilt()
    }

    fn rebuilt(mut self) -> Self {
        self.deny_cache = Arc::new(DenyCache::new(self.ages, self.capacity));
        self
    }
}

impl<S: Store> Store for WithDenyCache<S> {
    fn apply(&self, operation: Operation) -> Answer {
        match operation {
            Operation::Charge(group) => self.deny_cache.answer_or_ask(group, |group| {
                let asked = self.deny_cache.asked(Instant::now());
                let deny_cache = Arc::clone(&self.deny_cache);
                let answer = self.store.apply(Operation::Charge(group.clone()));
                answer.resolved(move |answer| {
                    if let Some(denial) = answer.as_ref().ok().filter(|it| !it.allowed()) {
                        deny_cache.record(&group, asked, denial);
                    }
                    answer
                })
            }),
            // A payment takes units, so denials stay true.
            Operation::Peek(_) | Operation::Change(_, Change::Pay(_)) => {
                self.store.apply(operation)
            }
            Operation::Change(ref budget, _) => {
                let mut change = self.deny_cache.begin_change(budget);
                change.set_sent(true);
                self.store.apply(operation).resolved(move |answer| {
                    change.answered(&answer);
                    answer
                })
            }
        }
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        self.store.check_limits(limits)
    }

    fn note(&self, note: Note<'_>) {
        self.store.note(note);
    }

    fn is_embedded(&self) -> bool {
        self.store.is_embedded()
    }
}

impl<S: fmt::Debug> fmt::Debug for WithDenyCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithDenyCache")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
