//! Sliding window: a window that moves over sub-windows.
//!
//! Time is divided into sub-windows of `period / sub_windows`, aligned to the Unix epoch, with a
//! count each. The window consists of the current sub-window, the `sub_windows - 1` before it, and
//! the overlapping part of the oldest one, as if its requests had been spread evenly. With one
//! sub-window, this is the two-counter approximation, the count of this period, plus the count of
//! the previous period weighted by the overlap.
//!
//! Guarantee: any `sub_windows` sub-windows in a row hold at most `limit` units. So any window of
//! `period` holds at most twice the limit. Even traffic gets exactly the limit. More sub-windows
//! follow uneven traffic more closely.
//!
//! The weighted count is rounded up, so it never allows more than the exact number.
//!
//! A quota with other sub-windows counts in sub-windows of its own. See
//! [`rotation`](super::rotation).
//!
//! A refund subtracts units from the sub-window of the charge, if that still counts.
//!
//! Twin: `scripts/sliding_window.lua`.

use std::borrow::Cow;

use super::range::{counted, exact};
use super::rotation::{Counter, Counters, Entering, entry_of};
use super::{Cost, Effect, Kind, KindOfState, MAX_EXACT};
use crate::units::{ConfigError, Micros, Outcome, Quota, Receipt, Timestamp};

/// More sub-windows would cost more than the precision that they add.
const MAX_SUB_WINDOWS: u32 = 100;

/// The largest limit, and so the largest count of a sub-window.
const MAX_COUNT: u64 = MAX_EXACT / 2;

/// The caps of one sub-window and of all, so that all sums are exact. Charges under a quota with a
/// higher limit may reach them. A count at its cap denies under every limit up to the cap.
const MAX_FOREIGN: u64 = 1 << 45;
const MAX_SUM: u64 = MAX_EXACT - (1 << 32);

/// The counts of the sub-window of the last charge and of those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubWindows {
    /// The length of a sub-window.
    length: Micros,
    /// The time of the last charge.
    at: Timestamp,
    /// The time of the first charge that can be refunded.
    since: Timestamp,
    /// Newest first: the sub-windows of the window, and the oldest one, which it overlaps in part.
    counts: Vec<u64>,
}

impl SubWindows {
    /// The number of the newest sub-window. It starts at this multiple of the length.
    fn newest(&self) -> u64 {
        self.at / self.length
    }

    /// The counts of the sub-windows at `time`. Requires `time >= at`.
    fn at_time(&self, time: Timestamp) -> View<'_> {
        let newest = time / self.length;
        let begun = usize::try_from(newest - self.newest()).unwrap_or(usize::MAX);
        let counts = &self.counts[..self.counts.len().saturating_sub(begun)];
        View {
            time,
            newest,
            counts,
        }
    }

    /// Moves on to `time`. Requires `time >= at`.
    fn advance_to(&mut self, time: Timestamp) {
        let kept = self.at_time(time).counts.len();
        let begun = self.counts.len() - kept;
        self.counts.rotate_right(begun);
        self.counts[..begun].fill(0);
        self.at = time;
    }
}

/// The time from which none of the units count: 0 without units. The last count belongs to the
/// oldest sub-window, and `newest` is the number of the newest one.
fn end_of(counts: &[u64], newest: u64, length: Micros) -> Timestamp {
    counts
        .iter()
        .position(|&count| count > 0)
        .map_or(Timestamp::EPOCH, |youngest| {
            Timestamp::from_micros((newest + (counts.len() - youngest) as u64) * length)
        })
}

/// The sub-windows at a time.
struct View<'a> {
    time: Timestamp,
    /// The number of the newest sub-window.
    newest: u64,
    /// Newest first, down to the oldest sub-window. Sub-windows that began after the last charge
    /// are empty and left out.
    counts: &'a [u64],
}

impl Counter for SubWindows {
    /// The length of a sub-window, and the number of counts.
    type Shape = (Micros, usize);

    fn fresh((length, len): Self::Shape, now: Timestamp) -> Self {
        Self {
            length,
            at: now,
            since: now,
            counts: vec![0; len],
        }
    }

    fn shape(&self) -> Self::Shape {
        (self.length, self.counts.len())
    }

    fn period(&self) -> Micros {
        self.length * (self.counts.len() as u64 - 1)
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn expires_at(&self) -> Timestamp {
        end_of(&self.counts, self.newest(), self.length)
    }

    fn expires_by(&self) -> Timestamp {
        Timestamp::from_micros((self.newest() + self.counts.len() as u64) * self.length)
    }

    fn set_back(&mut self, now: Timestamp) {
        self.since = self.at + 1;
        self.at = now;
    }

    /// The same counts in sub-windows of another shape. A count moves to the new sub-window in
    /// which its old one ended, or in which the last charge was made if that was earlier. So no
    /// count expires early, and two quotas in turn do not prolong one.
    fn derived(&self, shape: Self::Shape, now: Timestamp) -> Self {
        let mut cut = Self {
            at: self.at,
            since: self.at + 1,
            ..Self::fresh(shape, self.at)
        };
        // Counts that have left the old window do not return.
        let mut old = self.clone();
        old.advance_to(self.at.max(now));
        for (age, &count) in old
            .counts
            .iter()
            .enumerate()
            .filter(|&(_, &count)| count > 0)
        {
            // Signed, because old sub-windows may start before time zero.
            let end = (old.newest() as i64 - age as i64 + 1) * self.length as i64;
            let sub_window = (end - 1)
                .min(self.at.as_micros() as i64)
                .div_euclid(cut.length as i64);
            let age = usize::try_from(cut.newest() as i64 - sub_window).unwrap_or(0);
            if let Some(sum) = cut.counts.get_mut(age) {
                *sum = (*sum + count).min(MAX_COUNT);
            }
        }
        cut
    }

    fn charge(&mut self, now: Timestamp, units: u64) {
        self.advance_to(self.at.max(now));
        self.counts[0] += units;
    }

    fn add(&mut self, now: Timestamp, units: u64) {
        self.advance_to(self.at.max(now));
        let room = MAX_SUM.saturating_sub(self.counts.iter().sum());
        let units = units
            .min(room)
            .min(MAX_FOREIGN.saturating_sub(self.counts[0]));
        self.counts[0] += units;
    }

    fn take_back(&mut self, at: Timestamp, units: u64) {
        if (self.since..=self.at).contains(&at) {
            let age = usize::try_from(self.newest() - at / self.length).unwrap_or(usize::MAX);
            if let Some(count) = self.counts.get_mut(age) {
                *count = count.saturating_sub(units);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    pub(crate) limit: u64,
    /// The length of a sub-window, the period divided by the number of sub-windows, rounded up.
    pub(crate) length: Micros,
    pub(crate) sub_windows: u32,
}

/// The product that has to be exact.
const PRODUCT: &str = "limit * period / sub_windows";

/// The length of a sub-window, in microseconds.
fn length_of(period: Micros, sub_windows: u32) -> Result<Micros, ConfigError> {
    if sub_windows == 0 || sub_windows > MAX_SUB_WINDOWS {
        return Err(ConfigError::new(format!(
            "`sub_windows` is {sub_windows}; use 1 to {MAX_SUB_WINDOWS}"
        ))
        .at("sub_windows"));
    }
    if u64::from(sub_windows) > period {
        return Err(ConfigError::new(format!(
            "`sub_windows` is {sub_windows} in a period of {period} us, and a sub-window lasts \
             at least one microsecond; use fewer sub-windows or a longer period"
        ))
        .at("sub_windows"));
    }
    let length = period.div_ceil(u64::from(sub_windows));
    if length * u64::from(sub_windows) - period > period / 100 {
        return Err(ConfigError::new(format!(
            "`sub_windows` is {sub_windows} in a period of {period} us: rounded up to whole \
             microseconds, they make the window more than 1 % longer; use a number that \
             divides the period"
        ))
        .at("sub_windows"));
    }
    Ok(length)
}

impl SlidingWindow {
    /// Checks that a quota can be decided exactly in so many sub-windows.
    pub(crate) fn new(quota: &Quota, sub_windows: u32) -> Result<Self, ConfigError> {
        let (limit, period) = counted(quota, "a sliding window")?;
        let length = length_of(period, sub_windows)?;
        exact(limit, length, PRODUCT).map_err(|error| {
            let fits = |more: &u32| {
                length_of(period, *more).is_ok_and(|length| exact(limit, length, PRODUCT).is_ok())
            };
            let help = match (sub_windows..=MAX_SUB_WINDOWS).find(fits) {
                Some(enough) => format!(
                    "use {enough} sub-windows (`Limit::sliding_window_with`, or `sub_windows` in a \
                     file), or a smaller limit"
                ),
                None => "use a fixed window, a shorter period, or larger units, such as kilobytes \
                         instead of bytes"
                    .to_owned(),
            };
            ConfigError::new(format!("{error}; {help}"))
        })?;
        Ok(Self {
            limit,
            length,
            sub_windows,
        })
    }

    const fn shape(&self) -> (Micros, usize) {
        (self.length, self.sub_windows as usize + 1)
    }

    /// The units that count, rounded up.
    fn used(&self, view: &View<'_>) -> u64 {
        let (oldest, window) = view.counts.split_last().unwrap_or((&0, &[]));
        let overlap = self.length - view.time.as_micros() % self.length;
        // In floating point, as in Lua. It is exact up to the limit, and rounded the same above it.
        let fading = (*oldest as f64 * overlap as f64 / self.length as f64).ceil() as u64;
        window.iter().sum::<u64>() + fading
    }

    /// The first time at which at most `room` units count.
    fn time_until(&self, view: &View<'_>, room: u64) -> Timestamp {
        let mut full: u64 = view.counts.iter().sum();
        // With each step, the window leaves one more sub-window.
        for (step, &leaving) in view.counts.iter().rev().enumerate() {
            full -= leaving;
            if let Some(free) = room.checked_sub(full) {
                // `free` units of the leaving sub-window may still overlap.
                let left = (free * self.length).checked_div(leaving).unwrap_or(0);
                let start = (view.newest + step as u64) * self.length;
                return Timestamp::from_micros(start + self.length.saturating_sub(left));
            }
        }
        // Without counts, nothing has to leave.
        view.time
    }
}

impl KindOfState for Counters<SubWindows> {
    fn place_in(kind: &mut Kind) -> Option<&mut Option<Self>> {
        match kind {
            Kind::SubWindows(state) => Some(state),
            _ => None,
        }
    }

    fn into_kind(self) -> Kind {
        Kind::SubWindows(Some(self))
    }
}

impl SlidingWindow {
    pub(super) fn decide(
        &self,
        state: &mut Option<Counters<SubWindows>>,
        now: Timestamp,
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        let cost = cost.units;
        let (counter, moved) = Counters::own(state.as_ref(), self.shape(), now);
        let view = counter.at_time(now.max(counter.at));
        let exceeds_capacity = cost > self.limit;
        let used = self.used(&view);
        let allowed = cost == 0 || used + cost <= self.limit;
        let retry_after = (!allowed && !exceeds_capacity)
            .then(|| self.time_until(&view, self.limit - cost) - now);
        let remaining = self
            .limit
            .saturating_sub(if allowed { used + cost } else { used });
        let end = if allowed && cost > 0 {
            Timestamp::from_micros((view.newest + counter.counts.len() as u64) * self.length)
        } else {
            end_of(view.counts, view.newest, self.length)
        };
        if let Some(entry) = entry_of(effect, cost, allowed, exceeds_capacity, moved) {
            let own = if let Cow::Owned(own) = counter {
                Some(own)
            } else {
                None
            };
            Counters::commit(state, own, now, entry);
        }
        let reset_after = end.saturating_since(now);
        Outcome::undelayed(
            allowed,
            exceeds_capacity,
            remaining,
            retry_after,
            reset_after,
        )
    }

    /// Charges `units` even if they do not fit, up to a debt of `max_debt` units. A debt leaves
    /// with its sub-window.
    pub(super) fn overdraw(
        &self,
        state: &mut Option<Counters<SubWindows>>,
        now: Timestamp,
        units: u64,
        max_debt: u64,
    ) {
        let (counter, _) = Counters::own(state.as_ref(), self.shape(), now);
        let used = self.used(&counter.at_time(now.max(counter.at)));
        let room = self.limit.saturating_add(max_debt).saturating_sub(used);
        let units = units.min(room);
        if units > 0 {
            let own = if let Cow::Owned(own) = counter {
                Some(own)
            } else {
                None
            };
            Counters::commit(state, own, now, Entering::Overdraft(units));
        }
    }

    pub(super) fn refund(
        &self,
        state: &mut Option<Counters<SubWindows>>,
        now: Timestamp,
        receipt: Receipt,
        units: u64,
    ) {
        Counters::refund(state, self.shape(), now, receipt, units);
    }
}
