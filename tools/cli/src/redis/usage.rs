//! `tollgate usage`: what a client has left under each limit of a configuration, or of the running
//! services.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use tollgate::config::{Config, LimitSet, RedisSource};
use tollgate::decision::Usage;
use tollgate::limit::Algorithm;
use tollgate::overrides::{OverrideEffect, Overrides};
use tollgate::{Check, Limit, RateLimitLayer, RateLimiter, RedisStore};

use super::limiter::store;
use super::name::{client, hint};
use super::noted;
use super::services::Services;
use crate::arguments::UsageArguments;
use crate::check_config::compact;
use crate::duration::rounded;
use crate::output::{self, shown};
use crate::placeholders::{NamesInUse, list};
use crate::table::{self, cell};

/// The kind of concurrency limits in the notes of services.
const CONCURRENCY: &str = "c";

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
    let checks: Vec<_> = limits.iter().map(|(it, _)| Check::new(it, &key)).collect();
    if checks.is_empty() {
        bail!("the configuration has no limit of rates for this client");
    }
    let overrides = Overrides::in_redis(&store)?;
    if let Err(error) = overrides.list().await {
        output::note(&format!("without the overrides in Redis: {error}"));
    }
    let limiter = RateLimiter::builder(store).overrides(&overrides).build()?;
    // The limiter has the overrides of the file while there is a layer.
    let layer = set.map(|set| RateLimitLayer::from_config(&limiter, &set));
    let layer = layer.transpose()?;
    let usage = limiter.usage(checks).await?;
    drop(layer);
    if arguments.json {
        output::print(&output::json(&usage, false)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = [
        "limit", "key", "allows", "used", "left", "used %", "full in", "state",
    ];
    let mut table = table::markdown(&heads, &["used", "left", "used %"]);
    for (limit, key_name) in &limits {
        let usage = usage.iter().find(|it| it.limit == limit.name());
        let is_applied = usage.is_none_or(|it| it.overridden);
        let set = overrides.get(limit.name(), &key).filter(|_| is_applied);
        let allows = match (&set, usage) {
            (Some(set), Some(usage)) => match set.effect() {
                // The limit's start and time zone stand.
                OverrideEffect::Quota(_) => format!("{} (override)", usage.quota),
                effect => format!("{effect} (override)"),
            },
            (None, Some(usage)) if usage.overridden => {
                format!("{} (override in the file)", usage.quota)
            }
            _ => limit.to_string(),
        };
        table.add_row(match usage {
            Some(usage) => row(&allows, key_name, usage),
            None => not_limited(limit, key_name),
        });
    }
    output::print(&table.to_string())?;
    if usage.iter().all(|it| it.used == 0) {
        output::note(
            "Redis has no charge of this key. If you expect one, check the key: `tollgate keys` \
             lists them",
        );
        hint(&arguments.key).iter().for_each(|it| output::note(it));
    }
    Ok(ExitCode::SUCCESS)
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
async fn limits_of_services(arguments: &UsageArguments) -> anyhow::Result<Vec<(Limit, String)>> {
    const ADVICE: &str = "give --limits or --limits-in-redis";
    if arguments.plan.is_some() {
        bail!("running services do not note their plans; {ADVICE}");
    }
    let services = Services::ask(&arguments.redis).await;
    if services.limits.is_empty() {
        bail!(
            "no running service has noted its limits; check --url and --prefix, or {ADVICE}. \
             Services note their limits within a minute of their start"
        );
    }
    let mut limits = Vec::new();
    let mut unclear = Vec::new();
    for (kind_and_name, quotas) in &services.limits {
        let Some((kind, name)) = kind_and_name.split_once(':') else {
            continue;
        };
        let quotas: Vec<_> = quotas.keys().collect();
        match &*quotas {
            [quota] => match noted::limit(quota) {
                Some(spec) => limits.push((spec.limit(name)?, String::new())),
                None if kind == CONCURRENCY => {}
                None => unclear.push(shown(name)),
            },
            _ => unclear.push(shown(name)),
        }
    }
    limits.sort_by(|(one, _): &(Limit, _), (other, _)| one.name().cmp(other.name()));
    if !unclear.is_empty() {
        let unclear = unclear.join(", ");
        output::note(&format!(
            "without {unclear}, which have several quotas; {ADVICE}"
        ));
    }
    Ok(limits)
}

/// The limits of rates, as they are for the plan, with the names of their keys.
fn limits_of(
    config: &Config,
    plan: Option<&str>,
) -> anyhow::Result<(LimitSet, Vec<(Limit, String)>)> {
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
        Some((limit?, compact(&it["key"])))
    });
    let is_rate = |(limit, _): &(Limit, String)| limit.algorithm() != Algorithm::Concurrency;
    let limits = limits.filter(is_rate).collect();
    Ok((set, limits))
}

/// The row of a limit that an override exempts the client from.
fn not_limited(limit: &Limit, key: &str) -> [String; 8] {
    let mut row = [const { String::new() }; 8];
    row[0] = cell(limit.name());
    row[1] = cell(key);
    row[2] = "unlimited (override)".to_owned();
    row
}

fn row(allows: &str, key: &str, usage: &Usage) -> [String; 8] {
    let state = match usage.blocked_for {
        Some(time) => format!("blocked for {}", rounded(time)),
        None if usage.shadow => "in shadow mode".to_owned(),
        None if usage.remaining == 0 => "used up".to_owned(),
        None if usage.overridden => "overridden".to_owned(),
        None => String::new(),
    };
    let full_in = match usage.reset_after {
        Duration::ZERO => String::new(),
        time => rounded(time),
    };
    [
        cell(&usage.limit),
        cell(key),
        cell(allows),
        usage.used.to_string(),
        usage.remaining.to_string(),
        usage.used_percent.to_string(),
        full_in,
        state,
    ]
}
