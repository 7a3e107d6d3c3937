//! The format of an override, in files and in Redis.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::value;
use crate::model::{Key, Override, OverrideEffect, Written, start_of_override};
use crate::units::quota::has_start_or_zone;
use crate::units::{ConfigError, Quota};

/// An exception for one key. It sets one of `quota`, `limit`, `unlimited` and `deny`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(
    deny_unknown_fields,
    expecting = "an override: a table with `quota`, `limit`, `unlimited` or `deny`"
)]
pub(crate) struct OverrideConfig {
    /// Units per period. Replaces the quota of the limit, and of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::quota_schema::quota")
    )]
    pub(crate) quota: Option<Written>,
    /// The most units at once, of a bucket. Default: the units of this quota.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    pub(crate) burst: Option<u64>,
    /// Requests of the key in flight at once, under a concurrency limit: 1 to 1,000,000.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub(crate) limit: Option<u64>,
    /// `true` if the requests of this key are not limited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unlimited: bool,
    /// The reason for which the requests of this key are rejected with 403. Clients get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deny: Option<String>,
    /// The end of the override, such as `2026-12-03`, which is 00:00 in UTC, or
    /// `2026-12-03T18:00:00+01:00`. Without an offset, the time is in UTC. Default: it does not
    /// end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub(crate) until: Option<WrittenTime>,
    /// The operator who set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) author: Option<String>,
    /// The reason, for operators. Clients do not get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// A time, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct WrittenTime(pub(crate) String);

impl OverrideConfig {
    /// The override of a key under a limit.
    pub(crate) fn parse(&self, limit: &str, key: Key) -> Result<Override, ConfigError> {
        let mut parsed = Override::new(limit, key, self.effect()?);
        if let Some(WrittenTime(until)) = &self.until {
            let end = time(until).map_err(|error| error.at("until"))?;
            parsed = parsed.until(end);
        }
        if let Some(author) = &self.author {
            parsed = parsed.with_author(author);
        }
        if let Some(reason) = &self.reason {
            parsed = parsed.with_reason(reason);
        }
        parsed.validate()?;
        Ok(parsed)
    }

    fn effect(&self) -> Result<OverrideEffect, ConfigError> {
        match self {
            Self {
                quota: Some(quota),
                burst,
                limit: None,
                unlimited: false,
                deny: None,
                ..
            } => {
                if has_start_or_zone(&quota.0) {
                    return Err(start_of_override());
                }
                let quota: Result<Quota, ConfigError> = quota.0.parse();
                let quota = quota.map_err(|error| error.at("quota"))?;
                let quota = burst.map_or(quota, |burst| quota.burst(burst));
                Ok(OverrideEffect::Quota(quota))
            }
            Self {
                quota: None,
                burst: None,
                limit: Some(permits),
                unlimited: false,
                deny: None,
                ..
            } => {
                // A number of more than 32 bits is also out of range.
                let permits = u32::try_from(*permits).unwrap_or(u32::MAX);
                Ok(OverrideEffect::Permits(permits))
            }
            Self {
                quota: None,
                burst: None,
                limit: None,
                unlimited: true,
                deny: None,
                ..
            } => Ok(OverrideEffect::Unlimited),
            Self {
                quota: None,
                burst: None,
                limit: None,
                unlimited: false,
                deny: Some(text),
                ..
            } => Ok(OverrideEffect::Denied(text.clone())),
            _ => Err(ConfigError::new(
                "an override has one of `quota` (with or without `burst`), `limit`, `unlimited = \
                 true` and `deny`; write one",
            )),
        }
    }
}

impl From<&Override> for OverrideConfig {
    fn from(given: &Override) -> Self {
        let mut config = Self {
            until: given.ends_at().map(|end| {
                let written = humantime::format_rfc3339(end);
                WrittenTime(written.to_string())
            }),
            author: given.author().map(str::to_owned),
            reason: given.reason().map(str::to_owned),
            ..Self::default()
        };
        match given.effect() {
            OverrideEffect::Quota(quota) => {
                let period = quota.period().written().unwrap_or_default();
                config.quota = Some(Written(format!("{}/{period}", quota.limit())));
                config.burst = quota.explicit_burst();
            }
            OverrideEffect::Permits(permits) => config.limit = Some(u64::from(*permits)),
            OverrideEffect::Unlimited => config.unlimited = true,
            OverrideEffect::Denied(text) => config.deny = Some(text.clone()),
        }
        config
    }
}

/// A day, which begins at 00:00 in UTC, or a time with its offset, which is UTC by default.
fn time(text: &str) -> Result<SystemTime, ConfigError> {
    let (local, offset) = split_offset(text).unwrap_or((text, Offset::default()));
    let parsed = match text.len() {
        10 => humantime::parse_rfc3339_weak(&format!("{text} 00:00:00")),
        _ => humantime::parse_rfc3339_weak(local),
    };
    let utc = parsed.ok().and_then(|local| match offset.is_ahead {
        true => local.checked_sub(offset.length),
        false => local.checked_add(offset.length),
    });
    utc.ok_or_else(|| {
        ConfigError::new(format!(
            "`{}` is not a time; write a day such as `2026-12-03`, which ends the override at \
             00:00 UTC, or a time such as `2026-12-03T18:00:00Z` or `2026-12-03T18:00:00+01:00`",
            text.chars().take(64).collect::<String>().escape_debug()
        ))
    })
}

/// The distance of a local time from UTC.
#[derive(Default)]
struct Offset {
    is_ahead: bool,
    length: Duration,
}

/// The local time and the offset of a time such as `2026-12-03T18:00:00+01:00`.
fn split_offset(text: &str) -> Option<(&str, Offset)> {
    let (local, offset) = text.split_at_checked(text.len().checked_sub("+01:00".len())?)?;
    if !local.ends_with(|last: char| last.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let number = |digits: &str, most: u64| {
        let is_number = digits.len() == 2 && digits.bytes().all(|it| it.is_ascii_digit());
        let number: Option<u64> = digits.parse().ok().filter(|_| is_number);
        number.filter(|number| *number <= most)
    };
    let minutes = number(hours, 23)? * 60 + number(minutes, 59)?;
    let is_ahead = match offset.as_bytes().first()? {
        b'+' => true,
        // A day such as `2026-12-03` also has one.
        b'-' if local.contains(':') => false,
        _ => return None,
    };
    let length = Duration::from_secs(minutes * 60);
    Some((local, Offset { is_ahead, length }))
}

impl<'de> Deserialize<'de> for WrittenTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;

        impl<'de> Visitor<'de> for TimeVisitor {
            type Value = WrittenTime;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time, such as \"2026-12-03\" or \"2026-12-03T18:00:00Z\"")
            }

            fn visit_str<E>(self, text: &str) -> Result<WrittenTime, E> {
                Ok(WrittenTime(text.to_owned()))
            }

            // In TOML, a date is not a string.
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WrittenTime, A::Error> {
                let date = toml::value::Datetime::deserialize(MapAccessDeserializer::new(map));
                let date = date.map_err(|_| A::Error::custom("it is a table; write a time"))?;
                Ok(WrittenTime(date.to_string()))
            }
        }

        deserializer.deserialize_any(TimeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_a_day_or_a_time_with_or_without_an_offset() {
        // 2026-12-03, 00:00 in UTC.
        let day = 1_796_256_000;
        let hour = 3_600;
        for (text, seconds) in [
            ("2026-12-03", day),
            ("2026-12-03T18:00:00Z", day + 18 * hour),
            ("2026-12-03 18:00:00", day + 18 * hour),
            ("2026-12-03T18:00:00+01:00", day + 17 * hour),
            ("2026-12-03T18:00:00-05:30", day + 23 * hour + hour / 2),
            ("2026-12-03T00:00:00+23:59", day - 24 * hour + 60),
        ] {
            let end = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(time(text), Ok(end), "{text}");
        }
        for wrong in [
            "",
            "soon",
            "2026-13-03",
            "2026-12-03+01:00",
            "2026-12-03T18:00:00+24:00",
            "2026-12-03T18:00:00+1:00",
            "2026-12-03T18:00:00+01:60",
            "2026-12-03T18:00:00Z+01:00",
            "1970-01-01T00:00:00+01:00ü",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
