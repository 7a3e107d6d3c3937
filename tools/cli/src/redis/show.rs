//! `tollgate show`: the state of a client in Redis.

use std::collections::BTreeSet;
use std::process::ExitCode;

use tollgate::overrides::{Override, Overrides};

use super::keys::{print_json, print_table, rows_of};
use super::limiter::store;
use super::name::{Name, client, hint};
use super::scan::Scan;
use super::servers::{self, Server};
use crate::arguments::ShowArguments;
use crate::output::{self, explained, shown};

pub(crate) async fn run(arguments: ShowArguments) -> anyhow::Result<ExitCode> {
    let prefix = arguments.redis.prefix();
    let mut rows = Vec::new();
    for mut server in servers::connect(&arguments.redis.url, &arguments.redis.tls).await? {
        let mut keys = match Name::parse(&arguments.key, prefix) {
            Some(name) => keys_of(&mut server, prefix, name.client).await?,
            None => keys_of(&mut server, prefix, client(&arguments.key).as_str()).await?,
        };
        // A whole key is on one server of a cluster.
        if Name::parse(&arguments.key, prefix).is_some() {
            keys.retain(|key| *key == arguments.key);
        }
        rows.extend(rows_of(&mut server, &Vec::from_iter(keys), prefix).await?);
    }
    if arguments.json {
        print_json(&rows)?;
    } else {
        print_table(
            &rows,
            "no state of this client: its budgets are full, or the key or the prefix is another",
        )?;
    }
    let overrides = overrides_of(&arguments).await;
    for it in &overrides {
        output::note(&format!(
            "override under {}: {it}; `tollgate overrides` lists all",
            shown(it.limit_name())
        ));
    }
    if let Some(hint) = hint(&arguments.key).filter(|_| rows.is_empty() && overrides.is_empty()) {
        output::note(&hint);
    }
    Ok(ExitCode::SUCCESS)
}

/// The overrides of a client. This user may not have the right to read them.
async fn overrides_of(arguments: &ShowArguments) -> Vec<Override> {
    let of_name = Name::parse(&arguments.key, arguments.redis.prefix());
    let key = client(of_name.map_or(&arguments.key, |it| it.client));
    let all: anyhow::Result<_> = async {
        let store = store(&arguments.redis).await?;
        Ok(Overrides::in_redis(&store)?.list().await?)
    }
    .await;
    match all {
        Ok(all) => all.into_iter().filter(|it| *it.key() == key).collect(),
        Err(error) => {
            output::note(&format!("without overrides: {}", explained(&error)));
            Vec::new()
        }
    }
}

/// The keys of a client on a server.
pub(super) async fn keys_of(
    server: &mut Server,
    prefix: &str,
    client: &str,
) -> anyhow::Result<BTreeSet<String>> {
    let (mut scan, mut keys) = (Scan::new(prefix, Some(client)), BTreeSet::new());
    while let Some(some) = scan.next(server).await? {
        let is_of_client =
            |key: &String| Name::parse(key, prefix).is_some_and(|name| name.client == client);
        keys.extend(some.into_iter().filter(is_of_client));
    }
    Ok(keys)
}
