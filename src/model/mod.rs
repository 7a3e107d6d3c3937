//! Limits, keys, checks and their groups, decisions and errors.

mod budget;
mod check;
mod decision;
mod digest;
mod error;
mod failure;
mod group;
mod key;
mod limit;
mod operation;
mod overrides;
mod usage;
mod verdict;

pub use self::budget::Budget;
pub use self::check::Check;
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
pub(crate) use self::limit::{BlockFields, LimitFields, Written, WrittenStart};
pub use self::operation::{Change, Operation};
pub(crate) use self::overrides::MAX_OVERRIDES;
#[cfg(feature = "config")]
pub(crate) use self::overrides::start_of_override;
pub use self::overrides::{Override, OverrideEffect};
pub use self::usage::Usage;
pub use self::verdict::Verdict;
