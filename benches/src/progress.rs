//! Progress on stderr: the current scenario, and the expected time left.

use std::time::{Duration, Instant};

pub struct Progress {
    start: Instant,
    expected: Duration,
    done: Duration,
}

impl Progress {
    pub fn new(expected: Duration) -> Self {
        Self {
            start: Instant::now(),
            expected,
            done: Duration::ZERO,
        }
    }

    /// Prints the current scenario and the time left at the pace so far.
    pub fn show(&self, title: &str, name: &str) {
        let left = self.expected.saturating_sub(self.done);
        let pace = match self.done.as_secs_f64() {
            0.0 => 1.0,
            done => self.start.elapsed().as_secs_f64() / done,
        };
        let left = left.mul_f64(pace).as_secs();
        let percent = self.done.as_secs_f64() / self.expected.as_secs_f64() * 100.0;
        eprintln!(
            "{percent:3.0}%, {}:{:02} min left: {title}: {name}",
            left / 60,
            left % 60
        );
    }

    /// Records that work with this expected time is done.
    pub fn advance(&mut self, expected: Duration) {
        self.done += expected;
    }
}
