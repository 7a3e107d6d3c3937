//! Settlements in flight. They are sent in the background, and a program awaits them before it
//! ends.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::{RateLimiter, Shared};
use crate::telemetry;

/// Longer than the deadline of most stores, and shorter than what an orchestrator grants a program
/// to end.
const FLUSHES_WITHIN: Duration = Duration::from_secs(5);

/// A settlement that counts as unanswered until this is dropped.
pub(crate) struct UnansweredSettlement(watch::Sender<usize>);

impl Drop for Shared {
    fn drop(&mut self) {
        let settlements = *self.unanswered.borrow();
        if settlements > 0 {
            telemetry::dropped_unsettled(settlements);
        }
    }
}

impl Drop for UnansweredSettlement {
    fn drop(&mut self) {
        self.0.send_modify(|settlements| *settlements -= 1);
    }
}

impl RateLimiter {
    /// Waits until the settlements in flight are answered, for at most five seconds.
    pub(super) async fn flush_settlements(&self) {
        let mut unanswered = self.shared.unanswered.subscribe();
        let answered = unanswered.wait_for(|settlements| *settlements == 0);
        // The rest is reported when the limiter is dropped.
        drop(timeout(FLUSHES_WITHIN, answered).await);
    }

    /// Counts a settlement that is sent in the background.
    pub(crate) fn track_settlement(&self) -> UnansweredSettlement {
        let unanswered = &self.shared.unanswered;
        unanswered.send_modify(|settlements| *settlements += 1);
        UnansweredSettlement(unanswered.clone())
    }
}
