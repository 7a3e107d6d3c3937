//! The format of a file of limits.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::override_config::OverrideConfig;
use super::text::TextOrigin;
use super::value::{self, CostConfig, KeyConfig, OneOrMany};
use crate::algorithm::{Anchor, Mode};
use crate::model::{Algorithm, BlockFields, LimitFields, OnStoreFailure, Written, WrittenStart};

/// Limits from a file, or from another text.
///
/// ```
/// use tollgate::config::{Config, Format};
///
/// let config = Config::parse(
///     "limits.toml",
///     r#"
///     [[limits]]
///     name = "search"
///     algorithm = "token_bucket"
///     quota = "100/min"
///     burst = 20
///     match = { path = "/search", method = "GET" }
///     key = ["user", "client_ip"]
///     "#,
///     Format::Toml,
/// )?;
/// assert_eq!(config.names().collect::<Vec<_>>(), ["search"]);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// The guide about [files of limits](crate::guide::limit_files) has all fields. `Config`
/// is [deserializable](serde::Deserialize) for other formats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "Limits of tollgate"))]
#[serde(deny_unknown_fields, expecting = "a table with `limits`")]
pub struct Config {
    /// The place of this file's JSON Schema, for editors.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    /// The limits. All limits that match a request decide it together. It is charged under all of
    /// them, or under none.
    #[serde(deserialize_with = "value::list")]
    pub(crate) limits: Vec<LimitConfig>,
    #[serde(skip)]
    pub(super) origin: TextOrigin,
}

impl Config {
    /// The names of the limits.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|limit| limit.name.as_str())
    }
}

/// A limit, the requests that it applies to, and what they are counted by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    deny_unknown_fields,
    expecting = "a limit: a table with `name`, `algorithm`, `quota` or `limit`, and `key`"
)]
pub(crate) struct LimitConfig {
    /// The name, in events, headers and keys of the store: 1 to 64 printable ASCII characters. A
    /// limit that is renamed starts with full budgets.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))]
    pub(crate) name: String,
    /// The algorithm.
    pub(crate) algorithm: Algorithm,
    /// Units per period, such as `100/min`, `5/15m` or `10000/day`. All algorithms but
    /// `concurrency` need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::quota_schema::quota")
    )]
    pub(crate) quota: Option<Written>,
    /// The start of a day, week, month or year of the calendar, of a fixed window: a day of the
    /// month such as 15, or `monday`, `04-01`, `06:00`, or both, such as `15 06:00`. Default: the
    /// first day, 00:00.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::quota_schema::starts")
    )]
    pub(crate) starts: Option<WrittenStart>,
    /// The time zone of a day, week, month or year of the calendar, by its IANA name, such as
    /// `Europe/Berlin`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_zone: Option<String>,
    /// The most requests of a key at once, on all replicas, of a concurrency limit: 1 to 1,000,000.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub(crate) limit: Option<u64>,
    /// The `Retry-After` of a request without a permit of a concurrency limit: 1 second to 1 hour,
    /// such as `30s`. Default: 1 second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub(crate) retry_after: Option<Written>,
    /// The most units at once, of a bucket. Default: the units of the quota.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    pub(crate) burst: Option<u64>,
    /// The sub-windows of a sliding window. Default: 1.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    pub(crate) sub_windows: Option<u32>,
    /// Whether a leaky bucket delays requests (`queue`, the default) or not (`meter`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Mode>,
    /// Whether a fixed window starts with the first request of a key (`first`, the default) or by
    /// the clock (`clock`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) anchor: Option<Anchor>,
    /// The key by which requests are counted, a name that you gave to an extractor, or
    /// several, which are joined.
    pub(crate) key: KeyConfig,
    /// The requests that the limit applies to. Of several, one has to match. Default: all.
    #[serde(rename = "match", default, skip_serializing_if = "OneOrMany::is_empty")]
    pub(crate) matches: OneOrMany<Match>,
    /// Requests that the limit does not apply to, although they match.
    #[serde(default, skip_serializing_if = "OneOrMany::is_empty")]
    pub(crate) except: OneOrMany<Match>,
    /// The units that a request consumes, as a number, or a name that you gave to a
    /// function. Default: the cost of the layer, or else 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<CostConfig>,
    /// A name that you gave to a function, which says the plan of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<String>,
    /// Quotas by plan. Other plans have the quota of the limit. All plans share the budgets of the
    /// limit. A client that changes its plan keeps what it used.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "value::tables"
    )]
    pub(crate) plans: BTreeMap<String, PlanConfig>,
    /// Exceptions by key, as events show it. An override wins over the plan. An override that
    /// operators set at run time wins over this one.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "value::tables"
    )]
    pub(crate) overrides: BTreeMap<String, OverrideConfig>,
    /// The outcome of requests with a plan that is not in `plans`: the quota of the limit (`limit`,
    /// the default), or 403 (`deny`). A request without a plan has the quota of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unknown_plan: Option<UnknownPlan>,
    /// The outcome of requests when the store is unavailable. Default: the layer's.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::on_store_failure"
    )]
    pub(crate) on_store_failure: Option<OnStoreFailure>,
    /// The share of keys for which the limit is in shadow mode, in percent. There it decides and
    /// reports, and never denies. 100 is shadow mode for all keys. Default: 0.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub(crate) shadow_percent: Option<u8>,
    /// `true` if replicas decide without waiting for the store, with units that they charged ahead.
    /// Only a fixed window can. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asynchronous: bool,
    /// Lets replicas decide without waiting for the store, and all together allow up to so many
    /// percent above the limit. By default, they wait.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub(crate) overshoot_percent: Option<u8>,
    /// The largest debt of a budget, in units. Default: no bound.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    pub(crate) max_debt: Option<u64>,
    /// The used percentage at which a key is near the limit. Default: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    #[cfg_attr(feature = "schema", schemars(range(min = 60, max = 99)))]
    pub(crate) warn_at_percent: Option<u8>,
    /// When keys that keep being denied are blocked. An empty table means that only operators
    /// block. Default: no key is blocked.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "BlockFields::of_table"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "BlockFields"))]
    pub(crate) block: Option<BlockFields>,
}

impl LimitConfig {
    /// The fields of the limit itself.
    pub(crate) fn fields(&self) -> LimitFields {
        LimitFields {
            name: self.name.clone(),
            algorithm: self.algorithm,
            quota: self.quota.clone(),
            starts: self.starts.clone(),
            time_zone: self.time_zone.clone(),
            limit: self.limit,
            burst: self.burst,
            sub_windows: self.sub_windows,
            mode: self.mode,
            anchor: self.anchor,
            on_store_failure: self.on_store_failure,
            shadow_percent: self.shadow_percent,
            asynchronous: self.asynchronous,
            overshoot_percent: self.overshoot_percent,
            retry_after: self.retry_after.clone(),
            max_debt: self.max_debt,
            warn_at_percent: self.warn_at_percent,
            block: self.block.clone(),
        }
    }

    /// The fields in which it differs from another version of itself, as a file names them:
    /// `match`, `plans.pro`.
    pub(crate) fn changed_fields(&self, other: &Self) -> Vec<String> {
        let mut changed = differing(self, other);
        let tables = [
            ("plans", differing(&self.plans, &other.plans)),
            ("overrides", differing(&self.overrides, &other.overrides)),
        ];
        for (table, differing) in tables {
            if let Some(place) = changed.iter().position(|name| name == table) {
                let names = differing.into_iter().map(|name| format!("{table}.{name}"));
                changed.splice(place..=place, names);
            }
        }
        changed
    }
}

/// The names whose values differ in two tables, in alphabetical order.
fn differing(before: &impl Serialize, after: &impl Serialize) -> Vec<String> {
    let written = |table| match table {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let before = written(serde_json::to_value(before));
    let after = written(serde_json::to_value(after));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    differ.cloned().collect()
}

/// The outcome of requests with a plan that a limit does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnknownPlan {
    /// They have the quota of the limit.
    Limit,
    /// They are rejected with 403.
    Deny,
}

/// The limit of a plan. It sets one of these fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(
    deny_unknown_fields,
    expecting = "a plan: a table with `quota`, `limit`, `unlimited` or `deny`"
)]
pub(crate) struct PlanConfig {
    /// Units per period. Replaces the quota of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::quota_schema::quota")
    )]
    pub(crate) quota: Option<Written>,
    /// The start of this quota's day, week, month or year of the calendar. Default: as the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::quota_schema::starts")
    )]
    pub(crate) starts: Option<WrittenStart>,
    /// The time zone of this quota. Default: as the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_zone: Option<String>,
    /// The most units at once, of a bucket. Default: the units of this quota.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    pub(crate) burst: Option<u64>,
    /// Requests of a key in flight at once, under a concurrency limit: 1 to 1,000,000. Replaces the
    /// number of the limit.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "value::maybe_number"
    )]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub(crate) limit: Option<u64>,
    /// `true` if the requests of this plan are not limited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unlimited: bool,
    /// The reason for which the requests of this plan are rejected with 403. Clients get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deny: Option<String>,
}

/// Requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(
    deny_unknown_fields,
    expecting = "requests: a table with `path` or `method`"
)]
pub(crate) struct Match {
    /// The route, as the router writes it, such as `/users/{id}` or `/files/{*path}`. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^/[^?#]*$")))]
    pub(crate) path: Option<String>,
    /// The method, or several, such as `GET`, which is also `HEAD`. Default: all.
    #[serde(default, skip_serializing_if = "OneOrMany::is_empty")]
    pub(crate) method: OneOrMany<String>,
}
