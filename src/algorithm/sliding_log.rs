//! Sliding log: exact.
//!
//! The time of every admitted request is kept, with its cost. No window of `period`, wherever it
//! starts, holds more than `limit`: a request at `t` counts in every window that starts after
//! `t - period` and not after `t`, and stops counting at exactly `t + period`.
//!
//! Entries carry the running sum of all units up to and including them. So the units in the
//! window are one subtraction, and the entry whose leaving makes room is found by bisection,
//! whatever the costs. Requests of one microsecond are one entry.
//!
//! Twin: `scripts/sliding_log.lua`.

use std::collections::VecDeque;

use super::{Effect, Rule};
use crate::decision::{Micros, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Signed, because a clock that is set back takes its entries along.
    at: i64,
    /// Units admitted up to and including this entry, since the log began.
    sum: u64,
}

/// The state: what was admitted, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// The sum before the oldest entry.
    before: u64,
    /// The period under which entries leave.
    period: Micros,
}

impl Log {
    pub(crate) fn ends_at(&self) -> Micros {
        let newest = self.entries.back().map_or(0, |newest| newest.at);
        (newest + self.period as i64) as Micros
    }

    fn sum(&self) -> u64 {
        self.entries.back().map_or(self.before, |newest| newest.sum)
    }

    fn push(&mut self, at: i64, units: u64) {
        let sum = self.sum() + units;
        match self.entries.back_mut().filter(|newest| newest.at == at) {
            Some(newest) => newest.sum = sum,
            None => self.entries.push_back(Entry { at, sum }),
        }
    }

    /// Takes units out, newest first.
    fn pop(&mut self, mut units: u64) {
        while let Some(newest) = self.entries.pop_back() {
            let held = newest.sum - self.sum();
            if held > units {
                self.entries.push_back(Entry { sum: newest.sum - units, ..newest });
                return;
            }
            units -= held;
        }
    }

    /// Carries out what a view found.
    fn adopt(&mut self, view: &View, period: Micros) {
        self.before = view.before;
        self.entries.drain(..view.first);
        for entry in &mut self.entries {
            entry.at -= view.set_back;
        }
        self.period = period;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    pub(crate) period: Micros,
}

/// A log as a check finds it.
struct View {
    /// The time that counts: the check's, or the newest entry's where that is later.
    time: i64,
    /// How far the clock was set back, and so every entry has to be.
    set_back: i64,
    /// The oldest entry that still counts.
    first: usize,
    /// The sum before it.
    before: u64,
    /// Units that count.
    used: u64,
    /// Whether it was made to last longer.
    moved: bool,
}

impl SlidingLog {
    fn view(&self, log: &Log, now: Micros) -> View {
        let now = now as i64;
        let newest = log.entries.back().map_or(now, |newest| newest.at);
        let set_back = if newest - now > self.period as i64 { newest - now } else { 0 };
        let time = now.max(newest - set_back);
        let left = time + set_back - log.period.min(self.period) as i64;
        let first = log.entries.partition_point(|entry| entry.at <= left);
        let before = first.checked_sub(1).map_or(log.before, |last| log.entries[last].sum);
        let moved = set_back > 0 || log.period < self.period;
        View { time, set_back, first, before, used: log.sum() - before, moved }
    }
}

impl Rule for SlidingLog {
    type State = Log;

    fn decide(&self, state: &mut Option<Log>, now: Micros, cost: u64, effect: Effect) -> Verdict {
        let empty = Log { entries: VecDeque::new(), before: 0, period: self.period };
        let log = state.as_ref().filter(|log| now < log.ends_at()).unwrap_or(&empty);
        let view = self.view(log, now);
        let until_left = |at: i64| (at - view.set_back + self.period as i64) as Micros - now;

        let never = cost > self.limit;
        let allowed = cost == 0 || view.used + cost <= self.limit;
        let charges = allowed && cost > 0;
        let retry_after = (!allowed && !never).then(|| {
            // The first entry with whose leaving enough units have left.
            let enough = view.before + view.used + cost - self.limit;
            let frees = log.entries.partition_point(|entry| entry.sum < enough);
            log.entries.get(frees).map_or(0, |entry| until_left(entry.at))
        });
        let used = if allowed { view.used + cost } else { view.used };
        let reset_after = match log.entries.back() {
            _ if charges => until_left(view.time + view.set_back),
            Some(newest) if used > 0 => until_left(newest.at),
            _ => 0,
        };

        if (charges && effect == Effect::Commit)
            || (view.moved && !charges && !never && effect.settles(cost))
        {
            let mut log = state.take().filter(|log| now < log.ends_at()).unwrap_or(empty);
            log.adopt(&view, self.period);
            if charges {
                log.push(view.time, cost);
            }
            *state = (!log.entries.is_empty()).then_some(log);
        }
        Verdict {
            allowed,
            never,
            limit: self.limit,
            remaining: self.limit.saturating_sub(used),
            retry_after,
            reset_after,
            delay: 0,
        }
    }

    fn refund(&self, state: &mut Option<Log>, now: Micros, units: u64) {
        let Some(mut log) = state.take().filter(|log| now < log.ends_at()) else { return };
        let view = self.view(&log, now);
        log.adopt(&view, self.period);
        log.pop(units);
        *state = (!log.entries.is_empty()).then_some(log);
    }
}
