//! Sliding log: exact.
//!
//! The log keeps the time and the cost of every allowed request. Any window of `period` holds at
//! most `limit` units. A request at `t` counts in every window that starts after `t - period` and
//! not after `t`. It stops counting at exactly `t + period`.
//!
//! An entry has the running sum of all units up to and including it. So the units in the window are
//! one subtraction, and a bisection finds the entry that makes room when it leaves, for any costs.
//! Requests of one microsecond share an entry.
//!
//! # Two quotas in turn
//!
//! A check counts the entries of its own period. The log keeps entries for the longest period that
//! has checked it, until it is empty. It does not shrink before, because a quota that checks rarely
//! would then miss units that it has to count. A denied check is stored if its period or limit is
//! new.
//!
//! A short period may allow far more units within the long period than any quota needs. So the
//! oldest entries also leave once the newer ones hold as many units as the largest limit that has
//! checked the log, `keep.limit`. This changes no decision. A check whose period includes removed
//! units also counts at least `keep.limit` newer ones, and is denied. Its `retry_after` depends on
//! an entry that is kept.
//!
//! A debt counts as if a quota with a limit as large had allowed it. It leaves a period after it
//! was charged.
//!
//! # Refunds
//!
//! A refund subtracts units from the entry of the charge and from the running sums of all newer
//! entries. With many newer entries, it subtracts them from the oldest entries instead. That never
//! allows too much, because the oldest entries leave first, and then the charge counts in full
//! again.
//!
//! Once an entry left because newer ones hold the largest limit, the receipts of those newer ones
//! are void, because a refund would leave fewer units than count.
//!
//! Twin: `scripts/sliding_log.lua`.

use std::collections::VecDeque;

use super::range::counted;
use super::{Cost, Effect, Kind, KindOfState};
use crate::units::{ConfigError, Micros, Outcome, Quota, Receipt, Timestamp};

/// The largest limit. A log sums all units that it ever allowed. The rest of the exact range is
/// room for that sum before it restarts.
const MAX_LOGGED: u64 = (1 << 47) - 1;

/// The most entries that a refund changes.
const MAX_CHANGED: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Signed, because the entries move with a clock that is set back.
    at: i64,
    /// Units allowed up to and including this entry, since the log began.
    sum: u64,
}

/// The state: the allowed requests, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// The sum before the oldest entry.
    before: u64,
    /// The largest limit and the longest period that have checked it since it began. Entries are
    /// kept for these.
    keep: SlidingLog,
    /// The time of the first charge that can be refunded.
    since: i64,
}

impl Log {
    pub(crate) fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros((self.newest() + self.keep.period as i64) as Micros)
    }

    fn newest(&self) -> i64 {
        self.entries.back().map_or(0, |newest| newest.at)
    }

    fn sum(&self) -> u64 {
        self.entries.back().map_or(self.before, |newest| newest.sum)
    }

    /// The sum before an entry.
    fn sum_before(&self, place: usize) -> u64 {
        place
            .checked_sub(1)
            .map_or(self.before, |last| self.entries[last].sum)
    }

    fn push(&mut self, at: i64, units: u64) {
        let sum = self.sum() + units;
        match self.entries.back_mut().filter(|newest| newest.at == at) {
            Some(newest) => newest.sum = sum,
            None => self.entries.push_back(Entry { at, sum }),
        }
    }

    /// The number of entries at or before `time`.
    fn up_to(&self, time: i64) -> usize {
        // Most often, there are none.
        match self.entries.front() {
            Some(oldest) if oldest.at <= time => {
                self.entries.partition_point(|entry| entry.at <= time)
            }
            _ => 0,
        }
    }

    fn forget(&mut self, entries: usize) {
        if entries == 0 {
            return;
        }
        self.before = self.sum_before(entries);
        self.entries.drain(..entries);
    }

    /// Applies a view, and removes the entries that no quota needs.
    fn adopt(&mut self, view: &LogView) {
        if view.set_back > 0 {
            self.since = self.newest() + 1;
            self.entries
                .iter_mut()
                .for_each(|entry| entry.at -= view.set_back);
        }
        let left = view.time - self.keep.period as i64;
        self.keep = view.keep;
        self.forget(self.up_to(left));
        let surplus = (self.sum() - self.before).saturating_sub(self.keep.limit);
        if surplus > 0 {
            let known = self.before + surplus;
            let leaving = self.entries.partition_point(|entry| entry.sum <= known);
            if leaving > 0 {
                // They still count. A refund of the units that stand in for them would expose that.
                self.since = self.since.max(self.newest() + 1);
            }
            self.forget(leaving);
        }
    }

    fn take_back(&mut self, place: usize, units: u64) {
        if self.entries.len() - place <= MAX_CHANGED {
            self.entries
                .range_mut(place..)
                .for_each(|entry| entry.sum -= units);
        } else {
            self.before += units;
            let empty = self
                .entries
                .partition_point(|entry| entry.sum <= self.before);
            self.entries.drain(..empty);
        }
        // An empty entry must not be the newest, because the log would expire too late.
        while !self.entries.is_empty() && self.sum_before(self.entries.len() - 1) == self.sum() {
            self.entries.pop_back();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    pub(crate) period: Micros,
}

/// The log at the time of a check.
struct LogView {
    /// The check's time, or the newest entry's if that is later.
    time: i64,
    /// The distance by which the clock was set back, and by which all entries move.
    set_back: i64,
    /// The sum before the oldest entry that counts for this period.
    before: u64,
    /// The units that count.
    used: u64,
    /// The rule for which entries are kept after this check.
    keep: SlidingLog,
    /// `true` if a denied check has to store `keep` or `set_back`.
    moved: bool,
}

impl SlidingLog {
    /// Checks that a quota can be decided exactly.
    pub(crate) fn new(quota: &Quota) -> Result<Self, ConfigError> {
        let (limit, period) = counted(quota, "a sliding log")?;
        if limit > MAX_LOGGED {
            return Err(ConfigError::new(format!(
                "the limit is {limit}, beyond exact arithmetic; use 1 to {MAX_LOGGED} in a sliding \
                 log"
            )));
        }
        Ok(Self { limit, period })
    }

    fn empty(&self, now: Timestamp) -> Log {
        Log {
            entries: VecDeque::new(),
            before: 0,
            keep: *self,
            since: now.as_micros() as i64,
        }
    }

    fn view(&self, log: &Log, now: Timestamp) -> LogView {
        let now = now.as_micros() as i64;
        let newest = log.entries.back().map_or(now, |newest| newest.at);
        let set_back = if newest - now > self.period as i64 {
            newest - now
        } else {
            0
        };
        let time = now.max(newest - set_back);
        let left = time + set_back - log.keep.period.min(self.period) as i64;
        let first = log.up_to(left);
        let before = log.sum_before(first);

        let keep = Self {
            limit: log.keep.limit.max(self.limit),
            period: log.keep.period.max(self.period),
        };
        let moved = set_back > 0 || keep != log.keep;
        LogView {
            time,
            set_back,
            before,
            used: log.sum() - before,
            keep,
            moved,
        }
    }
}

impl KindOfState for Log {
    fn place_in(kind: &mut Kind) -> Option<&mut Option<Self>> {
        match kind {
            Kind::Log(state) => Some(state),
            _ => None,
        }
    }

    fn into_kind(self) -> Kind {
        Kind::Log(Some(self))
    }
}

impl SlidingLog {
    pub(super) fn decide(
        &self,
        state: &mut Option<Log>,
        now: Timestamp,
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        let cost = cost.units;
        let empty = self.empty(now);
        let log = state
            .as_ref()
            .filter(|log| now < log.expires_at())
            .unwrap_or(&empty);
        let view = self.view(log, now);
        let until_left =
            |at: i64| (at - view.set_back + self.period as i64) as Micros - now.as_micros();

        let exceeds_capacity = cost > self.limit;
        let allowed = cost == 0 || view.used + cost <= self.limit;
        let charges = allowed && cost > 0;
        let retry_after = (!allowed && !exceeds_capacity).then(|| {
            // The first entry that makes enough room when it leaves.
            let enough = view.before + view.used + cost - self.limit;
            let frees = log.entries.partition_point(|entry| entry.sum < enough);
            log.entries
                .get(frees)
                .map_or(0, |entry| until_left(entry.at))
        });
        let used = if allowed { view.used + cost } else { view.used };
        let reset_after = match log.entries.back() {
            _ if charges => until_left(view.time + view.set_back),
            Some(newest) if used > 0 => until_left(newest.at),
            _ => 0,
        };

        if (charges && effect == Effect::Commit)
            || (view.moved && !charges && !exceeds_capacity && effect.adopts(cost))
        {
            let mut log = state
                .take()
                .filter(|log| now < log.expires_at())
                .unwrap_or(empty);
            log.adopt(&view);
            if charges {
                log.push(view.time, cost);
            }
            *state = (!log.entries.is_empty()).then_some(log);
        }
        let remaining = self.limit.saturating_sub(used);
        Outcome::undelayed(
            allowed,
            exceeds_capacity,
            remaining,
            retry_after,
            reset_after,
        )
    }

    /// Charges `units` even if they do not fit, up to a debt of `max_debt` units.
    pub(super) fn overdraw(
        &self,
        state: &mut Option<Log>,
        now: Timestamp,
        units: u64,
        max_debt: u64,
    ) {
        let mut log = state
            .take()
            .filter(|log| now < log.expires_at())
            .unwrap_or_else(|| self.empty(now));
        let mut view = self.view(&log, now);
        let most = self.limit.saturating_add(max_debt).min(MAX_LOGGED);
        let units = units.min(most.saturating_sub(view.used));
        if units > 0 {
            // Like a check under so large a limit. Otherwise entries that still count would leave.
            view.keep.limit = view.keep.limit.max(view.used + units);
            log.adopt(&view);
            log.push(view.time, units);
        }
        *state = (!log.entries.is_empty()).then_some(log);
    }

    pub(super) fn refund(
        &self,
        state: &mut Option<Log>,
        now: Timestamp,
        receipt: Receipt,
        units: u64,
    ) {
        let Some(log) = state.as_mut().filter(|log| now < log.expires_at()) else {
            return;
        };
        let charged_at = receipt.at.as_micros() as i64;
        if self.view(log, now).set_back > 0 || charged_at < log.since {
            return;
        }
        let place = log.entries.partition_point(|entry| entry.at < charged_at);
        if let Some(entry) = log
            .entries
            .get(place)
            .filter(|entry| entry.at == charged_at)
        {
            let held = entry.sum - log.sum_before(place);
            let units = units.min(held);
            if units > 0 {
                log.take_back(place, units);
            }
        }
        if log.entries.is_empty() {
            *state = None;
        }
    }
}
