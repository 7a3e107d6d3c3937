//! The format of requests and replies: the other side of `scripts/main.lua` and
//! `scripts/batch.lua`.

use std::iter;

use crate::algorithm::offences::Blocking;
use crate::algorithm::{Anchor, Bucket, Cost, First, MAX_EXACT, Rule, at_most_a_year};
use crate::model::{Change, Check, Operation};
use crate::units::quota::calendar::TwoWindows;
use crate::units::{Claim, Micros, Outcome, Receipt, Timestamp};

/// The status of a verdict, as in `scripts/main.lua`.
const ALLOWED: i64 = 1;
const EXCEEDS_CAPACITY: i64 = 2;
const UNREADABLE: i64 = 4;
/// A sixth number follows, as does one of a blocked key.
const GIVEN_BACK: i64 = 8;
const BLOCKED: i64 = 16;
const BEGINS_BLOCK: i64 = 32;
const UNDECIDED: i64 = 64;

/// The longest lease, in microseconds. The script counts a value with a longer one as corrupt.
const MAX_LEASE: u64 = 600 * 1_000_000;

/// The kind of a run, by its number in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Charge = 0,
    Peek = 1,
    Settle = 2,
    Reset = 3,
    Block = 4,
    Claim = 5,
    Pay = 7,
}

/// The op of a run that charges each of several keys once.
const EACH: u64 = 6;

/// Added to the op of a run if a check has terms.
const WITH_TERMS: u64 = 8;

impl Op {
    pub(super) const fn for_operation(operation: &Operation) -> Self {
        match operation {
            Operation::Charge(_) => Self::Charge,
            Operation::Peek(_) => Self::Peek,
            Operation::Change(_, Change::Settle { .. }) => Self::Settle,
            Operation::Change(_, Change::Reset) => Self::Reset,
            Operation::Change(_, Change::Block(_)) => Self::Block,
            Operation::Change(_, Change::Claim(_)) => Self::Claim,
            Operation::Change(_, Change::Pay(_)) => Self::Pay,
        }
    }
}

/// The flag of a check in a group whose limit is in shadow mode, and so must not keep the others
/// from being charged.
const SHADOW: u8 = 1;

/// The flag of a peek whose denial counts.
const DENIED_CALLER: u8 = 2;

/// A check or a change of a batch, with numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireCheck {
    pub(super) key: u16,
    pub(super) limit: u16,
    /// The key of the offences, if they matter.
    pub(super) offences: Option<u16>,
    /// The key of a payer's last payment.
    pub(super) paid: Option<u16>,
    pub(super) cost: u32,
    /// [`SHADOW`], [`DENIED_CALLER`], or both.
    flags: u8,
    max_wait: Micros,
    patience: Micros,
}

impl WireCheck {
    pub(super) const fn new(key: u16, limit: u16, offences: Option<u16>, cost: u32) -> Self {
        Self {
            key,
            limit,
            offences,
            paid: None,
            cost,
            flags: 0,
            max_wait: 0,
            patience: 0,
        }
    }

    /// The same budget, with the terms of a charge or a peek, which may be alone in its group.
    pub(super) fn with_terms(self, op: Op, check: &Check, is_alone: bool) -> Self {
        let Cost {
            max_wait, patience, ..
        } = check.asked();
        let is_shadow = !is_alone && check.is_shadow();
        let is_denied_caller = op == Op::Peek && check.is_denied_caller();
        Self {
            flags: u8::from(is_shadow) * SHADOW + u8::from(is_denied_caller) * DENIED_CALLER,
            // A queue has the longest delay among its numbers.
            max_wait: if check.limit().queues() { 0 } else { max_wait },
            patience,
            ..self
        }
    }

    /// The same charge of the next budget.
    pub(super) const fn next(mut self) -> Self {
        match &mut self.offences {
            None => self.key += 1,
            Some(offences) => {
                *offences += 2;
                self.key += 2;
            }
        }
        self
    }

    /// Counts no denial, because the server cannot write.
    pub(super) const fn count_nothing(&mut self) {
        self.flags &= !DENIED_CALLER;
    }

    /// Returns whether a denied peek counts.
    pub(super) const fn counts_denied_peek(&self) -> bool {
        self.flags & DENIED_CALLER != 0
    }

    pub(super) const fn has_terms(&self) -> bool {
        self.flags != 0 || self.max_wait != 0 || self.patience != 0
    }
}

/// `ARGV[1]` of a batch, with the number of the call, the limits, then the runs.
pub(super) struct Body(Vec<u8>);

/// The longest delay of an allowed check under a limit that is a queue. 0 means any delay.
pub(super) fn longest_delay(check: &Check) -> Micros {
    match check.limit().queues() {
        true => check.asked().max_wait,
        false => 0,
    }
}

/// `ARGV[1]` of a single charge, with a cost above 0. The reply is that to a batch of this charge.
pub(super) fn single_charge(
    call: u16,
    (rule, longest_delay): (&Rule, Micros),
    cost: u32,
    time: Option<Timestamp>,
) -> Vec<u8> {
    let mut body = Body::of_call(call, 64);
    body.push_rule(rule, longest_delay, time);
    body.push(cost.into(), 4);
    body.0
}

/// `ARGV[1]` of a single claim.
pub(super) fn single_claim(call: u16, rule: &Rule, claim: &Claim) -> Vec<u8> {
    let mut body = Body::of_call(call, 96);
    body.push_rule(rule, 0, None);
    body.push(0, 4);
    body.push_numbers(claim);
    body.0
}

impl Body {
    fn of_call(call: u16, capacity: usize) -> Self {
        let mut body = Self(Vec::with_capacity(capacity));
        body.push(call.into(), 2);
        body
    }

    /// Each limit comes with how it blocks keys, if the checks ask that, and its longest delay.
    pub(super) fn new<'a>(
        call: u16,
        limits: impl ExactSizeIterator<Item = (&'a Rule, Option<&'a Blocking>, Micros)>,
        time: Option<Timestamp>,
    ) -> Self {
        let mut body = Self::of_call(call, 64);
        body.push_name("batch");
        body.push(limits.len() as u64, 2);
        for (rule, blocking, longest_delay) in limits {
            if let Some(blocking) = blocking {
                body.push_blocking(blocking);
            }
            body.push_rule(rule, longest_delay, time);
        }
        body
    }

    fn push_blocking(&mut self, blocking: &Blocking) {
        let Blocking {
            denials,
            within,
            length,
            factor,
            longest,
        } = *blocking;
        self.push_name("offences");
        for number in [denials.into(), within, length, longest] {
            self.push(number, 7);
        }
        self.push(factor.into(), 1);
    }

    /// Adds a run: the same operation, `times` times in a row.
    pub(super) fn push_run(
        &mut self,
        op: Op,
        times: u16,
        charges: &[WireCheck],
        operation: &Operation,
    ) {
        let has_terms = charges.iter().any(WireCheck::has_terms);
        let terms = if has_terms { WITH_TERMS } else { 0 };
        self.push_head(op as u64 + terms, charges.len(), times);
        for charge in charges {
            self.push_charge(charge);
            if has_terms {
                self.push(charge.flags.into(), 1);
                self.push(charge.max_wait, 7);
                self.push(charge.patience, 7);
            }
        }
        let Operation::Change(budget, change) = operation else {
            return;
        };
        match change {
            Change::Settle { receipt, .. } => {
                self.push_receipt(*receipt);
                let max_debt = budget.limit().max_debt().unwrap_or(MAX_EXACT);
                self.push(max_debt.min(MAX_EXACT), 7);
            }
            Change::Block(length) => self.push(at_most_a_year(*length), 7),
            Change::Claim(claim) => self.push_numbers(claim),
            // Its units are the cost.
            Change::Pay(payment) => {
                for paid in charges.iter().filter_map(|charge| charge.paid) {
                    self.push(u64::from(paid) + 1, 2);
                }
                self.push(payment.number.min(MAX_EXACT), 7);
            }
            Change::Reset => {}
        }
    }

    fn push_numbers(&mut self, claim: &Claim) {
        let claim = claim.within_range();
        self.0.extend_from_slice(&claim.holder);
        self.push(claim.granted, 7);
        self.push(claim.released, 7);
        self.push(claim.waiting.into(), 4);
        self.push(claim.at_once.into(), 4);
        self.push(claim.lease_us().min(MAX_LEASE), 7);
    }

    fn push_receipt(&mut self, receipt: Receipt) {
        self.push(receipt.at.as_micros().min(MAX_EXACT), 7);
        self.push(receipt.cost.into(), 4);
        self.push(receipt.drains_at.as_micros().min(MAX_EXACT), 7);
    }

    /// Adds the same charge for `keys` keys, from the key of `first` on. No other run may touch
    /// them, and the cost must be above 0.
    pub(super) fn push_each(&mut self, keys: u16, first: &WireCheck) {
        self.push_head(EACH, 1, keys);
        self.push_charge(first);
    }

    fn push_head(&mut self, op: u64, size: usize, times: u16) {
        self.push(op, 1);
        self.push(size as u64, 1);
        self.push(times.into(), 2);
    }

    fn push_charge(&mut self, charge: &WireCheck) {
        // Lua counts from 1.
        self.push(u64::from(charge.key) + 1, 2);
        self.push(u64::from(charge.limit) + 1, 2);
        self.push(charge.cost.into(), 4);
        if let Some(offences) = charge.offences {
            self.push(u64::from(offences) + 1, 2);
        }
    }

    /// Adds a rule: the name of its file in `scripts/`, and its numbers. `time` is the time of a
    /// manual clock.
    fn push_rule(&mut self, rule: &Rule, longest_delay: Micros, time: Option<Timestamp>) {
        let (name, numbers) = match rule {
            Rule::FixedWindow(rule) => {
                let [period, start, lengths] = match rule.anchor {
                    Anchor::First => [rule.period, 0, 0],
                    Anchor::Clock => [rule.period, 1, 0],
                    Anchor::Calendar(calendar) => {
                        let time = time.unwrap_or_else(|| Timestamp::EPOCH.or_now());
                        windows_of(&calendar.windows_around(time), calendar.id())
                    }
                };
                ("fixed_window", [rule.limit, period, start, lengths])
            }
            Rule::SlidingWindow(rule) => (
                "sliding_window",
                [rule.limit, rule.length, rule.sub_windows.into(), 0],
            ),
            Rule::SlidingLog(rule) => ("sliding_log", [rule.limit, rule.period, 0, 0]),
            Rule::Bucket(rule) => {
                let queue = if rule.queues() { 1 + longest_delay } else { 0 };
                let Bucket { rate, capacity } = rule.bucket;
                ("bucket", [rate.units, rate.micros, capacity, queue])
            }
            Rule::Concurrency(rule) => ("permits", [rule.limit().into(), 0, 0, 0]),
        };
        self.push_name(name);
        for number in numbers {
            self.push(number, 7);
        }
    }

    /// A name, which ends with a zero byte.
    fn push_name(&mut self, name: &str) {
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
    }

    /// Adds the lowest `bytes` bytes of a number, in big-endian order.
    fn push(&mut self, number: u64, bytes: usize) {
        self.0.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The two windows of a calendar, as `scripts/fixed_window.lua` reads them: the second between
/// them, the number of the calendar, and the lengths in seconds, 26 bits each.
fn windows_of(windows: &TwoWindows, id: u64) -> [u64; 3] {
    const SECOND: Micros = 1_000_000;
    let length = |from: Timestamp, to: Timestamp| (to.saturating_since(from) / SECOND) % (1 << 26);
    let lengths =
        length(windows.start, windows.between) << 26 | length(windows.between, windows.end);
    [windows.between.as_micros() / SECOND, id, lengths]
}

/// In place of the count of a run's answers. The short form follows.
pub(super) const IN_SHORT: u16 = 0;

/// The numbers of a packed reply. The call's number has two bytes, and each other number eight.
pub(super) fn unpack(packed: &[u8]) -> Option<impl Iterator<Item = i64>> {
    let (call, packed) = packed.split_first_chunk()?;
    let (numbers, []) = packed.as_chunks() else {
        return None;
    };
    let numbers = numbers.iter().map(|number| i64::from_be_bytes(*number));
    Some(iter::once(u16::from_be_bytes(*call).into()).chain(numbers))
}

/// Reads the next number of a reply, behind the number of its call.
pub(super) fn number<N: TryFrom<i64>>(reply: &mut &[i64]) -> Option<N> {
    let (&number, rest) = reply.split_first()?;
    *reply = rest;
    number.try_into().ok()
}

/// Reads the first of several charges that were allowed at once. The others follow from it.
pub(super) fn first_of_several(reply: &mut &[i64]) -> Option<First> {
    Some(First {
        remaining: number(reply)?,
        reset_after: number(reply)?,
        slack: number(reply)?,
        returned: number(reply)?,
    })
}

/// Reads the outcome of a check, as if it was charged, and whether the stored value was unreadable.
pub(super) fn outcome(reply: &mut &[i64]) -> Option<(Outcome, bool)> {
    let first: i64 = number(reply)?;
    let mut outcome = Outcome::undelayed(true, false, 0, None, 0);
    let mut status = ALLOWED;
    if let Ok(remaining) = u64::try_from(first) {
        outcome.remaining = remaining;
        outcome.reset_after = number(reply)?;
    } else {
        status = -1 - first;
        outcome.remaining = number(reply)?;
        outcome.retry_after = number::<i64>(reply)?.try_into().ok();
        outcome.reset_after = number(reply)?;
        outcome.delay = number(reply)?;
    }
    outcome.allowed = status & ALLOWED != 0;
    outcome.exceeds_capacity = status & EXCEEDS_CAPACITY != 0;
    outcome.begins_block = status & BEGINS_BLOCK != 0;
    outcome.is_undecided = status & UNDECIDED != 0;
    outcome.drains_after = match status & GIVEN_BACK {
        0 => outcome.reset_after,
        _ => number(reply)?,
    };
    if status & BLOCKED != 0 {
        outcome.blocked_for = number(reply)?;
    }
    Some((outcome, status & UNREADABLE != 0))
}

/// The outcome of a charge that follows `before` others of the same cost.
pub(super) fn following(first: First, before: u16, cost: u32, rule: &Rule) -> Option<Outcome> {
    let charged = u64::from(before) * u64::from(cost);
    let followed = rule.follow(first, charged, cost.into());
    let remaining = first.remaining.checked_sub(charged)?;
    Some(Outcome {
        delay: followed.delay,
        drains_after: followed.drains_after,
        ..Outcome::undelayed(true, false, remaining, None, followed.reset_after)
    })
}
