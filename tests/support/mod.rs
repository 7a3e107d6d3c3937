//! Helpers that several test files share.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

pub mod budget;
pub mod chaos;
#[cfg(feature = "redis")]
pub mod cluster;
pub mod delay;
pub mod example;
pub mod fake_redis;
#[cfg(feature = "http")]
pub mod fields;
pub mod limits;
pub mod log;
pub mod op;
#[cfg(feature = "redis")]
pub mod pass_on;
pub mod process;
#[cfg(feature = "metrics")]
pub mod recorded;
#[cfg(feature = "redis")]
mod redis_server;
#[cfg(feature = "http")]
pub mod requests;
pub mod scripted;
#[cfg(feature = "redis")]
pub mod sentinels;
#[cfg(feature = "http")]
pub mod tenants;

#[cfg(feature = "redis")]
pub use self::redis_server::{RedisServer, free_port};
