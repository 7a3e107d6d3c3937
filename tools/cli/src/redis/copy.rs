//! `tollgate copy`: copies budgets to another Redis, or to another prefix.

use std::collections::HashSet;
use std::process::ExitCode;

use anyhow::{Context, bail};
use redis::{RedisError, Value, pipe};
use tollgate::{Key, RedisStore};

use super::confirm::confirmed;
use super::limiter::{any_quota, store};
use super::name::Name;
use super::scan::{self, Entry, Scan};
use super::servers::{self, Server};
use crate::arguments::CopyArguments;
use crate::output::{self, printable};

/// The number of keys, by their fate.
#[derive(Default)]
struct Counts {
    copied: usize,
    /// The target has a budget under the key already.
    kept: usize,
    /// Requests in flight, and values that no service of this version reads.
    left_out: usize,
}

pub(crate) async fn run(arguments: CopyArguments) -> anyhow::Result<ExitCode> {
    let (from, to) = (arguments.source(), arguments.target());
    if from.url == to.url && from.prefix() == to.prefix() && from.partitions == to.partitions {
        bail!("the budgets are there already: give --to-url, --to-prefix or --to-partitions");
    }
    let store = store(&to).await?;
    let mut targets = servers::connect(&to.url, &to.tls).await?;
    let sources = servers::connect(&from.url, &from.tls).await?;
    let question = format!(
        "Copy the budgets of `{}` to `{}` on {}?",
        printable(from.prefix()),
        printable(to.prefix()),
        targets
            .iter()
            .map(|it| it.address.as_str())
            .collect::<Vec<_>>()
            .join(", "),
    );
    if !confirmed(&question, arguments.yes)? {
        output::print("nothing was changed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut counts = Counts::default();
    for mut source in sources {
        let (mut scan, mut seen) = (Scan::new(from.prefix(), None), HashSet::new());
        while let Some(mut keys) = scan.next(&mut source).await? {
            keys.retain(|key| {
                Name::parse(key, from.prefix()).is_some() && seen.insert(key.clone())
            });
            let entries = scan::read(&mut source, &keys).await?;
            let all = entries.len();
            let new = entries
                .into_iter()
                .filter_map(|entry| renamed(entry, from.prefix(), &store));
            let new = Vec::from_iter(new);
            counts.left_out += all - new.len();
            let copied = write(&mut targets, &new).await?;
            counts.copied += copied;
            counts.kept += new.len() - copied;
        }
    }
    if counts.copied + counts.kept + counts.left_out == 0 {
        output::note(&format!(
            "there are no budgets of the prefix `{}`: check --prefix as the services set it",
            printable(from.prefix())
        ));
    }
    output::print(&format!(
        "copied {}, kept {} that are in use there, left out {} (requests in flight, and what is no \
         budget)",
        counts.copied, counts.kept, counts.left_out
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The entry under the key where the services of the other store look for it. `None`: it is none of
/// theirs.
fn renamed(entry: Entry, prefix: &str, store: &RedisStore) -> Option<Entry> {
    let name = Name::parse(&entry.key, prefix)?;
    let limit = any_quota(name.kind.algorithm()?, name.limit).ok()?;
    let budget = store.redis_key(&limit, &Key::from_encoded(name.client).ok()?);
    let end = format!(":{}", name.limit);
    let key = match name.is_offences {
        true => format!("{}x{end}", budget.strip_suffix(&end)?),
        false => budget,
    };
    (entry.ttl_ms > 0).then_some(Entry { key, ..entry })
}

/// Writes the entries whose keys do not exist yet. Returns how many.
async fn write(targets: &mut [Server], entries: &[Entry]) -> anyhow::Result<usize> {
    if entries.is_empty() {
        return Ok(0);
    }
    let (mut written, mut kept) = (0, 0);
    let mut sets = pipe();
    for entry in entries {
        sets.cmd("SET")
            .arg(&entry.key)
            .arg(&entry.value)
            .arg("PX")
            .arg(entry.ttl_ms)
            .arg("NX");
    }
    sets.ignore_errors();
    // Each node of a cluster takes its own keys, and answers `MOVED` for all others.
    for target in targets {
        let answers: Vec<Value> = sets
            .query_async(&mut target.connection)
            .await
            .with_context(|| format!("{}: SET", target.address))?;
        for answer in answers {
            match answer {
                Value::Okay => written += 1,
                Value::Nil => kept += 1,
                Value::ServerError(error) if error.code() != "MOVED" => {
                    return Err(RedisError::from(error))
                        .with_context(|| format!("{}: SET", target.address));
                }
                _ => {}
            }
        }
    }
    if written + kept < entries.len() {
        bail!("slots of the cluster moved meanwhile: run the command again, which copies the rest");
    }
    Ok(written)
}
