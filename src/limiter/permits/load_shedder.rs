//! Permits of a server that sheds load. They are counted in this process, and need no store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::hashed_budget::HashedBudget;
use super::permit::{Grantor, Permit};
use crate::model::Source;
use crate::units::AtomicU32;

/// Counts the requests in flight.
#[derive(Default)]
pub(super) struct LoadShedder(AtomicU32);

impl LoadShedder {
    /// Grants a permit, unless as many as the limit allows are in flight.
    pub(super) fn grant(self: &Arc<Self>, budget: HashedBudget) -> Option<Permit> {
        let most = budget.limit().permits();
        let one_more = |in_flight| (in_flight < most).then_some(in_flight + 1);
        let counted = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.ok()?;
        let grantor = Arc::<Self>::clone(self);
        Some(Permit::new(grantor, Arc::new(budget), Source::Store, None))
    }
}

impl Grantor for LoadShedder {
    fn take_back(self: Arc<Self>, _: &Arc<HashedBudget>) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// No store has to confirm it.
    fn is_renewed(&self, _: &Arc<HashedBudget>, _: Option<Instant>) -> bool {
        true
    }
}

#[cfg(all(test, tollgate_loom))]
mod tests {
    mod interleavings;
}
