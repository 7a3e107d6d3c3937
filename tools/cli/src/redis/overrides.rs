//! `tollgate override` and `tollgate overrides`: exceptions for single clients.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;
use tollgate::overrides::{Override, OverrideEffect, Overrides};
use tollgate::{Limit, Quota};

use super::limiter::store;
use super::name::{client, hint};
use super::servers;
use crate::arguments::{OverrideArguments, OverridesArguments, RedisArguments};
use crate::output::{self, printable};
use crate::table::{self, cell};

/// The notes of services: limits in use, as `kind:name`, with their quotas.
type Notes = BTreeMap<String, Value>;

/// The exit code if no running service has noted the limit, as of `block`.
const UNKNOWN_LIMIT: u8 = 3;

const LOST: &str = "If Redis has lost its data, services that run keep the overrides that they \
                    had, until another is set";

#[derive(Serialize)]
struct Row<'a> {
    limit: &'a str,
    key: &'a str,
    effect: String,
    /// The text for a client that is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    until: Option<String>,
    author: Option<&'a str>,
    reason: Option<&'a str>,
}

pub(crate) async fn run(arguments: OverrideArguments) -> anyhow::Result<ExitCode> {
    if arguments.key.is_empty() {
        bail!("the key is empty; write the key of a client, as `tollgate keys` prints it");
    }
    let key = client(&arguments.key);
    let name = &arguments.name;
    let (client, limit) = (shown(key.as_str()), shown(name));
    let overrides = Overrides::in_redis(&store(&arguments.redis).await?)?;
    let Some(effect) = effect(&arguments) else {
        let is_removed = overrides.remove(name, &key).await?;
        output::print(&match is_removed {
            true => format!("{client} has the limit {limit} again"),
            false => format!("nothing was changed: {client} has no override under {limit}. {LOST}"),
        })?;
        return Ok(ExitCode::SUCCESS);
    };
    let services = Services::ask(&arguments.redis).await;
    if !services.has_limit(name) && !arguments.yes {
        output::note(&format!(
            "nothing was changed: no running service has a limit named {limit}. They have {}. \
             Check the name, or give --yes",
            printable(&services.names().join(", "))
        ));
        return Ok(ExitCode::from(UNKNOWN_LIMIT));
    }
    services.check(name, &effect)?;
    if let (false, OverrideEffect::Quota(quota)) = (arguments.yes, &effect)
        && let Some(unit) = services.other_unit(name, *quota)
    {
        output::note(&format!(
            "nothing was changed: the limit {limit} counts per {unit}, and this quota is {quota}. \
             Write it per {unit}, or give --yes"
        ));
        return Ok(ExitCode::from(UNKNOWN_LIMIT));
    }
    let words = match &effect {
        OverrideEffect::Quota(quota) => format!("has now {quota}"),
        OverrideEffect::Permits(permits) => format!("has now {permits} at once"),
        OverrideEffect::Unlimited => "is now unlimited".to_owned(),
        _ => "is now denied".to_owned(),
    };
    let new = match effect {
        OverrideEffect::Quota(quota) => Override::quota(name, &key, quota),
        OverrideEffect::Permits(permits) => Override::permits(name, &key, permits),
        OverrideEffect::Unlimited => Override::unlimited(name, &key),
        OverrideEffect::Denied(text) => Override::denied(name, &key, text),
        _ => bail!("this version of the tool does not know the effect"),
    };
    let new = with_details(new, &arguments);
    overrides.set(new.clone()).await?;
    let end = match new.ends_at() {
        Some(end) => format!("until {}", written(end)),
        None => "until it is removed".to_owned(),
    };
    output::print(&format!("{client} {words} under {limit}, {end}"))?;
    if services.limits.is_empty() {
        output::note(
            "no running service has noted its limits yet, so the name and the quota were not \
             checked. Services note them within a minute of their start",
        );
    }
    if services.followers == Some(0) {
        output::note(
            "no process follows overrides now: check --url and --prefix. Services follow them with \
             `Overrides::in_redis`. Ignore this for services whose store has a pool",
        );
    }
    hint(&arguments.key).iter().for_each(|it| output::note(it));
    Ok(ExitCode::SUCCESS)
}

/// The running services, as far as this user may ask for them.
struct Services {
    /// The processes that follow overrides.
    followers: Option<u64>,
    /// Their limits, as `kind:name`, with their quotas.
    limits: Notes,
}

impl Services {
    async fn ask(redis: &RedisArguments) -> Self {
        let mut services = Self {
            followers: None,
            limits: Notes::new(),
        };
        let prefix = redis.prefix();
        let Ok(servers) = servers::connect(&redis.url, &redis.tls).await else {
            return services;
        };
        let channel = format!("{prefix}-config:overrides");
        services.followers = Some(0);
        for mut server in servers {
            let counted: anyhow::Result<(String, u64)> =
                server.ask(&["PUBSUB", "NUMSUB", &channel]).await;
            let counted = counted.ok().map(|(_, count)| count);
            services.followers = services
                .followers
                .zip(counted)
                .map(|(one, other)| one + other);
            let noted = server.text_at(&format!("{prefix}:limits")).await;
            let noted = noted.ok().flatten().unwrap_or_default();
            let noted: Notes = serde_json::from_str(&noted).unwrap_or_default();
            services.limits.extend(noted);
        }
        services
    }

    fn names(&self) -> Vec<&str> {
        let names = self.limits.keys().filter_map(|it| it.split_once(':'));
        let mut names: Vec<_> = names.map(|(_, name)| name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns whether a service has a limit of this name, as far as it is known.
    fn has_limit(&self, name: &str) -> bool {
        self.limits.is_empty() || self.names().contains(&name)
    }

    /// The unit of the calendar in which the limit counts, if the quota has another period.
    fn other_unit(&self, name: &str, quota: Quota) -> Option<&'static str> {
        let fixed_window = self.limits.get(&format!("w:{name}"))?;
        let noted = fixed_window.to_string();
        let units = ["day", "week", "month", "year"];
        let unit = units
            .into_iter()
            .find(|unit| noted.contains(&format!(" per {unit} ")))?;
        (unit_of(&quota.to_string()) != Some(unit)).then_some(unit)
    }

    /// Returns an error if the limit that services have cannot have the override.
    fn check(&self, name: &str, effect: &OverrideEffect) -> anyhow::Result<()> {
        for noted in self.limits.keys() {
            let Some((kind, _)) = noted.split_once(':').filter(|(_, it)| *it == name) else {
                continue;
            };
            let checked = match (effect, kind) {
                (OverrideEffect::Quota(_), "c") => {
                    bail!(
                        "nothing was changed: {} limits requests at once; use --permits",
                        shown(name)
                    )
                }
                (OverrideEffect::Permits(_), kind) if kind != "c" => {
                    bail!(
                        "nothing was changed: {} has a quota; use --quota",
                        shown(name)
                    )
                }
                (OverrideEffect::Permits(permits), _) => Limit::concurrency(name, *permits),
                (OverrideEffect::Quota(quota), "w") => Limit::fixed_window(name, *quota),
                (OverrideEffect::Quota(quota), "s") => Limit::sliding_window(name, *quota),
                (OverrideEffect::Quota(quota), "l") => Limit::sliding_log(name, *quota),
                (OverrideEffect::Quota(quota), _) => Limit::token_bucket(name, *quota),
                _ => return Ok(()),
            };
            drop(checked.context("nothing was changed")?);
        }
        Ok(())
    }
}

/// The unit of the calendar of a quota, as it is written.
fn unit_of(quota: &str) -> Option<&'static str> {
    let (_, period) = quota.split_once(" per ")?;
    let period = period.split([' ', ',']).next()?;
    [
        ("day", "1d"),
        ("week", "7d"),
        ("month", "month"),
        ("year", "year"),
    ]
    .into_iter()
    .find(|(unit, length)| period == *unit || period == *length)
    .map(|(unit, _)| unit)
}

/// `None` removes the override.
fn effect(arguments: &OverrideArguments) -> Option<OverrideEffect> {
    if let Some(quota) = arguments.quota {
        let quota = arguments.burst.map_or(quota, |burst| quota.burst(burst));
        return Some(OverrideEffect::Quota(quota));
    }
    if let Some(permits) = arguments.permits {
        return Some(OverrideEffect::Permits(permits));
    }
    if let Some(text) = &arguments.deny {
        return Some(OverrideEffect::Denied(text.clone()));
    }
    arguments.unlimited.then_some(OverrideEffect::Unlimited)
}

fn with_details(new: Override, arguments: &OverrideArguments) -> Override {
    let new = match (arguments.until, arguments.length) {
        (Some(end), _) => new.until(end),
        (None, Some(length)) => new.lasting(length),
        (None, None) => new,
    };
    let new = match arguments.author.as_deref().filter(|it| !it.is_empty()) {
        Some(author) => new.with_author(author),
        None => new,
    };
    match &arguments.reason {
        Some(reason) => new.with_reason(reason),
        None => new,
    }
}

pub(crate) async fn list(arguments: OverridesArguments) -> anyhow::Result<ExitCode> {
    let overrides = Overrides::in_redis(&store(&arguments.redis).await?)?;
    let mut all = overrides.list().await?;
    if let Some(name) = &arguments.name {
        all.retain(|it| it.limit_name() == name);
    }
    if arguments.json {
        for it in &all {
            if !output::print_to_reader(&output::json(&row(it), false)?)? {
                break;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        let under = arguments
            .name
            .iter()
            .map(|it| format!(" under {}", shown(it)));
        let under: String = under.collect();
        output::print(&format!("no client has an override{under}. {LOST}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["limit", "key", "override", "until", "by", "reason"];
    let mut table = table::markdown(&heads, &[]);
    for it in &all {
        let row = row(it);
        table.add_row([
            cell(row.limit),
            cell(row.key),
            match row.text {
                Some(text) => cell(&format!("{}: {text}", row.effect)),
                None => cell(&row.effect),
            },
            row.until.unwrap_or_default(),
            cell(row.author.unwrap_or_default()),
            cell(row.reason.unwrap_or_default()),
        ]);
    }
    output::print(&table.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn row(of: &Override) -> Row<'_> {
    Row {
        limit: of.limit_name(),
        key: of.key().as_str(),
        effect: of.to_string(),
        text: match of.effect() {
            OverrideEffect::Denied(text) => Some(text),
            _ => None,
        },
        until: of.ends_at().map(written),
        author: of.author(),
        reason: of.reason(),
    }
}

fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn shown(text: &str) -> String {
    format!("`{}`", printable(text))
}
