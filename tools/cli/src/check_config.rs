//! `tollgate check-config`: checks that a service would accept a file of limits.

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tollgate::config::{Config, LimitSet};
use tollgate::limit::Period;
use tollgate::{Limit, Quota};

use crate::arguments::{CheckConfigArguments, time};
use crate::output::{self, counted, printable, printable_lines, shown};
use crate::placeholders::{NamesInUse, list};
use crate::table::{self, cell};

/// The number of requests that makes a log worth a warning: about half a megabyte for each client.
const LONG_LOG: u64 = 100_000;

/// The bytes of a request in a log. A slot has 2 to 13, depending on the period and the limit.
const BYTES_PER_REQUEST: u64 = 6;

pub(crate) fn run(arguments: &CheckConfigArguments) -> anyhow::Result<ExitCode> {
    let checked = Config::read(&arguments.file).and_then(|config| {
        let used = NamesInUse::of(&config);
        LimitSet::new(config.clone(), used.names()).map(|set| (config, used, set))
    });
    let (config, used, set) = match checked {
        Ok(checked) => checked,
        Err(error) if arguments.json => {
            let answer = json!({ "valid": false, "error": error.to_string() });
            output::print(&output::json(&answer, false)?)?;
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => {
            output::note(&printable_lines(&error.to_string()));
            return Ok(ExitCode::FAILURE);
        }
    };
    let limits = serde_json::to_value(&config)?;
    if arguments.json {
        let answer = json!({
            "valid": true, "limits": limits["limits"],
            "keys": used.keys, "plans": used.plans, "costs": used.costs,
            "warnings": warnings(list(&limits["limits"]), &set),
        });
        output::print(&output::json(&answer, false)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table::markdown(&["limit", "allows", "key", "requests", "settings"], &[]);
    for limit in list(&limits["limits"]) {
        table.add_row(row(limit).map(|text| cell(&text)));
    }
    output::print(&table.to_string())?;
    for (what, names) in [
        ("keys", &used.keys),
        ("plans", &used.plans),
        ("costs", &used.costs),
    ] {
        if !names.is_empty() {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let names = names.join(", ");
            output::print(&format!(
                "{what} that the application has to name: {}",
                printable(&names)
            ))?;
        }
    }
    output::print(&format!(
        "valid: {}",
        counted(&table.row_count().to_string(), "limit")
    ))?;
    for warning in warnings(list(&limits["limits"]), &set) {
        output::note(&warning);
    }
    Ok(ExitCode::SUCCESS)
}

fn warnings(written: &[Value], limits: &LimitSet) -> Vec<String> {
    let mut warnings = long_logs(written);
    for it in written {
        let limit = it["name"].as_str().and_then(|name| limits.limit(name));
        warnings.extend(limit.iter().flat_map(|limit| odd_overrides(it, limit)));
    }
    warnings
}

/// Warnings of overrides that have ended, or count in another period than a limit of the calendar.
fn odd_overrides(written: &Value, limit: &Limit) -> Vec<String> {
    let unit = match limit.quota().period() {
        Period::Calendar(calendar) => Some(calendar.unit()),
        _ => None,
    };
    let mut warnings = Vec::new();
    for (key, it) in written["overrides"].as_object().into_iter().flatten() {
        let place = format!(
            "warning: the override of {} under {}",
            shown(key),
            shown(limit.name())
        );
        let quota = it["quota"]
            .as_str()
            .and_then(|text| text.parse::<Quota>().ok());
        if let (Some(unit), Some(quota)) = (unit, quota)
            && quota.calendar_unit() != Some(unit)
        {
            warnings.push(format!(
                "{place} is {quota}, and the limit counts per {unit} of the calendar"
            ));
        }
        let end = it["until"].as_str();
        // Without an offset, a file means UTC.
        let end = end.and_then(|end| time(end).or_else(|_| time(&format!("{end}Z"))).ok());
        if end.is_some_and(|end| end <= SystemTime::now()) {
            warnings.push(format!("{place} has ended"));
        }
    }
    warnings
}

/// Warnings of logs that take much memory: a log has an entry for each request that it allowed.
fn long_logs(limits: &[Value]) -> Vec<String> {
    let logs = limits
        .iter()
        .filter(|limit| limit["algorithm"] == "sliding_log");
    let warning = |limit: &Value| {
        let plans = limit["plans"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, plan)| plan);
        // A plan is a quota, or a table with one.
        let quotas = plans.map(|plan| {
            if plan.is_string() {
                plan
            } else {
                &plan["quota"]
            }
        });
        let quotas = quotas.chain([&limit["quota"]]).filter_map(Value::as_str);
        let longest = quotas
            .filter_map(|it| it.parse::<Quota>().ok())
            .map(|it| it.limit())
            .max()?;
        (longest >= LONG_LOG).then(|| {
            format!(
                "warning: `{}` is a log of up to {longest} requests for each client, about {} MB \
                 in Redis; a sliding_window of the same quota takes 177 bytes, and allows about as \
                 many",
                printable(limit["name"].as_str().unwrap_or_default()),
                (longest * BYTES_PER_REQUEST).div_ceil(1_000_000),
            )
        })
    };
    logs.filter_map(warning).collect()
}

/// A limit in words.
fn row(limit: &Value) -> [String; 5] {
    let text = |name: &str| limit[name].as_str().unwrap_or_default().to_owned();
    let allows = match limit["algorithm"].as_str() {
        Some("concurrency") | None => format!("{} at once", limit["limit"]),
        Some(algorithm) => format!("{algorithm} {}", text("quota")),
    };
    let requests = match (&limit["match"], &limit["except"]) {
        (Value::Null, Value::Null) => "all".to_owned(),
        (Value::Null, except) => format!("all except {}", compact(except)),
        (matches, Value::Null) => compact(matches),
        (matches, except) => format!("{} except {}", compact(matches), compact(except)),
    };
    let shown = [
        "name",
        "algorithm",
        "quota",
        "limit",
        "key",
        "match",
        "except",
    ];
    let settings = limit.as_object().into_iter().flatten();
    let settings = settings.filter(|(name, _)| !shown.contains(&name.as_str()));
    let mut settings: Vec<_> = settings
        .map(|(name, value)| format!("{name} = {}", setting(name, value)))
        .collect();
    // A mistyped plan is such a one.
    if !limit["plans"].is_null() && limit["unknown_plan"].is_null() {
        settings.push("any other plan = as the limit".to_owned());
    }
    [
        text("name"),
        allows,
        compact(&limit["key"]),
        requests,
        settings.join(", "),
    ]
}

/// A setting in words. Of plans: `pro 50/10s; internal unlimited; closed denied`.
fn setting(name: &str, value: &Value) -> String {
    let Some(plans) = value.as_object().filter(|_| name == "plans") else {
        return compact(value);
    };
    let plan = |(name, it): (&String, &Value)| {
        let allows = match (&it["unlimited"], &it["deny"]) {
            (Value::Bool(true), _) => "unlimited".to_owned(),
            (_, Value::Null) => compact(it).replace("quota: ", ""),
            (_, deny) => format!("denied ({})", compact(deny)),
        };
        format!("{name} {allows}")
    };
    plans.iter().map(plan).collect::<Vec<_>>().join("; ")
}

/// A value without the marks of JSON that a reader does not need.
pub(crate) fn compact(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(compact).collect::<Vec<_>>().join(" + "),
        Value::Object(fields) => match (fields.get("method"), fields.get("path")) {
            (Some(method), Some(path)) => format!("{} {}", compact(method), compact(path)),
            (None, Some(path)) if fields.len() == 1 => compact(path),
            (Some(method), None) => compact(method),
            _ if fields.contains_key("first_of") => fields["first_of"]
                .as_array()
                .into_iter()
                .flatten()
                .map(compact)
                .collect::<Vec<_>>()
                .join(", else "),
            _ => {
                let fields = fields
                    .iter()
                    .map(|(name, value)| format!("{name}: {}", compact(value)));
                fields.collect::<Vec<_>>().join(", ")
            }
        },
        value => value.to_string(),
    }
}
