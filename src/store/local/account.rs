//! What this process knows of one budget of an asynchronous limit: units that it charged ahead, and
//! the window that they belong to. No I/O.
//!
//! # Why nothing passes above the limit
//!
//! A unit is spent only after the store charged it, in the window in which it was charged. The
//! rules that keep it so:
//!
//! - **The clock is read after units are taken off.** Otherwise a thread that is stopped in between
//!   would spend them after the window's end.
//! - **A window ends when the store said, counted from when it was asked.** The answer came later,
//!   so this is never too late. A part is taken off, because clocks do not run at the same speed.
//! - **A unit is of the window in which it was charged.** If an answer is about another window than
//!   the known one, the units of the older one are lost.
//! - **The answer to a charge of a block counts once**, by its number. After a reset, the account
//!   is another one, and does not know the number.
//!
//! The test `every_order` goes through all orders of events.

use std::time::Duration;

use tokio::time::Instant;

use crate::algorithm::FixedWindow;
use crate::units::{Micros, Outcome, Timestamp, later, micros};

/// A window ends here earlier than at the store by this part of its rest, because clocks run at
/// different speeds. Two clocks that NTP adjusts differ by half of that at most.
const DRIFT: Micros = 500;

/// The next block is at most so many times as large as what was charged before in its window. So a
/// key with few requests has few units that another replica lacks.
const GROWTH: u64 = 4;

/// The smallest block. A block of one unit would save no question.
const MIN_BLOCK: u64 = 2;

/// The pause after a block was not charged.
const PAUSE: Duration = Duration::from_millis(50);

/// After so long without a check, units are given back.
const IDLE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Hash)]
pub(super) struct Account {
    rule: FixedWindow,
    window: Window,
    /// Charged units that are not spent.
    ahead: u64,
    /// The size of the last block.
    block: u64,
    /// The units that this process charged in this window.
    own: u64,
    /// The number of the charge of a block that is in flight.
    refill: Option<u64>,
    /// No block is charged until then.
    paused_until: Instant,
    /// The last time that units were spent or charged.
    used_at: Instant,
}

/// A window of the store, and what the store said of it last.
#[derive(Clone, Copy, Debug, Hash)]
struct Window {
    /// By the clock of the store. Two windows of a budget have different ends.
    ends: Timestamp,
    /// By the clock of this process, and never later. Units are not spent from then on.
    closes: Instant,
    /// The units that the store had left.
    left: u64,
    /// When the store said that, by its clock.
    as_of: Timestamp,
    /// When units were charged last, by the clock of the store. A refund names this time.
    charged_at: Timestamp,
    /// When this process heard it.
    heard: Instant,
}

/// What the store answered about a window.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Report {
    /// When the store was asked, by the clock of this process.
    pub(super) asked: Instant,
    /// When its answer came.
    pub(super) heard: Instant,
    /// When it decided, by its own clock.
    pub(super) as_of: Timestamp,
    /// Until the end of the window, from then on.
    pub(super) ends_after: Micros,
    pub(super) left: u64,
    /// The units that were charged.
    pub(super) charged: u64,
}

/// Units of an account that a check spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) units: u64,
    /// The end of the window that they belong to.
    pub(super) ends: Timestamp,
    /// A time at which units of this window were charged.
    pub(super) charged_at: Timestamp,
    pub(super) at: Instant,
    /// When the window closes here.
    pub(super) closes: Instant,
    /// The time of `at` by the clock of the store, as far as this process can know.
    pub(super) now: Timestamp,
    pub(super) outcome: Outcome,
}

/// A block to be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refill {
    pub(super) units: u32,
    pub(super) number: u64,
}

impl Report {
    const fn ends(&self) -> Timestamp {
        self.as_of.saturating_add(self.ends_after)
    }

    fn window(&self) -> Window {
        let safely = self.ends_after - self.ends_after.div_ceil(DRIFT);
        Window {
            ends: self.ends(),
            closes: later(self.asked, Duration::from_micros(safely)),
            left: self.left,
            as_of: self.as_of,
            charged_at: self.as_of,
            heard: self.heard,
        }
    }
}

impl Window {
    /// The time of the store, as far as this process can know.
    fn time_of_store(&self, at: Instant) -> Timestamp {
        let since = at.saturating_duration_since(self.heard);
        self.as_of.saturating_add(micros(since))
    }
}

impl Account {
    pub(super) fn new(rule: FixedWindow, report: &Report) -> Self {
        let mut account = Self {
            rule,
            window: report.window(),
            ahead: 0,
            block: 0,
            own: 0,
            refill: None,
            paused_until: report.heard,
            used_at: report.heard,
        };
        account.hear(report);
        account
    }

    pub(super) fn is_of(&self, rule: &FixedWindow) -> bool {
        self.rule == *rule
    }

    pub(super) const fn has_units(&self) -> bool {
        self.ahead > 0
    }

    pub(super) const fn is_refilling(&self) -> bool {
        self.refill.is_some()
    }

    /// The charged units that are not spent.
    pub(super) const fn ahead(&self) -> u64 {
        self.ahead
    }

    /// Spends the units of a check, if all are here.
    #[inline]
    pub(super) fn spend(&mut self, units: u64, clock: impl FnOnce() -> Instant) -> Option<Spent> {
        self.take(units, units, clock)
    }

    /// Takes up to so many units for a check that has to ask the store for the rest.
    pub(super) fn take_up_to(
        &mut self,
        units: u64,
        clock: impl FnOnce() -> Instant,
    ) -> Option<Spent> {
        self.take(units, 1, clock)
    }

    /// Takes up to `most` units, and at least `least`.
    #[inline]
    fn take(&mut self, most: u64, least: u64, clock: impl FnOnce() -> Instant) -> Option<Spent> {
        let units = most.min(self.ahead);
        if units < least {
            return None;
        }
        self.ahead -= units;
        // Not before the units are taken off.
        let now = clock();
        if now >= self.window.closes {
            self.ahead = 0;
            return None;
        }
        self.used_at = now;
        Some(self.spent(units, now))
    }

    /// The units that a check would spend, up to so many.
    pub(super) fn look(&self, units: u64, now: Instant) -> Option<Spent> {
        let units = units.min(self.ahead);
        (units > 0 && now < self.window.closes).then(|| self.spent(units, now))
    }

    fn spent(&self, units: u64, at: Instant) -> Spent {
        let window = &self.window;
        let now = window.time_of_store(at);
        let left = window.left.saturating_add(self.ahead);
        let until_end = window.ends.saturating_since(now);
        Spent {
            units,
            ends: window.ends,
            charged_at: window.charged_at,
            at,
            closes: window.closes,
            now,
            outcome: Outcome::undelayed(true, false, left, None, until_end),
        }
    }

    /// Puts back what was taken for a check that was not allowed.
    pub(super) fn put_back(&mut self, spent: &Spent) {
        if spent.ends == self.window.ends {
            self.ahead += spent.units;
        }
    }

    /// The block to charge now. `None` if the units suffice, if one is in flight, or if so little
    /// is left that each check has to ask.
    pub(super) fn refill(&mut self, number: impl FnOnce() -> u64, now: Instant) -> Option<Refill> {
        let window = &self.window;
        let is_early = self.ahead > self.block / 2 || now < self.paused_until;
        if self.refill.is_some() || is_early || now >= window.closes {
            return None;
        }
        let block = self.part_of_rest().min(self.need(now) / 2);
        let block = block.min(self.own.saturating_mul(GROWTH));
        if block < MIN_BLOCK {
            return None;
        }
        let units = u32::try_from(block).unwrap_or(u32::MAX);
        let number = number();
        self.refill = Some(number);
        Some(Refill { units, number })
    }

    /// Half of this replica's part of what the store has left. Its part of all requests is about
    /// its part of all charges. The other half is for replicas that get more requests from now on.
    fn part_of_rest(&self) -> u64 {
        let left = self.window.left;
        let charged = self.rule.limit.saturating_sub(left).max(1);
        let own = self.own.min(charged);
        share(left, own, 2 * charged)
    }

    /// The units that this replica will spend in the rest of the window, if its requests go on as
    /// until now.
    fn need(&self, now: Instant) -> u64 {
        let spent = self.own.saturating_sub(self.ahead);
        let rest = self
            .window
            .ends
            .saturating_since(self.window.time_of_store(now));
        let elapsed = self.rule.period.saturating_sub(rest).max(1);
        share(spent, rest, elapsed)
    }

    /// Notes what the store said of its window. Returns whether that window is the known one now.
    pub(super) fn hear(&mut self, report: &Report) -> bool {
        let known = &mut self.window;
        let heard = report.window();
        if heard.ends != known.ends {
            // A question that was sent after the last answer is about a window that is not older.
            let is_newer = report.asked >= known.heard || heard.ends > known.ends;
            if !is_newer {
                return false;
            }
            *known = heard;
            (self.ahead, self.block, self.own) = (0, 0, 0);
        } else if heard.as_of >= known.as_of {
            // Each is safe, so the later one is.
            let closes = known.closes.max(heard.closes);
            let charged_at = match report.charged {
                0 => known.charged_at,
                _ => heard.charged_at,
            };
            *known = Window {
                closes,
                charged_at,
                ..heard
            };
        }
        self.own += report.charged;
        self.used_at = report.heard;
        true
    }

    /// Adds a block that the store charged. An answer to another charge changes nothing.
    pub(super) fn grant(&mut self, refill: Refill, report: &Report) {
        if self.refill != Some(refill.number) {
            return;
        }
        self.refill = None;
        if self.hear(report) {
            self.ahead += u64::from(refill.units);
            self.block = refill.units.into();
        }
    }

    /// Notes that a block was not charged, or that nobody knows whether it was.
    pub(super) fn fail_refill(&mut self, number: u64, now: Instant) {
        if self.refill == Some(number) {
            self.refill = None;
            self.paused_until = later(now, PAUSE);
        }
    }

    /// Returns whether nothing of this matters any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.refill.is_none() && now >= self.window.closes
    }

    /// Takes out the units of a budget without checks, to give them back.
    pub(super) fn take_idle(&mut self, now: Instant) -> Option<Spent> {
        let is_idle = now.saturating_duration_since(self.used_at) >= IDLE;
        if is_idle { self.take_all(now) } else { None }
    }

    /// Takes out all units, to give them back.
    pub(super) fn take_all(&mut self, now: Instant) -> Option<Spent> {
        self.block = 0;
        let taken = self.take(u64::MAX, 1, || now)?;
        self.own = self.own.saturating_sub(taken.units);
        Some(taken)
    }
}

/// `units * part / of`, rounded down.
fn share(units: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(units) * u128::from(part) / u128::from(of);
    u64::try_from(share).unwrap_or(u64::MAX)
}
