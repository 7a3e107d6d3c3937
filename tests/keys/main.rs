//! Keys: their encoding, the extractors, and the addresses of clients behind proxies.

mod client_ip;
mod client_ip_model;
mod encoding;
mod extractors;
mod fallbacks;

#[path = "../support/mod.rs"]
mod support;
