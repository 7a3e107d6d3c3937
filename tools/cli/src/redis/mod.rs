//! The commands that read and change budgets in Redis.

pub(crate) mod change;
mod confirm;
pub(crate) mod doctor;
pub(crate) mod keys;
mod name;
mod scan;
mod servers;
pub(crate) mod show;
mod value;
