//! Checks, and the operations that a store applies to them.

use super::{Key, Limit, Receipt};

/// The operation that a store applies to a group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Charges the cost of every check of the group, or of none.
    Charge,
    /// Returns the decision that a charge would return. Changes nothing.
    Peek,
    /// Gives back the cost of every check, as far as the charge of its
    /// [receipt](Check::receipt) still counts. The decision is that of a peek of cost 0 afterwards.
    Refund,
    /// Deletes the state of every budget. The decision is that of a peek of cost 0 afterwards.
    Reset,
}

/// A limit, a key and a cost: the input of a decision.
///
/// Several checks in one call are a [`Group`](crate::store::Group): all are charged, or none. See
/// [`RateLimiter::check_all`](crate::RateLimiter::check_all).
///
/// A check owns its parts and is cheap to clone. A wrapper of a store, a task that refunds later,
/// or a metric can keep it.
///
/// ```
/// use tollgate::{Check, Key, Limit, Quota};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let tokens = Limit::token_bucket("tokens", Quota::per_minute(10_000))?;
/// let check = Check::new(&tokens, "alice").with_cost(800);
/// assert_eq!(check.limit().name(), "tokens");
/// assert_eq!(check.key(), &Key::new("alice"));
/// assert_eq!(check.cost(), 800);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    limit: Limit,
    key: Key,
    cost: u32,
    receipt: Option<Receipt>,
}

impl Check {
    /// Creates a check of one unit.
    #[inline]
    #[must_use]
    pub fn new(limit: &Limit, key: impl Into<Key>) -> Self {
        Self { limit: limit.clone(), key: key.into(), cost: 1, receipt: None }
    }

    /// Sets the cost, in units. Default: 1. A check of cost 0 is always allowed and consumes
    /// nothing.
    #[inline]
    #[must_use]
    pub const fn with_cost(mut self, cost: u32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the receipt of the charge to [refund](Op::Refund). Default: none. Without a receipt, a
    /// refund gives nothing back.
    #[must_use]
    pub fn with_receipt(mut self, receipt: impl Into<Option<Receipt>>) -> Self {
        self.receipt = receipt.into();
        self
    }

    /// The limit under which the cost counts.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The key whose budget is charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The cost, in units.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// The receipt of the charge to refund.
    #[must_use]
    pub const fn receipt(&self) -> Option<Receipt> {
        self.receipt
    }

    /// The limit, for the answer to this check.
    pub(crate) fn into_limit(self) -> Limit {
        self.limit
    }

    /// Whether both checks charge the same budget.
    pub(crate) fn shares_budget_with(&self, other: &Self) -> bool {
        self.limit.shares_budgets_with(&other.limit) && self.key == other.key
    }
}
