//! The types below the algorithms, such as quotas, times, outcomes, receipts and claims of permits.

mod claim;
pub(crate) mod clock;
mod compact_instant;
mod config_error;
#[cfg(any(feature = "calendar", feature = "config"))]
pub(crate) mod did_you_mean;
mod lock;
mod outcome;
mod payment;
pub(crate) mod quota;
mod receipt;
mod task;

pub use self::claim::Claim;
pub(crate) use self::claim::MAX_LEASE;
pub use self::clock::ManualClock;
pub(crate) use self::clock::{Micros, Timestamp, later, micros};
pub(crate) use self::compact_instant::CompactInstant;
pub use self::config_error::ConfigError;
pub(crate) use self::lock::{AtomicU32, AtomicU64, Mutex, MutexGuard, RwLock};
pub(crate) use self::outcome::Outcome;
pub use self::payment::Payment;
#[cfg(feature = "calendar")]
pub use self::quota::Weekday;
pub use self::quota::{Calendar, Period, Quota};
pub use self::receipt::Receipt;
pub(crate) use self::task::spawn_for;
