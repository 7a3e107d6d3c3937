//! The time of one call that may wait.

use std::time::Duration;

use tokio::time::Instant;

use super::WaitSettings;
use crate::model::{Decision, Error, Source, Verdict};
use crate::units::later;

/// How long before its deadline a queued waiter peeks for the details of its denial, unless half of
/// its wait is shorter. The details are at most this old when the caller gets them.
const PEEK_BEFORE: Duration = Duration::from_millis(100);

/// The time bounds of one call. They bound the wait for units. An answer of the store has the
/// store's own deadline, because a charge whose answer is not awaited would consume units for
/// nothing.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    max_wait: Duration,
    pub(super) deadline: Instant,
    /// When a waiter that is still queued asks for its denial.
    pub(super) peek_at: Instant,
    /// `true` if a store that is unavailable is asked again.
    pub(super) waits_for_store: bool,
}

impl Bounds {
    pub(super) fn new(settings: &WaitSettings) -> Self {
        let max_wait = settings.max_wait;
        let now = Instant::now();
        let half = max_wait.checked_div(2).unwrap_or_default();
        let peek_at = max_wait.saturating_sub(PEEK_BEFORE.min(half));
        let deadline = later(now, max_wait);
        let peek_at = later(now, peek_at);
        Self {
            max_wait,
            deadline,
            peek_at,
            waits_for_store: settings.waits_for_store,
        }
    }

    /// When the store is asked again after a denial, if it is in time.
    pub(super) fn retry_after(&self, decision: &Decision) -> Option<Duration> {
        let is_final = decision.source() == Source::FailClosed && !self.waits_for_store;
        decision.retry_after().filter(|_| !is_final)
    }

    /// Returns whether a wait may end a denial in time. The turn of a check in a queue comes when
    /// the queue is empty, whenever it gets its place.
    pub(super) fn may_end(&self, denied: &Decision) -> bool {
        let left = self.left();
        let is_late = |verdict: &Verdict| {
            verdict.limit().queues() && !verdict.allowed() && verdict.reset_after() > left
        };
        denied.retry_after().is_some_and(|wait| wait <= left)
            && !denied.verdicts().iter().any(is_late)
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns whether it is too late to ask the store. A call with a `max_wait` of zero asks once.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero() && !self.max_wait.is_zero()
    }

    /// Returns whether the caller still has to wait after an answer. A store that is unavailable is
    /// asked again if the caller waits for it.
    pub(super) fn has_to_wait(&self, answer: &Result<Decision, Error>) -> bool {
        answer
            .as_ref()
            .is_ok_and(|decision| match decision.allowed() {
                true => !decision.delay().is_zero(),
                false => self.retry_after(decision).is_some(),
            })
    }
}
