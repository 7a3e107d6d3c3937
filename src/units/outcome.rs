//! The outcome of an algorithm.

use std::fmt;

use super::Micros;

/// The result of an algorithm for one check, the computed part of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) allowed: bool,
    pub(crate) exceeds_capacity: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<Micros>,
    pub(crate) reset_after: Micros,
    pub(crate) delay: Micros,
    /// The time until the level of a charged bucket would be empty if none of it had been given
    /// back. 0 for other algorithms.
    pub(crate) drains_after: Micros,
    pub(crate) blocked: Blocked,
}

/// Whether a key is blocked, and for how long, as the time until the block ends, and one bit.
///
/// A number, so that a decision has 128 bytes. Larger values are not moved in registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocked(u64);

impl Blocked {
    /// The key is not blocked.
    pub(crate) const NO: Self = Self(0);

    /// Times are shorter than that.
    const BEGINS: u64 = 1 << 63;

    /// The block begins with this denial.
    pub(crate) const fn beginning(left: Micros) -> Self {
        Self(left | Self::BEGINS)
    }

    /// The block began earlier. 0: there is none.
    pub(crate) const fn standing(left: Micros) -> Self {
        Self(left)
    }

    /// The time until the block ends. 0: there is none.
    pub(crate) const fn left(self) -> Micros {
        self.0 & !Self::BEGINS
    }

    /// Returns whether the block begins with this denial.
    pub(crate) const fn begins(self) -> bool {
        self.0 & Self::BEGINS != 0
    }

    /// Returns whether the block began earlier.
    pub(crate) const fn stands(self) -> bool {
        self.0 != 0 && !self.begins()
    }

    /// The same block, `elapsed` later.
    pub(crate) const fn after(self, elapsed: Micros) -> Self {
        Self::standing(self.left().saturating_sub(elapsed))
    }
}

impl fmt::Debug for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.left(), self.begins()) {
            (0, _) => f.write_str("No"),
            (left, true) => write!(f, "Begins({left})"),
            (left, false) => write!(f, "Stands({left})"),
        }
    }
}

impl Outcome {
    /// The outcome of an algorithm whose allowed checks have no delay, and whose state is not a
    /// level.
    pub(crate) const fn undelayed(
        allowed: bool,
        exceeds_capacity: bool,
        remaining: u64,
        retry_after: Option<Micros>,
        reset_after: Micros,
    ) -> Self {
        let delay = 0;
        let drains_after = 0;
        let blocked = Blocked::NO;
        Self {
            allowed,
            exceeds_capacity,
            remaining,
            retry_after,
            reset_after,
            delay,
            drains_after,
            blocked,
        }
    }
}
