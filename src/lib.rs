#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Nothing in a request can make the library panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
// Nor can a `Duration::MAX` or a response that is full of headers: `clippy.toml` says what counts.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

mod algorithm;
mod charge;
mod clock;
#[cfg(feature = "test-util")]
pub mod conformance;
mod decision;
mod error;
#[cfg(feature = "http")]
mod http;
mod key;
mod limit;
mod limiter;
mod quota;
mod receipt;
mod store;
mod telemetry;

pub use algorithm::State;
pub use charge::{Charge, Op, check_batch};
pub use clock::ManualClock;
pub use decision::{Decision, Source, Verdict};
pub use error::{ConfigError, Error};
#[cfg(feature = "axum")]
pub use http::Route;
#[cfg(feature = "http")]
pub use http::{
    And, Extension, FromFn, Global, Header, KeyExtractor, MissingKey, OnMissingKey, OnStoreFailure,
    Or, PeerIp, PeerNetwork, RateLimit, RateLimitLayer, RateLimitLayerBuilder, ResetFormat,
    ResponseBody, ResponseFuture, UnkeyedLayer, from_fn,
};
pub use key::Key;
pub use limit::Limit;
pub use limiter::RateLimiter;
pub use quota::Quota;
pub use receipt::Receipt;
#[cfg(feature = "tls")]
pub use store::Tls;
pub use store::{Answer, MemoryStore, Store, decide};
#[cfg(feature = "redis")]
pub use store::{DenyCache, Leased, LeasedBuilder, RedisStore, RedisStoreBuilder};
