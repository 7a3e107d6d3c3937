//! The Redis store on one server: connections, values, batches, and the caches in front of it.

mod addresses;
mod asynchronous;
mod batching;
mod calendar;
mod channels;
mod connections;
mod credentials;
mod deadline;
mod deny_cache;
mod expiry;
mod frozen;
mod logs;
mod overrides;
mod overshoot;
mod payments;
mod queue;
mod quotas;
mod replicas;
mod tls;
mod values;

#[path = "../support/mod.rs"]
mod support;
