//! The budgets whose units are to be paid, in the order in which that is due. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::Budget;
use crate::units::micros;

/// The time from the first owed unit of a budget, or from a look at its account, to the next look.
pub(super) const LOOK_AFTER: Duration = Duration::from_secs(4);

/// If the last payments are longer ago, this counts as the time since then, because the task stood
/// still.
const LONGEST_SPREAD: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct DueBudgets {
    queue: VecDeque<DueBudget>,
    /// Until when all budgets that may be early were taken.
    spread_until: Option<Instant>,
    /// The number of budgets in the queue whose payment was repeated.
    repeated: usize,
}

/// A budget, and when to look at its account.
pub(super) struct DueBudget {
    pub(super) at: Instant,
    pub(super) budget: Budget,
    /// The payment without an answer at the last look.
    pub(super) unanswered: Option<UnansweredPayment>,
}

/// A payment that is sent until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnansweredPayment {
    number: u64,
    /// The first look that found it.
    since: Instant,
    is_repeated: bool,
}

impl UnansweredPayment {
    /// The payment of this number, after the last look found the payment `last`.
    pub(super) fn after(last: Option<Self>, number: u64, now: Instant) -> Self {
        let since = last.filter(|it| it.number == number).map(|it| it.since);
        Self {
            number,
            since: since.unwrap_or(now),
            is_repeated: since.is_some(),
        }
    }
}

impl DueBudget {
    fn repeated_since(&self) -> Option<Instant> {
        let repeated = self.unanswered.filter(|it| it.is_repeated)?;
        Some(repeated.since)
    }
}

impl DueBudgets {
    /// Adds a budget, at the end of the queue.
    pub(super) fn add(&mut self, due: DueBudget) {
        self.repeated += usize::from(due.repeated_since().is_some());
        self.queue.push_back(due);
    }

    /// How many budgets may be looked at early now, to spread all evenly over [`LOOK_AFTER`].
    /// Otherwise keys that were first used at the same time, as after a start, would be paid at
    /// once.
    pub(super) fn early(&mut self, now: Instant) -> usize {
        let budgets = self.queue.len() as u64;
        let known = self.spread_until.filter(|_| budgets > 0);
        let elapsed = now.saturating_duration_since(known.unwrap_or(now));
        let since = micros(elapsed.min(LONGEST_SPREAD));
        let early = budgets * since / micros(LOOK_AFTER);
        // The rest of the time counts at the next call.
        let rest = since
            - (early * micros(LOOK_AFTER))
                .checked_div(budgets)
                .unwrap_or(since);
        self.spread_until = now.checked_sub(Duration::from_micros(rest));
        usize::try_from(early).unwrap_or(usize::MAX)
    }

    /// Takes out the next budget that is due, or that is one of so many that may be early.
    pub(super) fn take(&mut self, now: Instant, early: &mut usize) -> Option<DueBudget> {
        let is_due = self.queue.front()?.at <= now;
        if !is_due && *early == 0 {
            return None;
        }
        *early = early.saturating_sub(1);
        let due = self.queue.pop_front()?;
        self.repeated -= usize::from(due.repeated_since().is_some());
        Some(due)
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// When the oldest of the repeated payments was first sent. One that was answered since the
    /// last look at its budget also counts.
    pub(super) fn oldest_repeated(&self) -> Option<Instant> {
        if self.repeated == 0 {
            return None;
        }
        self.queue
            .iter()
            .filter_map(DueBudget::repeated_since)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Key, Limit};
    use crate::units::Quota;

    #[test]
    fn oldest_payment_is_the_first_one_that_was_repeated() {
        let limit = Limit::token_bucket("api", Quota::per_second(9)).unwrap();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut due = DueBudgets::default();
        // Looks at a budget every four seconds. Payment 1 has no answer until the fourth look.
        let mut unanswered = None;
        for (seconds, number, oldest) in [
            (0, Some(1), None),
            (4, Some(1), Some(0)),
            (8, Some(1), Some(0)),
            (12, Some(2), None),
            (16, None, None),
        ] {
            let now = at(seconds);
            unanswered = number.map(|it| UnansweredPayment::after(unanswered, it, now));
            due.add(DueBudget {
                at: at(seconds + 4),
                budget: Budget::new(&limit, Key::new("alice")),
                unanswered,
            });
            assert_eq!(due.oldest_repeated(), oldest.map(at), "after {seconds} s");
            assert!(due.take(now, &mut 0).is_none(), "it is not due yet");
            assert!(due.take(at(seconds + 4), &mut 0).is_some());
        }
        assert!(due.is_empty());
    }

    #[test]
    fn payments_of_keys_that_began_together_are_spread_however_long_a_round_takes() {
        let limit = Limit::token_bucket("api", Quota::per_second(9)).unwrap();
        let owed_at = |at: Instant, key: u64| DueBudget {
            at: at + LOOK_AFTER,
            budget: Budget::new(&limit, Key::from(key)),
            unanswered: None,
        };
        for round in [25, 35, 75, 130].map(Duration::from_millis) {
            let mut now = Instant::now();
            let mut due = DueBudgets::default();
            assert_eq!(due.early(now), 0, "none is owed");
            for key in 0..2_000 {
                due.add(owed_at(now, key));
            }
            let end = now + 5 * LOOK_AFTER;
            while now < end {
                now += round;
                let mut early = due.early(now);
                let mut taken = 0;
                while due.take(now, &mut early).is_some() {
                    due.add(owed_at(now, taken));
                    taken += 1;
                }
                let evenly = 2_000 * round.as_millis() / LOOK_AFTER.as_millis();
                let most = u64::try_from(evenly).unwrap() * 11 / 10;
                assert!(taken <= most, "{taken} in {round:?}, and not {most}");
            }
        }
    }

    #[test]
    fn budgets_may_be_early_and_those_that_are_due_count_among_them() {
        let limit = Limit::token_bucket("api", Quota::per_second(9)).unwrap();
        let start = Instant::now();
        let mut due = DueBudgets::default();
        for seconds in 0..10 {
            due.add(DueBudget {
                at: start + Duration::from_secs(seconds),
                budget: Budget::new(&limit, Key::display(seconds)),
                unanswered: None,
            });
        }
        let mut take = |seconds, mut early| {
            let now = start + Duration::from_secs(seconds);
            let mut taken = 0;
            while due.take(now, &mut early).is_some() {
                taken += 1;
            }
            taken
        };
        assert_eq!(take(1, 0), 2, "those of the seconds 0 and 1");
        assert_eq!(take(2, 3), 3, "one that is due, and two that are early");
        assert_eq!(take(9, 1), 5, "all are due");
    }
}
