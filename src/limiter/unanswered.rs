//! Settlements in flight. They are sent in the background, and a program awaits them before it
//! ends.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::RateLimiter;
use crate::telemetry;

/// Longer than the deadline of most stores, and shorter than what an orchestrator grants a program
/// to end.
const FLUSHES_WITHIN: Duration = Duration::from_secs(5);

/// The number of settlements in flight.
#[derive(Debug, Default)]
pub(super) struct Unanswered(watch::Sender<usize>);

/// A settlement that counts as unanswered until this is dropped.
pub(crate) struct UnansweredSettlement(watch::Sender<usize>);

impl Unanswered {
    fn add(&self) -> UnansweredSettlement {
        self.0.send_modify(|settlements| *settlements += 1);
        UnansweredSettlement(self.0.clone())
    }

    async fn answered(&self) {
        // The sender is not dropped meanwhile.
        drop(
            self.0
                .subscribe()
                .wait_for(|settlements| *settlements == 0)
                .await,
        );
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let settlements = *self.0.borrow();
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
        // The rest is reported when the limiter is dropped.
        drop(timeout(FLUSHES_WITHIN, self.shared.unanswered.answered()).await);
    }

    /// Counts a settlement that is sent in the background.
    pub(crate) fn track_settlement(&self) -> UnansweredSettlement {
        self.shared.unanswered.add()
    }
}
