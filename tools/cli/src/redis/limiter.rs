//! Limiters and limits for the commands.

use tollgate::limit::BlockPolicy;
use tollgate::{Key, Limit, Quota, RedisStore};

use super::name::Name;
use crate::arguments::RedisArguments;
use crate::limit::{Algorithm, LimitSpec};

pub(super) async fn store(redis: &RedisArguments) -> anyhow::Result<RedisStore> {
    Ok(redis.store()?.connect().await?)
}

/// A limit under which blocks are seen, reset and set.
pub(super) fn blockable(spec: &LimitSpec, name: &str) -> anyhow::Result<Limit> {
    Ok(spec
        .limit(name)?
        .with_block_policy(BlockPolicy::by_operators())?)
}

/// A limit with any quota: the key of a budget depends on its name and its kind alone.
pub(super) fn any_quota(algorithm: Algorithm, name: &str) -> anyhow::Result<Limit> {
    blockable(&LimitSpec::of(algorithm, Quota::per_second(1)), name)
}

/// On a cluster, services of another number of partitions have another tag in some keys.
pub(super) const OTHER_PARTITIONS: &str =
    "the budgets are in other partitions: give --partitions as your services set them";

/// Returns whether the store looks for this budget under this tag.
pub(super) fn has_tag(
    store: &RedisStore,
    prefix: &str,
    (limit, key): (&Limit, &Key),
    tag: Option<&str>,
) -> bool {
    let expected = store.redis_key(limit, key);
    Name::parse(&expected, prefix).is_some_and(|expected| expected.tag == tag)
}
