//! The contract of the algorithms, on both stores.

mod conformance;
mod exact;
mod extremes;
mod promises;
mod quota_changes;
mod rotation;
mod rotation_models;
mod twins;
mod vectors;
mod worst_minute;

#[path = "../support/mod.rs"]
mod support;
