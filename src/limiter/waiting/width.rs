//! How many waiters of a queue ask at once.
//!
//! One, where the store answers sooner than units are replenished. A distant store replenishes the
//! units of many in a round trip. If each of them waited for the answer to the one before, a full
//! budget would serve one a round trip.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::units::Mutex;

/// More callers at once are as fast as they will be.
const WIDEST: usize = 1_024;

/// The front of a queue, where one waiter has a place, or several. The semaphore is fair, first
/// come, first served.
pub(super) struct Width {
    places: Semaphore,
    size: Mutex<Size>,
}

struct Size {
    places: usize,
    /// Places that end when their waiters leave them.
    ending: usize,
}

/// The units of a waiter at the front, by the answer that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitsFound {
    /// They are there.
    Free,
    /// They are reserved, and there after this time.
    ReservedFor(Duration),
    /// They are not there, and not reserved.
    Missing,
}

impl Default for Width {
    fn default() -> Self {
        let size = Mutex::new(Size {
            places: 1,
            ending: 0,
        });
        Self {
            places: Semaphore::new(1),
            size,
        }
    }
}

impl Width {
    /// A place at the front, in the order of the calls.
    pub(super) async fn take_place(self: &Arc<Self>) -> Option<FrontPlace> {
        // The semaphore is never closed.
        self.places.acquire().await.ok()?.forget();
        Some(FrontPlace(Arc::clone(self)))
    }

    /// Adapts the number of places to an answer that took `round_trip`, for a queue of `waiting`.
    pub(super) fn adapt(&self, found: UnitsFound, round_trip: Duration, waiting: usize) {
        let mut size = self.size.lock();
        match found {
            UnitsFound::Free if size.places < waiting.min(WIDEST) => {
                size.places += 1;
                if size.ending > 0 {
                    size.ending -= 1;
                    return;
                }
                // This wakes a waiter.
                drop(size);
                self.places.add_permits(1);
            }
            // The next one to ask is in time for the units after these.
            UnitsFound::ReservedFor(delay) if delay > round_trip => self.end(&mut size, 1),
            UnitsFound::Missing => {
                let all = size.places;
                self.end(&mut size, all);
            }
            UnitsFound::Free | UnitsFound::ReservedFor(_) => {}
        }
    }

    /// Ends places, and leaves one.
    fn end(&self, size: &mut Size, places: usize) {
        let ended = places.min(size.places - 1);
        size.places -= ended;
        size.ending += ended - self.places.forget_permits(ended);
    }
}

/// A place at the front. Dropped, it is the next waiter's, or ends. That wakes the waiter, so no
/// lock may be held then.
pub(super) struct FrontPlace(Arc<Width>);

impl Drop for FrontPlace {
    fn drop(&mut self) {
        let mut size = self.0.size.lock();
        if size.ending > 0 {
            size.ending -= 1;
            return;
        }
        drop(size);
        self.0.places.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn free(width: &Width) -> usize {
        width.places.available_permits()
    }

    #[test]
    fn each_answer_with_free_units_adds_a_place_up_to_the_waiters() {
        let width = Width::default();
        for _ in 0..10 {
            width.adapt(UnitsFound::Free, MS, 4);
        }
        assert_eq!(free(&width), 4);
        for _ in 0..2_000 {
            width.adapt(UnitsFound::Free, MS, usize::MAX);
        }
        assert_eq!(free(&width), WIDEST);
    }

    #[tokio::test]
    async fn places_that_are_taken_end_when_they_are_left() {
        let width = Arc::new(Width::default());
        width.adapt(UnitsFound::Free, MS, 3);
        width.adapt(UnitsFound::Free, MS, 3);
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(width.take_place().await.unwrap());
        }
        width.adapt(UnitsFound::Missing, MS, 3);
        drop(taken);
        assert_eq!(free(&width), 1, "one stays");
    }

    #[test]
    fn reservation_takes_a_place_away_if_a_round_trip_is_shorter() {
        let width = Width::default();
        width.adapt(UnitsFound::Free, MS, 3);
        width.adapt(UnitsFound::ReservedFor(20 * MS), 20 * MS, 3);
        assert_eq!(free(&width), 2);
        width.adapt(UnitsFound::ReservedFor(21 * MS), 20 * MS, 3);
        width.adapt(UnitsFound::ReservedFor(21 * MS), 20 * MS, 3);
        assert_eq!(free(&width), 1);
    }

    #[tokio::test]
    async fn place_that_was_to_end_stays_if_units_are_free_again() {
        let width = Arc::new(Width::default());
        width.adapt(UnitsFound::Free, MS, 2);
        let first = width.take_place().await.unwrap();
        let second = width.take_place().await.unwrap();
        width.adapt(UnitsFound::Missing, MS, 2);
        width.adapt(UnitsFound::Free, MS, 2);
        drop(first);
        drop(second);
        assert_eq!(free(&width), 2);
    }
}
