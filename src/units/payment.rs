//! Payments of units that were allowed before.

/// Units that a process allowed before, and charges now. A store passes it on, or has
/// [`decide`](crate::store::decide) read it.
///
/// The numbers of a payer for one budget grow. So a payment whose answer was lost is sent again
/// with its number, and counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Payment {
    /// The process that pays. Eight random bytes.
    #[doc(hidden)]
    pub payer: [u8; 8],
    #[doc(hidden)]
    pub number: u64,
    #[doc(hidden)]
    pub units: u32,
}

impl Payment {
    /// Creates a payment.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(payer: [u8; 8], number: u64, units: u32) -> Self {
        Self {
            payer,
            number,
            units,
        }
    }
}
