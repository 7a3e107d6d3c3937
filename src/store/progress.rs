//! Whether a task stands still.
//!
//! A runtime may be blocked, or no longer polled. Its tasks then neither end nor fail, and their timers do not fire. Whoever
//! needs the work of such a task finds that out by the time since it last got on, and has another task do the work. What
//! the first task holds has to be safe to lose, in case it goes on after all.

use std::time::Duration;

use tokio::time::Instant;

/// When a task last got on. It is not at work at first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress(Option<Instant>);

impl Progress {
    /// The task begins, or gets on.
    pub(crate) const fn made(&mut self, now: Instant) {
        self.0 = Some(now);
    }

    /// The task has ended.
    pub(crate) const fn ended(&mut self) {
        self.0 = None;
    }

    /// Whether the task is at work, and has got on lately.
    pub(crate) fn goes_on(&self, now: Instant, at_most: Duration) -> bool {
        self.0.is_some() && !self.stands_still(now, at_most)
    }

    /// Whether the task is at work, and has not got on for longer than `at_most`.
    pub(crate) fn stands_still(&self, now: Instant, at_most: Duration) -> bool {
        self.0
            .is_some_and(|last| now.saturating_duration_since(last) > at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_stands_still_when_it_has_not_got_on_for_too_long() {
        const SECOND: Duration = Duration::from_secs(1);

        let start = Instant::now();
        let mut progress = Progress::default();
        assert!(!progress.stands_still(start + 10 * SECOND, SECOND));
        assert!(!progress.goes_on(start, SECOND), "no task is at work");
        progress.made(start);
        assert!(progress.goes_on(start + SECOND, SECOND));
        assert!(progress.stands_still(start + SECOND + Duration::from_nanos(1), SECOND));
        progress.made(start + SECOND);
        assert!(progress.goes_on(start + 2 * SECOND, SECOND));
        progress.ended();
        assert!(!progress.stands_still(start + 10 * SECOND, SECOND));
    }
}
