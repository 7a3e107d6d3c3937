//! Receipts: the proof of a charge, for refunds and settlements.

use std::time::Duration;

use super::{Micros, Timestamp};

/// The proof of a charge under one limit, with its time, its cost, and the load of its bucket. A
/// [refund](crate::RateLimiter::refund) with it takes back that charge and not a later one.
///
/// An allowed [`Decision`](crate::Decision::receipt) that charged units has one. It is plain data:
/// you can store its [time](Self::charged_at) and [cost](Self::cost), and recreate it with
/// [`new`](Self::new) in any process.
///
/// A receipt does not contain its limit and key. With another limit or key, a refund gives back
/// units that were not charged there, and the store cannot detect it.
///
/// A receipt is valid for one refund or one [settlement](crate::RateLimiter::settle). For the next
/// refund of the same charge, use the receipt that [`after`](Self::after) returns. A receipt used
/// twice gives back units of other charges.
///
/// The default is the receipt of no charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Receipt {
    pub(crate) at: Timestamp,
    pub(crate) cost: u32,
    pub(crate) drains_at: Timestamp,
}

/// Added to the time of a charge that no store knows, a local one. It is a bit, because
/// applications keep the numbers of a receipt. No clock of a store reaches it, and a signed number
/// of 64 bits holds it.
const LOCAL: Micros = 1 << 62;

impl Receipt {
    /// The same receipt, of a charge that was decided [locally](crate::decision::Source::Local).
    pub(crate) const fn of_local_charge(self) -> Self {
        Self {
            at: Timestamp::from_micros(self.at.as_micros() | LOCAL),
            ..self
        }
    }

    /// The receipt for the local budget, if that was charged.
    pub(crate) const fn local(self) -> Option<Self> {
        if self.at.as_micros() & LOCAL == 0 {
            None
        } else {
            Some(Self {
                at: Timestamp::from_micros(self.at.as_micros() & !LOCAL),
                ..self
            })
        }
    }

    /// Creates the receipt of a charge of `cost` units at a time of the store since the Unix epoch,
    /// in whole microseconds.
    #[must_use]
    pub fn new(charged_at: Duration, cost: u32) -> Self {
        Self::of_charge(Timestamp::from(charged_at), cost)
    }

    pub(crate) const fn of_charge(at: Timestamp, cost: u32) -> Self {
        Self {
            at,
            cost,
            drains_at: Timestamp::EPOCH,
        }
    }

    /// Sets the time that [`drains_at`](Self::drains_at) returns, to recreate the receipt of a
    /// bucket. Default: zero, which is unknown. A refund then gives back at most the cost less the
    /// refill since the charge, and nothing of a queue.
    #[must_use]
    pub fn with_drains_at(self, drains_at: Duration) -> Self {
        Self {
            drains_at: Timestamp::from(drains_at),
            ..self
        }
    }

    /// Returns the receipt of the rest of the charge, after a refund of `units`.
    #[must_use]
    pub const fn after(self, units: u32) -> Self {
        Self {
            cost: self.cost.saturating_sub(units),
            ..self
        }
    }

    /// The store's time of the charge, since the Unix epoch. For a charge that was decided
    /// [locally](crate::decision::Source::Local), it is a time later than every time of a store.
    #[must_use]
    pub const fn charged_at(&self) -> Duration {
        self.at.since_epoch()
    }

    /// The store's time at which the bucket would be full again if nothing else were charged or
    /// given back, since the Unix epoch. A refund gives back more from a loaded bucket. Zero if it
    /// is unknown, and for algorithms that are not buckets.
    #[must_use]
    pub const fn drains_at(&self) -> Duration {
        self.drains_at.since_epoch()
    }

    /// The charged units.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }
}
