//! TLS without the feature `tls`. Nothing can be built with it.

use std::fmt;

use redis::{Client, RedisError};

use crate::units::ConfigError;

pub(super) use NoTls as Tls;

#[derive(Clone)]
pub(super) enum NoTls {}

pub(super) fn client(
    _: &str,
    _: Option<Tls>,
    _: fn(&dyn fmt::Display) -> ConfigError,
) -> Result<Client, ConfigError> {
    Err(ConfigError::new(
        "the Redis URL asks for TLS: enable the feature `tls` of the crate `tollgate`, or use \
         `redis://`",
    ))
}

pub(super) const fn failure(_: &RedisError) -> Option<String> {
    None
}
