//! What tests share.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses its own part")]

pub mod counting;
pub mod fake_redis;
pub mod log;
#[cfg(feature = "redis")]
mod redis_server;

#[cfg(feature = "redis")]
pub use self::redis_server::{RedisServer, free_port};
