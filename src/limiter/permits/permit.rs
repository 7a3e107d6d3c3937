//! A permit, and the answer to a caller that wants one.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::hashed_budget::HashedBudget;
use crate::model::{Budget, Key, Limit, Source};
use crate::telemetry::{self, GaugeLevel};

/// The answer to a layer, or to `RateLimiter::acquire_permit`.
pub(crate) struct PermitAnswer {
    pub(crate) permit: Option<Permit>,
    pub(crate) source: Source,
    /// The limit that decided: the configured one, or the share of this replica.
    pub(crate) limit: Limit,
}

impl PermitAnswer {
    pub(super) fn of_store(permit: Option<Permit>, limit: &Limit) -> Self {
        Self {
            permit,
            source: Source::Store,
            limit: limit.clone(),
        }
    }

    pub(super) fn of_override(permit: Option<Permit>, limit: &Limit) -> Self {
        Self {
            permit,
            source: Source::Override,
            limit: limit.clone(),
        }
    }

    /// Returns whether a wait can help, because the store had no free permit. The decision of a
    /// failure policy stands.
    pub(crate) const fn may_wait(&self) -> bool {
        self.permit.is_none() && matches!(self.source, Source::Store)
    }
}

/// The budget, under a limit of so many permits.
pub(super) fn under(budget: &Budget, permits: u32) -> Budget {
    let limit = budget.limit();
    let key = budget.key();
    if permits == limit.permits() {
        return budget.clone();
    }
    // Plans differ. The name was valid, and so was the number.
    let other = Limit::concurrency(limit.name(), permits);
    Budget::new(other.as_ref().unwrap_or(limit), key)
}

/// The agent or load shedder that granted a permit, and takes it back.
pub(super) trait Grantor: Send + Sync {
    fn take_back(self: Arc<Self>, budget: &Arc<HashedBudget>);

    /// Returns whether the store has confirmed a permit within a lease. One that this process
    /// granted counts from then on.
    fn is_renewed(&self, budget: &Arc<HashedBudget>, granted_here: Option<Instant>) -> bool;
}

/// The grantor of permits that an override exempts.
struct Unlimited;

impl Grantor for Unlimited {
    fn take_back(self: Arc<Self>, _: &Arc<HashedBudget>) {}

    fn is_renewed(&self, _: &Arc<HashedBudget>, _: Option<Instant>) -> bool {
        true
    }
}

/// A permit of a [concurrency limit](Limit::concurrency), which bounds the requests of a key that
/// are in flight. Dropping it gives it back. See
/// [`RateLimiter::acquire_permit`](crate::RateLimiter::acquire_permit).
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit {
    grantor: Arc<dyn Grantor>,
    /// Its copies share a reference count of their own, because all threads that use the limit
    /// change the limit's count.
    budget: Arc<HashedBudget>,
    source: Source,
    /// The time of the grant, if this process granted it without the store.
    granted_here: Option<Instant>,
    /// In the gauge of permits.
    _held: GaugeLevel,
}

impl Permit {
    pub(super) fn new(
        grantor: Arc<dyn Grantor>,
        budget: Arc<HashedBudget>,
        source: Source,
        granted_here: Option<Instant>,
    ) -> Self {
        let held = telemetry::hold_permit(budget.limit().name());
        Self {
            grantor,
            budget,
            source,
            granted_here,
            _held: held,
        }
    }

    /// A permit of a key that is not limited. Nothing counts it.
    pub(super) fn unlimited(budget: HashedBudget) -> Self {
        Self::new(
            Arc::new(Unlimited),
            Arc::new(budget),
            Source::Override,
            None,
        )
    }

    /// The name of the limit.
    #[must_use]
    pub fn limit_name(&self) -> &str {
        self.budget.limit().name()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.budget.key()
    }

    /// The source of the grant: the store, or while the store is unavailable the limit's [failure
    /// policy](Limit::with_on_store_failure), or an
    /// [override](crate::overrides::Override) that exempts the key.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Returns whether the store has confirmed the permit within the last
    /// [lease](crate::RateLimiterBuilder::permit_lease). Otherwise another process may also hold
    /// it, because this process was blocked, or could not reach the store. A long job can check
    /// this before each step.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.grantor.is_renewed(&self.budget, self.granted_here)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        Arc::clone(&self.grantor).take_back(&self.budget);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("limit", &self.budget.limit().name())
            .finish_non_exhaustive()
    }
}
