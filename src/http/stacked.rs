//! Times that stacked layers pass to each other, in the extensions of requests and responses.
//!
//! A layer further inside may deny a request that used up the budget of a layer outside. To try
//! again helps only when both allow it. So the outer layer leaves a time in the request's
//! extensions, and the denial has it in all its numbers.
//!
//! A budget is used up if it has fewer units left than the request costs. `X-RateLimit-Remaining`
//! may say more than 0 of it. So the inner layer leaves a time in the response's extensions, and
//! the outer one does not take its own fields for stricter.

use std::time::Duration;

use http::Extensions;
use tokio::time::Instant;

use super::number::seconds;
use crate::model::Decision;
use crate::units::later;

/// The time when a used-up budget allows the same request again, if no other request comes. For a
/// sliding window or a log, which do not say it, the time of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NextAllowed(Instant);

impl NextAllowed {
    /// The time for a decision that was made just now. `None` if no budget is used up.
    #[inline]
    pub(super) fn after(decision: &Decision) -> Option<Self> {
        let after = || Duration::from_micros(decision.next_after());
        decision
            .is_used_up()
            .then(|| Self(later(Instant::now(), after())))
    }

    /// The latest time that the layers outside left with a request, or those inside with a
    /// response.
    pub(super) fn read(extensions: &Extensions) -> Option<Self> {
        extensions.get().copied()
    }

    #[cold]
    pub(super) fn leave_in(self, extensions: &mut Extensions) {
        if Self::read(extensions) < Some(self) {
            extensions.insert(self);
        }
    }

    /// From now, rounded up.
    pub(super) fn seconds(self) -> u64 {
        seconds(self.0.saturating_duration_since(Instant::now()))
    }
}
