//! Limits of requests in flight: permits, their leases, and layers that hold them.

mod claims;
mod configuration;
mod embedded;
mod layers;
mod leases;
mod permits;

#[path = "../support/mod.rs"]
mod support;
