//! Requests in the order of their times.
//!
//! Servers write a line when a request ends, and most stamp it with the time at which it began: the
//! line of a slow request stands behind those of requests that began after it. Decided in the order
//! of the lines, all that waited for one slow request would seem to come in one moment.

use std::collections::BTreeMap;

use tollgate::Key;

/// No request takes longer, in microseconds. Lines that are older come from another file, or a line
/// before them has a wrong time.
pub(super) const LONGEST_REQUEST: u64 = 600 * 1_000_000;

/// How many requests wait at most: with more, the oldest is decided before ten minutes have passed.
const MOST_WAITING: usize = 100_000;

/// A request whose turn has come.
pub(super) struct Due {
    pub(super) at_us: u64,
    pub(super) key: Key,
    pub(super) name: Box<str>,
}

/// Requests that wait until no earlier one can follow.
#[derive(Default)]
pub(super) struct Order {
    /// The time and the number of the line, and the request.
    waiting: BTreeMap<(u64, u64), (Key, Box<str>)>,
    requests: u64,
    newest_us: u64,
    decided_us: u64,
    sorted: u64,
    late: u64,
    far_behind: u64,
}

impl Order {
    pub(super) fn push(&mut self, at_us: u64, key: Key, name: &str) {
        self.far_behind += u64::from(at_us + LONGEST_REQUEST < self.newest_us);
        if at_us < self.decided_us {
            self.late += 1;
        } else if at_us < self.newest_us {
            self.sorted += 1;
        }
        // Time goes on all the same.
        let place = (at_us.max(self.decided_us), self.requests);
        self.waiting.insert(place, (key, name.into()));
        self.newest_us = self.newest_us.max(at_us);
        self.requests += 1;
    }

    /// The next request, if no earlier one can follow.
    pub(super) fn due(&mut self) -> Option<Due> {
        let ((at_us, _), _) = self.waiting.first_key_value()?;
        let is_due = at_us + LONGEST_REQUEST <= self.newest_us;
        if is_due || self.waiting.len() > MOST_WAITING {
            self.next()
        } else {
            None
        }
    }

    /// The next request, after the last line.
    pub(super) fn next(&mut self) -> Option<Due> {
        let ((at_us, _), (key, name)) = self.waiting.pop_first()?;
        self.decided_us = at_us;
        Some(Due { at_us, key, name })
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Requests that were put before one of an earlier line.
    pub(super) fn sorted(&self) -> u64 {
        self.sorted
    }

    /// Requests that are older than one that was decided already.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Requests that are more than ten minutes older than one of an earlier line.
    pub(super) fn far_behind(&self) -> u64 {
        self.far_behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// The seconds at which requests of these seconds are decided, in the order of their names.
    fn decided(seconds: &[u64]) -> (Vec<(u64, String)>, Order) {
        let (mut order, mut decided) = (Order::default(), Vec::new());
        let mut take = |due: Due| decided.push((due.at_us / SECOND, due.name.to_string()));
        for (line, second) in seconds.iter().enumerate() {
            order.push(second * SECOND, Key::new("alice"), &line.to_string());
            while let Some(due) = order.due() {
                take(due);
            }
        }
        while let Some(due) = order.next() {
            take(due);
        }
        (decided, order)
    }

    #[test]
    fn requests_are_decided_in_the_order_of_their_times_and_then_of_their_lines() {
        let (found, order) = decided(&[10, 12, 11, 12, 5]);
        let expected = [(5, "4"), (10, "0"), (11, "2"), (12, "1"), (12, "3")];
        assert_eq!(found, expected.map(|(at, line)| (at, line.to_owned())));
        assert_eq!((order.sorted(), order.late()), (2, 0));
    }

    #[test]
    fn request_that_is_too_old_is_decided_at_the_time_of_the_last_decision() {
        let (found, order) = decided(&[1_000, 1_700, 900, 1_750]);
        let expected = [(1_000, "0"), (1_000, "2"), (1_700, "1"), (1_750, "3")];
        assert_eq!(found, expected.map(|(at, line)| (at, line.to_owned())));
        assert_eq!(
            (order.sorted(), order.late(), order.far_behind()),
            (0, 1, 1)
        );
    }

    #[test]
    fn requests_that_wait_are_bounded() {
        let mut order = Order::default();
        for number in 0..MOST_WAITING as u64 + 10 {
            order.push(number, Key::new("alice"), "alice");
            while order.due().is_some() {}
        }
        assert_eq!(order.waiting.len(), MOST_WAITING);
    }
}
