//! Limits and the limiter without HTTP, plans, shadow mode, and blocked keys.

mod blocked_keys;
mod limiter;
mod memory;
mod near_limit;
mod offenders;
mod overrides;
mod plans;
mod ranges;
mod shadow;

#[path = "../support/mod.rs"]
mod support;
