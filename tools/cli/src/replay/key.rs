//! The key of a request: `client_ip`, `user+path`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::bail;
use serde_json::Value;
use tollgate::Key;
use tollgate::key::PeerIp;

use super::request::Request;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    ClientIp,
    User,
    Method,
    Host,
    Path,
    Global,
    /// Of a JSON line: names joined by dots.
    Field(String),
}

/// One or several parts of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySpec {
    text: String,
    parts: Vec<Part>,
}

impl FromStr for KeySpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = Vec::new();
        for word in text.split('+') {
            parts.push(match word.trim() {
                "client_ip" => Part::ClientIp,
                "user" => Part::User,
                "method" => Part::Method,
                "host" => Part::Host,
                "path" => Part::Path,
                "global" => Part::Global,
                word => match word.strip_prefix("field:") {
                    Some(name) if !name.is_empty() => Part::Field(name.to_owned()),
                    _ => bail!(
                        "`{word}` is no part of a key; use client_ip, user, method, host, path, \
                         global or field:NAME, joined by `+`"
                    ),
                },
            });
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl KeySpec {
    pub(super) fn has_client_ip(&self) -> bool {
        self.parts.contains(&Part::ClientIp)
    }

    /// The key of a request, and its name for a reader. `None`: the request lacks a part.
    pub(super) fn key_of(&self, request: &Request<'_>, name: &mut String) -> Option<Key> {
        let mut parts: Vec<String> = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let text = |text: Option<&str>| text.filter(|it| !it.is_empty()).map(str::to_owned);
            parts.push(match part {
                // As the library counts: an IPv6 address by its network.
                Part::ClientIp => PeerIp::key_of(request.client_ip?).as_str().to_owned(),
                Part::User => text(request.user.as_deref())?,
                Part::Method => text(request.method.as_deref())?,
                Part::Host => text(request.host.as_deref())?,
                Part::Path => text(request.path())?,
                Part::Global => "*".to_owned(),
                Part::Field(field) => without_port(value_of(request.json.as_ref()?, field)?),
            });
        }
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                name.push(' ');
            }
            name.push_str(part);
        }
        Some(Key::from_parts(&parts))
    }
}

/// A field as text: of a name that may contain dots, or of an object within.
pub(super) fn field<'a>(json: &'a Value, name: &str) -> Option<&'a Value> {
    if let Some(value) = json.get(name) {
        return Some(value);
    }
    name.split('.').try_fold(json, |value, name| match value {
        // Of several values of a header, the first.
        Value::Array(values) => values.first()?.get(name),
        value => value.get(name),
    })
}

fn value_of(json: &Value, name: &str) -> Option<String> {
    match field(json, name)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Array(values) => values.first()?.as_str().map(str::to_owned),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The address of a client, if the text is one with a port: each connection has another.
fn without_port(text: String) -> String {
    match text.parse::<SocketAddr>() {
        Ok(peer) => PeerIp::key_of(peer.ip()).as_str().to_owned(),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(spec: &str, request: &Request<'_>) -> Option<String> {
        let mut name = String::new();
        spec.parse::<KeySpec>()
            .unwrap()
            .key_of(request, &mut name)
            .map(|_| name)
    }

    #[test]
    fn key_is_made_of_the_parts_of_a_request() {
        let request = Request {
            client_ip: "2001:db8:1:2:3::4".parse().ok(),
            user: Some("alice".into()),
            method: Some("GET".into()),
            target: Some("/search?q=1".into()),
            json: serde_json::from_str(
                r#"{"a":{"b":["first"]},"plan":"free","n":7,"peer":"203.0.113.7:41000"}"#,
            )
            .ok(),
            ..Request::default()
        };
        for (spec, name) in [
            ("user+path", Some("alice /search")),
            ("method", Some("GET")),
            ("global", Some("*")),
            ("field:plan", Some("free")),
            ("field:a.b+field:n", Some("first 7")),
            ("field:peer", Some("203.0.113.7")),
            ("host", None),
            ("user+field:missing", None),
        ] {
            assert_eq!(name_of(spec, &request).as_deref(), name, "{spec}");
        }
        let network = name_of("client_ip", &request).unwrap();
        let same = Request {
            client_ip: "2001:db8:1:2::9".parse().ok(),
            ..Request::default()
        };
        assert_eq!(
            name_of("client_ip", &same).unwrap(),
            network,
            "one network, one key"
        );
    }

    #[test]
    fn unknown_part_is_an_error_that_lists_the_parts() {
        for text in ["ip", "", "user+", "field:"] {
            let error = text.parse::<KeySpec>().unwrap_err().to_string();
            assert!(error.contains("use client_ip, user"), "{error}");
        }
    }
}
