//! The account of one budget of an asynchronous fixed window. It has the units that this process
//! charged ahead, and the window that they belong to. No I/O.
//!
//! # Why nothing passes above the limit
//!
//! The store charges a unit before it is spent, and it is spent in the same window. These rules
//! keep it so:
//!
//! - **A window ends early here.** Its time starts when the request is sent, and the store decides
//!   later. A part is taken off, because clocks run at different speeds.
//! - **The clock is read after units are taken off**, under one lock.
//! - **An answer about another window** ends the units that were charged in the old one.
//! - **The answer to a charge of a block counts once**, by its number. Units that were taken are
//!   put back into the account that they came from, by its number. After a reset, the account is a
//!   new one.
//!
//! The test `every_order` goes through the orders of these events.

use std::mem::offset_of;
use std::time::Duration;

use crate::algorithm::FixedWindow;
use crate::model::{Budget, Limit};
use crate::store::asynchronous::accounts::Account;
use crate::store::asynchronous::decided::{DecidedHere, WindowOfUnits};
use crate::units::{CompactInstant, Micros, Outcome, Timestamp};

/// A window ends here earlier by this part of its rest. Two clocks that NTP adjusts differ by half
/// of that at most.
const CLOCK_MARGIN: Micros = 500;

/// The next block is at most so many times as large as what was charged before in its window. So a
/// key with few requests has few units that another replica lacks.
const GROWTH: u64 = 4;

/// A block has at most the units that its replica needs in so long, or in twice that time if the
/// window has plenty. A process that is killed loses at most one and a half blocks, so what it
/// needs in 15 or 30 seconds. A lost answer of the store costs one block.
const LASTS: Micros = 10_000_000;

/// The fewest spent units by which a replica estimates what it needs in the rest of the window.
const FEWEST: u64 = 8;

/// The smallest block. A block of one unit would save no question.
const MIN_BLOCK: u64 = 2;

/// The pause after a block was not charged. Each further failure doubles it.
const PAUSE: Duration = Duration::from_millis(50);

/// If an answer to the charge of a block takes longer, and more units are needed, it counts as a
/// failure. The runtime of its task may stand still.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// The most failures that prolong the pause.
const MOST_FAILURES: u32 = 7;

/// Units that are not spent for so long after the last block was charged are given back.
const STALE: Duration = Duration::from_secs(30);

/// Blocks leave together, in rounds at multiples of this time. Meanwhile, the other half of the
/// last block is spent.
pub(super) const ROUND: Duration = Duration::from_millis(16);

/// A block waits for a round if the units that are here last for so long.
const LASTS_FOR_ROUND: Micros = 2 * ROUND.as_micros() as u64;

/// The shortest time over which the rate of a key is measured.
const SHORTEST: Micros = 10_000;

#[derive(Clone, Debug, Hash)]
#[repr(C)]
pub(crate) struct PrepaidAccount {
    window: KnownWindow,
    /// Charged units that are not spent.
    ahead: u64,
    /// The size of the last block.
    last_block: u64,
    /// No other account of the process has it.
    number: u64,
    // Most decisions do not read what follows.
    /// The units that this process charged in this window, and since when.
    own: u64,
    began: CompactInstant,
    /// The block that is being charged, and since when.
    in_flight: Option<(Block, CompactInstant)>,
    /// No block is charged until then.
    paused_until: CompactInstant,
    /// The number of blocks in a row that were not charged.
    failures: u32,
    /// When the last block was charged.
    granted_at: CompactInstant,
}

/// What a decision reads is in two cache lines, behind the budget.
const _: () = assert!(size_of::<Budget>() + offset_of!(PrepaidAccount, own) <= 128);

/// A window of the store, as far as this process knows it.
#[derive(Clone, Copy, Debug, Hash)]
struct KnownWindow {
    /// The end by the clock of the store. Two windows of a budget have different ends.
    ends: Timestamp,
    /// The end by the clock of this process, which is never later. Units are not spent from then
    /// on.
    closes: CompactInstant,
    /// The units that the store had left.
    left: u64,
    /// When it had them, by its clock.
    as_of: Timestamp,
    /// When units were charged last, by the clock of the store. A refund names this time.
    charged_at: Timestamp,
    /// When the last answer came.
    answered: CompactInstant,
}

/// The state of a window, from an answer of the store.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct WindowReport {
    /// When the request was sent, by the clock of this process.
    pub(crate) sent: CompactInstant,
    /// When the answer came.
    pub(crate) answered: CompactInstant,
    /// When the store decided, by its own clock.
    pub(crate) as_of: Timestamp,
    /// From then until the end of the window.
    pub(crate) ends_after: Micros,
    /// The units that are left.
    pub(crate) left: u64,
    /// The units that were charged.
    pub(crate) charged: u64,
}

/// Units that nobody spends. They are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnedUnits {
    /// The number of the account.
    account: u64,
    pub(crate) units: u64,
    /// The end of the window that they belong to.
    ends: Timestamp,
    pub(crate) charged_at: Timestamp,
}

/// A block to be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    pub(crate) units: u32,
    pub(crate) number: u64,
    /// Set if it may be charged in the next round. Otherwise the units that are here would soon be
    /// spent.
    pub(crate) may_wait: bool,
}

impl ReturnedUnits {
    /// A block that no account may spend.
    pub(crate) const fn block(report: &WindowReport) -> Self {
        Self {
            account: u64::MAX,
            units: report.charged,
            ends: report.as_of,
            charged_at: report.as_of,
        }
    }
}

impl WindowReport {
    fn window(&self) -> KnownWindow {
        let safely = self.ends_after - self.ends_after.div_ceil(CLOCK_MARGIN);
        KnownWindow {
            ends: self.as_of.saturating_add(self.ends_after),
            closes: self.sent + Duration::from_micros(safely),
            left: self.left,
            as_of: self.as_of,
            charged_at: self.as_of,
            answered: self.answered,
        }
    }
}

impl KnownWindow {
    /// The time until its end.
    fn rest(&self, at: CompactInstant) -> Micros {
        self.ends.saturating_since(self.time_of_store(at))
    }

    /// The time of the store, as far as this process knows.
    fn time_of_store(&self, at: CompactInstant) -> Timestamp {
        self.as_of.saturating_add(at.micros_since(self.answered))
    }
}

impl PrepaidAccount {
    pub(crate) fn new(number: u64, report: &WindowReport) -> Self {
        Self {
            window: report.window(),
            ahead: 0,
            last_block: 0,
            number,
            own: report.charged,
            began: report.answered,
            in_flight: None,
            paused_until: report.answered,
            failures: 0,
            granted_at: report.answered,
        }
    }

    /// The charged units that are not spent.
    pub(crate) const fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The units that are left in the store and here, as far as this process knows.
    pub(crate) fn left(&self) -> u64 {
        self.window.left.saturating_add(self.ahead)
    }

    /// Returns whether the window is over.
    pub(crate) fn is_over(&self, now: CompactInstant) -> bool {
        !self.is_charging(now) && now >= self.window.closes
    }

    fn is_charging(&self, now: CompactInstant) -> bool {
        let is_late = |since: CompactInstant| now.since(since) >= LONGEST_ANSWER;
        self.in_flight.is_some_and(|(_, since)| !is_late(since))
    }

    /// Spends the units of a check, if all are here.
    #[inline]
    pub(crate) fn spend(
        &mut self,
        rule: &FixedWindow,
        units: u64,
        clock: impl FnOnce() -> CompactInstant,
    ) -> Option<DecidedHere> {
        if units > self.ahead {
            return None;
        }
        self.take(rule, units, clock)
    }

    /// Takes up to so many units, for a check that has to ask the store for the rest.
    pub(crate) fn take_up_to(
        &mut self,
        rule: &FixedWindow,
        units: u64,
        clock: impl FnOnce() -> CompactInstant,
    ) -> Option<DecidedHere> {
        match units.min(self.ahead) {
            0 => None,
            units => self.take(rule, units, clock),
        }
    }

    /// Takes units that are here.
    #[inline]
    fn take(
        &mut self,
        rule: &FixedWindow,
        units: u64,
        clock: impl FnOnce() -> CompactInstant,
    ) -> Option<DecidedHere> {
        self.ahead -= units;
        let now = clock();
        if now >= self.window.closes {
            self.ahead = 0;
            return None;
        }
        Some(self.spent(rule, units, self.ahead, now))
    }

    /// The units that a check would spend, up to so many.
    pub(crate) fn look(
        &self,
        rule: &FixedWindow,
        units: u64,
        now: CompactInstant,
    ) -> Option<DecidedHere> {
        let units = units.min(self.ahead);
        let is_here = units > 0 && now < self.window.closes;
        is_here.then(|| self.spent(rule, units, self.ahead - units, now))
    }

    fn spent(&self, rule: &FixedWindow, units: u64, ahead: u64, at: CompactInstant) -> DecidedHere {
        let window = &self.window;
        let now = window.time_of_store(at);
        let left = window.left.saturating_add(ahead).min(rule.limit);
        let until_end = window.ends.saturating_since(now);
        DecidedHere {
            account: self.number,
            units,
            at,
            now,
            charged_at: window.charged_at,
            outcome: Outcome::undelayed(true, false, left, None, until_end),
            window: Some(WindowOfUnits {
                ends: window.ends,
                closes: window.closes,
            }),
        }
    }

    /// Puts back what was taken for a check that was not allowed.
    pub(crate) fn put_back(&mut self, spent: &DecidedHere) {
        let is_of_window = spent.window.is_some_and(|it| it.ends == self.window.ends);
        if spent.account == self.number && is_of_window {
            self.ahead += spent.units;
        }
    }

    /// The block to charge now. `None` if the units suffice, if one is in flight, or if so little
    /// is left that each check has to ask.
    pub(crate) fn next_block(
        &mut self,
        rule: &FixedWindow,
        number: impl FnOnce() -> u64,
        now: CompactInstant,
    ) -> Option<Block> {
        // Most checks end here.
        let suffices = self.ahead > self.last_block / 2;
        if suffices {
            return None;
        }
        let late = self.in_flight.filter(|_| !self.is_charging(now));
        if let Some((late, _)) = late {
            self.fail(late, true, now);
        }
        let waits = self.in_flight.is_some() || now < self.paused_until;
        if waits || now >= self.window.closes {
            return None;
        }
        let rest = self.window.rest(now);
        let lasts = self.ahead_lasts(now);
        if lasts >= rest {
            // If more checks come than before, a block is charged when all units are spent.
            self.last_block = 0;
            return None;
        }
        let part = self.part_of_rest(rule);
        let block = part.min(self.need(part, rest, now));
        let block = block.min(self.own.saturating_mul(GROWTH));
        if block < MIN_BLOCK {
            return None;
        }
        // The smallest block shows that the store charges again.
        let block = (block >> self.failures).max(MIN_BLOCK);
        let units = u32::try_from(block).unwrap_or(u32::MAX);
        let block = Block {
            units,
            number: number(),
            may_wait: lasts >= LASTS_FOR_ROUND,
        };
        self.in_flight = Some((block, now));
        Some(block)
    }

    /// Half of this replica's part of what the store has left. Its part of all requests is about
    /// its part of all charges. The other half is for replicas that get more requests from now on.
    fn part_of_rest(&self, rule: &FixedWindow) -> u64 {
        let left = self.window.left;
        let charged = rule.limit.saturating_sub(left).max(1);
        let own = self.own.min(charged);
        scaled(left, own, 2 * charged)
    }

    /// The units that this replica will spend in the time that a block is for, or in half of the
    /// rest of the window, if its requests go on as until now. The window has plenty if its part is
    /// a quarter more than it needs until the end.
    fn need(&self, part: u64, rest: Micros, now: CompactInstant) -> u64 {
        let (spent, elapsed) = self.spent_in(now);
        let has_plenty = spent >= FEWEST && scaled(spent, rest + rest / 4, elapsed) <= part;
        let time = if has_plenty { 2 * LASTS } else { LASTS };
        scaled(spent, time.min(rest / 2), elapsed)
    }

    /// For how long the units that are here last, if the requests of this replica go on as in this
    /// window, or as since the last block, whichever were more. So a key whose requests become more
    /// does not wait for a round.
    fn ahead_lasts(&self, now: CompactInstant) -> Micros {
        let (spent, elapsed) = self.spent_in(now);
        let of_block = self.last_block.saturating_sub(self.ahead);
        let since = now.micros_since(self.granted_at);
        let at_rate = |spent: u64, time| scaled(self.ahead, time, spent.max(1));
        at_rate(spent, elapsed).min(at_rate(of_block, since))
    }

    /// The units that this replica spent in this window, and in which time.
    fn spent_in(&self, now: CompactInstant) -> (u64, Micros) {
        let elapsed = now.micros_since(self.began);
        (self.own.saturating_sub(self.ahead), elapsed.max(SHORTEST))
    }

    /// Notes the answer to a check. Returns whether it was about the known window, or about a newer
    /// one, which is known from now on.
    pub(crate) fn note(&mut self, report: &WindowReport) -> bool {
        let known = &mut self.window;
        let answered = report.window();
        if answered.ends != known.ends {
            // A request that was sent after the last answer is never about an older window.
            let is_newer = report.sent >= known.answered || answered.ends > known.ends;
            if !is_newer {
                return false;
            }
            *known = answered;
            (self.ahead, self.last_block, self.own) = (0, 0, 0);
            self.began = report.answered;
        } else if answered.as_of >= known.as_of {
            // Each is safe, so the later one is.
            let closes = known.closes.max(answered.closes);
            let charged_at = match report.charged {
                0 => known.charged_at,
                _ => answered.charged_at,
            };
            // The order of two checks of one call is not known.
            let left = match answered.as_of == known.as_of {
                true => known.left.min(answered.left),
                false => answered.left,
            };
            *known = KnownWindow {
                closes,
                charged_at,
                left,
                ..answered
            };
        }
        self.own += report.charged;
        true
    }

    /// Returns whether a block is still to be charged.
    pub(crate) fn needs(&self, block: Block, now: CompactInstant) -> bool {
        self.awaits(block) && now < self.window.closes
    }

    /// Returns whether a block is in flight.
    fn awaits(&self, block: Block) -> bool {
        self.in_flight.is_some_and(|(it, _)| it == block)
    }

    /// Adds a block that the store charged. Returns whether it may be spent here. It may not if it
    /// is not the one in flight, or if it is of an older window.
    pub(crate) fn grant(&mut self, block: Block, report: &WindowReport) -> bool {
        if !self.awaits(block) {
            return false;
        }
        self.in_flight = None;
        let is_known = self.note(report);
        if is_known {
            self.ahead += u64::from(block.units);
            self.last_block = block.units.into();
            self.failures = 0;
            self.granted_at = report.answered;
        }
        is_known
    }

    /// Notes that the charge of a block failed. The next block comes later and is smaller. If the
    /// block may be charged all the same, its units count as charged. So a slow store does not lose
    /// one block after another.
    pub(crate) fn fail(&mut self, block: Block, may_be_charged: bool, now: CompactInstant) {
        if !self.awaits(block) {
            return;
        }
        self.in_flight = None;
        self.paused_until = now + PAUSE.saturating_mul(1 << self.failures);
        self.failures = MOST_FAILURES.min(self.failures + 1);
        if may_be_charged {
            self.window.left = self.window.left.saturating_sub(block.units.into());
        }
    }

    /// Takes out units that were not spent for a while.
    pub(crate) fn take_stale(&mut self, now: CompactInstant) -> Option<ReturnedUnits> {
        let is_stale = now.since(self.granted_at) >= STALE;
        let has_units = self.ahead > 0 && !self.is_charging(now);
        if is_stale && has_units {
            self.take_all(now)
        } else {
            None
        }
    }

    /// Puts back units that could not be given back.
    pub(crate) fn put_back_returned(&mut self, kept: &ReturnedUnits) {
        if kept.account == self.number && kept.ends == self.window.ends {
            self.ahead += kept.units;
            self.own += kept.units;
        }
    }

    /// Takes out all units, to give them back. A block in flight is not spent here any more.
    pub(crate) fn take_all(&mut self, now: CompactInstant) -> Option<ReturnedUnits> {
        self.in_flight = None;
        let units = std::mem::take(&mut self.ahead);
        self.last_block = 0;
        self.own = self.own.saturating_sub(units);
        let charged_at = self.window.charged_at;
        (units > 0 && now < self.window.closes).then_some(ReturnedUnits {
            account: self.number,
            units,
            ends: self.window.ends,
            charged_at,
        })
    }
}

impl Account for PrepaidAccount {
    type Numbers = FixedWindow;

    #[inline]
    fn numbers_of(limit: &Limit) -> Option<FixedWindow> {
        limit.charged_ahead().copied()
    }

    fn can_be_forgotten(&self, now: CompactInstant) -> bool {
        !self.is_charging(now) && (self.ahead == 0 || now >= self.window.closes)
    }
}

/// `units * part / of`, rounded down.
fn scaled(units: u64, part: u64, of: u64) -> u64 {
    // A division of 128 bits takes several times as long, and is hardly ever needed.
    if let Some(product) = units.checked_mul(part) {
        return product / of;
    }
    let scaled = u128::from(units) * u128::from(part) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Quota, micros};

    /// The answer to a charge of a limit of 200, so long after the start of a window of a minute.
    fn report(start: CompactInstant, millis: u64, left: u64, charged: u64) -> WindowReport {
        let elapsed = Duration::from_millis(millis);
        WindowReport {
            sent: start + elapsed,
            answered: start + elapsed,
            as_of: Timestamp::from_micros(1_790_000_000_000_000 + micros(elapsed)),
            ends_after: 60_000_000 - micros(elapsed),
            left,
            charged,
        }
    }

    fn rule() -> FixedWindow {
        let limit =
            Limit::fixed_window("api", Quota::per_minute(200)).and_then(Limit::asynchronous);
        *limit.unwrap().charged_ahead().unwrap()
    }

    /// An account after a check of a unit.
    fn account_after_a_check(start: CompactInstant) -> PrepaidAccount {
        PrepaidAccount::new(0, &report(start, 0, 199, 1))
    }

    #[test]
    fn block_waits_for_a_round_if_the_units_that_are_here_last_for_so_long() {
        for (requests_within, may_wait) in [(10, false), (45, false), (50, true), (1_000, true)] {
            let start = CompactInstant::now();
            let mut account = account_after_a_check(start);
            let block = account.next_block(&rule(), || 1, start).unwrap();
            assert!(!block.may_wait, "no unit is here");
            assert!(account.grant(block, &report(start, 0, 195, 4)));
            let now = start + Duration::from_millis(requests_within);
            for _ in 0..2 {
                account.spend(&rule(), 1, || now).unwrap();
            }
            // Of 5 units, 3 are spent.
            let block = account.next_block(&rule(), || 2, now).unwrap();
            assert_eq!(block.may_wait, may_wait, "3 in {requests_within} ms");
        }
    }

    #[test]
    fn block_of_a_key_does_not_wait_when_its_requests_become_more() {
        let start = CompactInstant::now();
        let mut account = account_after_a_check(start);
        let block = account.next_block(&rule(), || 1, start).unwrap();
        assert!(account.grant(block, &report(start, 0, 195, 4)));
        let later_by = |millis| start + Duration::from_millis(millis);
        account.spend(&rule(), 2, || later_by(2_000)).unwrap();
        let slow = account.next_block(&rule(), || 2, later_by(2_000)).unwrap();
        assert!(slow.may_wait, "3 of 5 units in 2 s");
        let left = 195 - u64::from(slow.units);
        let charged = report(start, 2_010, left, slow.units.into());
        assert!(account.grant(slow, &charged));
        let rest = account.ahead() - 2;
        account.spend(&rule(), rest, || later_by(2_020)).unwrap();
        let quick = account.next_block(&rule(), || 3, later_by(2_020)).unwrap();
        assert!(!quick.may_wait, "{rest} units in 10 ms");
    }

    #[test]
    fn units_of_a_block_count_once_if_a_check_was_decided_before_it() {
        let start = CompactInstant::now();
        for (is_in_one_call, block_is_first) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let mut account = account_after_a_check(start);
            let block = account.next_block(&rule(), || 7, start).unwrap();
            assert_eq!(block.units, 4);
            let checked = report(start, 20, 198, 1);
            let charged = report(start, if is_in_one_call { 20 } else { 21 }, 194, 4);

            if block_is_first {
                account.grant(block, &charged);
                account.note(&checked);
            } else {
                account.note(&checked);
                account.grant(block, &charged);
            }

            assert_eq!(account.left(), 198);
        }
    }

    #[test]
    fn block_that_is_not_answered_for_five_seconds_is_replaced_and_not_spent() {
        let start = CompactInstant::now();
        let mut account = account_after_a_check(start);
        let late = account.next_block(&rule(), || 7, start).unwrap();
        account.note(&report(start, 4_000, 100, 99));
        let mut block_at = |millis| {
            let now = start + Duration::from_millis(millis);
            account.next_block(&rule(), || 8, now)
        };
        assert_eq!(block_at(4_999), None);
        assert_eq!(block_at(5_000), None, "the next one comes after a pause");
        assert_eq!(block_at(5_050).unwrap().number, 8);
        assert!(!account.grant(late, &report(start, 5_060, 190, 4)));
    }

    /// The next block of an account that spent so many units in so many seconds of a window, and
    /// all that it charged. The store has some left.
    fn next_block_after(spent: u64, seconds: u64, left: u64) -> Option<u32> {
        let start = CompactInstant::now();
        let mut account = account_after_a_check(start);
        account.note(&report(start, seconds * 1_000, left, spent - 1));
        let now = start + Duration::from_secs(seconds);
        Some(account.next_block(&rule(), || 1, now)?.units)
    }

    #[test]
    fn block_is_half_of_the_part_of_a_replica_if_few_units_are_left() {
        for (left, units) in [(20, 2), (60, 8), (90, 10), (160, 10)] {
            assert_eq!(next_block_after(40, 40, left), Some(units), "{left} left");
        }
    }

    #[test]
    fn block_is_for_twice_the_time_if_the_window_has_plenty_and_at_most_for_half_of_the_rest() {
        for (seconds, of_plenty, of_few) in [(16, 20, 10), (30, 15, 10), (50, 5, 5), (56, 2, 2)] {
            let rest = 60 - seconds;
            assert_eq!(next_block_after(seconds, seconds, 180), Some(of_plenty));
            // Half of its part is just what it needs.
            let few = 200 * rest / (rest + seconds / 2);
            assert_eq!(next_block_after(seconds, seconds, few), Some(of_few));
        }
    }

    #[test]
    fn window_has_plenty_only_for_a_replica_that_spent_eight_units() {
        assert_eq!(
            next_block_after(7, 20, 180),
            Some(3),
            "needs 3.5 in 10 seconds"
        );
        assert_eq!(
            next_block_after(8, 20, 180),
            Some(8),
            "needs 8 in 20 seconds"
        );
    }

    #[test]
    fn no_block_is_charged_if_the_units_that_are_here_last_until_the_end() {
        let start = CompactInstant::now();
        let mut account = account_after_a_check(start);
        account.note(&report(start, 40_000, 160, 39));
        let now = |seconds| start + Duration::from_secs(seconds);
        let block = account.next_block(&rule(), || 1, now(40)).unwrap();
        let charged = report(start, 40_000, 150, block.units.into());
        assert!(account.grant(block, &charged));
        let mut next_after = |spent, at| {
            account.spend(&rule(), spent, || now(at)).unwrap();
            account.next_block(&rule(), || 2, now(at))
        };
        assert_eq!(next_after(5, 55), None, "5 are here for 5 seconds");
        assert_eq!(next_after(4, 55), None, "one is here");
        assert!(next_after(1, 55).is_some(), "more checks came than before");
    }

    #[test]
    fn block_is_not_needed_when_its_window_is_over() {
        let start = CompactInstant::now();
        let mut account = account_after_a_check(start);
        let block = account.next_block(&rule(), || 7, start).unwrap();
        assert!(account.needs(block, start + Duration::from_millis(4)));
        assert!(!account.needs(block, start + Duration::from_secs(60)));
    }
}
