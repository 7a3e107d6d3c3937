//! A circuit breaker. It stops asking a store that does not answer.
//!
//! `circuit` has the states, `window` the calls that decide, `prober` the task that finds out when
//! the store answers again. They know nothing of checks. `RedisStore` counts its calls, each of
//! which may carry hundreds of checks.
//!
//! # Why not a crate
//!
//! recloser and tower-resilience-circuitbreaker are the ones in use. Both let requests of clients
//! find out whether the store answers again, and then send all of them. Here no request waits for a
//! probe, and a store that recovers gets a growing share. Their windows are of many calls, or of
//! seconds. A hang fails the two or three calls in flight after thousands that succeeded, so
//! such a window notices it late.

mod circuit;
mod prober;
mod settings;
mod window;
#[cfg(feature = "test-util")]
mod wrapper;

pub(crate) use self::circuit::Begun;
pub use self::circuit::BreakerState;
pub(crate) use self::prober::Breaker;
pub use self::settings::BreakerSettings;
#[cfg(feature = "test-util")]
pub use self::wrapper::CircuitBreaker;
