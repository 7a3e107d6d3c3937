//! `tollgate block`: blocks a client under a limit, or ends a block.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use tokio::time::timeout;
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use super::confirm::confirmed;
use super::limiter::{OTHER_PARTITIONS, any_quota, has_tag, store};
use super::name::{Kind, Name, client};
use super::scan::Scan;
use super::servers;
use crate::arguments::BlockArguments;
use crate::duration::rounded;
use crate::output::{self, printable};

/// How long the command looks for budgets of the limit before it blocks.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(arguments: BlockArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let limit = any_quota(arguments.algorithm, &arguments.name)?;
    let (name, length, client) = (limit.name(), arguments.length, printable(key.as_str()));
    if length > Quota::per_day(1).period() * 366 {
        bail!("a block lasts 366 days at most");
    }
    let question = match length {
        Duration::ZERO => format!("End the block of `{client}` under {name}?"),
        _ => format!("Block `{client}` under {name} for {}?", rounded(length)),
    };
    if !confirmed(&question, arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = store(&arguments.redis).await?;
    match timeout(PATIENCE, use_of(&arguments, &limit, &store)).await {
        Ok(Ok(Use::Here)) => {}
        Ok(Ok(Use::InOtherPartitions)) => {
            bail!(OTHER_PARTITIONS);
        }
        Ok(Ok(Use::Nowhere)) => output::note(&format!(
            "no client has a budget of a {} named {name} in Redis: check the name and the algorithm",
            arguments.algorithm.name
        )),
        // A block is urgent: neither a long scan nor a master that is away holds it up.
        Ok(Err(_)) | Err(_) => {}
    }
    let limiter = RateLimiter::new(store);
    let done = if length.is_zero() {
        limiter.unblock(&limit, &key).await?;
        format!("`{client}` is not blocked under {name}. Replicas may deny it for another 10 s")
    } else {
        limiter.block(&limit, &key, length).await?;
        format!(
            "`{client}` is blocked under {name} for {}, in services whose limit blocks keys",
            rounded(length)
        )
    };
    output::print(&done)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether clients have budgets of the limit.
enum Use {
    Here,
    InOtherPartitions,
    Nowhere,
}

async fn use_of(
    arguments: &BlockArguments,
    limit: &Limit,
    store: &RedisStore,
) -> anyhow::Result<Use> {
    let prefix = arguments.redis.prefix();
    let kind = Kind::of_algorithm(arguments.algorithm.name);
    let is_where_services_look = |name: &Name<'_>| {
        Key::from_encoded(name.client)
            .is_ok_and(|client| has_tag(store, prefix, (limit, &client), name.tag))
    };
    let mut found = Use::Nowhere;
    for mut server in servers::connect(&arguments.redis.url).await? {
        let mut scan = Scan::new(prefix, None);
        while let Some(keys) = scan.next(&mut server).await? {
            let names = keys.iter().filter_map(|key| Name::parse(key, prefix));
            for name in names.filter(|name| name.kind == kind && name.limit == limit.name()) {
                if is_where_services_look(&name) {
                    return Ok(Use::Here);
                }
                // Maybe of an earlier number of partitions.
                found = Use::InOtherPartitions;
            }
        }
    }
    Ok(found)
}
