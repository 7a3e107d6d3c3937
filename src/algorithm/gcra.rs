//! GCRA: the guarantee of the token bucket as a schedule.
//!
//! The generic cell rate algorithm keeps a theoretical arrival time (TAT): the time when the budget
//! is full if no other check comes. A check of cost `c` moves it by `c` emission intervals of
//! `period / limit`. A check conforms while the TAT stays within `capacity` intervals of now. In
//! any interval of length `t`, at most `capacity + t * limit / period` units are allowed.
//!
//! The distance from now to the TAT is the time in which the token bucket's missing tokens refill.
//! So the decisions are the same, to the microsecond. A bare TAT would be smaller, but does not
//! contain its rate and time. Then a changed quota would mint units, and a clock that steps back
//! would remove some. So the state is the TAT as (time, level, rate).
//!
//! Source: ITU-T Recommendation I.371 (2004), annex A; ATM Forum TM 4.1. Twin:
//! `scripts/bucket.lua`.

use super::bucket::{Bucket, Level};
use super::{Cost, Effect};
use crate::nouns::{Micros, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gcra(pub(crate) Bucket);

impl Gcra {
    pub(super) fn decide(
        &self,
        tat: &mut Option<Level>,
        now: Micros,
        cost: Cost,
        effect: Effect,
    ) -> Outcome {
        // A conforming cell has no delay.
        self.0.decide(tat, now, cost, effect, false)
    }
}
