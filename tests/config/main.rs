//! Limits from configuration, and how they are replaced.

mod files;
mod limits;
mod live;
mod overrides;
mod plans_looked_up;
mod rolling;
mod sources;

#[path = "../support/mod.rs"]
mod support;
