//! The form of a limit in a configuration file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, Anchor, Mode};
use crate::{ConfigError, Limit, Quota};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    name: String,
    algorithm: AlgorithmName,
    limit: u64,
    period_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cells: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anchor: Option<Anchor>,
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
        let mut quota = Quota::new(config.limit, Duration::from_micros(config.period_us));
        if let Some(burst) = config.burst {
            quota = quota.burst(burst);
        }
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
            limit: limit.quota.limit(),
            period_us: u64::try_from(limit.quota.period().as_micros()).unwrap_or(u64::MAX),
            burst: limit.quota.explicit_burst(),
            cells,
            mode,
            anchor,
        }
    }
}
