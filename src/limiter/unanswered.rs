//! Settlements in flight: they are sent in the background, and a program awaits them before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::RateLimiter;
use crate::telemetry;

/// Longer than the deadline of most stores, and shorter than what an orchestrator grants a program to end.
const FLUSHES_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Unanswered(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    settlements: AtomicUsize,
    is_zero: Notify,
}

/// A settlement that counts as unanswered until this is dropped.
pub(crate) struct UnansweredSettlement(Arc<Count>);

impl Unanswered {
    fn add(&self) -> UnansweredSettlement {
        self.0.settlements.fetch_add(1, Ordering::AcqRel);
        UnansweredSettlement(Arc::clone(&self.0))
    }

    fn count(&self) -> usize {
        self.0.settlements.load(Ordering::Acquire)
    }

    async fn answered(&self) {
        loop {
            let is_zero = self.0.is_zero.notified();
            if self.count() == 0 {
                return;
            }
            is_zero.await;
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let settlements = self.count();
        if settlements > 0 {
            telemetry::dropped_unsettled(settlements);
        }
    }
}

impl Drop for UnansweredSettlement {
    fn drop(&mut self) {
        if self.0.settlements.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.is_zero.notify_waiters();
        }
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
