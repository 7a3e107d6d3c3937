//! Redis Cluster and Redis Sentinel.

mod failover_clock;
mod overrides;
mod sentinel;
mod slots;

#[path = "../support/mod.rs"]
mod support;
