//! Checks: the input of a decision.

use std::time::Duration;

use super::Enforced;
use super::{Budget, Key, Limit, OnStoreFailure};
use crate::algorithm::offences::Blocking;
use crate::algorithm::{Cost, at_most_a_year};
use crate::units::{ConfigError, Micros};

/// A limit, a key and a cost, the input of a decision.
///
/// Several checks in one call are a [`Group`](crate::store::Group). All are charged, or none. See
/// [`RateLimiter::check_all`](crate::RateLimiter::check_all).
///
/// A check owns its parts and is cheap to clone. You can keep it in a wrapper of a store, in a task
/// that refunds later, or for a metric.
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
#[derive(Clone, Debug)]
pub struct Check {
    budget: Budget,
    cost: u32,
    /// Set if its key has no account in this process, and gets none with the store's answer. It
    /// holds only for the moment at which the check is made.
    is_of_new_key: bool,
    /// In a box, so that a check that has none of them is small, because it is copied several
    /// times.
    rare: Option<Box<Rare>>,
}

/// The fields that few checks have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rare {
    max_wait: Micros,
    /// If the check waits without a reservation.
    patience: Micros,
    /// `true` if the caller of a peek is denied.
    is_denied_caller: bool,
    /// If the limit has none.
    on_store_failure: Option<OnStoreFailure>,
}

impl Check {
    /// Creates a check of one unit.
    #[inline]
    #[must_use]
    pub fn new(limit: &Limit, key: impl Into<Key>) -> Self {
        Self {
            budget: Budget::new(limit, key),
            cost: 1,
            is_of_new_key: false,
            rare: None,
        }
    }

    /// Sets the cost, in units. Default: 1. A check of cost 0 is always allowed and consumes
    /// nothing.
    #[inline]
    #[must_use]
    pub const fn with_cost(mut self, cost: u32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the longest time that the caller waits for the units. Default: zero. Longer than a year
    /// counts as a year.
    ///
    /// Under a token bucket, GCRA, or a leaky bucket as a meter, a check that fits within this time
    /// is allowed with a [delay](crate::Decision::delay), because its units are reserved. So
    /// waiting checks are served in the order in which the store decided them, on all replicas.
    /// [Refund](crate::RateLimiter::refund) the check if it is given up. Other algorithms, and
    /// groups of several checks, do not reserve units.
    ///
    /// Under a leaky bucket as a queue, a check whose delay would be longer is denied, and consumes
    /// nothing. If the time is zero, its delay is not bounded.
    #[must_use]
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        let max_wait = at_most_a_year(max_wait);
        if max_wait > 0 || self.rare.is_some() {
            self.rare.get_or_insert_default().max_wait = max_wait;
        }
        self
    }

    /// The same check of a caller that waits for its units without a reservation. A denial that
    /// ends in time does not count as an offence.
    pub(crate) fn with_patience(mut self, patience: Duration) -> Self {
        if self.limit().counts_denials() {
            self.rare.get_or_insert_default().patience = at_most_a_year(patience);
        }
        self
    }

    /// The same check of a caller that is denied, whatever the store says. A peek that is denied
    /// counts as an offence.
    pub(crate) fn of_denied_caller(mut self) -> Self {
        if self.limit().counts_denials() {
            self.rare.get_or_insert_default().is_denied_caller = true;
        }
        self
    }

    #[inline]
    pub(crate) fn is_denied_caller(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.is_denied_caller)
    }

    /// Sets whether its key has no account in this process, and gets none with the store's answer.
    #[inline]
    pub(crate) const fn of_new_key(mut self, is_of_new_key: bool) -> Self {
        self.is_of_new_key = is_of_new_key;
        self
    }

    #[inline]
    pub(crate) const fn is_of_new_key(&self) -> bool {
        self.is_of_new_key
    }

    /// The same check under a limit that neither counts denials nor blocks keys.
    pub(crate) fn without_blocks(self) -> Self {
        match self.limit().blocking() {
            Some(_) => {
                let limit = self.limit().without_blocks();
                self.under(limit)
            }
            None => self,
        }
    }

    /// Sets the failure policy of a limit that has none.
    pub(crate) fn or_on_store_failure(mut self, policy: OnStoreFailure) -> Self {
        self.rare.get_or_insert_default().on_store_failure = Some(policy);
        self
    }

    /// The same check of a limit that is enforced for a share of its keys.
    pub(crate) fn with_enforced(self, enforced: Enforced) -> Self {
        let limit = self.limit().clone().with_enforced(enforced);
        self.under(limit)
    }

    /// The same check without the override of its key.
    pub(crate) fn without_override(&self) -> Self {
        self.clone().under(self.limit().without_override().clone())
    }

    /// The same check under a limit that shares the budget.
    pub(crate) fn under(self, limit: Limit) -> Self {
        Self {
            budget: self.budget.under(limit),
            ..self
        }
    }

    /// The policy for a store that is unavailable. `None` means that the check fails.
    pub(crate) fn failure_policy(&self) -> Option<OnStoreFailure> {
        self.limit()
            .on_store_failure()
            .or_else(|| self.rare.as_ref()?.on_store_failure)
    }

    /// The budget by which a charge is settled. A local charge is settled in the share of the
    /// limit, for which the limit needs the failure policy of the check.
    pub(crate) fn charged_budget(&self, is_local: bool) -> Budget {
        let own = self.limit().on_store_failure();
        let policy = self.failure_policy().filter(|_| is_local);
        let limit = policy.filter(|_| own.is_none()).and_then(|policy| {
            let limit = self.limit().clone();
            limit.with_on_store_failure(policy).ok()
        });
        match limit {
            Some(limit) => self.budget.clone().under(limit),
            None => self.budget.clone(),
        }
    }

    /// The same check of one replica's share of the limit. `None` if the limit does not fail over
    /// to its share.
    ///
    /// # Errors
    ///
    /// Returns an error if the share cannot be decided. The share of a limit with a policy of its
    /// own was checked when the policy was set.
    pub(crate) fn of_share(&self) -> Result<Option<Self>, ConfigError> {
        let share = match (self.limit().on_store_failure(), self.failure_policy()) {
            (None, Some(policy)) => self
                .limit()
                .clone()
                .with_on_store_failure(policy)?
                .share()
                .cloned(),
            _ => self.limit().share().cloned(),
        };
        Ok(share.map(|share| self.clone().under(share)))
    }

    /// The limit under which the cost counts.
    pub const fn limit(&self) -> &Limit {
        self.budget.limit()
    }

    /// The key whose budget is charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        self.budget.key()
    }

    /// The budget that is charged.
    #[inline]
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The cost, in units.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// The longest time that the caller waits for the units.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        Duration::from_micros(self.max_wait_us())
    }

    /// Returns whether this check is in shadow mode. Its limit decides and reports, and never
    /// denies. See [`Limit::with_shadow_mode`].
    #[must_use]
    #[inline]
    pub fn is_shadow(&self) -> bool {
        self.budget.is_shadow()
    }

    /// The cost that the check asks of its algorithm.
    #[inline]
    pub(crate) fn asked(&self) -> Cost {
        let (max_wait, patience) = match &self.rare {
            None => (0, 0),
            Some(rare) => (rare.max_wait, rare.patience),
        };
        Cost {
            units: self.cost.into(),
            max_wait,
            patience,
        }
    }

    /// How its key is blocked, if the limit does that, and is enforced for the key.
    #[inline]
    pub(crate) fn blocking(&self) -> Option<&Blocking> {
        self.budget.blocking()
    }

    /// Removes the [`max_wait`](Self::max_wait), if units would be reserved for it.
    pub(super) fn reserve_nothing(&mut self) {
        if self.limit().reserves()
            && let Some(rare) = &mut self.rare
        {
            rare.max_wait = 0;
            if **rare == Rare::default() {
                self.rare = None;
            }
        }
    }

    #[inline]
    fn max_wait_us(&self) -> Micros {
        self.rare.as_ref().map_or(0, |rare| rare.max_wait)
    }
}

impl From<Check> for Budget {
    #[inline]
    fn from(check: Check) -> Self {
        check.budget
    }
}

impl AsRef<Budget> for Check {
    #[inline]
    fn as_ref(&self) -> &Budget {
        &self.budget
    }
}

/// Equal checks have equal limits with equal settings, which is more than equal budgets.
impl PartialEq for Check {
    fn eq(&self, other: &Self) -> bool {
        self.limit() == other.limit()
            && self.key() == other.key()
            && self.cost == other.cost
            && self.rare == other.rare
    }
}

impl Eq for Check {}
