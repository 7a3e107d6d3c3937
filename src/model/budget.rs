//! Budgets: what is counted for a key under a limit.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use super::{Key, Limit};
use crate::algorithm::offences::Blocking;

/// The units of a key under a limit.
///
/// Limits of one name and [kind](Limit#kinds) share a budget, with any quotas and
/// settings. So two budgets are equal if their names, kinds and keys are equal.
///
/// ```
/// use tollgate::store::Budget;
/// use tollgate::{Limit, Quota};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let free = Limit::token_bucket("api", Quota::per_second(5))?;
/// let pro = Limit::token_bucket("api", Quota::per_second(50))?;
/// assert_eq!(Budget::new(&free, "alice"), Budget::new(&pro, "alice"));
/// assert_ne!(Budget::new(&free, "alice"), Budget::new(&free, "bob"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Budget {
    limit: Limit,
    key: Key,
}

impl Budget {
    /// The budget of a key under a limit.
    #[inline]
    #[must_use]
    pub fn new(limit: &Limit, key: impl Into<Key>) -> Self {
        Self {
            limit: limit.clone(),
            key: key.into(),
        }
    }

    /// One of the limits that share it.
    #[inline]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The key that owns it.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Its limit and its key.
    #[inline]
    pub(crate) const fn parts(&self) -> (&Limit, &Key) {
        (&self.limit, &self.key)
    }

    /// Returns whether this is the budget of a key under a limit.
    #[inline]
    pub(crate) fn is_of(&self, (limit, key): (&Limit, &Key)) -> bool {
        self.key == *key && self.limit.shares_budgets_with(limit)
    }

    /// Returns whether its limit is in shadow mode for the key.
    #[inline]
    pub(crate) fn is_shadow(&self) -> bool {
        !self.limit.enforces(&self.key)
    }

    /// How its key is blocked, if the limit does that, and is enforced for the key.
    #[inline]
    pub(crate) fn blocking(&self) -> Option<&Blocking> {
        self.limit.blocking_of(&self.key)
    }

    /// The same budget, by another limit that shares it.
    pub(crate) fn under(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    #[inline]
    pub(crate) fn into_limit(self) -> Limit {
        self.limit
    }

    fn order(&self) -> (&str, &str, &str) {
        (self.limit.name(), self.limit.kind(), self.key.as_str())
    }
}

impl AsRef<Self> for Budget {
    #[inline]
    fn as_ref(&self) -> &Self {
        self
    }
}

impl PartialEq for Budget {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.is_of(other.parts())
    }
}

impl Eq for Budget {}

impl Hash for Budget {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.limit.budget_hash().hash(state);
        self.key.hash(state);
    }
}

impl Ord for Budget {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Budget {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::units::{ConfigError, Quota};

    fn budget(limit: Result<Limit, ConfigError>, key: &str) -> Budget {
        Budget::new(&limit.unwrap(), key)
    }

    #[test]
    fn limits_of_one_name_and_kind_share_a_budget() {
        let quota = Quota::per_second(10);
        let budgets = [
            budget(Limit::gcra("api", quota), "alice"),
            budget(Limit::token_bucket("api", Quota::per_hour(7)), "alice"),
            budget(Limit::fixed_window("api", quota), "alice"),
            budget(Limit::gcra("api", quota), "bob"),
            budget(Limit::gcra("search", quota), "alice"),
        ];
        assert_eq!(budgets[0], budgets[1]);
        assert_eq!(budgets[0].cmp(&budgets[1]), Ordering::Equal);
        // Without their hashes, which also differ.
        for other in &budgets[2..] {
            assert_ne!(&budgets[0], other);
        }
        let different: HashSet<&Budget> = budgets.iter().collect();
        assert_eq!(different.len(), 4);
        let mut sorted: Vec<&Budget> = budgets.iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 4);
    }
}
