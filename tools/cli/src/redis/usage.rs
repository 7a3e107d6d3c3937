//! `tollgate usage`: what a client has left under each limit of a configuration, or of the running
//! services.

use std::process::ExitCode;

use anyhow::{Context, bail};
use tokio::task::JoinSet;
use tollgate::config::{Config, LimitSet, RedisSource};
use tollgate::decision::Usage;
use tollgate::limit::Algorithm;
use tollgate::overrides::{Override, Overrides};
use tollgate::{Check, Key, Limit, RateLimitLayer, RateLimiter, RedisStore};

use super::limiter::store;
use super::name::{client, hint};
use super::services::Services;
use crate::arguments::UsageArguments;
use crate::check_config::compact;
use crate::duration::rounded;
use crate::output::{self, shown};
use crate::placeholders::{NamesInUse, list};
use crate::table::{self, cell};

/// A limit of rates in the table.
struct ShownLimit {
    limit: Limit,
    allows: String,
    /// The name of its key, if that is known.
    key: String,
}

pub(crate) async fn run(arguments: UsageArguments) -> anyhow::Result<ExitCode> {
    let store = store(&arguments.redis).await?;
    let (set, limits) = match configuration(&arguments, &store).await? {
        Some(config) => {
            let (set, limits) = limits_of(&config, arguments.plan.as_deref())?;
            (Some(set), limits)
        }
        None => (None, limits_of_services(&arguments).await?),
    };
    let key = client(&arguments.key);
    let overrides = Overrides::in_redis(&store)?;
    if let Err(error) = overrides.list().await {
        output::note(&format!("without the overrides in Redis: {error}"));
    }
    let limiter = RateLimiter::builder(store).overrides(&overrides).build()?;
    // The limiter has the overrides of the file while there is a layer.
    let layer = set.map(|set| RateLimitLayer::from_config(&limiter, &set));
    let layer = layer.transpose()?;
    let usage = usage_of_each(&limiter, &limits, &key).await?;
    drop(layer);
    let mut found: Vec<_> = limits.iter().zip(usage).collect();
    // Under an override, all quotas of plans are one.
    found.dedup_by(|(shown, usage), (before, known)| {
        let has_one_quota = match (usage, known) {
            (Some(usage), Some(known)) => usage.overridden && usage.quota == known.quota,
            (None, None) => true,
            _ => false,
        };
        let budget = |it: &ShownLimit| (it.limit.name().to_owned(), it.limit.algorithm());
        has_one_quota && budget(shown) == budget(before)
    });
    if arguments.json {
        let known: Vec<_> = found
            .iter()
            .filter_map(|(_, usage)| usage.as_ref())
            .collect();
        output::print(&output::json(&known, false)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = [
        "limit", "key", "allows", "used", "left", "used %", "full in", "state",
    ];
    let mut table = table::markdown(&heads, &["used", "left", "used %"]);
    for (shown, usage) in &found {
        let in_redis = overrides.get(shown.limit.name(), &key);
        table.add_row(row(shown, usage.as_ref(), in_redis.as_ref()));
    }
    output::print(&table.to_string())?;
    let is_uncharged = |usage: &Option<Usage>| usage.as_ref().is_some_and(|it| it.used == 0);
    if found.iter().all(|(_, usage)| is_uncharged(usage)) {
        output::note(
            "Redis has no charge of this key. If you expect one, check the key: `tollgate keys` \
             lists them",
        );
        hint(&arguments.key).iter().for_each(|it| output::note(it));
    }
    Ok(ExitCode::SUCCESS)
}

/// The usage of a client under each limit. `None` if an override exempts it. Each limit is a group
/// of its own, because there can be more than a group has, and several of one name.
async fn usage_of_each(
    limiter: &RateLimiter,
    limits: &[ShownLimit],
    key: &Key,
) -> anyhow::Result<Vec<Option<Usage>>> {
    let mut asking = JoinSet::new();
    for (place, shown) in limits.iter().enumerate() {
        let limiter = limiter.clone();
        let check = Check::new(&shown.limit, key);
        asking.spawn(async move { (place, limiter.usage(check).await) });
    }
    let mut found = vec![None; limits.len()];
    while let Some(answer) = asking.join_next().await {
        let (place, usage) = answer?;
        found[place] = usage?.pop();
    }
    Ok(found)
}

/// The configuration of the services. `None` if their limits are in code.
async fn configuration(
    arguments: &UsageArguments,
    store: &RedisStore,
) -> anyhow::Result<Option<Config>> {
    Ok(match (&arguments.limits, &arguments.limits_in_redis) {
        (_, Some(name)) => {
            let format = arguments.format.into();
            Some(RedisSource::new(store, name, format)?.read().await?)
        }
        (Some(file), None) => Some(Config::read(file)?),
        (None, None) => None,
    })
}

/// The limits of rates that running services have noted.
async fn limits_of_services(arguments: &UsageArguments) -> anyhow::Result<Vec<ShownLimit>> {
    const ADVICE: &str = "give --limits or --limits-in-redis";
    if arguments.plan.is_some() {
        bail!("running services do not note their plans; {ADVICE}");
    }
    let services = Services::behind(&arguments.redis).await;
    let noted = services
        .limits
        .with_context(|| format!("the limits of services are not known; {ADVICE}"))?;
    let rates: Vec<_> = noted.iter().filter(|it| !it.is_concurrency()).collect();
    if rates.is_empty() {
        bail!(
            "no running service has noted a limit of rates; check --url and --prefix, or {ADVICE}. \
             Services note their limits within a minute of their first request"
        );
    }
    let mut limits = Vec::new();
    for noted in rates {
        let name = shown(&noted.name);
        match noted.quotas() {
            Ok(quotas) => limits.extend(quotas.into_iter().map(|it| ShownLimit {
                limit: it.limit,
                allows: it.words,
                key: String::new(),
            })),
            Err(unclear) => output::note(&format!("without {name}, {unclear}; {ADVICE}")),
        }
        if noted.has_other_note {
            output::note(&format!(
                "{name} also has another quota, such as during a deployment"
            ));
        }
    }
    output::note(&format!(
        "the plan of the client is not known, nor are overrides in files: {ADVICE} if the services \
         have some"
    ));
    Ok(limits)
}

/// The limits of rates, as they are for the plan, with the names of their keys.
fn limits_of(config: &Config, plan: Option<&str>) -> anyhow::Result<(LimitSet, Vec<ShownLimit>)> {
    let written = serde_json::to_value(config)?;
    let written = list(&written["limits"]);
    if let Some(plan) = plan
        && written.iter().all(|it| it["plans"][plan].is_null())
    {
        bail!("no limit of the configuration has a plan `{plan}`");
    }
    let set = LimitSet::new(config.clone(), NamesInUse::of(config).names())?;
    let limits = written.iter().filter_map(|it| {
        let name = it["name"].as_str()?;
        let limit = match plan {
            Some(plan) => set.limit_of_plan(name, plan),
            None => set.limit(name),
        };
        let limit = limit?;
        Some(ShownLimit {
            allows: limit.to_string(),
            key: compact(&it["key"]),
            limit,
        })
    });
    let is_rate = |it: &ShownLimit| it.limit.algorithm() != Algorithm::Concurrency;
    let limits: Vec<_> = limits.filter(is_rate).collect();
    if limits.is_empty() {
        bail!("the configuration has no limit of rates for this client");
    }
    Ok((set, limits))
}

/// The row of a limit, with the override of the client in Redis. Without usage, an override exempts
/// the client.
fn row(shown: &ShownLimit, usage: Option<&Usage>, in_redis: Option<&Override>) -> [String; 8] {
    let place = match in_redis {
        Some(_) => "override",
        None => "override in the file",
    };
    let mut row = [const { String::new() }; 8];
    row[0] = cell(shown.limit.name());
    row[1] = cell(&shown.key);
    let Some(usage) = usage else {
        row[2] = format!("unlimited ({place})");
        return row;
    };
    if usage.denied {
        row[2] = format!("denied ({place})");
        row[7] = match in_redis.map(Override::ends_at) {
            Some(None) => "denied until the override is removed".to_owned(),
            _ => format!("denied for {}", rounded(usage.reset_after)),
        };
        return row;
    }
    row[2] = cell(&match usage.overridden {
        true => format!("{} ({place})", usage.quota),
        false => shown.allows.clone(),
    });
    row[3] = usage.used.to_string();
    row[4] = usage.remaining.to_string();
    row[5] = usage.used_percent.to_string();
    if !usage.reset_after.is_zero() {
        row[6] = rounded(usage.reset_after);
    }
    row[7] = match usage.blocked_for {
        Some(time) => format!("blocked for {}", rounded(time)),
        None if usage.shadow => "in shadow mode".to_owned(),
        None if usage.remaining == 0 => "used up".to_owned(),
        None if usage.overridden => "overridden".to_owned(),
        None => String::new(),
    };
    row
}
