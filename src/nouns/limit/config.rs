//! The configuration format of a limit.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::block::{BlockFields, BlockPolicy};
use super::{Algorithm, Limit};
use crate::algorithm::{Anchor, Mode, Rule};
use crate::nouns::quota::period;
use crate::nouns::{ConfigError, OnStoreFailure, Quota};

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitFields {
    pub(crate) name: String,
    pub(crate) algorithm: Algorithm,
    #[serde(default, skip_serializing)]
    pub(crate) quota: Option<Written>,
    #[serde(default)]
    pub(crate) limit: Option<u64>,
    #[serde(default)]
    pub(crate) period: Option<Written>,
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
    pub(crate) enforce: Option<u8>,
    #[serde(default, skip_serializing)]
    pub(crate) shadow: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_debt: Option<u64>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "BlockFields::of_table"
    )]
    pub(crate) block: Option<BlockFields>,
}

/// A string with a unit. A number, which has none, is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Written(pub(crate) String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string with a unit, such as \"15m\" for `period` or \"5/15m\" for `quota`",
                )
            }

            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// Replaces a field.
#[cfg(feature = "config")]
pub(crate) type Replace = fn(&mut LimitFields);

#[cfg(feature = "config")]
impl LimitFields {
    /// Fields that may be wrong, and their removal, or a value that is right for all limits. A field of a table is written
    /// with a dot.
    pub(crate) const REPLACEABLE: [(&str, Replace); 13] = [
        ("quota", |fields| fields.quota = Some(Written("1/s".to_owned()))),
        ("burst", |fields| fields.burst = None),
        ("sub_windows", |fields| fields.sub_windows = None),
        ("mode", |fields| fields.mode = None),
        ("anchor", |fields| fields.anchor = None),
        ("on_store_failure", |fields| fields.on_store_failure = None),
        ("enforce", |fields| fields.enforce = None),
        ("max_debt", |fields| fields.max_debt = None),
        ("block.after", |fields| fields.replace_block(BlockFields::replace_after)),
        ("block.for", |fields| fields.replace_block(|block| block.length = None)),
        ("block.factor", |fields| fields.replace_block(BlockFields::replace_factor)),
        ("block.max", |fields| fields.replace_block(BlockFields::replace_max)),
        ("name", |fields| fields.name = "limit".to_owned()),
    ];
}

impl LimitFields {
    #[cfg(feature = "config")]
    fn replace_block(&mut self, replace: impl FnOnce(&mut BlockFields)) {
        if let Some(block) = &mut self.block {
            replace(block);
        }
    }

    fn quota(&self) -> Result<Quota, ConfigError> {
        let quota = match (&self.quota, self.limit, &self.period) {
            (Some(quota), None, None) => quota.0.parse()?,
            (None, Some(limit), Some(period)) => Quota::new(limit, period::parse(&period.0)?),
            (Some(_), ..) => {
                return Err(ConfigError::new(
                    "`quota` stands for `limit` and `period`; remove it, or `limit` and `period`",
                ));
            }
            (None, limit, _) => {
                let missing = if limit.is_none() { "limit" } else { "period" };
                return Err(ConfigError::new(format!(
                    "`{missing}` is missing; write `limit` and `period`, such as 5 and \"15m\", or \
                     `quota`, such as \"5/15m\""
                )));
            }
        };
        Ok(self.burst.map_or(quota, |burst| quota.burst(burst)))
    }
}

/// The share of keys for which a limit is enforced, by its two fields.
pub(crate) fn enforced(shadow: bool, percent: Option<u8>) -> Result<u8, ConfigError> {
    match (shadow, percent) {
        (false, percent) => Ok(percent.unwrap_or(100)),
        (true, None) => Ok(0),
        (true, Some(_)) => {
            Err(ConfigError::new("`shadow` stands for `enforce = 0`; remove one of the two"))
        }
    }
}

impl TryFrom<LimitFields> for Limit {
    type Error = ConfigError;

    fn try_from(config: LimitFields) -> Result<Self, ConfigError> {
        let foreign = |field: &str, owner: &str| {
            ConfigError::new(format!("`{field}` is a field of {owner} only; remove it"))
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
        let quota = config.quota().map_err(|error| error.of_limit(name))?;
        let limit = match config.algorithm {
            Algorithm::FixedWindow => {
                Self::fixed(name, quota, config.anchor.unwrap_or(Anchor::First))
            }
            Algorithm::SlidingWindow => {
                Self::sliding_window_with(name, quota, config.sub_windows.unwrap_or(1))
            }
            Algorithm::SlidingLog => Self::sliding_log(name, quota),
            Algorithm::TokenBucket => Self::token_bucket(name, quota),
            Algorithm::LeakyBucket => Self::leaky(name, quota, config.mode.unwrap_or(Mode::Queue)),
            Algorithm::Gcra => Self::gcra(name, quota),
        }?;
        let limit = match config.on_store_failure {
            Some(policy) => limit.on_store_failure(policy)?,
            None => limit,
        };
        let percent = enforced(config.shadow, config.enforce).map_err(|it| it.of_limit(name))?;
        let limit = limit.enforce(percent)?;
        let limit = match config.max_debt {
            Some(units) => limit.max_debt(units),
            None => limit,
        };
        match &config.block {
            Some(block) => {
                let policy = BlockPolicy::try_from(block).map_err(|error| error.of_limit(name))?;
                limit.block_offenders(policy)
            }
            None => Ok(limit),
        }
    }
}

impl From<Limit> for LimitFields {
    fn from(limit: Limit) -> Self {
        let (mut sub_windows, mut mode, mut anchor) = (None, None, None);
        match limit.rule() {
            Rule::FixedWindow(rule) => anchor = Some(rule.anchor),
            Rule::SlidingWindow(rule) => sub_windows = Some(rule.sub_windows),
            Rule::LeakyBucket(rule) => mode = Some(rule.mode),
            Rule::SlidingLog(_) | Rule::TokenBucket(_) | Rule::Gcra(_) => {}
        }
        let quota = limit.quota();
        Self {
            name: limit.name().to_owned(),
            algorithm: limit.algorithm(),
            quota: None,
            limit: Some(quota.limit()),
            period: Some(Written(period::write(quota.period()))),
            burst: quota.explicit_burst(),
            sub_windows,
            mode,
            anchor,
            on_store_failure: limit.failure_policy(),
            enforce: Some(limit.enforced_percent()).filter(|percent| *percent < 100),
            shadow: false,
            max_debt: limit.debt_bound(),
            block: limit.block_policy().map(BlockFields::from),
        }
    }
}
