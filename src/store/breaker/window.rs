//! The calls of the last moments, counted.

use std::time::Duration;

use tokio::time::Instant;

use crate::units::later;

/// The number of parts of a window. The oldest one leaves it as a whole.
const PARTS: usize = 5;

/// Calls that ended, within the window, and the last 32 of all.
#[derive(Debug)]
pub(super) struct CallWindow {
    part: Duration,
    parts: [Calls; PARTS],
    /// The start of the newest part.
    newest: Option<Instant>,
    /// The last calls, the newest in the lowest bit: whether each failed.
    last: u32,
    /// How many there are, up to 32.
    known: u32,
}

/// Calls, and how many of them failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) all: u32,
    pub(super) failed: u32,
}

impl CallWindow {
    pub(super) fn new(length: Duration) -> Self {
        let part = length.checked_div(PARTS as u32).unwrap_or(length);
        Self {
            part,
            parts: [Calls::default(); PARTS],
            newest: None,
            last: 0,
            known: 0,
        }
    }

    pub(super) fn add(&mut self, failed: bool, now: Instant) {
        self.move_to(now);
        let newest = &mut self.parts[0];
        newest.all = newest.all.saturating_add(1);
        newest.failed = newest.failed.saturating_add(failed.into());
        self.last = self.last << 1 | u32::from(failed);
        self.known = (self.known + 1).min(u32::BITS);
    }

    fn move_to(&mut self, now: Instant) {
        let newest = *self.newest.get_or_insert(now);
        let passed = now.saturating_duration_since(newest).as_nanos() / self.part.as_nanos().max(1);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            let kept = PARTS.saturating_sub(passed as usize);
            self.parts.rotate_right(PARTS - kept);
            self.parts[..PARTS - kept].fill(Calls::default());
            self.newest = Some(match kept {
                0 => now,
                _ => later(newest, self.part.saturating_mul(passed)),
            });
        }
    }

    /// The calls within the window, or the last `at_least`, if there are fewer. `None` before so
    /// many.
    pub(super) fn calls(&self, at_least: u32) -> Option<Calls> {
        let within = self.parts.iter().fold(Calls::default(), |sum, part| Calls {
            all: sum.all.saturating_add(part.all),
            failed: sum.failed.saturating_add(part.failed),
        });
        if within.all >= at_least {
            return Some(within);
        }
        let last = self.last & u32::MAX >> (u32::BITS - at_least);
        (self.known >= at_least).then_some(Calls {
            all: at_least,
            failed: last.count_ones(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_millis(250);

    #[tokio::test(start_paused = true)]
    async fn calls_leave_the_window_and_the_last_ones_stay_known() {
        let start = Instant::now();
        let mut window = CallWindow::new(LENGTH);
        assert_eq!(window.calls(1), None);
        for number in 0..1_000 {
            window.add(false, start + Duration::from_micros(number * 100));
        }
        assert_eq!(
            window.calls(3),
            Some(Calls {
                all: 1_000,
                failed: 0
            })
        );
        // Two failures, when all others have left.
        for _ in 0..2 {
            window.add(true, start + Duration::from_millis(351));
        }
        assert_eq!(window.calls(3), Some(Calls { all: 3, failed: 2 }));
        assert_eq!(window.calls(2), Some(Calls { all: 2, failed: 2 }));
        assert_eq!(window.calls(32), Some(Calls { all: 32, failed: 2 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_leaves_after_the_length_of_the_window() {
        let start = Instant::now();
        let mut window = CallWindow::new(LENGTH);
        window.add(true, start);
        for (ms, all) in [(49, 2), (99, 3), (249, 4), (260, 3), (299, 4), (10_000, 1)] {
            window.add(false, start + Duration::from_millis(ms));
            assert_eq!(window.calls(1).unwrap().all, all, "{ms} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_stands_still_is_harmless() {
        let start = Instant::now();
        let mut window = CallWindow::new(Duration::from_nanos(1));
        for number in [5, 3, 0] {
            window.add(true, start + Duration::from_secs(number));
        }
        assert!(window.calls(3).unwrap().failed >= 1);
    }
}
