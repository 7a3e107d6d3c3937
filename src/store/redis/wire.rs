//! What is sent to the script, and what comes back: the other side of `scripts/batch.lua`.

use crate::algorithm::{Algorithm, Anchor, Bucket, Mode};
use crate::decision::{Micros, Verdict};
use crate::{Decision, Op};

/// Integers in the reply for each verdict.
pub(super) const FIELDS: usize = 5;

/// The status of a verdict, as in `scripts/head.lua`.
const ALLOWED: i64 = 1;
const NEVER: i64 = 2;
const UNREADABLE: i64 = 4;

/// A charge as it is sent: its key and its limit by their number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) key: u16,
    pub(super) limit: u16,
    pub(super) cost: u32,
}

/// `ARGV[2]`: the limits, then what is asked under them.
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn new<'a>(limits: impl ExactSizeIterator<Item = &'a Algorithm>) -> Self {
        let mut body = Self(Vec::with_capacity(64));
        body.push(limits.len() as u64, 2);
        limits.for_each(|limit| body.push_limit(limit));
        body
    }

    /// The same check, `times` times in a row.
    pub(super) fn push_run(&mut self, op: Op, times: u16, charges: &[Charge]) {
        self.push(number_of(op), 1);
        self.push(charges.len() as u64, 1);
        self.push(times.into(), 2);
        for charge in charges {
            // Lua counts from 1.
            self.push(u64::from(charge.key) + 1, 2);
            self.push(u64::from(charge.limit) + 1, 2);
            self.push(charge.cost.into(), 4);
        }
    }

    fn push_limit(&mut self, limit: &Algorithm) {
        let (algorithm, numbers) = match limit {
            Algorithm::FixedWindow(rule) => {
                (1, [rule.limit, rule.period, u64::from(rule.anchor == Anchor::Clock), 0])
            }
            Algorithm::SlidingWindow(rule) => (2, [rule.limit, rule.length, rule.cells.into(), 0]),
            Algorithm::SlidingLog(rule) => (3, [rule.limit, rule.period, 0, 0]),
            Algorithm::TokenBucket(rule) => (4, bucket(&rule.0, 0)),
            Algorithm::LeakyBucket(rule) => {
                (5, bucket(&rule.bucket, u64::from(rule.mode == Mode::Queue)))
            }
            Algorithm::Gcra(rule) => (6, bucket(&rule.0, 0)),
        };
        self.push(algorithm, 1);
        for number in numbers {
            self.push(number, 7);
        }
    }

    /// The lowest `bytes` bytes of a number, the highest first.
    fn push(&mut self, number: u64, bytes: usize) {
        self.0.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// `ARGV[1]`, the time: empty for the server's own.
pub(super) fn time(set: Option<Micros>) -> String {
    set.map_or_else(String::new, |now| now.to_string())
}

/// Whether this verdict's budget held a value that could not be read.
pub(super) fn is_unreadable(verdict: &[i64]) -> bool {
    verdict.first().is_some_and(|status| status & UNREADABLE != 0)
}

/// The decision of one check: the verdicts of its charges one after another, and the capacities of
/// their limits, which the script does not repeat. None if that is not what the numbers are.
pub(super) fn decision(
    verdicts: &[i64],
    capacities: impl ExactSizeIterator<Item = u64>,
) -> Option<Decision> {
    let several = capacities.len() > 1;
    let mut verdicts =
        verdicts.chunks(FIELDS).zip(capacities).map(|(it, limit)| verdict(it, limit));
    if several {
        Decision::of_group(verdicts.collect::<Option<Vec<_>>>()?)
    } else {
        verdicts.next()?.map(Decision::from)
    }
}

fn verdict(fields: &[i64], limit: u64) -> Option<Verdict> {
    let &[status, remaining, retry_after, reset_after, delay] = fields else { return None };
    Some(Verdict {
        allowed: status & ALLOWED != 0,
        never: status & NEVER != 0,
        limit,
        remaining: remaining.try_into().ok()?,
        retry_after: retry_after.try_into().ok(),
        reset_after: reset_after.try_into().ok()?,
        delay: delay.try_into().ok()?,
    })
}

const fn bucket(bucket: &Bucket, queue: u64) -> [u64; 4] {
    [bucket.rate.units, bucket.rate.micros, bucket.capacity, queue]
}

const fn number_of(op: Op) -> u64 {
    match op {
        Op::Charge => 0,
        Op::Peek => 1,
        Op::Refund => 2,
        Op::Reset => 3,
    }
}
