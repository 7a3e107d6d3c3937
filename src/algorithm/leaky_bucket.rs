//! Leaky bucket: requests leave evenly.
//!
//! As a *queue*, an admitted check carries a `delay`, its turn in a queue that lets `limit` units
//! out every `period`; a queue that holds `capacity` units refuses more. As a *meter*, the bucket
//! only measures: what fits passes at once, which is the token bucket with the water counted
//! instead of the tokens.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10),
//! 1986 (the meter); A. Tanenbaum, "Computer Networks" (the queue). Twin:
//! `scripts/bucket.lua`.

use serde::{Deserialize, Serialize};

use super::bucket::{Bucket, Level};
use super::{Effect, First, Followed, Rule};
use crate::Receipt;
use crate::decision::{Micros, Verdict};

/// What an admitted check has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Until all that came before it has left.
    Queue,
    /// Nothing.
    Meter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeakyBucket {
    pub(crate) bucket: Bucket,
    pub(crate) mode: Mode,
}

impl Rule for LeakyBucket {
    type State = Level;

    fn decide(&self, water: &mut Option<Level>, now: Micros, cost: u64, effect: Effect) -> Verdict {
        self.bucket.decide(water, now, cost, effect, self.mode == Mode::Queue)
    }

    fn refund(&self, water: &mut Option<Level>, now: Micros, receipt: Receipt, units: u64) {
        self.bucket.refund(water, now, receipt, units);
    }

    fn follow(&self, first: First, taken: u64, cost: u64) -> Followed {
        self.bucket.follow(first, taken, cost, self.mode == Mode::Queue)
    }
}
