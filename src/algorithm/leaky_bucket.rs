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

use super::Effect;
use super::bucket::{Bucket, Level};
use crate::nouns::{Micros, Outcome};

/// What an admitted check has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
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

impl LeakyBucket {
    pub(super) fn decide(
        &self,
        water: &mut Option<Level>,
        now: Micros,
        cost: u64,
        effect: Effect,
    ) -> Outcome {
        self.bucket.decide(water, now, cost, effect, self.mode == Mode::Queue)
    }
}
