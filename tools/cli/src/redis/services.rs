//! The running services, as far as this user may ask for them.

use anyhow::{Context, bail};
use tollgate::overrides::OverrideEffect;
use tollgate::{Limit, Quota};

use super::noted::{self, NotedLimit};
use super::servers;
use crate::arguments::{RedisArguments, TlsArguments};
use crate::check_config::calendar_unit;
use crate::output::shown;

pub(super) struct Services {
    /// The processes that follow overrides.
    pub(super) followers: Option<u64>,
    pub(super) limits: Vec<NotedLimit>,
    /// The reason for which limits are unknown.
    pub(super) error: Option<anyhow::Error>,
}

impl Services {
    pub(super) async fn behind(redis: &RedisArguments) -> Self {
        Self::find(&redis.url, &redis.tls, redis.prefix()).await
    }

    pub(super) async fn find(url: &str, tls: &TlsArguments, prefix: &str) -> Self {
        let mut services = Self {
            followers: None,
            limits: Vec::new(),
            error: None,
        };
        let servers = match servers::connect(url, tls).await {
            Ok(servers) => servers,
            Err(error) => {
                services.error = Some(error);
                return services;
            }
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
            match noted::limits(&mut server, prefix).await {
                Ok(limits) => services.limits.extend(limits),
                Err(error) => services.error = Some(error),
            }
        }
        services
            .limits
            .sort_by(|one, other| one.name.cmp(&other.name));
        services
    }

    /// Returns whether no service is known, although this user may ask for them.
    pub(super) fn are_none(&self) -> bool {
        self.error.is_none() && self.limits.is_empty() && self.followers == Some(0)
    }

    pub(super) fn names(&self) -> String {
        let mut names: Vec<_> = self.limits.iter().map(|it| shown(&it.name)).collect();
        names.dedup();
        names.join(", ")
    }

    /// Returns whether a service has a limit of this name, as far as it is known.
    pub(super) fn has_limit(&self, name: &str) -> bool {
        self.limits.is_empty() || self.of_name(name).next().is_some()
    }

    /// The limits of a name, which can be of several kinds.
    pub(super) fn of_name(&self, name: &str) -> impl Iterator<Item = &NotedLimit> {
        self.limits.iter().filter(move |it| it.name == name)
    }

    /// Says that no service has a limit of this name.
    pub(super) fn without_limit(&self, name: &str) -> String {
        format!(
            "nothing was changed: no running service has a limit named {}. They have {}. Check \
             the name",
            shown(name),
            self.names()
        )
    }

    /// The unit of the calendar in which the limit counts, if the quota has another period.
    pub(super) fn other_unit(&self, name: &str, quota: Quota) -> Option<&'static str> {
        let fixed_window = self.of_name(name).find(|it| it.kind == "w")?;
        let units = ["day", "week", "month", "year"];
        let unit = units.into_iter().find(|unit| {
            let per_unit = format!(" per {unit} ");
            fixed_window.quota.contains(&per_unit)
        })?;
        (calendar_unit(&quota) != Some(unit)).then_some(unit)
    }

    /// Returns an error if the limit that services have cannot have the override.
    pub(super) fn check(&self, name: &str, effect: &OverrideEffect) -> anyhow::Result<()> {
        for noted in self.of_name(name) {
            let checked = match (effect, noted.kind.as_str()) {
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
