//! The configuration format of a block policy.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::{BlockPolicy, check_denials};
use crate::model::limit::written::Written;
use crate::units::quota::period;
use crate::units::{ConfigError, Quota};

/// When keys that keep being denied are blocked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    deny_unknown_fields,
    expecting = "a table with `after`, `for`, `factor` and `max`"
)]
pub(crate) struct BlockFields {
    /// Denials in a time, such as `20/5min`, after which a key is blocked. Default: only operators
    /// block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<String>", extend("examples" = ["20/5min"]))
    )]
    pub(crate) after: Option<Written>,
    /// The length of the first block, such as `10m`, which is the default.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub(crate) length: Option<Written>,
    /// The factor by which each further block is longer. It comes with `max`. Default: all blocks
    /// are equally long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub(crate) factor: Option<i64>,
    /// The length of the longest block, such as `1d`. It comes with `factor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub(crate) max: Option<Written>,
}

impl BlockFields {
    /// The fields of a table. serde would take a list for a table without the names of its fields.
    pub(crate) fn of_table<'de, D: Deserializer<'de>>(table: D) -> Result<Option<Self>, D::Error> {
        struct TableVisitor;

        impl<'de> Visitor<'de> for TableVisitor {
            type Value = BlockFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with `after`, `for`, `factor` and `max`")
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<BlockFields, A::Error> {
                BlockFields::deserialize(MapAccessDeserializer::new(table))
            }
        }

        table.deserialize_any(TableVisitor).map(Some)
    }
}

impl TryFrom<&BlockFields> for BlockPolicy {
    type Error = ConfigError;

    fn try_from(fields: &BlockFields) -> Result<Self, ConfigError> {
        let policy = match &fields.after {
            None => Self::by_operators(),
            Some(after) => {
                let after: Quota = after.0.parse().map_err(|error| {
                    ConfigError::new(format!(
                        "`after` is denials in a time, such as \"20/5min\", written like a quota: \
                         {error}"
                    ))
                    .at("block.after")
                })?;
                let within = after.period().fixed().ok_or_else(|| {
                    ConfigError::new(
                        "`after` has a period of the calendar; write one of fixed length, such as \
                         \"20/30d\"",
                    )
                    .at("block.after")
                })?;
                check_denials(after.limit()).map_err(|error| error.at("block.after"))?;
                // It is in the range, which is small.
                Self::after(u32::try_from(after.limit()).unwrap_or(u32::MAX), within)
            }
        };
        let policy = match &fields.length {
            Some(length) => {
                let length = period::parse(&length.0);
                policy.lasting(length.map_err(|error| error.at("block.for"))?)
            }
            None => policy,
        };
        match (fields.factor, &fields.max) {
            (None, None) => Ok(policy),
            (Some(factor), Some(max)) => {
                // A number of another type is out of range, as 0 is.
                let in_range = u32::try_from(factor).ok().filter(|factor| *factor > 0);
                let factor = in_range.ok_or_else(|| {
                    ConfigError::new(format!("`factor` is {factor}; use 1 to 100"))
                        .at("block.factor")
                })?;
                let longest = period::parse(&max.0).map_err(|error| error.at("block.max"))?;
                Ok(policy.growing(factor, longest))
            }
            (Some(_), None) => Err(ConfigError::new(
                "`factor` needs `max`, the length of the longest block, such as \"1d\"",
            )
            .at("block.factor")),
            (None, Some(_)) => Err(ConfigError::new(
                "`max` needs `factor`, by which each further block is longer, such as 2",
            )
            .at("block.max")),
        }
    }
}

impl From<BlockPolicy> for BlockFields {
    fn from(policy: BlockPolicy) -> Self {
        let growth = policy.growth();
        Self {
            after: policy
                .denials()
                .map(|(denials, within)| Written(format!("{denials}/{}", period::write(within)))),
            length: policy
                .denials()
                .map(|_| Written(period::write(policy.length()))),
            factor: growth.map(|(factor, _)| factor.into()),
            max: growth.map(|(_, longest)| Written(period::write(longest))),
        }
    }
}
