#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod clock;
mod decision;
mod error;
mod key;
mod limit;
mod limiter;
mod quota;
mod store;
mod telemetry;

pub use algorithm::State;
pub use clock::ManualClock;
pub use decision::{Decision, Verdict};
pub use error::{ConfigError, Error};
pub use key::Key;
pub use limit::Limit;
pub use limiter::RateLimiter;
pub use quota::Quota;
pub use store::{Answer, Charge, MemoryStore, Op, Store, check_batch, decide};
#[cfg(feature = "redis")]
pub use store::{RedisStore, RedisStoreBuilder};
