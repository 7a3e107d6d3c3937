//! Logs of JSON lines: Caddy's, and any whose fields have usual names.

use std::borrow::Cow;

use serde_json::Value;

use super::line::{given, request_line};
use super::time::Times;
use crate::replay::key::field;
use crate::replay::request::{Request, address};

/// The names of fields, the best first.
const TIME: [&str; 9] = [
    "time",
    "ts",
    "timestamp",
    "@timestamp",
    "time_iso8601",
    "msec",
    "time_local",
    "date",
    "start_time",
];
const CLIENT: [&str; 12] = [
    "client_ip",
    "clientIp",
    "clientip",
    "client.ip",
    "remote_ip",
    "remoteIp",
    "httpRequest.remoteIp",
    "remote_addr",
    "ClientHost",
    "ClientAddr",
    "ip",
    "client",
];
const FORWARDED_FOR: [&str; 7] = [
    "http_x_forwarded_for",
    "x_forwarded_for",
    "xForwardedFor",
    "X-Forwarded-For",
    "x-forwarded-for",
    "request_X-Forwarded-For",
    "request.headers.X-Forwarded-For",
];
const USER: [&str; 7] = [
    "user",
    "user_id",
    "userId",
    "remote_user",
    "user.id",
    "ClientUsername",
    "username",
];
const METHOD: [&str; 6] = [
    "method",
    "request_method",
    "http_method",
    "httpRequest.requestMethod",
    "RequestMethod",
    "http.request.method",
];
const HOST: [&str; 5] = [
    "host",
    "http_host",
    "server_name",
    "RequestHost",
    "authority",
];
const TARGET: [&str; 9] = [
    "path",
    "uri",
    "request_uri",
    "url",
    "RequestPath",
    "httpRequest.requestUrl",
    "url.path",
    "http.target",
    "target",
];

pub(super) fn parse<'a>(line: &'a str, times: &mut Times) -> Result<Request<'a>, String> {
    let json = object(line)?;
    let is_given = |value: &&Value| !value.is_null() && value.as_str() != Some("");
    let first = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| field(&json, name).filter(is_given))
            .cloned()
    };
    let text = |names: &[&str]| names.iter().find_map(|name| text_of(&json, name));
    let time = first(&TIME).ok_or_else(|| {
        let there = names_of_fields(&json);
        format!(
            "no field of a time ({}); its fields are: {there}",
            TIME.join(", ")
        )
    })?;
    let at_us = times.of_json(&time)?;
    let client_ip = text(&CLIENT).and_then(|it| address(&it));
    let forwarded_for = text(&FORWARDED_FOR);
    let (mut method, mut target) = (text(&METHOD), text(&TARGET));
    // nginx's `$request`.
    if let (None, Some(line)) = (&target, text(&["request", "request_line"])) {
        let (of_line, path) = request_line(&line);
        method = method.or(of_line.map(|it| it.into_owned().into()));
        target = path.map(|it| it.into_owned().into());
    }
    let (user, host) = (text(&USER), text(&HOST));
    Ok(Request {
        at_us,
        client_ip,
        forwarded_for,
        user,
        method,
        host,
        target,
        json: Some(json),
    })
}

pub(super) fn caddy<'a>(line: &'a str, times: &mut Times) -> Result<Request<'a>, String> {
    let json = object(line)?;
    let request = json.get("request").filter(|it| it.is_object());
    let request = request.ok_or("no object `request`")?;
    let time = json.get("ts").ok_or("no time `ts`")?;
    let at_us = times.of_json(time)?;
    let client = text_of(request, "client_ip").or_else(|| text_of(request, "remote_ip"));
    let client_ip = client.and_then(|it| address(&it));
    let forwarded_for = text_of(request, "headers.X-Forwarded-For");
    let (method, host) = (text_of(request, "method"), text_of(request, "host"));
    let (target, user) = (text_of(request, "uri"), text_of(&json, "user_id"));
    Ok(Request {
        at_us,
        client_ip,
        forwarded_for,
        user,
        method,
        host,
        target,
        json: Some(json),
    })
}

/// For messages about a line that lacks one.
pub(in crate::replay) fn names_of_fields(json: &Value) -> String {
    let names = json
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

fn object(line: &str) -> Result<Value, String> {
    let json: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    if json.is_object() {
        Ok(json)
    } else {
        Err("no JSON object".to_owned())
    }
}

fn text_of<'a>(json: &Value, name: &str) -> Option<Cow<'a, str>> {
    match field(json, name)? {
        Value::String(text) => given(text).map(|it| it.into_owned().into()),
        Value::Number(number) => Some(number.to_string().into()),
        // A header that was sent several times.
        Value::Array(values) => {
            let texts: Option<Vec<_>> = values.iter().map(Value::as_str).collect();
            texts
                .filter(|it| !it.is_empty())
                .map(|it| it.join(",").into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_lists_the_names_of_all_fields() {
        let guide = include_str!("../../../../../src/guide/operating.md");
        let groups: [&[&str]; 7] = [
            &TIME,
            &CLIENT,
            &FORWARDED_FOR,
            &USER,
            &METHOD,
            &HOST,
            &TARGET,
        ];
        for names in groups {
            let listed: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            assert!(guide.contains(&listed.join(", ")), "{names:?}");
        }
    }
}
