//! The algorithms that count a level. They differ in what an allowed check waits for.

use super::Bucket;
use crate::units::{ConfigError, Quota};

/// The name of the level, and the delay of an allowed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flavour {
    /// The token bucket: a burst at once, then the rate.
    ///
    /// A bucket holds up to `capacity` tokens and refills `limit` tokens every `period`, evenly and
    /// without rounding. A check consumes its cost in tokens. In any interval of length `t`, at
    /// most `capacity + t * limit / period` units are allowed.
    ///
    /// The level counts the missing tokens, not the tokens left. So no state and a full bucket are
    /// the same, under any quota.
    ///
    /// Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10),
    /// 1986.
    TokenBucket,
    /// The leaky bucket: requests leave evenly.
    ///
    /// The *queue* gives an allowed check a `delay` until its turn. It drains `limit` units every
    /// `period`. A queue of `capacity` units is full and denies more. The *meter* allows a check
    /// that fits without a delay. That is the token bucket, with water counted instead of tokens.
    ///
    /// Source: J. Turner, as above (the meter); A. Tanenbaum, "Computer Networks" (the queue).
    LeakyBucket(Mode),
    /// GCRA: the guarantee of the token bucket as a schedule.
    ///
    /// The generic cell rate algorithm keeps a theoretical arrival time (TAT), the time when the
    /// budget is full if no other check comes. A check of cost `c` moves it by `c` emission
    /// intervals of `period / limit`. A check conforms while the TAT stays within `capacity`
    /// intervals of now. In any interval of length `t`, at most `capacity + t * limit / period`
    /// units are allowed.
    ///
    /// The distance from now to the TAT is the time in which the token bucket's missing tokens
    /// refill. So the decisions are the same, to the microsecond. A bare TAT would be smaller, but
    /// does not contain its rate and time. Then a changed quota would mint units, and a clock that
    /// steps back would remove some. So the state is the TAT as (time, level, rate).
    ///
    /// Source: ITU-T Recommendation I.371 (2004), annex A; ATM Forum TM 4.1.
    Gcra,
}

/// The delay of an allowed check of a leaky bucket.
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

/// A bucket with its flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BucketRule {
    pub(crate) bucket: Bucket,
    pub(crate) flavour: Flavour,
}

impl BucketRule {
    pub(crate) fn new(quota: &Quota, flavour: Flavour) -> Result<Self, ConfigError> {
        Ok(Self {
            bucket: Bucket::new(quota)?,
            flavour,
        })
    }

    /// Returns whether an allowed check waits in a queue.
    pub(crate) const fn queues(&self) -> bool {
        matches!(self.flavour, Flavour::LeakyBucket(Mode::Queue))
    }
}
