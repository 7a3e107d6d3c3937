//! A check that this process decided.

use crate::model::{Check, Verdict};
use crate::units::{CompactInstant, Outcome, Timestamp};

/// A check that an account of this process decided, or a part of its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DecidedHere {
    /// The number of the account.
    pub(super) account: u64,
    /// The units of the check that are taken here.
    pub(super) units: u64,
    /// The time of the check.
    pub(super) at: CompactInstant,
    /// The same by the clock of the store, as far as this process knows.
    pub(super) now: Timestamp,
    /// The time that a refund names, by the clock of the store.
    pub(super) charged_at: Timestamp,
    /// The outcome of a check that costs these units.
    pub(super) outcome: Outcome,
    /// The window of units that were charged ahead. Units on credit have none.
    pub(super) window: Option<WindowOfUnits>,
}

/// The window in which units may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowOfUnits {
    /// The end by the clock of the store.
    pub(super) ends: Timestamp,
    /// The end by the clock of this process, which is never later.
    pub(super) closes: CompactInstant,
}

impl DecidedHere {
    /// Returns whether its units are charged later.
    pub(super) const fn is_on_credit(&self) -> bool {
        self.window.is_none()
    }

    pub(super) fn is_all_of(&self, check: &Check) -> bool {
        self.units == u64::from(check.cost())
    }

    /// The verdict on a check whose units are all here, before it is charged.
    pub(super) fn verdict(&self, check: &Check) -> Verdict {
        Verdict::new(check.limit().clone(), self.outcome, 0).in_shadow(check.is_shadow())
    }
}
