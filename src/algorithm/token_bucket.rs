//! Token bucket: a burst at once, then the rate.
//!
//! A bucket holds up to `capacity` tokens and refills `limit` tokens every `period`, evenly and
//! without rounding. A check consumes its cost in tokens. In any interval of length `t`, at most
//! `capacity + t * limit / period` units are allowed.
//!
//! The state counts the missing tokens, not the tokens left. So no state and a full bucket are the
//! same, under any quota.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10),
//! 1986. Twin: `scripts/bucket.lua`.

use super::bucket::{Bucket, Level};
use super::{Cost, Effect};
use crate::nouns::{Micros, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket(pub(crate) Bucket);

impl TokenBucket {
    pub(super) fn decide(
        &self,
        missing: &mut Option<Level>,
        now: Micros,
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        // Available tokens have no delay.
        self.0.decide(missing, now, cost, effect, false)
    }
}
