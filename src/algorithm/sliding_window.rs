//! Sliding window: a window that moves in cells.
//!
//! Time is cut into cells of `period / cells`, aligned to the Unix epoch, and a count is kept for
//! each. The window is the current cell, the `cells - 1` before it, and as much of the one before
//! those as the window still overlaps, as if that cell's requests had been spread evenly. With
//! one cell this is the well-known two-counter approximation: this period's count, plus the
//! previous period's weighted by the overlap.
//!
//! What is guaranteed, whatever the traffic: no run of `cells` whole cells holds more than
//! `limit`, so no window of `period`, wherever it starts, holds more than twice the limit. Even
//! traffic is held to the limit exactly; more cells follow uneven traffic more closely.
//!
//! The weight is rounded up: it never admits more than the real number would.
//!
//! Twin: `scripts/sliding_window.lua`.

use super::{Effect, Rule};
use crate::decision::{Micros, Verdict};

/// The state: the counts of the cell of the last charge, and of those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    /// The length of a cell.
    length: Micros,
    /// The time of the last charge.
    at: Micros,
    /// Newest first; as many as the window has cells, and the one it is leaving.
    counts: Vec<u64>,
}

impl Cells {
    pub(crate) fn ends_at(&self) -> Micros {
        let youngest = self.counts.iter().position(|&count| count > 0).unwrap_or(0);
        (self.newest() + (self.counts.len() - youngest) as u64) * self.length
    }

    /// The number of the newest cell, which starts at its multiple of the length.
    const fn newest(&self) -> u64 {
        self.at / self.length
    }

    fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Goes on to a time that is not before `at`.
    fn advance_to(&mut self, time: Micros) {
        let len = self.counts.len();
        let cells = time / self.length - self.newest();
        let by = usize::try_from(cells).map_or(len, |by| by.min(len));
        self.counts.rotate_right(by);
        self.counts[..by].fill(0);
        self.at = time;
    }

    /// The same counts in other cells. A count goes where its cell ended, or where the last
    /// charge was: nothing is forgotten early, and nothing is moved behind its last charge, so
    /// that two quotas in turn do not keep it alive.
    fn recut(&self, length: Micros, len: usize) -> Self {
        let mut recut = Self { length, at: self.at, counts: vec![0; len] };
        for (age, &count) in self.counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            // Ages start from the newest cell, so they may reach back beyond time zero.
            let end = (self.newest() as i64 - age as i64 + 1) * self.length as i64;
            let cell = (end - 1).min(self.at as i64).div_euclid(length as i64);
            let age = usize::try_from(recut.newest() as i64 - cell).unwrap_or(0);
            if let Some(sum) = recut.counts.get_mut(age) {
                *sum += count;
            }
        }
        recut
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    pub(crate) limit: u64,
    /// The length of a cell: the period divided by the number of cells, rounded up.
    pub(crate) length: Micros,
    pub(crate) cells: u32,
}

impl SlidingWindow {
    /// The cells under this quota, as of their last charge, and whether they were made to last
    /// longer.
    fn resume(&self, state: Option<&Cells>, now: Micros) -> (Cells, bool) {
        let len = self.cells as usize + 1;
        let fresh = || Cells { length: self.length, at: now, counts: vec![0; len] };
        let Some(state) = state.filter(|state| now < state.ends_at()) else {
            return (fresh(), false);
        };
        let mut cells = if state.length == self.length && state.counts.len() == len {
            state.clone()
        } else {
            state.recut(self.length, len)
        };
        let mut moved = cells.ends_at() > state.ends_at();
        if cells.at.saturating_sub(now) > self.length * u64::from(self.cells) {
            cells.at = now;
            moved = true;
        }
        if now < cells.ends_at() { (cells, moved) } else { (fresh(), false) }
    }

    /// Units that count at the time of the newest cell, rounded up.
    fn used(&self, cells: &Cells) -> u64 {
        let (oldest, window) = cells.counts.split_last().unwrap_or((&0, &[]));
        let overlap = self.length - cells.at % self.length;
        // In floating point, as in Lua: exact below the limit, and rounded alike above it.
        let fading = (*oldest as f64 * overlap as f64 / self.length as f64).ceil() as u64;
        window.iter().sum::<u64>() + fading
    }

    /// The first time at which no more than `room` units count.
    fn time_until(&self, cells: &Cells, room: u64) -> Micros {
        let mut full: u64 = cells.counts.iter().sum();
        // With each step the window leaves one more cell behind.
        for (step, &leaving) in cells.counts.iter().rev().enumerate() {
            full -= leaving;
            if let Some(free) = room.checked_sub(full) {
                // Of the cell being left, `free` units may still overlap.
                let left = (free * self.length).checked_div(leaving).unwrap_or(0);
                let start = (cells.newest() + step as u64) * self.length;
                return start + self.length.saturating_sub(left);
            }
        }
        cells.ends_at()
    }
}

impl Rule for SlidingWindow {
    type State = Cells;

    fn decide(&self, state: &mut Option<Cells>, now: Micros, cost: u64, effect: Effect) -> Verdict {
        let (mut cells, moved) = self.resume(state.as_ref(), now);
        let never = cost > self.limit;
        let settled = (moved && !never && effect.settles(cost)).then(|| cells.clone());
        cells.advance_to(now.max(cells.at));
        let used = self.used(&cells);
        let allowed = cost == 0 || used + cost <= self.limit;
        let charges = allowed && cost > 0;
        let retry_after =
            (!allowed && !never).then(|| self.time_until(&cells, self.limit - cost) - now);
        let remaining = self.limit.saturating_sub(if allowed { used + cost } else { used });
        if allowed {
            cells.counts[0] += cost;
        }
        let reset_after = if cells.is_empty() { 0 } else { cells.ends_at() - now };
        if charges && effect == Effect::Commit {
            *state = Some(cells);
        } else if !charges && settled.is_some() {
            *state = settled;
        }
        Verdict { allowed, never, limit: self.limit, remaining, retry_after, reset_after, delay: 0 }
    }

    /// Takes units out of the newest cells first: those count in full, so that the whole refund
    /// can be used at once.
    fn refund(&self, state: &mut Option<Cells>, now: Micros, mut units: u64) {
        let (mut cells, _) = self.resume(state.as_ref(), now);
        for count in &mut cells.counts {
            let back = units.min(*count);
            *count -= back;
            units -= back;
        }
        *state = (!cells.is_empty() && now < cells.ends_at()).then_some(cells);
    }
}
