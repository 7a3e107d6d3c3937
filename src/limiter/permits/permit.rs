//! A permit, and the answer to a caller that wants one.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::agent::Agent;
use super::state::SlotKey;
use crate::nouns::{Limit, Source};
use crate::telemetry::{self, Level};

/// The answer to a caller of this crate.
pub(crate) struct Acquired {
    pub(crate) permit: Option<Permit>,
    pub(crate) source: Source,
    /// The limit that decided: the configured one, or the share of this replica.
    pub(crate) limit: Limit,
}

/// A permit of a [concurrency limit](Limit::concurrency): at most so many requests of a key are in flight. Dropping it gives
/// it back. See [`RateLimiter::acquire_permit`](crate::RateLimiter::acquire_permit).
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit {
    agent: Arc<Agent>,
    slot: SlotKey,
    source: Source,
    /// The time of the grant, if this process granted it without the store.
    granted_here: Option<Instant>,
    /// In the gauge of permits.
    _held: Level,
}

impl Permit {
    pub(super) fn new(agent: Arc<Agent>, slot: SlotKey, source: Source) -> Self {
        let granted_here = (source != Source::Store).then(Instant::now);
        let held = telemetry::hold_permit(slot.name());
        Self {
            agent,
            slot,
            source,
            granted_here,
            _held: held,
        }
    }

    /// The source of the grant: the store, or while the store is unavailable the limit's [failure
    /// policy](Limit::with_on_store_failure).
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Whether the store has confirmed the permit within the last [lease](crate::RateLimiter::set_permit_lease). Otherwise
    /// another process may hold it, too: this process was blocked, or could not reach the store. A long job can check this
    /// before each step.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.agent.is_renewed(&self.slot, self.granted_here)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.agent.release(&self.slot);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("limit", &self.slot.name())
            .finish_non_exhaustive()
    }
}
