//! `tollgate override` and `tollgate overrides`: exceptions for single clients.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::bail;
use serde::Serialize;
use tollgate::overrides::{Override, OverrideEffect, Overrides};

use super::limiter::store;
use super::name::{client, hint};
use super::services::Services;
use crate::arguments::{OverrideArguments, OverridesArguments};
use crate::output::{self, printable, shown};
use crate::table::{self, cell};

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
            true => format!("removed the override of {client} under {limit}"),
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
