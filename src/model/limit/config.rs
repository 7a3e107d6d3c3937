//! The configuration format of a limit.

use serde::{Deserialize, Serialize};

use super::block::{BlockFields, BlockPolicy};
use super::written::{Written, WrittenStart};
use super::{Algorithm, DEFAULT_RETRY_AFTER, Limit};
use crate::algorithm::{Anchor, FixedWindow, Flavour, Mode, Rule};
use crate::model::OnStoreFailure;
use crate::units::quota::{has_start_or_zone, period};
use crate::units::{ConfigError, Period, Quota};

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitFields {
    pub(crate) name: String,
    pub(crate) algorithm: Algorithm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<Written>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) starts: Option<WrittenStart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sub_windows: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) anchor: Option<Anchor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on_store_failure: Option<OnStoreFailure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shadow_percent: Option<u8>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asynchronous: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) overshoot_percent: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<Written>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_debt: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) warn_at_percent: Option<u8>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "BlockFields::of_table"
    )]
    pub(crate) block: Option<BlockFields>,
}

impl LimitFields {
    fn quota(&self) -> Result<Quota, ConfigError> {
        if self.limit.is_some() {
            return Err(ConfigError::new(
                "`limit` is a field of concurrency limits, and a rate has a `quota`, such as \
                 \"100/min\"; write `quota` in its place",
            )
            .at("limit"));
        }
        let quota = self.quota.as_ref().ok_or_else(|| {
            ConfigError::new("`quota` is missing; write units per period, such as \"100/min\"")
        })?;
        if has_start_or_zone(&quota.0) {
            let error = "in a file, the start is in `starts`, and the time zone in `time_zone`; \
                         write them there, such as `starts = 15`";
            return Err(ConfigError::new(error).at("quota"));
        }
        let quota: Quota = quota
            .0
            .parse()
            .map_err(|error: ConfigError| error.at("quota"))?;
        let starts = self.starts.as_ref().map(|starts| &*starts.0);
        let quota = quota.on_calendar(starts, self.time_zone.as_deref())?;
        Ok(self.burst.map_or(quota, |burst| quota.burst(burst)))
    }

    /// The most requests at once, of a concurrency limit.
    fn permits(&self) -> Result<u32, ConfigError> {
        let fields = [
            ("quota", self.quota.is_some()),
            ("starts", self.starts.is_some()),
            ("time_zone", self.time_zone.is_some()),
            ("burst", self.burst.is_some()),
        ];
        if let Some((field, _)) = fields.into_iter().find(|(_, is_there)| *is_there) {
            return Err(ConfigError::new(format!(
                "a concurrency limit has no `{field}`: it limits requests at once, such as \
                 `limit = 3`; remove it"
            ))
            .at(field));
        }
        match self.limit {
            // A number of more than 32 bits is also out of range.
            Some(limit) => Ok(u32::try_from(limit).unwrap_or(u32::MAX)),
            None => Err(ConfigError::new(
                "`limit` is missing; write the most requests of a key at once, such as 3",
            )),
        }
    }
}

impl TryFrom<LimitFields> for Limit {
    type Error = ConfigError;

    fn try_from(config: LimitFields) -> Result<Self, ConfigError> {
        let foreign = |field: &'static str, owner: &str| {
            ConfigError::new(format!("`{field}` is a field of {owner} only; remove it"))
                .at(field)
                .of_limit(&config.name)
        };
        if config.sub_windows.is_some() && config.algorithm != Algorithm::SlidingWindow {
            return Err(foreign("sub_windows", "sliding_window"));
        }
        if config.mode.is_some() && config.algorithm != Algorithm::LeakyBucket {
            return Err(foreign("mode", "leaky_bucket"));
        }
        if config.anchor.is_some() && config.algorithm != Algorithm::FixedWindow {
            return Err(foreign("anchor", "fixed_window"));
        }

        let name = &config.name;
        let quota = match config.algorithm {
            Algorithm::Concurrency => Ok(Quota::per(0, Period::AtOnce)),
            _ => config.quota().map_err(|error| error.of_limit(name)),
        }?;
        if config.anchor.is_some() && matches!(quota.period(), Period::Calendar(_)) {
            let error = "a window of the calendar starts when `starts` says; remove `anchor`";
            return Err(ConfigError::new(error).at("anchor").of_limit(name));
        }
        let limit = match config.algorithm {
            Algorithm::Concurrency => config
                .permits()
                .map_err(|error| error.of_limit(name))
                .and_then(|permits| Self::concurrency(name, permits)),
            Algorithm::FixedWindow => {
                Self::fixed(name, quota, config.anchor.unwrap_or(Anchor::First))
            }
            Algorithm::SlidingWindow => {
                Self::sliding_window_with(name, quota, config.sub_windows.unwrap_or(1))
            }
            Algorithm::SlidingLog => Self::sliding_log(name, quota),
            Algorithm::TokenBucket => Self::token_bucket(name, quota),
            Algorithm::LeakyBucket => {
                let mode = config.mode.unwrap_or(Mode::Queue);
                Self::bucket(name, quota, Flavour::LeakyBucket(mode))
            }
            Algorithm::Gcra => Self::gcra(name, quota),
        }?;
        let limit = match config.on_store_failure {
            Some(policy) => limit.with_on_store_failure(policy)?,
            None => limit,
        };
        let limit = limit.with_shadow_percent(config.shadow_percent.unwrap_or(0))?;
        let limit = match config.asynchronous {
            true => limit.asynchronous()?,
            false => limit,
        };
        let limit = match config.overshoot_percent {
            Some(percent) => limit.with_overshoot_percent(percent)?,
            None => limit,
        };
        let limit = match config.max_debt {
            Some(units) => limit.with_max_debt(units)?,
            None => limit,
        };
        let limit = match config.warn_at_percent {
            Some(percent) => limit.with_warn_at_percent(percent)?,
            None => limit,
        };
        let limit = match &config.retry_after {
            Some(wait) => {
                let wait = period::parse(&wait.0);
                let wait = wait.map_err(|error| error.at("retry_after").of_limit(name))?;
                limit.with_retry_after(wait)?
            }
            None => limit,
        };
        match &config.block {
            Some(block) => {
                let policy = BlockPolicy::try_from(block);
                let policy = policy.map_err(|error| error.at("block").of_limit(name))?;
                limit.with_block_policy(policy)
            }
            None => Ok(limit),
        }
    }
}

impl From<Limit> for LimitFields {
    fn from(limit: Limit) -> Self {
        let mut sub_windows = None;
        let mut mode = None;
        let mut anchor = None;
        let mut starts = None;
        let mut time_zone = None;
        match limit.rule() {
            Rule::FixedWindow(FixedWindow {
                anchor: Anchor::Calendar(calendar),
                ..
            }) => {
                starts = calendar.written_start();
                time_zone = calendar.written_zone();
            }
            Rule::FixedWindow(rule) => anchor = Some(rule.anchor),
            Rule::SlidingWindow(rule) => sub_windows = Some(rule.sub_windows),
            Rule::Bucket(rule) => {
                if let Flavour::LeakyBucket(of_leaky) = rule.flavour {
                    mode = Some(of_leaky);
                }
            }
            Rule::SlidingLog(_) | Rule::Concurrency(_) => {}
        }
        let quota = limit.quota();
        let retry_after = Some(limit.retry_after()).filter(|wait| *wait != DEFAULT_RETRY_AFTER);
        Self {
            name: limit.name().to_owned(),
            algorithm: limit.algorithm(),
            quota: quota
                .period()
                .written()
                .map(|period| Written(format!("{}/{period}", quota.limit()))),
            starts: starts.map(WrittenStart),
            time_zone: time_zone.map(str::to_owned),
            limit: limit.is_concurrency().then(|| quota.limit()),
            burst: quota.explicit_burst(),
            sub_windows,
            mode,
            anchor,
            on_store_failure: limit.on_store_failure(),
            shadow_percent: Some(limit.shadow_percent()).filter(|percent| *percent > 0),
            asynchronous: limit.charged_ahead().is_some(),
            overshoot_percent: Some(limit.overshoot_percent()).filter(|percent| *percent > 0),
            retry_after: retry_after.map(|wait| Written(period::write(wait))),
            max_debt: limit.max_debt(),
            warn_at_percent: limit.warn_at_percent(),
            block: limit.block_policy().map(BlockFields::from),
        }
    }
}
