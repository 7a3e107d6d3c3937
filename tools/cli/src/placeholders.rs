//! Names of a configuration that an application defines, and functions in place of its own.

use std::collections::BTreeSet;

use serde_json::Value;
use tollgate::config::{Config, Names};
use tollgate::key::Global;

/// The names that every application has.
const BUILT_IN: [&str; 3] = ["global", "peer_ip", "route"];

/// The names that a configuration uses, and that the application has to define.
#[derive(Default)]
pub(crate) struct NamesInUse {
    pub(crate) keys: BTreeSet<String>,
    pub(crate) plans: BTreeSet<String>,
    pub(crate) costs: BTreeSet<String>,
}

impl NamesInUse {
    pub(crate) fn of(config: &Config) -> Self {
        let mut used = Self::default();
        // What a configuration serializes to is its own format.
        let config = serde_json::to_value(config).unwrap_or_default();
        for limit in list(&config["limits"]) {
            collect(&limit["key"], &mut used.keys);
            collect(&limit["plan"], &mut used.plans);
            collect(&limit["cost"], &mut used.costs);
        }
        used.keys.retain(|name| !BUILT_IN.contains(&name.as_str()));
        used
    }

    /// The names with functions that know no request.
    pub(crate) fn names(&self) -> Names {
        let names = self
            .keys
            .iter()
            .fold(Names::new(), |names, key| names.key(key, Global));
        let names = self
            .plans
            .iter()
            .fold(names, |names, plan| names.plan(plan, |_| None::<&str>));
        self.costs
            .iter()
            .fold(names, |names, cost| names.cost(cost, |_| 1))
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// All texts of a value: a name, a list of names, or `{ first_of = [...] }`.
fn collect(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::String(name) => drop(into.insert(name.clone())),
        Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, into)),
        _ => {}
    }
}
