//! GCRA: the token bucket's promise as a schedule.
//!
//! The generic cell rate algorithm keeps a theoretical arrival time (TAT): when the budget would
//! be whole again if nobody came. A check of cost `c` moves it by `c` emission intervals of
//! `period / limit`, and conforms while it stays within `capacity` intervals of now. In any
//! interval of length `t` at most `capacity + t * limit / period` units are admitted.
//!
//! The distance from now to the TAT is the level that the token bucket misses, so the decisions
//! are the same, to the microsecond. A bare TAT would be a smaller state, but it cannot say under
//! which rate it was written, nor when: a changed quota would mint units, and a clock that steps
//! back would take some away. So the state is the TAT as (time, level, rate).
//!
//! Source: ITU-T Recommendation I.371 (2004), annex A; ATM Forum TM 4.1. Twin:
//! `scripts/bucket.lua`.

use super::Effect;
use super::bucket::{Bucket, Level};
use crate::nouns::{Micros, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gcra(pub(crate) Bucket);

impl Gcra {
    pub(super) fn decide(
        &self,
        tat: &mut Option<Level>,
        now: Micros,
        cost: u64,
        effect: Effect,
    ) -> Outcome {
        // A cell that conforms is not held back.
        self.0.decide(tat, now, cost, effect, false)
    }
}
