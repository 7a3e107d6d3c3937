//! The running services, as far as this user may ask for them.

use anyhow::{Context, bail};
use tollgate::overrides::OverrideEffect;
use tollgate::{Limit, Quota};

use super::noted::{self, Notes};
use super::servers;
use crate::arguments::RedisArguments;
use crate::output::shown;

/// The running services, as far as this user may ask for them.
pub(super) struct Services {
    /// The processes that follow overrides.
    pub(super) followers: Option<u64>,
    /// Their limits, as `kind:name`, with their quotas.
    pub(super) limits: Notes,
}

impl Services {
    pub(super) async fn ask(redis: &RedisArguments) -> Self {
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
            let noted = noted::read(&mut server, prefix).await;
            services
                .limits
                .extend(noted.ok().flatten().unwrap_or_default());
        }
        services
    }

    pub(super) fn names(&self) -> Vec<&str> {
        let names = self.limits.keys().filter_map(|it| it.split_once(':'));
        let mut names: Vec<_> = names.map(|(_, name)| name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns whether a service has a limit of this name, as far as it is known.
    pub(super) fn has_limit(&self, name: &str) -> bool {
        self.limits.is_empty() || self.names().contains(&name)
    }

    /// The unit of the calendar in which the limit counts, if the quota has another period.
    pub(super) fn other_unit(&self, name: &str, quota: Quota) -> Option<&'static str> {
        let quotas = self.limits.get(&format!("w:{name}"))?;
        let units = ["day", "week", "month", "year"];
        let unit = units.into_iter().find(|unit| {
            let per_unit = format!(" per {unit} ");
            quotas.keys().any(|noted| noted.contains(&per_unit))
        })?;
        (unit_of(&quota.to_string()) != Some(unit)).then_some(unit)
    }

    /// Returns an error if the limit that services have cannot have the override.
    pub(super) fn check(&self, name: &str, effect: &OverrideEffect) -> anyhow::Result<()> {
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
