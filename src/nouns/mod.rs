//! The data types of the crate: checks, groups, limits, keys, decisions, receipts and errors.

mod check;
mod claim;
pub(crate) mod clock;
mod config_error;
mod decision;
mod digest;
mod error;
mod failure;
mod group;
mod key;
mod limit;
mod lock;
mod outcome;
pub(crate) mod quota;
mod receipt;
mod usage;
mod verdict;

pub use self::check::{Check, Op};
pub use self::claim::Claim;
pub(crate) use self::claim::MAX_LEASE;
pub use self::clock::ManualClock;
pub(crate) use self::clock::{Micros, later};
pub use self::config_error::ConfigError;
pub use self::decision::{Decision, Source};
pub(crate) use self::digest::Digest;
pub(crate) use self::digest::DigestSecret;
pub use self::error::Error;
pub use self::failure::OnStoreFailure;
pub use self::group::Group;
pub(crate) use self::group::MAX_GROUP;
pub use self::key::Key;
pub(crate) use self::limit::Enforced;
pub use self::limit::{Algorithm, BlockPolicy, Limit};
#[cfg(feature = "config")]
pub(crate) use self::limit::{BlockFields, LimitFields, Written};
pub(crate) use self::lock::{Mutex, RwLock};
pub(crate) use self::outcome::{Blocked, Outcome};
pub use self::quota::Quota;
pub use self::receipt::Receipt;
pub use self::usage::Usage;
pub use self::verdict::Verdict;
