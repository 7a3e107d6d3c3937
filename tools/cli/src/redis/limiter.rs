//! The library, as services use it.

use tollgate::limit::BlockPolicy;
use tollgate::{Limit, Quota, RateLimiter};

use crate::arguments::RedisArguments;
use crate::limit::{Algorithm, LimitSpec};

pub(super) async fn limiter(redis: &RedisArguments) -> anyhow::Result<RateLimiter> {
    Ok(RateLimiter::new(redis.store().connect().await?))
}

/// A limit under which blocks are seen, reset and set.
pub(super) fn blockable(spec: &LimitSpec, name: &str) -> anyhow::Result<Limit> {
    Ok(spec.limit(name)?.block_offenders(BlockPolicy::by_operators())?)
}

/// Such a limit for what needs no quota: a budget is found by its name and its kind.
pub(super) fn any_quota(algorithm: Algorithm, name: &str) -> anyhow::Result<Limit> {
    blockable(&LimitSpec::of(algorithm, Quota::per_second(1)), name)
}
