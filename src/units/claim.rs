//! Claims of permits.

use std::time::Duration;

use super::{Micros, micros};

/// The largest count of permits, for which the arithmetic is exact.
const MAX_COUNT: u64 = 1 << 52;

/// The lease on an embedded store, which ends with its process.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// The permits and the waiters of a process for one key under a [concurrency
/// limit](crate::Limit::concurrency). A store passes it on, or has [`decide`](crate::store::decide)
/// read it.
///
/// `granted` and `released` count from the start of the holder, and only grow. So a claim can be
/// lost or repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// The holder, one process, for one key. Eight random bytes.
    #[doc(hidden)]
    pub holder: [u8; 8],
    /// The permits granted so far, as far as the holder knows.
    #[doc(hidden)]
    pub granted: u64,
    /// The released permits of these.
    #[doc(hidden)]
    pub released: u64,
    /// The places that it needs in the queue of the key.
    #[doc(hidden)]
    pub waiting: u32,
    /// Permits to grant only if they are free and the queue is empty.
    #[doc(hidden)]
    pub at_once: u32,
    /// How long all of this counts without a further claim. At most ten years, and on Redis 10
    /// minutes.
    #[doc(hidden)]
    pub lease: Duration,
}

impl Claim {
    /// Creates a claim of a holder that has nothing and wants nothing.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(holder: [u8; 8], lease: Duration) -> Self {
        Self {
            holder,
            granted: 0,
            released: 0,
            waiting: 0,
            at_once: 0,
            lease,
        }
    }

    /// The same claim, with numbers for which the arithmetic is exact.
    pub(crate) fn within_range(self) -> Self {
        Self {
            granted: self.granted.min(MAX_COUNT),
            released: self.released.min(MAX_COUNT),
            lease: self.lease.min(MAX_LEASE),
            ..self
        }
    }

    pub(crate) fn lease_us(&self) -> Micros {
        micros(self.lease)
    }
}
