//! What is sent to the script, and what comes back: the other side of `scripts/batch.lua`.

use crate::algorithm::{Algorithm, Anchor, Bucket, Mode};
use crate::decision::{Micros, Verdict};
use crate::{Charge, Decision, Error, Limit, Op};

/// Integers in the reply for each charge.
const FIELDS: usize = 5;

/// The status of a verdict, as in `scripts/head.lua`.
const ALLOWED: i64 = 1;
const NEVER: i64 = 2;
const UNREADABLE: i64 = 4;

/// One call of the script.
#[derive(Debug)]
pub(super) struct Request {
    /// `KEYS`.
    pub(super) keys: Vec<String>,
    /// `ARGV[2]`.
    pub(super) body: Vec<u8>,
    /// The capacity of each charge's limit, which the script does not repeat.
    capacities: Vec<u64>,
}

impl Request {
    /// A batch as the one group of a call.
    pub(super) fn new(prefix: &str, op: Op, batch: &[Charge<'_>]) -> Result<Self, Error> {
        let size = u8::try_from(batch.len())
            .map_err(|_| Error::misuse("a batch has at most 255 charges"))?;
        let mut body = Vec::with_capacity(4 + batch.len() * (29 + 8));
        // Each charge brings its own limit and its own key: a batch names no budget twice.
        push(&mut body, u64::from(size), 2);
        for charge in batch {
            push_limit(&mut body, charge.limit);
        }
        push(&mut body, number_of(op), 1);
        push(&mut body, u64::from(size), 1);
        for (charge, number) in batch.iter().zip(1..) {
            push(&mut body, number, 2);
            push(&mut body, number, 2);
            push(&mut body, u64::from(charge.cost), 4);
        }
        Ok(Self {
            keys: batch.iter().map(|charge| key(prefix, charge)).collect(),
            body,
            capacities: batch.iter().map(|charge| charge.limit.quota().capacity()).collect(),
        })
    }

    /// The decision in the script's reply; `unreadable` is told of each key whose value could not
    /// be read.
    pub(super) fn decision(
        &self,
        reply: &[i64],
        mut unreadable: impl FnMut(&str),
    ) -> Result<Decision, Error> {
        let strange = || Error::store(format!("the script answered {reply:?}"));
        let mut verdicts = Vec::with_capacity(self.keys.len());
        for ((fields, key), &limit) in reply.chunks(FIELDS).zip(&self.keys).zip(&self.capacities) {
            let &[status, remaining, retry_after, reset_after, delay] = fields else {
                return Err(strange());
            };
            if status & UNREADABLE != 0 {
                unreadable(key);
            }
            let number = |field: i64| u64::try_from(field).map_err(|_| strange());
            verdicts.push(Verdict {
                allowed: status & ALLOWED != 0,
                never: status & NEVER != 0,
                limit,
                remaining: number(remaining)?,
                retry_after: (retry_after >= 0).then_some(retry_after.unsigned_abs()),
                reset_after: number(reset_after)?,
                delay: number(delay)?,
            });
        }
        if verdicts.len() != self.keys.len() || reply.len() != self.keys.len() * FIELDS {
            return Err(strange());
        }
        match verdicts[..] {
            [verdict] => Ok(verdict.into()),
            _ => Decision::of_group(verdicts).ok_or_else(strange),
        }
    }
}

/// The time argument: empty for the server's own.
pub(super) fn time(set: Option<Micros>) -> String {
    set.map_or_else(String::new, |now| now.to_string())
}

/// `prefix:{key}:name`. Encoded keys have no braces, so the braces are the key's own, and Redis
/// Cluster keeps all limits of one key in one slot; the name comes last, so it may hold anything.
fn key(prefix: &str, charge: &Charge<'_>) -> String {
    let (key, name) = (charge.key.as_str(), charge.limit.name());
    let mut full = String::with_capacity(prefix.len() + key.len() + name.len() + 4);
    for part in [prefix, ":{", key, "}:", name] {
        full.push_str(part);
    }
    full
}

/// The lowest `bytes` bytes of a number, the highest first.
fn push(body: &mut Vec<u8>, number: u64, bytes: usize) {
    body.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
}

fn push_limit(body: &mut Vec<u8>, limit: &Limit) {
    let (algorithm, numbers) = match limit.algorithm() {
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
    push(body, algorithm, 1);
    for number in numbers {
        push(body, number, 7);
    }
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
