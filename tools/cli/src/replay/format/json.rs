//! Logs of JSON lines: Caddy's, and any whose fields have usual names.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::Value;

use super::line::{given, request_line};
use super::time::Times;
use crate::replay::key::field;
use crate::replay::order::LONGEST_REQUEST;
use crate::replay::request::{Request, address, last_address};

/// The names of fields, the best first.
const TIME: [&str; 11] = [
    "StartUTC",
    "start_time",
    "StartLocal",
    "time",
    "ts",
    "timestamp",
    "@timestamp",
    "time_iso8601",
    "msec",
    "time_local",
    "date",
];
/// Those that nginx writes when a request ends, and the field that says how many seconds it took.
const END_OF_NGINX: [&str; 3] = ["time_iso8601", "msec", "time_local"];
const LENGTH_OF_NGINX: &str = "request_time";
const CLIENT: [&str; 11] = [
    "client_ip",
    "clientIp",
    "clientip",
    "client.ip",
    "remote_ip",
    "remoteIp",
    "httpRequest.remoteIp",
    "remote_addr",
    "ClientAddr",
    "ip",
    "client",
];
const FORWARDED_FOR: [&str; 8] = [
    "http_x_forwarded_for",
    "x_forwarded_for",
    "xForwardedFor",
    "X-Forwarded-For",
    "x-forwarded-for",
    "request_X-Forwarded-For",
    "request.headers.X-Forwarded-For",
    // Traefik's: the header, or without one the peer.
    "ClientHost",
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
    let text = |names: &[&str]| names.iter().find_map(|name| text_of(&json, name));
    let time = TIME.iter().find_map(|name| {
        let value = field(&json, name).filter(is_given)?;
        Some((*name, value.clone()))
    });
    let (name, time) = time.ok_or_else(|| {
        let there = names_of_fields(&json);
        format!(
            "no field of a time ({}); its fields are: {there}",
            TIME.join(", ")
        )
    })?;
    let mut at_us = times.of_json(&time)?;
    if END_OF_NGINX.contains(&name)
        && let Some(length) = text_of(&json, LENGTH_OF_NGINX)
    {
        at_us = begun_us(at_us, length.parse().ok());
    }
    let (client_ip, forwarded_for) = peer_and_forwarded(text(&CLIENT), text(&FORWARDED_FOR));
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
    // The time of the end. Seconds have a decimal point, and nanoseconds (`duration_format`) none.
    let length = json.get("duration").filter(|it| it.is_f64());
    let at_us = begun_us(times.of_json(time)?, length.and_then(Value::as_f64));
    let client = text_of(request, "client_ip").or_else(|| text_of(request, "remote_ip"));
    let (client_ip, forwarded_for) =
        peer_and_forwarded(client, text_of(request, "headers.X-Forwarded-For"));
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

/// When a request began that ended at a time and took so many seconds.
fn begun_us(ended_us: u64, seconds: Option<f64>) -> u64 {
    let micros = seconds.unwrap_or(0.0) * 1e6;
    // A wrong number is cut to what a request can take.
    ended_us.saturating_sub((micros.round() as u64).min(LONGEST_REQUEST))
}

/// The peer, and X-Forwarded-For. Where the field of a client has a list of addresses, it is the
/// header under another name, or with the header beside it, its last address is the peer.
fn peer_and_forwarded<'a>(
    client: Option<Cow<'a, str>>,
    forwarded_for: Option<Cow<'a, str>>,
) -> (Option<IpAddr>, Option<Cow<'a, str>>) {
    let peer = client.as_deref().and_then(last_address);
    let is_list = client.as_deref().is_some_and(|it| it.contains(','));
    match forwarded_for {
        // Traefik repeats the peer where there is no header.
        Some(header) if peer.is_some() && address(&header) == peer => (peer, None),
        Some(header) => (peer, Some(header)),
        None if is_list => (None, client),
        None => (peer, None),
    }
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
