//! The form of a limit in a configuration file.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, Anchor, Mode};
use crate::quota::period;
use crate::{ConfigError, Limit, Quota};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    name: String,
    algorithm: AlgorithmName,
    #[serde(default, skip_serializing)]
    quota: Option<Written>,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    period: Option<Written>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cells: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anchor: Option<Anchor>,
}

/// A text where a number would have no unit.
#[derive(Serialize)]
struct Written(String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a text with a unit, such as \"15m\" for `period` or \"5/15m\" for `quota`",
                )
            }

            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AlgorithmName {
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Gcra,
}

impl Config {
    fn quota(&self) -> Result<Quota, ConfigError> {
        let quota = match (&self.quota, self.limit, &self.period) {
            (Some(quota), None, None) => quota.0.parse()?,
            (None, Some(limit), Some(period)) => Quota::new(limit, period::parse(&period.0)?),
            (Some(_), ..) => {
                return Err(ConfigError::new(
                    "`quota` stands for `limit` and `period`: remove it, or remove those two",
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

impl TryFrom<Config> for Limit {
    type Error = ConfigError;

    fn try_from(config: Config) -> Result<Self, ConfigError> {
        use AlgorithmName as Name;

        let foreign = |field: &str, owner: &str| {
            ConfigError::new(format!("`{field}` is a field of {owner} only: remove it"))
                .of_limit(&config.name)
        };
        if config.cells.is_some() && config.algorithm != Name::SlidingWindow {
            return Err(foreign("cells", "sliding_window"));
        }
        if config.mode.is_some() && config.algorithm != Name::LeakyBucket {
            return Err(foreign("mode", "leaky_bucket"));
        }
        if config.anchor.is_some() && config.algorithm != Name::FixedWindow {
            return Err(foreign("anchor", "fixed_window"));
        }

        let name = &config.name;
        let quota = config.quota().map_err(|error| error.of_limit(name))?;
        match config.algorithm {
            Name::FixedWindow => Self::fixed(name, quota, config.anchor.unwrap_or(Anchor::First)),
            Name::SlidingWindow => Self::sliding_window_of(name, quota, config.cells.unwrap_or(1)),
            Name::SlidingLog => Self::sliding_log(name, quota),
            Name::TokenBucket => Self::token_bucket(name, quota),
            Name::LeakyBucket => Self::leaky(name, quota, config.mode.unwrap_or(Mode::Queue)),
            Name::Gcra => Self::gcra(name, quota),
        }
    }
}

impl From<Limit> for Config {
    fn from(limit: Limit) -> Self {
        let (algorithm, cells, mode, anchor) = match &limit.algorithm {
            Algorithm::FixedWindow(window) => {
                (AlgorithmName::FixedWindow, None, None, Some(window.anchor))
            }
            Algorithm::SlidingWindow(window) => {
                (AlgorithmName::SlidingWindow, Some(window.cells), None, None)
            }
            Algorithm::SlidingLog(_) => (AlgorithmName::SlidingLog, None, None, None),
            Algorithm::TokenBucket(_) => (AlgorithmName::TokenBucket, None, None, None),
            Algorithm::LeakyBucket(leaky) => {
                (AlgorithmName::LeakyBucket, None, Some(leaky.mode), None)
            }
            Algorithm::Gcra(_) => (AlgorithmName::Gcra, None, None, None),
        };
        Self {
            name: limit.name().to_owned(),
            algorithm,
            quota: None,
            limit: Some(limit.quota.limit()),
            period: Some(Written(period::write(limit.quota.period()))),
            burst: limit.quota.explicit_burst(),
            cells,
            mode,
            anchor,
        }
    }
}
