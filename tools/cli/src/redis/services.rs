//! The running services, as far as this user may ask for them.

use anyhow::{Context, bail};
use tollgate::overrides::OverrideEffect;
use tollgate::{Limit, Quota};

use super::noted::{self, NotedLimit};
use super::servers::{self, Server};
use crate::arguments::{RedisArguments, TlsArguments};
use crate::output::shown;

pub(super) struct Services {
    /// The processes that follow overrides.
    pub(super) followers: Option<u64>,
    /// The limits that they have noted. An error if this user may not read them.
    pub(super) limits: anyhow::Result<Vec<NotedLimit>>,
}

impl Services {
    pub(super) async fn behind(redis: &RedisArguments) -> Self {
        Self::find(&redis.url, &redis.tls, redis.prefix()).await
    }

    pub(super) async fn find(url: &str, tls: &TlsArguments, prefix: &str) -> Self {
        let mut services = Self {
            followers: None,
            limits: Ok(Vec::new()),
        };
        match servers::connect(url, tls).await {
            Ok(servers) => services.ask(servers, prefix).await,
            Err(error) => services.limits = Err(error),
        }
        services
    }

    async fn ask(&mut self, servers: Vec<Server>, prefix: &str) {
        let channel = format!("{prefix}-config:overrides");
        let mut followers = Some(0);
        let mut limits = Vec::new();
        for mut server in servers {
            let counted: anyhow::Result<(String, u64)> =
                server.ask(&["PUBSUB", "NUMSUB", &channel]).await;
            let counted = counted.ok().map(|(_, count)| count);
            followers = followers.zip(counted).map(|(one, other)| one + other);
            match noted::limits(&mut server, prefix).await {
                Ok(some) => limits.extend(some),
                Err(error) => {
                    self.limits = Err(error);
                    return;
                }
            }
        }
        limits.sort_by(|one, other| one.name.cmp(&other.name));
        self.followers = followers;
        self.limits = Ok(limits);
    }

    fn known(&self) -> &[NotedLimit] {
        self.limits.as_deref().unwrap_or_default()
    }

    /// Returns whether there is certainly no service.
    pub(super) fn are_none(&self) -> bool {
        let has_no_limit = self.limits.as_ref().is_ok_and(Vec::is_empty);
        has_no_limit && self.followers == Some(0)
    }

    pub(super) fn names(&self) -> String {
        let mut names: Vec<_> = self.known().iter().map(|it| shown(&it.name)).collect();
        names.dedup();
        names.join(", ")
    }

    /// Returns whether a service has noted a limit of this name, or none has noted any.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.known().is_empty() || self.of_name(name).next().is_some()
    }

    /// The limits of a name, which can be of several kinds.
    pub(super) fn of_name(&self, name: &str) -> impl Iterator<Item = &NotedLimit> {
        self.known().iter().filter(move |it| it.name == name)
    }

    /// The text that no service has noted a limit of this name.
    pub(super) fn without_limit(&self, name: &str) -> String {
        format!(
            "no running service has noted a limit named {}. They have noted {}. Check the name",
            shown(name),
            self.names()
        )
    }

    /// The unit of the calendar in which the limit counts, if the quota has another period.
    pub(super) fn other_unit(&self, name: &str, quota: Quota) -> Option<&'static str> {
        let units = ["day", "week", "month", "year"];
        let counts_per = |unit: &&str| self.of_name(name).any(|it| it.counts_per(unit));
        let unit = units.into_iter().find(counts_per)?;
        (quota.calendar_unit() != Some(unit)).then_some(unit)
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
