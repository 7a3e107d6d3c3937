//! The commands that read and change budgets in Redis.

pub(crate) mod block;
mod certificates;
mod confirm;
pub(crate) mod copy;
pub(crate) mod doctor;
pub(crate) mod keys;
mod limiter;
mod name;
mod noted;
pub(crate) mod overrides;
pub(crate) mod peek;
pub(crate) mod reset;
mod scan;
mod servers;
mod services;
pub(crate) mod show;
pub(crate) mod top;
pub(crate) mod usage;
mod value;

pub(crate) use self::certificates::{Certificates, is_tls};

/// The exit code if nothing was changed, because a name or a quota may be mistyped.
const NOTHING_CHANGED: u8 = 3;
