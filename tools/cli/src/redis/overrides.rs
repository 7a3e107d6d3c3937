//! `tollgate override` and `tollgate overrides`: exceptions for single clients.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::bail;
use serde::Serialize;
use tollgate::overrides::{Override, OverrideEffect, Overrides};
use tollgate::{Key, RateLimiter, RedisStore};

use super::NOTHING_CHANGED;
use super::limiter::store;
use super::name::{client, hint};
use super::noted::NotedLimit;
use super::services::Services;
use crate::arguments::{OverrideArguments, OverridesArguments};
use crate::output::{self, explained, shown};
use crate::table::{self, cell};

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
    let key = client(&arguments.key);
    let store = store(&arguments.redis).await?;
    let overrides = Overrides::in_redis(&store)?;
    let services = Services::behind(&arguments.redis).await;
    let Some(effect) = effect(&arguments) else {
        return remove(&overrides, &services, &arguments.name, &key).await;
    };
    if let Some(reason) = reason_to_doubt(&arguments, &services, &effect)?
        && !arguments.yes
    {
        output::note(&format!("nothing was changed: {reason}, or give --yes"));
        return Ok(ExitCode::from(NOTHING_CHANGED));
    }
    let new = with_details(
        with_effect(&arguments.name, &key, effect.clone())?,
        &arguments,
    );
    overrides.set(new.clone()).await?;
    output::print(&in_words(&new, &effect))?;
    match &services.limits {
        Err(error) => output::note(&format!(
            "the name and the quota were not checked, because the limits of services cannot be \
             read: {}",
            explained(error)
        )),
        Ok(limits) if limits.is_empty() => output::note(
            "no running service has noted its limits yet, so the name and the quota were not \
             checked. Services note them within a minute of their first request",
        ),
        Ok(_) => {}
    }
    if services.followers == Some(0) {
        output::note(
            "no process follows overrides now: check --url and --prefix. Services follow them with \
             `Overrides::in_redis`. Ignore this for services whose store has a pool",
        );
    }
    if is_unused(store, &services, &new).await {
        output::note(&format!(
            "Redis has no charge of {} under {} now. If you expect one, check the key",
            shown(new.key().as_str()),
            shown(new.limit_name())
        ));
    }
    hint(&arguments.key).iter().for_each(|it| output::note(it));
    Ok(ExitCode::SUCCESS)
}

/// The reason for which the override may be a mistake.
fn reason_to_doubt(
    arguments: &OverrideArguments,
    services: &Services,
    effect: &OverrideEffect,
) -> anyhow::Result<Option<String>> {
    let name = &arguments.name;
    if !services.may_have(name) {
        return Ok(Some(services.without_limit(name)));
    }
    if services.are_none() {
        let prefix = shown(arguments.redis.prefix());
        return Ok(Some(format!(
            "under the prefix {prefix}, no service has noted limits, and none follows overrides. \
             Check --url and --prefix"
        )));
    }
    services.check(name, effect)?;
    let OverrideEffect::Quota(quota) = effect else {
        return Ok(None);
    };
    Ok(services.other_unit(name, *quota).map(|unit| {
        format!(
            "the limit {} counts per {unit} of the calendar, and this quota is {quota}. Write it \
             per {unit}",
            shown(name)
        )
    }))
}

fn with_effect(name: &str, key: &Key, effect: OverrideEffect) -> anyhow::Result<Override> {
    Ok(match effect {
        OverrideEffect::Quota(quota) => Override::quota(name, key, quota),
        OverrideEffect::Permits(permits) => Override::permits(name, key, permits),
        OverrideEffect::Unlimited => Override::unlimited(name, key),
        OverrideEffect::Denied(text) => Override::denied(name, key, text),
        _ => bail!("this version of the tool does not know the effect"),
    })
}

fn in_words(new: &Override, effect: &OverrideEffect) -> String {
    let words = match effect {
        OverrideEffect::Quota(_) | OverrideEffect::Permits(_) => format!("now has {new}"),
        OverrideEffect::Denied(text) => format!("is now denied ({})", shown(text)),
        _ => format!("is now {new}"),
    };
    let end = match new.ends_at() {
        Some(end) => format!("until {}", written(end)),
        None => "until the override is removed".to_owned(),
    };
    let client = shown(new.key().as_str());
    let limit = shown(new.limit_name());
    format!("{client} {words} under {limit}, {end}")
}

async fn remove(
    overrides: &Overrides,
    services: &Services,
    name: &str,
    key: &Key,
) -> anyhow::Result<ExitCode> {
    let client = shown(key.as_str());
    let limit = shown(name);
    if overrides.remove(name, key).await? {
        output::print(&format!("removed the override of {client} under {limit}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let of_client = overrides.list().await?;
    let of_client = of_client.iter().filter(|it| it.key() == key);
    let others: Vec<_> = of_client.map(|it| shown(it.limit_name())).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        output::note(&format!("{client} has overrides under {others}"));
    }
    if !services.may_have(name) {
        let reason = services.without_limit(name);
        output::note(&format!("nothing was changed: {reason}"));
        return Ok(ExitCode::from(NOTHING_CHANGED));
    }
    output::print(&format!(
        "nothing was changed: {client} has no override under {limit}. {LOST}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a client has used no unit of the limit, as far as that is known.
async fn is_unused(store: RedisStore, services: &Services, new: &Override) -> bool {
    let quotas = services.of_name(new.limit_name()).map(NotedLimit::quotas);
    let Some(quota) = quotas.flatten().flatten().next() else {
        return false;
    };
    let peeked = RateLimiter::new(store)
        .peek(&quota.limit, new.key(), 0)
        .await;
    peeked.is_ok_and(|it| it.remaining() == it.capacity())
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
    if let Some(name) = arguments.name.as_ref().filter(|_| all.is_empty()) {
        let services = Services::behind(&arguments.redis).await;
        if !services.may_have(name) {
            output::note(&services.without_limit(name));
        }
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
