//! `Retry-After`: of a denial, with its jitter, and of a service.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hashbrown::DefaultHashBuilder;
use http::header::{HeaderMap, RETRY_AFTER};

use super::super::number::number;
use super::{seconds, set};
use crate::nouns::Decision;

/// The most seconds of jitter: a day.
const LONGEST: u64 = 86_400;

/// When to try again, in whole seconds, rounded up, at least 1: 0 would say "now".
pub(super) fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|retry_after| seconds(retry_after).max(1))
}

/// What the `Retry-After` of a response says, in seconds. `None` if there is none, or if a line is neither
/// seconds nor a date.
pub(super) fn stated(headers: &HeaderMap) -> Option<u64> {
    let lines = headers.get_all(RETRY_AFTER).iter().map(|value| {
        let text = value.to_str().ok()?.trim();
        text.parse().ok().or_else(|| {
            let date = httpdate::parse_http_date(text).ok()?;
            Some(seconds(date.duration_since(SystemTime::now()).unwrap_or_default()))
        })
    });
    lines.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Lengthens the `Retry-After` that a service set, if it is shorter.
pub(super) fn lengthen(headers: &mut HeaderMap, seconds: u64) {
    if stated(headers).is_some_and(|theirs| theirs < seconds) {
        set(headers, RETRY_AFTER, number(seconds));
    }
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
