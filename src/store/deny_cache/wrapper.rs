//! A wrapper of a store that answers repeated denials, for tests (feature `test-util`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{
    ChangeUnderWay, DEFAULT_CAPACITY, DEFAULT_DENY_BLOCKED_FOR, DEFAULT_DENY_FOR, DenyCache,
};
use crate::model::{Decision, Error, Group, Limit, Operation};
use crate::store::{Answer, Note, Store};
use crate::units::ConfigError;

/// Any store with a memory of its denials. It exists for tests in virtual time, because
/// `RedisStore` has its own, which notes a denial also if its caller is gone.
pub struct WithDenyCache<S> {
    store: S,
    deny_cache: Option<Arc<DenyCache>>,
    max_age: Duration,
    deny_blocked_for: Duration,
    capacity: usize,
}

impl<S: Store> WithDenyCache<S> {
    /// Wraps a store.
    pub fn new(store: S) -> Self {
        let max_age = DEFAULT_DENY_FOR;
        let deny_blocked_for = DEFAULT_DENY_BLOCKED_FOR;
        Self {
            store,
            deny_cache: None,
            max_age,
            deny_blocked_for,
            capacity: DEFAULT_CAPACITY,
        }
        .rebuilt()
    }

    /// Sets the longest time for which a denial is answered without asking the store. Default: 1
    /// second. For that time another replica's refund or reset is not seen. Zero always asks the
    /// store, but for blocked keys. See [`deny_blocked_for`](Self::deny_blocked_for). While the
    /// store is unavailable, a denial stands in any case.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self.rebuilt()
    }

    /// Sets the longest time for which a [blocked](Limit::with_block_policy) key is denied without
    /// asking the store. Default: 10 seconds. For that time, it is not seen that another replica
    /// ends the block. Zero always asks the store. At most 366 days.
    #[must_use]
    pub fn deny_blocked_for(mut self, at_most: Duration) -> Self {
        self.deny_blocked_for = at_most;
        self.rebuilt()
    }

    /// Sets the number of denials that are remembered at most. Default: 100,000, about 40 MB. A
    /// denial of several limits counts as one more for each four of them. Zero turns the cache off.
    #[must_use]
    pub fn capacity(mut self, denials: usize) -> Self {
        self.capacity = denials;
        self.rebuilt()
    }

    fn rebuilt(mut self) -> Self {
        let ages = [self.max_age, self.deny_blocked_for];
        self.deny_cache =
            (self.capacity > 0).then(|| Arc::new(DenyCache::new(ages, self.capacity)));
        self
    }
}

impl<S: Store> WithDenyCache<S> {
    /// Asks the store, and remembers a denial.
    fn apply_remembering(&self, deny_cache: &Arc<DenyCache>, group: Group) -> Answer {
        let asked = deny_cache.asked(Instant::now());
        let deny_cache = Arc::clone(deny_cache);
        let answer = self.store.apply(Operation::Charge(group.clone()));
        answer.resolved(move |answer| {
            if let Some(denial) = denial(&answer) {
                deny_cache.record(&group, asked, denial);
            }
            answer
        })
    }

    /// Asks the store for a change.
    fn ask_change(&self, mut change: ChangeUnderWay, operation: Operation) -> Answer {
        change.set_sent(true);
        let answer = self.store.apply(operation);
        answer.resolved(move |answer| {
            change.answered(&answer);
            answer
        })
    }
}

fn denial(answer: &Result<Decision, Error>) -> Option<&Decision> {
    answer.as_ref().ok().filter(|decision| !decision.allowed())
}

impl<S: Store> Store for WithDenyCache<S> {
    fn apply(&self, operation: Operation) -> Answer {
        let Some(deny_cache) = &self.deny_cache else {
            return self.store.apply(operation);
        };
        match operation {
            Operation::Charge(group) => {
                deny_cache.answer_or_ask(group, |group| self.apply_remembering(deny_cache, group))
            }
            Operation::Peek(_) => self.store.apply(operation),
            Operation::Change(ref budget, _) => {
                self.ask_change(deny_cache.change(budget), operation)
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

impl<S: Clone> Clone for WithDenyCache<S> {
    /// Shares the denials. The store's clone has to be a handle on the same store.
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            deny_cache: self.deny_cache.clone(),
            ..*self
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for WithDenyCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithDenyCache")
            .field("store", &self.store)
            .field("max_age", &self.max_age)
            .field("deny_blocked_for", &self.deny_blocked_for)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
