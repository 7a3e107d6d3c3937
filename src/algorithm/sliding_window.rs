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

use super::{Effect, MAX_EXACT, Rule};
use crate::decision::{Micros, Verdict};

/// The state: the counts of the newest cell and of those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    /// The length of a cell.
    length: Micros,
    /// The newest cell starts at `newest * length`.
    newest: u64,
    /// Newest first; as many as the window has cells, and the one it is leaving.
    counts: Vec<u64>,
}

impl Cells {
    pub(crate) fn ends_at(&self) -> Micros {
        let youngest = self.counts.iter().position(|&count| count > 0).unwrap_or(0);
        (self.newest + (self.counts.len() - youngest) as u64) * self.length
    }

    fn start(&self) -> Micros {
        self.newest * self.length
    }

    fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    fn advance_to(&mut self, cell: u64) {
        let len = self.counts.len();
        let by = usize::try_from(cell - self.newest).map_or(len, |by| by.min(len));
        self.counts.rotate_right(by);
        self.counts[..by].fill(0);
        self.newest = cell;
    }

    /// The same counts in other cells, as seen at `now`. A cell's count goes where the cell
    /// ended, so that nothing is forgotten early.
    fn recut(&self, length: Micros, len: usize, now: Micros) -> Self {
        let mut recut = Self { length, newest: now / length, counts: vec![0; len] };
        for (age, &count) in self.counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            // Ages start from `newest`, so they may reach back beyond time zero.
            let end = (self.newest as i64 - age as i64 + 1) * self.length as i64;
            let cell = (end - 1).min(now as i64).div_euclid(length as i64);
            let age = usize::try_from(recut.newest as i64 - cell).unwrap_or(0);
            if let Some(sum) = recut.counts.get_mut(age) {
                *sum = (*sum + count).min(MAX_EXACT / length);
            }
        }
        recut
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingWindow {
    pub(crate) limit: u64,
    /// The length of a cell: the period divided by the number of cells, rounded up.
    pub(crate) length: Micros,
    pub(crate) cells: u32,
}

/// Cells brought forward to the time and the quota of a check.
struct Resumed {
    cells: Cells,
    /// The time that counts: the check's, or the newest cell's start where that is later.
    time: Micros,
    moved: bool,
}

impl SlidingWindow {
    fn resume(&self, state: Option<&Cells>, now: Micros) -> Resumed {
        let len = self.cells as usize + 1;
        let fresh =
            || Cells { length: self.length, newest: now / self.length, counts: vec![0; len] };
        let Some(state) = state.filter(|state| now < state.ends_at()) else {
            return Resumed { cells: fresh(), time: now, moved: false };
        };
        let mut cells = state.clone();
        let mut moved = false;
        let behind = cells.start().saturating_sub(now);
        if behind > self.length * u64::from(self.cells) {
            cells.newest = now / cells.length;
            moved = true;
        }
        let time = now.max(cells.start());
        if cells.length != self.length || cells.counts.len() != len {
            cells = cells.recut(self.length, len, time);
            moved = true;
        } else {
            cells.advance_to(time / self.length);
        }
        Resumed { cells, time, moved }
    }

    /// Units that count at `time`, rounded up.
    fn used(&self, cells: &Cells, time: Micros) -> u64 {
        let (oldest, window) = cells.counts.split_last().unwrap_or((&0, &[]));
        let overlap = self.length - (time - cells.start());
        window.iter().sum::<u64>() + (oldest * overlap).div_ceil(self.length)
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
                let start = (cells.newest + step as u64) * self.length;
                return start + self.length.saturating_sub(left);
            }
        }
        cells.ends_at()
    }
}

impl Rule for SlidingWindow {
    type State = Cells;

    fn decide(&self, state: &mut Option<Cells>, now: Micros, cost: u64, effect: Effect) -> Verdict {
        let Resumed { mut cells, time, moved } = self.resume(state.as_ref(), now);
        let used = self.used(&cells, time);
        let never = cost > self.limit;
        let allowed = cost == 0 || used + cost <= self.limit;
        let retry_after =
            (!allowed && !never).then(|| self.time_until(&cells, self.limit - cost) - now);
        let remaining = self.limit.saturating_sub(if allowed { used + cost } else { used });
        if allowed {
            cells.counts[0] += cost;
        }
        let reset_after = if cells.is_empty() { 0 } else { cells.ends_at() - now };
        if effect == Effect::Commit && (moved || (allowed && cost > 0)) {
            *state = Some(cells);
        }
        Verdict { allowed, never, limit: self.limit, remaining, retry_after, reset_after, delay: 0 }
    }

    /// Takes units out of the newest cells first: those count in full, so that the whole refund
    /// can be used at once.
    fn refund(&self, state: &mut Option<Cells>, now: Micros, mut units: u64) {
        let Resumed { mut cells, .. } = self.resume(state.as_ref(), now);
        for count in &mut cells.counts {
            let back = units.min(*count);
            *count -= back;
            units -= back;
        }
        *state = (!cells.is_empty()).then_some(cells);
    }
}
