//! Leaky bucket: requests leave evenly.
//!
//! The *queue* gives an allowed check a `delay` until its turn. It drains `limit` units
//! every `period`. A queue of `capacity` units is full and denies more. The *meter* allows a check
//! that fits without a delay. That is the token bucket, with water counted instead of tokens.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10),
//! 1986 (the meter); A. Tanenbaum, "Computer Networks" (the queue). Twin:
//! `scripts/bucket.lua`.

use super::bucket::{Bucket, Level};
use super::{Cost, Effect};
use crate::nouns::{Micros, Outcome};

/// The delay of an allowed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) enum Mode {
    /// The time until the units before it have drained.
    Queue,
    /// None.
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
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        self.bucket
            .decide(water, now, cost, effect, self.mode == Mode::Queue)
    }
}
