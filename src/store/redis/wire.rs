//! The format of requests and replies: the other side of `scripts/main.lua` and
//! `scripts/batch.lua`.

use std::iter;
use std::time::Duration;

use crate::algorithm::offences::Blocking;
use crate::algorithm::{Anchor, Bucket, Cost, First, MAX_EXACT, Rule, at_most_a_year};
use crate::model::{Change, Check, Limit, Operation};
use crate::units::{Claim, Micros, Outcome, Receipt};

/// The status of a verdict, as in `scripts/main.lua`.
const ALLOWED: i64 = 1;
const EXCEEDS_CAPACITY: i64 = 2;
const UNREADABLE: i64 = 4;
/// A sixth number follows, as does one of a blocked key.
const GIVEN_BACK: i64 = 8;
const BLOCKED: i64 = 16;
const BEGINS_BLOCK: i64 = 32;

/// The longest lease, in microseconds. The script counts a value with a longer one as corrupt.
const MAX_LEASE: u64 = 600 * 1_000_000;

/// What a run does, by its number in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Charge = 0,
    Peek = 1,
    Settle = 2,
    Reset = 3,
    Block = 4,
    Claim = 5,
}

/// The op of a run that charges each of several keys once.
const EACH: u64 = 6;

/// Added to the op of a run if a check has terms.
const WITH_TERMS: u64 = 8;

impl Op {
    pub(super) const fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Charge(_) => Self::Charge,
            Operation::Peek(_) => Self::Peek,
            Operation::Change(_, Change::Settle { .. }) => Self::Settle,
            Operation::Change(_, Change::Reset) => Self::Reset,
            Operation::Change(_, Change::Block(_)) => Self::Block,
            Operation::Change(_, Change::Claim(_)) => Self::Claim,
        }
    }
}

/// A budget in a batch, by numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireBudget {
    pub(super) key: u16,
    pub(super) limit: u16,
    /// The key of the offences, if they matter.
    pub(super) offences: Option<u16>,
}

/// A check or a change of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireCheck {
    pub(super) budget: WireBudget,
    pub(super) cost: u32,
    /// The terms of a charge or a peek.
    terms: RareTerms,
    /// Of a settlement: the receipt, and the largest debt.
    settled: (Receipt, u64),
    /// The length of a block.
    block: Micros,
}

/// The terms that a charge or a peek rarely has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RareTerms {
    /// Whether its limit is in shadow mode, and so must not keep others of its group from being
    /// charged.
    is_shadow: bool,
    /// Whether a denied peek counts.
    is_denied_caller: bool,
    max_wait: Micros,
    patience: Micros,
}

impl WireCheck {
    fn new(budget: WireBudget, cost: u32) -> Self {
        Self {
            budget,
            cost,
            terms: RareTerms::default(),
            settled: (Receipt::default(), 0),
            block: 0,
        }
    }

    /// A charge or a peek, which may be alone in its group.
    pub(super) fn of_check(budget: WireBudget, op: Op, check: &Check, is_alone: bool) -> Self {
        let Cost {
            max_wait, patience, ..
        } = check.asked();
        Self {
            terms: RareTerms {
                is_shadow: !is_alone && check.is_shadow(),
                is_denied_caller: op == Op::Peek && check.is_denied_caller(),
                // A queue has the longest delay among its numbers.
                max_wait: if check.limit().queues() { 0 } else { max_wait },
                patience,
            },
            ..Self::new(budget, check.cost())
        }
    }

    pub(super) fn of_change(budget: WireBudget, limit: &Limit, change: &Change) -> Self {
        match change {
            Change::Settle { receipt, cost } => Self {
                settled: (*receipt, limit.max_debt().unwrap_or(u64::MAX)),
                ..Self::new(budget, *cost)
            },
            Change::Block(length) => Self {
                block: at_most_a_year(*length),
                ..Self::new(budget, 0)
            },
            Change::Reset | Change::Claim(_) => Self::new(budget, 0),
        }
    }

    /// The same charge of the next budget.
    pub(super) const fn next(mut self) -> Self {
        match &mut self.budget.offences {
            None => self.budget.key += 1,
            Some(offences) => {
                *offences += 2;
                self.budget.key += 2;
            }
        }
        self
    }

    /// Counts no denial, because the server cannot write.
    pub(super) const fn count_nothing(&mut self) {
        self.terms.is_denied_caller = false;
    }

    /// Returns whether a denied peek counts.
    pub(super) const fn counts_denied_peek(&self) -> bool {
        self.terms.is_denied_caller
    }

    pub(super) fn has_terms(&self) -> bool {
        self.terms != RareTerms::default()
    }
}

/// `ARGV[1]` of a batch, with the number of the call, the limits, then the runs.
pub(super) struct Body(Vec<u8>);

/// The longest delay of an allowed check under a limit that is a queue. 0: any.
pub(super) fn longest_delay(check: &Check) -> Micros {
    match check.limit().queues() {
        true => check.asked().max_wait,
        false => 0,
    }
}

/// `ARGV[1]` of a single charge, with a cost above 0. The reply is that to a batch of this charge.
pub(super) fn single_charge(call: u16, rule: &Rule, longest_delay: Micros, cost: u32) -> Vec<u8> {
    let mut body = Body::of_call(call, 64);
    body.push_rule(rule, longest_delay);
    body.push(cost.into(), 4);
    body.0
}

/// `ARGV[1]` of a single claim.
pub(super) fn single_claim(call: u16, rule: &Rule, claim: &Claim) -> Vec<u8> {
    let mut body = Body::of_call(call, 96);
    body.push_rule(rule, 0);
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
    ) -> Self {
        let mut body = Self::of_call(call, 64);
        body.push_name("batch");
        body.push(limits.len() as u64, 2);
        for (rule, blocking, longest_delay) in limits {
            if let Some(blocking) = blocking {
                body.push_blocking(blocking);
            }
            body.push_rule(rule, longest_delay);
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

    /// Adds a run: the same group, `times` times in a row.
    pub(super) fn push_run(&mut self, op: Op, times: u16, charges: &[WireCheck]) {
        let has_terms = charges.iter().any(WireCheck::has_terms);
        let terms = if has_terms { WITH_TERMS } else { 0 };
        self.push_head(op as u64 + terms, charges.len(), times);
        for charge in charges {
            self.push_charge(charge);
            if has_terms {
                let is_denied_caller = u64::from(charge.terms.is_denied_caller);
                self.push(u64::from(charge.terms.is_shadow) + 2 * is_denied_caller, 1);
                self.push(charge.terms.max_wait, 7);
                self.push(charge.terms.patience, 7);
            }
            if op == Op::Block {
                self.push(charge.block, 7);
            }
            if op == Op::Settle {
                let (receipt, max_debt) = charge.settled;
                self.push_receipt(receipt);
                self.push(max_debt.min(MAX_EXACT), 7);
            }
        }
    }

    /// Adds a run of one claim, which follows its charge.
    pub(super) fn push_claim(&mut self, charge: &WireCheck, claim: &Claim) {
        self.push_head(Op::Claim as u64, 1, 1);
        self.push_charge(charge);
        self.push_numbers(claim);
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
        let WireBudget {
            key,
            limit,
            offences,
        } = charge.budget;
        self.push(u64::from(key) + 1, 2);
        self.push(u64::from(limit) + 1, 2);
        self.push(charge.cost.into(), 4);
        if let Some(offences) = offences {
            self.push(u64::from(offences) + 1, 2);
        }
    }

    /// The algorithm by the name of its file in `scripts/`, and its numbers.
    fn push_rule(&mut self, rule: &Rule, longest_delay: Micros) {
        let (name, numbers) = match rule {
            Rule::FixedWindow(rule) => {
                let aligned = u64::from(rule.anchor == Anchor::Clock);
                ("fixed_window", [rule.limit, rule.period, aligned, 0])
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

/// The script's reply behind the number of its call, read from the start.
pub(super) struct Reply<'a>(&'a [i64]);

/// A verdict in the reply, without its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawVerdict {
    status: i64,
    remaining: u64,
    retry_after: Option<u64>,
    reset_after: u64,
    delay: u64,
    /// If units were given back to the bucket.
    drains_after: Option<u64>,
    /// If the key is blocked.
    blocked_for: u64,
}

impl<'a> Reply<'a> {
    pub(super) const fn new(numbers: &'a [i64]) -> Self {
        Self(numbers)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn number<N: TryFrom<i64>>(&mut self) -> Option<N> {
        let (&number, rest) = self.0.split_first()?;
        self.0 = rest;
        number.try_into().ok()
    }

    /// The first of several charges that were allowed at once. The others follow from it.
    pub(super) fn first_of_several(&mut self) -> Option<First> {
        let remaining = self.number()?;
        let reset_after = self.number()?;
        let slack = self.number()?;
        let returned = self.number()?;
        Some(First {
            remaining,
            reset_after,
            slack,
            returned,
        })
    }

    pub(super) fn verdict(&mut self) -> Option<RawVerdict> {
        let (verdict, rest) = match *self.0 {
            [remaining, reset_after, ref rest @ ..] if remaining >= 0 => (
                RawVerdict::new(ALLOWED, remaining, -1, reset_after, 0),
                rest,
            ),
            [
                status,
                remaining,
                retry_after,
                reset_after,
                delay,
                ref rest @ ..,
            ] => (
                RawVerdict::new(-1 - status, remaining, retry_after, reset_after, delay),
                rest,
            ),
            _ => return None,
        };
        self.0 = rest;
        let mut verdict = verdict?;
        if verdict.status & GIVEN_BACK != 0 {
            verdict.drains_after = Some(self.number()?);
        }
        if verdict.status & BLOCKED != 0 {
            verdict.blocked_for = self.number()?;
        }
        Some(verdict)
    }
}

impl RawVerdict {
    /// The verdict of a charge that follows `before` others of the same cost.
    pub(super) fn following(first: First, before: u16, cost: u32, limit: &Rule) -> Option<Self> {
        let charged = u64::from(before) * u64::from(cost);
        let followed = limit.follow(first, charged, cost.into());
        Some(Self {
            status: ALLOWED,
            remaining: first.remaining.checked_sub(charged)?,
            retry_after: None,
            reset_after: followed.reset_after,
            delay: followed.delay,
            drains_after: Some(followed.drains_after),
            blocked_for: 0,
        })
    }

    /// `None` if a number is out of range.
    fn new(
        status: i64,
        remaining: i64,
        retry_after: i64,
        reset_after: i64,
        delay: i64,
    ) -> Option<Self> {
        Some(Self {
            status,
            remaining: remaining.try_into().ok()?,
            retry_after: retry_after.try_into().ok(),
            reset_after: reset_after.try_into().ok()?,
            delay: delay.try_into().ok()?,
            drains_after: None,
            blocked_for: 0,
        })
    }

    /// Returns whether the stored value was unreadable.
    pub(super) const fn is_unreadable(&self) -> bool {
        self.status & UNREADABLE != 0
    }

    /// The length of a block that begins with this denial.
    pub(super) fn begins_block(&self) -> Option<Duration> {
        let begins = self.status & BEGINS_BLOCK != 0;
        begins.then(|| Duration::from_micros(self.blocked_for))
    }

    pub(super) const fn is_allowed(&self) -> bool {
        self.status & ALLOWED != 0
    }

    /// The outcome, of a check that was charged or not.
    pub(super) fn outcome(&self, limit: &Rule, is_charged: bool) -> Outcome {
        let drains_after = match self.drains_after {
            _ if !is_charged || !limit.drains() => 0,
            Some(drains_after) => drains_after,
            None => self.reset_after,
        };
        Outcome {
            drains_after,
            blocked_for: self.blocked_for,
            begins_block: self.status & BEGINS_BLOCK != 0,
            allowed: self.is_allowed(),
            exceeds_capacity: self.status & EXCEEDS_CAPACITY != 0,
            remaining: self.remaining,
            retry_after: self.retry_after,
            reset_after: self.reset_after,
            delay: self.delay,
        }
    }
}
