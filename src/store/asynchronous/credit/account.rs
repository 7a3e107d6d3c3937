//! The account of one budget of a limit with an overshoot. It has the last answer of the store, and
//! the units that this process allowed and has not paid. No I/O.
//!
//! # Why at most the overshoot passes above the limit
//!
//! The *credit* of a replica is its share of the overshoot. A replica owes at most its credit for a
//! key. The [leases](super::lease) keep the sum of all shares at 1 or below. Let F be the level in
//! the store plus all units that replicas owe. The store allows a check only if the level stays at
//! the capacity or below. A replica allows a check only if the level that it knows, plus the units
//! that it owes, stays there as well. Therefore F is at most the capacity plus all credits, and in
//! any time `t` at most this passes:
//!
//! > capacity + rate x t + overshoot
//!
//! If a process is killed, or loses its share before it can pay, the units that it owed are added.
//! The following rules are needed:
//!
//! - **All unpaid units count as owed.** This includes the units of a payment in flight, and of a
//!   group that is not decided yet. A payment is repeated until it is answered.
//! - **A key without an account asks the store.** After an account is forgotten, the answers to
//!   earlier requests do not create it again.
//! - **Answers count in the order of this process.** An answer replaces the known level if its
//!   request was sent after the known level arrived. If two requests were in flight at once, the
//!   higher level counts.
//! - **A share that grew is not used with an older answer**, because other replicas may have used
//!   that share since.
//! - **The clock is read after the units are added**, under one lock. If the lease is over by then,
//!   the units are removed again.
//!
//! The test `every_order_on_credit` goes through the orders of these events.

use std::mem::offset_of;
use std::time::Duration;

use super::lease::UsableShare;
use crate::algorithm::{Rate, Rule};
use crate::model::{Budget, Limit};
use crate::store::asynchronous::decided::DecidedHere;
use crate::units::{CompactInstant, Micros, Outcome, Timestamp};

/// The time since a request is this part shorter or longer on the clock of the store, because
/// clocks run at different speeds.
const CLOCK_MARGIN: Micros = 500;

/// The longest time after an answer for which this process denies checks. Remembered denials have
/// the same.
const DENIES_FOR: Duration = Duration::from_secs(1);

/// An account that owes nothing is forgotten so long after the last answer of the store. Each check
/// that is allowed here leads to one.
const UNUSED: Duration = Duration::from_secs(60);

/// A debt below an eighth of the credit is small. Most keys are far below their limit, and cannot
/// exceed it by much while their debts are small.
const SMALL_PART: u64 = 8;

/// So long after the last answer, small debts are paid as well.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// If an answer to a payment takes longer, the payment is sent again.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// The numbers of a limit that an account uses. They are taken from the limit for each check, so
/// that accounts are small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditTerms {
    /// In units.
    pub(crate) overshoot: u64,
    capacity: u64,
    /// The rate at which a bucket drains. Other algorithms free units at times that this process
    /// does not know.
    rate: Option<Rate>,
    /// The longest time until a unit that is charged now is free again, in a window or a log.
    period: Micros,
    /// The length of a sub-window, or 1.
    sub_window: Micros,
}

#[derive(Clone, Debug, Hash)]
#[repr(C)]
pub(crate) struct CreditAccount {
    known: KnownLevel,
    /// The units that this process allowed or holds, and that the store may not have charged yet.
    /// They are owed, held, or in a payment.
    unpaid: u64,
    /// The overshoot of the last check, in units.
    overshoot: u64,
    /// No other account of the process has it.
    number: u64,
    // Most decisions read none of the fields after the next one.
    /// Set while a payment is planned.
    pub(super) is_planned: bool,
    /// Units of groups that are not decided yet.
    held: u64,
    payment: Option<Payable>,
    /// Owed units that a reset which is under way makes void.
    voidable: Option<u64>,
    /// Units that were allowed after this time of the store are neither charged nor in a payment.
    paid_until: Timestamp,
}

/// What a decision reads, but for the plan, is in two cache lines, behind the budget.
const _: () = assert!(size_of::<Budget>() + offset_of!(CreditAccount, is_planned) <= 128);

/// The level in the last answer of the store.
#[derive(Clone, Copy, Debug, Hash)]
struct KnownLevel {
    /// The units that it had left. This process knows of no later charge.
    left: u64,
    /// When the bucket will be full again.
    full_at: Option<FullAt>,
    /// The time of the decision, by the clock of the store.
    as_of: Timestamp,
    answered: CompactInstant,
    /// The growths of the share of this process when the request was sent.
    growths: u64,
}

/// When a bucket will be full again.
#[derive(Clone, Copy, Debug, Hash)]
struct FullAt {
    /// The time if the store decided when the answer came, and if it decided when the request was
    /// sent.
    latest: CompactInstant,
    earliest: CompactInstant,
    /// When the request was sent. Clocks run apart since then.
    since: CompactInstant,
}

impl FullAt {
    fn new(report: &LevelReport) -> Self {
        let full_after = Duration::from_micros(report.full_after);
        Self {
            latest: report.answered + full_after,
            earliest: report.sent + full_after,
            since: report.sent,
        }
    }

    /// The longest time until the bucket is full.
    #[inline]
    fn longest(&self, now: CompactInstant) -> Micros {
        let margin = Duration::from_micros(self.margin(now));
        (self.latest + margin).micros_since_rounded_up(now)
    }

    /// The shortest time until the bucket is full.
    fn shortest(&self, now: CompactInstant) -> Micros {
        let until_full = self.earliest.micros_since_rounded_up(now);
        until_full.saturating_sub(self.margin(now))
    }

    /// How far the clocks may have run apart.
    #[inline]
    fn margin(&self, now: CompactInstant) -> Micros {
        now.micros_since(self.since).div_ceil(CLOCK_MARGIN)
    }

    /// The bounds that hold for both of two answers.
    fn max(self, other: Self) -> Self {
        Self {
            latest: self.latest.max(other.latest),
            earliest: self.earliest.max(other.earliest),
            since: self.since.min(other.since),
        }
    }
}

/// The state of a budget, from an answer of the store.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct LevelReport {
    /// When the request was sent, by the clock of this process.
    pub(crate) sent: CompactInstant,
    /// The growths of the share of this process by then.
    pub(crate) growths: u64,
    pub(crate) answered: CompactInstant,
    /// When the store decided, by its own clock.
    pub(crate) as_of: Timestamp,
    pub(crate) left: u64,
    /// From then until the budget is full.
    pub(crate) full_after: Micros,
}

/// Units to be paid. They are sent with this number until they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Payable {
    pub(crate) units: u32,
    pub(crate) number: u64,
    /// When a task sent it that still awaits the answer.
    sent: Option<CompactInstant>,
}

impl CreditTerms {
    /// `None` if limits of its kind have no overshoot.
    pub(crate) fn of_limit(limit: &Limit) -> Option<Self> {
        let (capacity, rate, period, sub_window) = match limit.rule() {
            Rule::Bucket(rule) if !rule.queues() => {
                (rule.bucket.capacity, Some(rule.bucket.rate), 0, 1)
            }
            Rule::SlidingWindow(rule) => {
                let sub_windows = u64::from(rule.sub_windows) + 1;
                let period = rule.length.saturating_mul(sub_windows);
                (rule.limit, None, period, rule.length)
            }
            Rule::SlidingLog(rule) => (rule.limit, None, rule.period, 1),
            Rule::Bucket(_) | Rule::FixedWindow(_) | Rule::Concurrency(_) => return None,
        };
        Some(Self {
            overshoot: limit.overshoot().unwrap_or(0),
            capacity,
            rate,
            period,
            sub_window,
        })
    }

    /// The time in which units drain from a bucket.
    pub(crate) fn drains_after(&self, units: u64) -> Micros {
        self.rate
            .map_or(0, |rate| scaled_up(units, rate.micros, rate.units))
    }

    /// The time until `used` units are free again, the last of which was charged now.
    fn full_after(&self, used: u64, now: Timestamp) -> Micros {
        match self.rate {
            _ if used == 0 => 0,
            Some(rate) => scaled_up(used, rate.micros, rate.units),
            // Sub-windows start at multiples of their length.
            None => self
                .period
                .saturating_sub(now.as_micros() % self.sub_window),
        }
    }
}

impl KnownLevel {
    fn new(terms: &CreditTerms, report: &LevelReport) -> Self {
        Self {
            left: report.left.min(terms.capacity),
            full_at: terms.rate.map(|_| FullAt::new(report)),
            as_of: report.as_of,
            answered: report.answered,
            growths: report.growths,
        }
    }

    /// Returns the units that are left at a time if there is no other charge.
    fn left(&self, terms: &CreditTerms, now: CompactInstant) -> u64 {
        let (Some(full_at), Some(rate)) = (self.full_at, terms.rate) else {
            return self.left;
        };
        let level = scaled_up(full_at.longest(now), rate.units, rate.micros);
        self.left.max(terms.capacity.saturating_sub(level))
    }

    /// Returns the higher level of two answers whose requests were in flight at once. The store
    /// decided one of the requests later, and its level is not higher than this one.
    fn with_higher_level(self, other: Self) -> Self {
        Self {
            left: self.left.min(other.left),
            full_at: self
                .full_at
                .zip(other.full_at)
                .map(|(known, new)| known.max(new)),
            as_of: self.as_of.max(other.as_of),
            answered: self.answered.max(other.answered),
            growths: self.growths.max(other.growths),
        }
    }
}

impl CreditAccount {
    pub(crate) fn new(number: u64, terms: &CreditTerms, report: &LevelReport) -> Self {
        Self {
            known: KnownLevel::new(terms, report),
            unpaid: 0,
            overshoot: 0,
            number,
            is_planned: false,
            held: 0,
            payment: None,
            voidable: None,
            paid_until: report.as_of,
        }
    }

    /// The units that this process allowed or holds, and that the store may not have charged yet.
    pub(crate) const fn unpaid(&self) -> u64 {
        self.unpaid
    }

    /// The units that are allowed, and neither held nor in a payment.
    fn owed(&self) -> u64 {
        let in_payment = self.payment.map_or(0, |payment| payment.units.into());
        self.unpaid - self.held - in_payment
    }

    /// Returns whether nothing is lost if this is forgotten.
    pub(crate) const fn is_paid(&self) -> bool {
        self.unpaid == 0
    }

    /// Returns whether the account owes nothing and the last answer is older than [`UNUSED`].
    pub(crate) fn is_unused(&self, now: CompactInstant) -> bool {
        self.is_paid() && now.since(self.known.answered) >= UNUSED
    }

    /// Allows a check, if it fits what is known, and the credit. The units are owed from now on.
    #[inline]
    pub(crate) fn allow(
        &mut self,
        terms: &CreditTerms,
        units: u64,
        share: &UsableShare,
        clock: impl FnOnce() -> CompactInstant,
    ) -> Option<DecidedHere> {
        self.overshoot = terms.overshoot;
        let unpaid = self.unpaid + units;
        if unpaid > share.credit(terms.overshoot) || share.growths != self.known.growths {
            return None;
        }
        self.unpaid = unpaid;
        let now = clock();
        let left = self.known.left(terms, now);
        if unpaid > left || !share.is_leased(now) {
            self.unpaid -= units;
            return None;
        }
        Some(self.decision(terms, units, left - unpaid, now))
    }

    /// Denies a check if the level, as of the last answer of the store, is certainly too high now.
    /// If another replica has refunded units or reset the budget since then, this process notices
    /// it within [`DENIES_FOR`]. Returns `None` if the store has to be asked.
    pub(crate) fn deny(
        &mut self,
        terms: &CreditTerms,
        units: u64,
        now: CompactInstant,
    ) -> Option<DecidedHere> {
        let full_at = self.known.full_at?;
        let rate = terms.rate?;
        let fits_after = |full_after: Micros, units: u64| {
            let fits_at = terms.capacity.checked_sub(units)?;
            Some(full_after.saturating_sub(scaled_up(fits_at, rate.micros, rate.units)))
        };
        // The known level may already include a payment in flight.
        let is_certain = fits_after(full_at.shortest(now), self.owed() + units)? > 0;
        let is_old = now.since(self.known.answered) >= DENIES_FOR;
        if is_old || !is_certain {
            return None;
        }
        let retry_after = fits_after(full_at.longest(now), self.unpaid + units)?.max(1);
        let denial = self.look(terms, now);
        let reset_after = denial.outcome.reset_after.max(retry_after);
        let left = denial.outcome.remaining;
        Some(DecidedHere {
            outcome: Outcome::undelayed(false, false, left, Some(retry_after), reset_after),
            ..denial
        })
    }

    /// The decision on a check of cost 0.
    pub(super) fn look(&self, terms: &CreditTerms, now: CompactInstant) -> DecidedHere {
        let left = self.known.left(terms, now).saturating_sub(self.unpaid);
        self.decision(terms, 0, left, now)
    }

    /// Lets the store decide all denials until its next answer, because units are given back.
    pub(crate) const fn deny_nothing(&mut self) {
        if let Some(full_at) = &mut self.known.full_at {
            full_at.earliest = full_at.since;
        }
    }

    /// Takes back units that were allowed at this time of the store, if no charge and no payment
    /// contains them. Returns whether it did.
    pub(crate) fn take_back(&mut self, units: u64, allowed_at: Timestamp) -> bool {
        let is_owed = allowed_at > self.paid_until && units <= self.owed();
        if is_owed {
            self.unpaid -= units;
            self.voidable = self.voidable.map(|it| it.min(self.owed()));
        }
        is_owed
    }

    /// The number of the payment without an answer, if it may contain units that were allowed at
    /// this time of the store.
    pub(crate) fn payment_of(&self, allowed_at: Timestamp) -> Option<u64> {
        let payment = self.payment.filter(|_| allowed_at <= self.paid_until);
        payment.map(|it| it.number)
    }

    /// Allows a check of a group that is not decided yet, as `allow` does.
    pub(crate) fn hold(
        &mut self,
        terms: &CreditTerms,
        units: u64,
        share: &UsableShare,
        clock: impl FnOnce() -> CompactInstant,
    ) -> Option<DecidedHere> {
        let allowed = self.allow(terms, units, share, clock)?;
        self.held += units;
        Some(allowed)
    }

    fn decision(
        &self,
        terms: &CreditTerms,
        units: u64,
        left: u64,
        at: CompactInstant,
    ) -> DecidedHere {
        let now = self.store_time(at);
        let reset_after = terms.full_after(terms.capacity - left, now);
        DecidedHere {
            account: self.number,
            units,
            at,
            now,
            charged_at: now,
            outcome: Outcome::undelayed(true, false, left, None, reset_after),
            window: None,
        }
    }

    /// The time of the store, as far as this process knows.
    fn store_time(&self, at: CompactInstant) -> Timestamp {
        let since = at.micros_since(self.known.answered);
        self.known.as_of.saturating_add(since)
    }

    /// The units of a group that was allowed are owed, and otherwise they are not.
    pub(crate) fn end_hold(&mut self, held: &DecidedHere, is_allowed: bool) {
        if held.account != self.number {
            return;
        }
        self.held -= held.units;
        if !is_allowed {
            self.unpaid -= held.units;
        }
    }

    /// Returns whether a payment should not wait, because two thirds of the credit are owed, or a
    /// check of as many units as the last one would not fit. With half of the credit, replicas made
    /// a quarter more calls. The rest is for checks during the payment.
    #[inline]
    pub(super) fn is_due(&self, units: u64, share: &UsableShare) -> bool {
        let credit = share.credit(self.overshoot);
        let is_much = |owed: u64| 3 * owed >= 2 * credit || owed + units > credit;
        // No more is owed than unpaid, so most checks need only the first comparison.
        is_much(self.unpaid) && self.payment.is_none() && self.owed() > 0 && is_much(self.owed())
    }

    /// Returns whether what is owed need not be paid yet, because it is a small part of the credit,
    /// and the last answer is not old.
    pub(super) fn can_wait(&self, share: &UsableShare, now: CompactInstant) -> bool {
        let is_small = SMALL_PART * self.owed() < share.credit(self.overshoot);
        let is_known = now.since(self.known.answered) < KNOWN_FOR;
        self.payment.is_none() && is_small && is_known
    }

    /// The number of the payment that is not answered.
    pub(super) fn payment_number(&self) -> Option<u64> {
        self.payment.map(|payment| payment.number)
    }

    /// Plans a payment if units are owed and none is planned. Returns whether it did.
    #[inline]
    pub(super) fn plan(&mut self) -> bool {
        let is_new = !self.is_planned && self.owed() > 0;
        self.is_planned |= is_new;
        is_new
    }

    /// Returns whether the unpaid units exceed the credit of a share.
    pub(crate) fn owes_more_than(&self, share: &UsableShare) -> bool {
        self.unpaid > share.credit(self.overshoot)
    }

    /// Begins to pay what is owed, or to send a payment again that was not answered.
    pub(crate) fn pay(
        &mut self,
        number: impl FnOnce() -> u64,
        now: CompactInstant,
    ) -> Option<Payable> {
        let waits = |sent: CompactInstant| now.since(sent) < LONGEST_ANSWER;
        let (units, number) = match self.payment {
            Some(payment) if payment.sent.is_some_and(waits) => return None,
            Some(payment) => (payment.units, payment.number),
            None if self.owed() == 0 => return None,
            None => {
                let units = u32::try_from(self.owed()).unwrap_or(u32::MAX);
                self.voidable = None;
                self.paid_until = self.paid_until.max(self.store_time(now));
                (units, number())
            }
        };
        let payment = Payable {
            units,
            number,
            sent: Some(now),
        };
        self.payment = Some(payment);
        Some(payment)
    }

    /// Notes that a payment was answered. The answer may tell the level with it. Returns whether it
    /// is the first answer.
    pub(crate) fn paid(
        &mut self,
        terms: &CreditTerms,
        number: u64,
        report: Option<&LevelReport>,
    ) -> bool {
        let Some(payment) = self.payment.take_if(|it| it.number == number) else {
            return false;
        };
        self.unpaid -= u64::from(payment.units);
        match report {
            Some(report) => self.note(terms, report),
            None => self.forget_level(CompactInstant::now()),
        }
        true
    }

    /// Notes that a payment was not answered. It is owed, and is sent again.
    pub(crate) fn not_answered(&mut self, number: u64) {
        if let Some(payment) = self.payment.as_mut().filter(|it| it.number == number) {
            payment.sent = None;
        }
    }

    /// Notes that a reset of the budget is sent. Only units that are owed by now are void after it,
    /// because the store may have applied the reset long before its answer is here.
    pub(crate) fn begin_reset(&mut self) {
        let owed = self.owed();
        let voidable = self.voidable.unwrap_or(owed);
        self.voidable = Some(voidable.min(owed));
    }

    /// Notes that the store has applied a reset.
    pub(crate) fn end_reset(&mut self, now: CompactInstant) {
        self.unpaid -= self.voidable.take().unwrap_or(0);
        self.paid_until = self.paid_until.max(self.store_time(now));
    }

    /// Has the next check ask the store. An answer to a request from before does not count.
    pub(crate) fn forget_level(&mut self, now: CompactInstant) {
        (self.known.left, self.known.full_at) = (0, None);
        self.known.answered = now;
    }

    /// Returns whether an answer is to a request that was sent after the last answer.
    pub(super) fn is_before(&self, report: &LevelReport) -> bool {
        report.sent > self.known.answered
    }

    /// Notes the answer to a check.
    pub(crate) fn note(&mut self, terms: &CreditTerms, report: &LevelReport) {
        let answered = KnownLevel::new(terms, report);
        // The answer may be to a check that the store charged.
        self.paid_until = self.paid_until.max(report.as_of);
        self.known = match self.is_before(report) {
            true => answered,
            false => self.known.with_higher_level(answered),
        };
    }
}

/// `units * part / of`, rounded up.
#[inline]
fn scaled_up(units: u64, part: u64, of: u64) -> u64 {
    // A division of 128 bits takes several times as long, and is hardly ever needed.
    if let Some(product) = units.checked_mul(part) {
        return product.div_ceil(of);
    }
    let scaled = (u128::from(units) * u128::from(part)).div_ceil(u128::from(of));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::asynchronous::credit::lease::ALL_SHARES;
    use crate::units::Quota;

    /// A bucket of 1,000 units that gets one in a millisecond.
    fn terms() -> CreditTerms {
        let quota = Quota::new(1_000, Duration::from_secs(1));
        let limit = Limit::token_bucket("api", quota).unwrap();
        CreditTerms::of_limit(&limit).unwrap()
    }

    /// The account of an empty bucket. The request took 10 ms.
    fn account_of_empty_bucket(sent: CompactInstant) -> CreditAccount {
        let report = LevelReport {
            sent,
            growths: 0,
            answered: sent + Duration::from_millis(10),
            as_of: Timestamp::from_micros(1_790_000_000_000_000),
            left: 0,
            full_after: 1_000_000,
        };
        CreditAccount::new(0, &terms(), &report)
    }

    #[test]
    fn no_more_is_left_here_than_in_a_store_that_decided_last_and_has_a_slower_clock() {
        let sent = CompactInstant::now();
        let account = account_of_empty_bucket(sent);
        for elapsed in 0..2_000_u64 {
            let local = elapsed * 1_000 + elapsed * 2;
            let now = sent + Duration::from_micros(10_000 + local);
            let left = account.known.left(&terms(), now);
            assert!(left <= elapsed, "{left} after {elapsed} ms");
        }
        let later = account.known.left(&terms(), sent + UNUSED);
        assert_eq!(later, 1_000, "it is full again");
    }

    #[test]
    fn payment_is_due_at_two_thirds_of_the_credit_and_small_debts_wait() {
        let sent = CompactInstant::now();
        let mut account = account_of_empty_bucket(sent);
        account.overshoot = 48;
        let share = UsableShare {
            parts: ALL_SHARES,
            growths: 0,
            ends: sent + UNUSED,
        };
        assert_eq!(share.credit(48), 48);
        let answered = account.known.answered;
        let at = |seconds| answered + Duration::from_secs(seconds);
        for (owed, is_due, can_wait) in [
            (5, false, true),
            (6, false, false),
            (31, false, false),
            (32, true, false),
        ] {
            account.unpaid = owed;
            assert_eq!(account.is_due(1, &share), is_due, "{owed} of 48");
            let of_rest = account.is_due(49 - owed, &share);
            assert!(of_rest, "the next does not fit");
            let waits_at = |seconds| account.can_wait(&share, at(seconds));
            assert_eq!(waits_at(4), can_wait, "{owed} of 48");
            assert!(!waits_at(5), "{owed} of 48");
        }
        account.unpaid = 1;
        account.pay(|| 1, at(1));
        assert!(!account.can_wait(&share, at(2)), "it is sent again");
        assert!(!account.is_due(48, &share), "the first is not answered");
    }

    #[test]
    fn parts_are_rounded_up() {
        assert_eq!((scaled_up(6, 3, 2), scaled_up(7, 3, 2)), (9, 11));
        // The product has more than 64 bits.
        let third = u64::MAX / 3;
        assert_eq!(scaled_up(u64::MAX, 7, 21), third);
        assert_eq!(scaled_up(u64::MAX - 1, 7, 21), third);
        assert_eq!(scaled_up(u64::MAX - 3, 7, 21), third - 1);
    }

    #[test]
    fn check_is_denied_here_only_if_it_does_not_fit_in_a_store_that_decided_first() {
        let sent = CompactInstant::now();
        for units in [1, 5, 300] {
            let mut account = account_of_empty_bucket(sent);
            for elapsed in 10..500_u64 {
                // The clock of the store is faster.
                let local = elapsed * 1_000 - elapsed;
                let now = sent + Duration::from_micros(local);
                let denial = account.deny(&terms(), units, now);
                assert!(denial.is_none() || elapsed < units, "after {elapsed} ms");
            }
        }
        let now = sent + Duration::from_millis(20);
        let denial = account_of_empty_bucket(sent).deny(&terms(), 300, now);
        let retry_after = denial.unwrap().outcome.retry_after.unwrap();
        assert!(
            (280_000..300_000).contains(&retry_after),
            "{retry_after} us"
        );
    }

    #[test]
    fn owed_unit_is_taken_back_after_a_block_and_not_after_a_reset() {
        let sent = CompactInstant::now();
        let now = sent + Duration::from_millis(20);
        for is_reset in [false, true] {
            let mut account = account_of_empty_bucket(sent);
            account.unpaid = 1;
            let allowed_at = account.store_time(now);
            account.begin_reset();
            if is_reset {
                account.end_reset(now);
            }
            account.forget_level(now);
            // A unit that was allowed since.
            account.unpaid += 1;
            assert_eq!(account.take_back(1, allowed_at), !is_reset);
            assert_eq!(account.unpaid, 1);
        }
    }
}
