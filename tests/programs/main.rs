//! Programs around the crate: the examples, real proxies, real clients, and a browser.

mod clients;
mod examples;
mod playground;
mod proxies;

#[path = "../support/mod.rs"]
mod support;
