//! Limits from configuration, and how they are replaced.

mod files;
mod limits;
mod live;
mod rolling;
mod sources;

#[path = "../support/mod.rs"]
mod support;
