//! One event a second at most, because what traffic can cause must not fill the log.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::units::Mutex;

const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one event a second through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// When an event was last reported, and how many were counted since.
    state: Mutex<(Option<Instant>, u64)>,
    /// `true` if some were counted and not reported. Most of the time, none were.
    some_unreported: AtomicBool,
}

impl Throttle {
    /// Returns how many were not reported before this event, if this one is to be.
    pub(crate) fn report(&self) -> Option<u64> {
        let (reported, unreported) = &mut *self.state.lock();
        let now = Instant::now();
        if is_recent(*reported, now) {
            *unreported += 1;
            self.some_unreported.store(true, Ordering::Relaxed);
            return None;
        }
        *reported = Some(now);
        self.some_unreported.store(false, Ordering::Relaxed);
        Some(std::mem::take(unreported))
    }

    /// Returns how many were not reported, when the last report is a second ago. It is called where
    /// things go well, so that the count of one outage is not left for the next.
    #[inline]
    pub(crate) fn overdue(&self) -> Option<u64> {
        if self.some_unreported.load(Ordering::Relaxed) {
            self.take_overdue()
        } else {
            None
        }
    }

    #[cold]
    fn take_overdue(&self) -> Option<u64> {
        let (reported, unreported) = &mut *self.state.lock();
        if is_recent(*reported, Instant::now()) || *unreported == 0 {
            return None;
        }
        self.some_unreported.store(false, Ordering::Relaxed);
        Some(std::mem::take(unreported))
    }

    /// Forgets what was not reported, because another event sums it up.
    pub(crate) fn forget(&self) {
        self.state.lock().1 = 0;
        self.some_unreported.store(false, Ordering::Relaxed);
    }
}

fn is_recent(reported: Option<Instant>, now: Instant) -> bool {
    reported.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL)
}

/// Lets sixteen events a second through, and of one subject one.
#[derive(Debug, Default)]
pub(crate) struct Throttles([Throttle; 16]);

impl Throttles {
    pub(crate) fn for_subject(&self, subject: impl Hash) -> &Throttle {
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        &self.0[hasher.finish() as usize % self.0.len()]
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_a_second_is_reported_with_the_count_of_the_others() {
        let throttle = Throttle::default();
        assert_eq!(throttle.report(), Some(0));
        for _ in 0..7 {
            assert_eq!(throttle.report(), None);
        }
        advance(INTERVAL).await;
        assert_eq!(throttle.report(), Some(7));
        assert_eq!(throttle.report(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_out_is_due_after_a_second_and_once() {
        let throttle = Throttle::default();
        assert_eq!(throttle.overdue(), None);
        throttle.report();
        throttle.report();
        assert_eq!(throttle.overdue(), None, "not within the second");
        advance(INTERVAL).await;
        assert_eq!(throttle.overdue(), Some(1));
        assert_eq!(throttle.overdue(), None);
        assert_eq!(
            throttle.report(),
            Some(0),
            "it is not blamed on the next outage"
        );
    }
}
