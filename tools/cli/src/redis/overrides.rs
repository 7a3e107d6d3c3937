//! `tollgate override` and `tollgate overrides`: exceptions for single clients.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::bail;
use serde::Serialize;
use serde::de::IgnoredAny;
use tollgate::overrides::{Override, OverrideEffect, Overrides};

use super::limiter::store;
use super::name::{client, hint};
use super::servers;
use crate::arguments::{OverrideArguments, OverridesArguments, RedisArguments};
use crate::output::{self, printable};
use crate::table::{self, cell};

/// The notes of services: limits in use, as `kind:name`.
type Notes = BTreeMap<String, IgnoredAny>;

#[derive(Serialize)]
struct Row<'a> {
    limit: &'a str,
    key: &'a str,
    effect: String,
    until: Option<String>,
    author: Option<&'a str>,
    reason: Option<&'a str>,
}

pub(crate) async fn run(arguments: OverrideArguments) -> anyhow::Result<ExitCode> {
    let key = client(&arguments.key);
    let name = &arguments.name;
    let overrides = Overrides::in_redis(&store(&arguments.redis).await?)?;
    let Some(effect) = effect(&arguments) else {
        let is_removed = overrides.remove(name, &key).await?;
        output::print(&match is_removed {
            true => format!(
                "{} has the limit {} again",
                shown(key.as_str()),
                shown(name)
            ),
            false => format!(
                "nothing was changed: {} has no override under {}",
                shown(key.as_str()),
                shown(name)
            ),
        })?;
        return Ok(ExitCode::SUCCESS);
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
    output::print(&format!(
        "{} is now {new} under {}, {end}",
        shown(key.as_str()),
        shown(name)
    ))?;
    for note in notes(&arguments.redis, name).await {
        output::note(&note);
    }
    hint(&arguments.key).iter().for_each(|it| output::note(it));
    Ok(ExitCode::SUCCESS)
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

/// Notes for an operator whose override may have no effect. Nothing is noted if this user may not
/// ask for it.
async fn notes(redis: &RedisArguments, name: &str) -> Vec<String> {
    let prefix = redis.prefix();
    let Ok(servers) = servers::connect(&redis.url, &redis.tls).await else {
        return Vec::new();
    };
    let channel = format!("{prefix}-config:overrides");
    let mut followers = Some(0_u64);
    let mut names: Vec<String> = Vec::new();
    for mut server in servers {
        let counted: anyhow::Result<(String, u64)> =
            server.ask(&["PUBSUB", "NUMSUB", &channel]).await;
        let counted = counted.ok().map(|(_, count)| count);
        followers = followers.zip(counted).map(|(one, other)| one + other);
        let noted = server.text_at(&format!("{prefix}:limits")).await;
        let noted = noted.ok().flatten().unwrap_or_default();
        let noted: Notes = serde_json::from_str(&noted).unwrap_or_default();
        let found = noted.into_keys().filter_map(|it| {
            let (_, name) = it.split_once(':')?;
            Some(name.to_owned())
        });
        names.extend(found);
    }
    let mut notes = Vec::new();
    if followers == Some(0) {
        notes.push(
            "no process follows overrides now: give your limiter `Overrides::in_redis`, or check \
             --url and --prefix. A store with a pool follows them without being counted"
                .to_owned(),
        );
    }
    if !names.is_empty() && !names.iter().any(|it| it == name) {
        names.sort();
        names.dedup();
        notes.push(format!(
            "no running service has noted a limit named {}: check the name. Noted are {}",
            shown(name),
            printable(&names.join(", "))
        ));
    }
    notes
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
        output::print("no client has an override")?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["limit", "key", "override", "until", "by", "reason"];
    let mut table = table::markdown(&heads, &[]);
    for it in &all {
        let row = row(it);
        table.add_row([
            cell(row.limit),
            cell(row.key),
            cell(&row.effect),
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
