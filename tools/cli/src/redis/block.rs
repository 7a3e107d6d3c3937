//! `tollgate block` and `tollgate unblock`: a block of a client under a limit begins or ends.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use tokio::time::timeout;
use tollgate::{Key, Limit, RateLimiter, RedisStore};

use super::NOTHING_CHANGED;
use super::confirm::confirmed;
use super::limiter::{OTHER_PARTITIONS, any_quota, has_tag, store};
use super::name::{Kind, Name, client, hint};
use super::scan::{self, Scan};
use super::servers;
use super::value::Value;
use crate::arguments::{BlockArguments, BlockedArguments};
use crate::duration::rounded;
use crate::limit::Algorithm;
use crate::output::{self, printable};

/// How long the command looks for budgets of the limit before it blocks.
const PATIENCE: Duration = Duration::from_secs(2);

const LONGEST_BLOCK: Duration = Duration::from_secs(366 * 24 * 60 * 60);

pub(crate) async fn run(BlockArguments { of, length }: BlockArguments) -> anyhow::Result<ExitCode> {
    if length.is_zero() {
        bail!("a block takes a while; `tollgate unblock` ends one");
    }
    if length > LONGEST_BLOCK {
        bail!("a block lasts 366 days at most");
    }
    change(of, length).await
}

pub(crate) async fn end(of: BlockedArguments) -> anyhow::Result<ExitCode> {
    change(of, Duration::ZERO).await
}

/// Begins a block of this length, or ends one if it is zero.
async fn change(arguments: BlockedArguments, length: Duration) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    // A name that no limit can have is an error, and is not printed.
    let checked = any_quota(Algorithm::named("token_bucket"), &arguments.name)?;
    let (name, client) = (checked.name(), printable(key.as_str()));
    let store = store(&arguments.redis).await?;
    let mut found = Budgets {
        has_blocks: length.is_zero(),
        ..Budgets::default()
    };
    // A block is urgent: neither a long scan nor a master that is away holds it up.
    let looking = timeout(
        PATIENCE,
        found.look(&arguments, (name, key.as_str()), &store),
    )
    .await;
    let is_complete = matches!(looking, Ok(Ok(())));
    let incomplete = match &looking {
        Ok(Ok(())) => String::new(),
        Ok(Err(error)) => output::explained(error),
        Err(_) => format!("not all keys were read within {}", rounded(PATIENCE)),
    };
    let limits = found.limits(name, arguments.algorithm)?;
    let is_used = !found.here.is_empty();
    if !is_used && !found.elsewhere.is_empty() {
        bail!(OTHER_PARTITIONS);
    }
    if limits.is_empty() {
        output::note(&match is_complete {
            true => format!(
                "nothing was changed: no client has a budget of a limit named `{name}` in Redis. \
                 Check the name, or give --algorithm"
            ),
            false => format!(
                "nothing was changed: no budget of a limit named `{name}` was found ({incomplete}). \
                 Give --algorithm"
            ),
        });
        return Ok(ExitCode::from(NOTHING_CHANGED));
    }
    if !is_complete && arguments.algorithm.is_none() {
        output::note(&format!(
            "`{name}` may have budgets of another algorithm ({incomplete}): if it has, give \
             --algorithm"
        ));
    }
    if is_complete && !is_used {
        output::note(&format!(
            "no client has a budget of a limit named `{name}` in Redis: check the name and the \
             algorithm"
        ));
    } else if is_complete && !found.has_client && !length.is_zero() {
        output::note(&format!(
            "`{client}` has no budget under `{name}`: check the key. The keys that services use: \
             `tollgate keys --name {name}`"
        ));
        hint(&arguments.key)
            .iter()
            .for_each(|hint| output::note(hint));
    }
    let question = match length {
        Duration::ZERO => format!("End the block of `{client}` under `{name}`?"),
        _ => format!("Block `{client}` under `{name}` for {}?", rounded(length)),
    };
    if !confirmed(&question, arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    set(&RateLimiter::new(store), &limits, &key, length).await?;
    output::print(&match length {
        Duration::ZERO => {
            format!(
                "`{client}` is not blocked any more under `{name}`. Replicas may deny it for another 10 s"
            )
        }
        _ => format!(
            "`{client}` is blocked under `{name}` for {}",
            rounded(length)
        ),
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

/// The kinds of the budgets that clients have under a name. Most names have one. After the
/// algorithm was changed, there are two until the older budgets are full.
#[derive(Default)]
struct Budgets {
    here: BTreeSet<Kind>,
    /// Where services with these settings do not look. Maybe of an earlier number of partitions.
    elsewhere: BTreeSet<Kind>,
    /// `true` if the client to block has one of them.
    has_client: bool,
    /// `true` if a block without a budget is one of them. It can be ended, but does not show that
    /// a service has such a limit.
    has_blocks: bool,
}

impl Budgets {
    async fn look(
        &mut self,
        arguments: &BlockedArguments,
        (name, client): (&str, &str),
        store: &RedisStore,
    ) -> anyhow::Result<()> {
        let prefix = arguments.redis.prefix();
        for mut server in servers::connect(&arguments.redis.url, &arguments.redis.tls).await? {
            let mut scan = Scan::new(prefix, None);
            while let Some(keys) = scan.next(&mut server).await? {
                let is_wanted = |key: &String| {
                    Name::parse(key, prefix).is_some_and(|it| self.is_news(&it, name, client))
                };
                let keys = Vec::from_iter(keys.into_iter().filter(is_wanted));
                for entry in scan::read(&mut server, &keys).await? {
                    let Some(name) = Name::parse(&entry.key, prefix) else {
                        continue;
                    };
                    let has_budget =
                        !name.is_offences && !Value::read(&entry.value, 0).is_block_alone();
                    if has_budget || self.has_blocks {
                        self.add(&name, client, (prefix, store));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether a key of Redis may say more than is known. The values of all others are not
    /// read.
    fn is_news(&self, key: &Name<'_>, name: &str, client: &str) -> bool {
        let is_known = self.here.contains(&key.kind) && (self.has_client || key.client != client);
        key.limit == name && !is_known
    }

    fn add(&mut self, name: &Name<'_>, client: &str, (prefix, store): (&str, &RedisStore)) {
        let limit = name
            .kind
            .algorithm()
            .and_then(|it| any_quota(it, name.limit).ok());
        let (Some(limit), Ok(key)) = (limit, Key::from_encoded(name.client)) else {
            return;
        };
        if has_tag(store, prefix, (&limit, &key), name.tag) {
            self.here.insert(name.kind);
            self.has_client |= name.client == client;
        } else {
            self.elsewhere.insert(name.kind);
        }
    }

    /// One limit for each kind, and one of an algorithm that the operator names: a service with a
    /// new algorithm may not have counted a client yet.
    fn limits(&self, name: &str, named: Option<Algorithm>) -> anyhow::Result<Vec<Limit>> {
        let mut kinds = self.here.clone();
        kinds.extend(named.map(|it| Kind::of_algorithm(it.name)));
        let algorithms = kinds.iter().filter_map(|kind| kind.algorithm());
        algorithms
            .map(|algorithm| any_quota(algorithm, name))
            .collect()
    }
}
