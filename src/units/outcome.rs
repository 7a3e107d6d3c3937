//! The outcome of an algorithm.

use super::Micros;

/// The result of an algorithm for one check, the computed part of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The time until the block of the key ends. 0: it is not blocked.
    pub(crate) blocked_for: Micros,
    /// `true` if the block begins with this denial.
    pub(crate) begins_block: bool,
    /// `true` if the store did not decide, because its time is in neither of the windows of a
    /// calendar that it got.
    pub(crate) is_undecided: bool,
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
        Self {
            allowed,
            exceeds_capacity,
            remaining,
            retry_after,
            reset_after,
            delay: 0,
            drains_after: 0,
            blocked_for: 0,
            begins_block: false,
            is_undecided: false,
        }
    }
}
