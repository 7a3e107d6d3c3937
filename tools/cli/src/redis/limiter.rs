//! Limiters and limits for the commands.

use tollgate::limit::BlockPolicy;
use tollgate::{Limit, Quota, RateLimiter, RedisStore};

use crate::arguments::RedisArguments;
use crate::limit::{Algorithm, LimitSpec};

pub(super) async fn store(redis: &RedisArguments) -> anyhow::Result<RedisStore> {
    Ok(redis.store().connect().await?)
}

pub(super) async fn limiter(redis: &RedisArguments) -> anyhow::Result<RateLimiter> {
    Ok(RateLimiter::new(store(redis).await?))
}

/// A limit under which blocks are seen, reset and set.
pub(super) fn blockable(spec: &LimitSpec, name: &str) -> anyhow::Result<Limit> {
    Ok(spec.limit(name)?.block_offenders(BlockPolicy::by_operators())?)
}

/// A limit with any quota: the key of a budget depends on its name and its kind alone.
pub(super) fn any_quota(algorithm: Algorithm, name: &str) -> anyhow::Result<Limit> {
    blockable(&LimitSpec::of(algorithm, Quota::per_second(1)), name)
}
