//! A store that fails, is slow or is overloaded.

mod circuit_breaker;
mod failures;
mod faults;
mod floods;
mod local_limit;
mod recovery;
mod shutdown;
mod store_failure;

#[path = "../support/mod.rs"]
mod support;
