//! `tollgate block`: blocks a client under a limit, or ends a block.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use tollgate::Quota;

use super::confirm::confirmed;
use super::limiter::{any_quota, limiter};
use super::name::{Kind, Name, client};
use super::scan::Scan;
use super::servers;
use crate::arguments::BlockArguments;
use crate::output::{self, duration, printable};

pub(crate) async fn run(arguments: BlockArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let limit = any_quota(arguments.algorithm, &arguments.name)?;
    let (name, length, client) = (limit.name(), arguments.length, printable(key.as_str()));
    if length > Quota::per_day(1).period() * 366 {
        bail!("a block lasts 366 days at most");
    }
    if !is_in_use(&arguments, limit.name()).await? {
        output::note(&format!(
            "Redis has no budget of a {} named {}: check the name and the algorithm",
            arguments.algorithm.name,
            limit.name()
        ));
    }
    let question = match length {
        Duration::ZERO => format!("End the block of `{client}` under {name}?"),
        _ => format!("Block `{client}` under {name} for {}?", duration(length)),
    };
    if !confirmed(&question, arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let limiter = limiter(&arguments.redis).await?;
    let done = if length.is_zero() {
        limiter.unblock(&limit, &key).await?;
        format!("`{client}` is not blocked under {name}. Replicas may deny it for another 10 s")
    } else {
        limiter.block(&limit, &key, length).await?;
        format!(
            "`{client}` is blocked under {name} for {}, in services whose limit blocks keys",
            duration(length)
        )
    };
    output::print(&done)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether any client has a budget of the limit, or a block.
async fn is_in_use(arguments: &BlockArguments, name: &str) -> anyhow::Result<bool> {
    let prefix = arguments.redis.prefix();
    let kind = Kind::of_algorithm(arguments.algorithm.name);
    let is_of_limit = |key: &String| {
        Name::parse(key, prefix).is_some_and(|it| it.kind == kind && it.limit == name)
    };
    for mut server in servers::connect(&arguments.redis.url).await? {
        let mut scan = Scan::new(prefix, None);
        while let Some(keys) = scan.next(&mut server).await? {
            if keys.iter().any(is_of_limit) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
