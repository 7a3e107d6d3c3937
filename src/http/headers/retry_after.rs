//! `Retry-After`, and the jitter on it.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;

use super::seconds;
use crate::nouns::Decision;

/// The most seconds of jitter: a day.
const LONGEST: u64 = 86_400;

/// When to try again, in whole seconds, rounded up, at least 1: 0 would say "now".
pub(super) fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|retry_after| seconds(retry_after).max(1))
}

/// Seconds that are added to `Retry-After`, so that clients do not all return at once.
#[derive(Clone, Default)]
pub(super) struct Jitter {
    most: u64,
    /// Seeds the jitter: each process has its own.
    random: DefaultHashBuilder,
    count: Arc<AtomicU64>,
}

impl Jitter {
    pub(super) fn up_to(most: Duration) -> Self {
        Self { most: seconds(most).min(LONGEST), ..Self::default() }
    }

    pub(super) fn lengthen(&self, seconds: u64) -> u64 {
        if self.most == 0 {
            return seconds;
        }
        let random = self.random.hash_one(self.count.fetch_add(1, Ordering::Relaxed));
        let jitter = random.checked_rem(self.most.saturating_add(1)).unwrap_or(0);
        seconds.saturating_add(jitter)
    }
}
