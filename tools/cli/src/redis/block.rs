//! `tollgate block`: blocks a client under a limit, or ends a block.

use std::collections::BTreeSet;
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
use crate::limit::Algorithm;
use crate::output::{self, printable};

/// How long the command looks for budgets of the limit before it blocks.
const PATIENCE: Duration = Duration::from_secs(2);

/// The exit code if the kind of the limit's budgets is not known: each kind has blocks of its own.
const UNKNOWN_LIMIT: u8 = 3;

pub(crate) async fn run(arguments: BlockArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    // A name that no limit can have is an error, and is not printed.
    let checked = any_quota(Algorithm::named("token_bucket"), &arguments.name)?;
    let (name, length, client) = (checked.name(), arguments.length, printable(key.as_str()));
    if length > Quota::per_day(1).period() * 366 {
        bail!("a block lasts 366 days at most");
    }
    let store = store(&arguments.redis).await?;
    let mut found = Budgets::default();
    // A block is urgent: neither a long scan nor a master that is away holds it up.
    let looking = timeout(PATIENCE, found.look(&arguments, name, &store)).await;
    let is_complete = matches!(looking, Ok(Ok(())));
    let limits = match arguments.algorithm {
        Some(algorithm) => vec![any_quota(algorithm, name)?],
        None => found.limits(name)?,
    };
    let is_used =
        |limit: &Limit| found.here.contains(&Kind::of_algorithm(limit.algorithm().name()));
    if !limits.iter().any(is_used) && !found.elsewhere.is_empty() {
        bail!(OTHER_PARTITIONS);
    }
    if limits.is_empty() {
        output::note(&match is_complete {
            true => format!(
                "nothing was changed: no client has a budget of a limit named {name} in Redis. Check the name, or give \
                 --algorithm"
            ),
            false => format!(
                "nothing was changed: no budget of a limit named {name} was found within {}. Give --algorithm",
                rounded(PATIENCE)
            ),
        });
        return Ok(ExitCode::from(UNKNOWN_LIMIT));
    }
    if is_complete && !limits.iter().any(is_used) {
        output::note(&format!(
            "no client has a budget of a {} named {name} in Redis: check the name and the algorithm",
            arguments.algorithm.map_or("limit", |algorithm| algorithm.name)
        ));
    }
    let question = match length {
        Duration::ZERO => format!("End the block of `{client}` under {name}?"),
        _ => format!("Block `{client}` under {name} for {}?", rounded(length)),
    };
    if !confirmed(&question, arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    set(&RateLimiter::new(store), &limits, &key, length).await?;
    output::print(&match length {
        Duration::ZERO => {
            format!("`{client}` is not blocked under {name}. Replicas may deny it for another 10 s")
        }
        _ => format!("`{client}` is blocked under {name} for {}", rounded(length)),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Blocks a key under each of the limits, or ends the blocks if the length is zero.
async fn set(
    limiter: &RateLimiter,
    limits: &[Limit],
    key: &Key,
    length: Duration,
) -> anyhow::Result<()> {
    for limit in limits {
        match length {
            Duration::ZERO => limiter.unblock(limit, key).await?,
            _ => limiter.block(limit, key, length).await?,
        };
    }
    Ok(())
}

/// The kinds of the budgets that clients have under a name. Most names have one. After the algorithm was changed, there
/// are two until the older budgets are full.
#[derive(Default)]
struct Budgets {
    here: BTreeSet<Kind>,
    /// Where services with these settings do not look. Maybe of an earlier number of partitions.
    elsewhere: BTreeSet<Kind>,
}

impl Budgets {
    async fn look(
        &mut self,
        arguments: &BlockArguments,
        name: &str,
        store: &RedisStore,
    ) -> anyhow::Result<()> {
        let prefix = arguments.redis.prefix();
        for mut server in servers::connect(&arguments.redis.url, &arguments.redis.tls).await? {
            let mut scan = Scan::new(prefix, None);
            while let Some(keys) = scan.next(&mut server).await? {
                let names = keys.iter().filter_map(|key| Name::parse(key, prefix));
                names.filter(|it| it.limit == name).for_each(|name| self.add(&name, prefix, store));
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &Name<'_>, prefix: &str, store: &RedisStore) {
        let limit = name.kind.algorithm().and_then(|it| any_quota(it, name.limit).ok());
        let (Some(limit), Ok(client)) = (limit, Key::from_encoded(name.client)) else { return };
        match has_tag(store, prefix, (&limit, &client), name.tag) {
            true => self.here.insert(name.kind),
            false => self.elsewhere.insert(name.kind),
        };
    }

    fn limits(&self, name: &str) -> anyhow::Result<Vec<Limit>> {
        let algorithms = self.here.iter().filter_map(|kind| kind.algorithm());
        algorithms.map(|algorithm| any_quota(algorithm, name)).collect()
    }
}
