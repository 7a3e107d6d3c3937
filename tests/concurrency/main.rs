//! Limits of requests in flight: permits, their leases, and layers that hold them.

mod claims;
mod configuration;
mod embedded;
mod layers;
mod leases;
mod load_shed;
mod outages;
mod permits;
mod responses;
mod waiting;

#[path = "../support/mod.rs"]
mod support;
