//! The heartbeat of a task.
//!
//! A runtime may be blocked, or no longer polled. Its tasks then neither end nor fail, and their
//! timers do not fire. So a task notes the time of each step. If the last step is too long ago, a
//! caller that needs the work gives it to another task. The first task may still resume, and must
//! not rely on what it held before.

use std::time::Duration;

use tokio::time::Instant;

/// The time of a task's last step. `None` while no task is at work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heartbeat(Option<Instant>);

impl Heartbeat {
    /// The task begins, or takes a step.
    pub(crate) const fn beat(&mut self, now: Instant) {
        self.0 = Some(now);
    }

    /// Begins a task, unless one is at work whose last step is at most so long ago. Returns whether
    /// it begins.
    pub(crate) fn begin(&mut self, at_most: Duration) -> bool {
        let now = Instant::now();
        let begins = !self.is_alive(now, at_most);
        if begins {
            self.beat(now);
        }
        begins
    }

    /// The task has ended.
    pub(crate) const fn end(&mut self) {
        self.0 = None;
    }

    /// Returns whether a task is at work whose last step is at most so long ago.
    pub(crate) fn is_alive(&self, now: Instant, at_most: Duration) -> bool {
        self.0.is_some() && !self.has_stopped(now, at_most)
    }

    /// Returns whether a task is at work whose last step is longer ago.
    pub(crate) fn has_stopped(&self, now: Instant, at_most: Duration) -> bool {
        let age = |last: Instant| now.saturating_duration_since(last);
        self.0.is_some_and(|last| age(last) > at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_has_stopped_when_its_last_step_is_too_long_ago() {
        const SECOND: Duration = Duration::from_secs(1);

        let start = Instant::now();
        let mut task = Heartbeat::default();
        assert!(!task.has_stopped(start + 10 * SECOND, SECOND));
        assert!(!task.is_alive(start, SECOND), "no task is at work");
        task.beat(start);
        assert!(task.is_alive(start + SECOND, SECOND));
        assert!(task.has_stopped(start + SECOND + Duration::from_nanos(1), SECOND));
        task.beat(start + SECOND);
        assert!(task.is_alive(start + 2 * SECOND, SECOND));
        task.end();
        assert!(!task.has_stopped(start + 10 * SECOND, SECOND));
    }
}
