//! What a charge is taken back with.

use crate::nouns::Micros;

/// Names a charge, so that a [refund](crate::RateLimiter::refund) takes back that charge and not a
/// later one: the time of the charge and its cost, under one limit.
///
/// An allowed [`Decision`](crate::Decision::receipt) has one. It is plain data: store its
/// [time](Self::charged_at) and [cost](Self::cost), and make it again with [`new`](Self::new), in any
/// process.
///
/// A receipt does not name its limit and key. Used under others, it gives back units that were not
/// charged there, and the store cannot tell.
///
/// A receipt is good for one refund. For another one of the same charge, take what
/// [`after`](Self::after) leaves: a receipt that is used twice takes back what others used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    pub(crate) at: Micros,
    pub(crate) cost: u32,
}

impl Receipt {
    /// The receipt of a charge of `cost` units that the store made at `charged_at`, in microseconds
    /// since the Unix epoch.
    #[must_use]
    pub const fn new(charged_at: u64, cost: u32) -> Self {
        Self { at: charged_at, cost }
    }

    /// The receipt of the rest of the charge, after a refund of `units`.
    #[must_use]
    pub const fn after(self, units: u32) -> Self {
        Self { cost: self.cost.saturating_sub(units), ..self }
    }

    /// The store's time of the charge, in microseconds since the Unix epoch.
    #[must_use]
    pub const fn charged_at(&self) -> u64 {
        self.at
    }

    /// The units that were charged.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }
}
