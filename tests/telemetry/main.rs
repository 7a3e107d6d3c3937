//! Events, spans, metrics, and the most denied keys.

mod denied_keys;
mod events;
mod metrics;
mod observability;
mod spans;

#[path = "../support/mod.rs"]
mod support;
