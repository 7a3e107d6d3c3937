//! Token bucket: a burst at once, then the rate.
//!
//! A bucket holds up to `capacity` tokens and gains `limit` every `period`, evenly and without
//! rounding. A check takes as many tokens as it costs. In any interval of length `t` at most
//! `capacity + t * limit / period` units are admitted.
//!
//! The state counts the tokens that are missing, not those that are there: nobody's bucket and a
//! full one are then the same thing, under any quota.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10),
//! 1986. Twin: `scripts/bucket.lua`.

use super::Effect;
use super::bucket::{Bucket, Level};
use crate::nouns::{Micros, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket(pub(crate) Bucket);

impl TokenBucket {
    pub(super) fn decide(
        &self,
        missing: &mut Option<Level>,
        now: Micros,
        cost: u64,
        effect: Effect,
    ) -> Outcome {
        // Tokens that are there can be taken at once.
        self.0.decide(missing, now, cost, effect, false)
    }
}
