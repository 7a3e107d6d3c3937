//! Envoy's default format.
//!
//! `[time] "POST /a HTTP/2" 204 - 154 0 226 100 "203.0.113.7,10.0.35.28" "agent" "id" "authority" "upstream"`

use std::net::IpAddr;

use ipnet::IpNet;

use super::line::{Parts, given, request_line};
use super::time::Times;
use crate::replay::request::{Request, address};

pub(super) fn parse<'a>(
    line: &'a str,
    trusted: &[IpNet],
    times: &mut Times,
) -> Result<Request<'a>, String> {
    let mut parts = Parts::of(line);
    let (before, time) = parts.bracketed()?;
    if !before.is_empty() {
        return Err("it does not begin with a time in brackets".to_owned());
    }
    let at_us = times.of_iso(time)?;
    let (method, target) = request_line(parts.quoted()?);
    // Status, flags, and then details and sizes, as many as the version writes. Istio has one in quotes among them.
    let (mut quoted, mut count) = ([""; 4], 0);
    while count < quoted.len() {
        match parts.quoted() {
            Ok(text) => (quoted[count], count) = (text, count + 1),
            Err(_) => (_, count) = (parts.word()?, 0),
        }
    }
    let [forwarded_for, _agent, _id, host] = quoted;
    let host = given(host);
    let client_ip = client(forwarded_for, trusted);
    Ok(Request { at_us, client_ip, user: None, method, host, target, json: None })
}

/// The last address that no proxy of ours has: those before it are what the client says.
fn client(forwarded_for: &str, trusted: &[IpNet]) -> Option<IpAddr> {
    let mut client = None;
    for entry in forwarded_for.rsplit(',') {
        client = Some(address(entry)?);
        if !trusted.iter().any(|network| client.is_some_and(|it| network.contains(&it))) {
            break;
        }
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_the_last_address_outside_of_the_trusted_networks() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        for (header, found) in [
            ("203.0.113.7", Some("203.0.113.7")),
            ("6.6.6.6, 203.0.113.7,10.0.0.1", Some("203.0.113.7")),
            ("10.0.0.2,10.0.0.1", Some("10.0.0.2")),
            ("spoofed,10.0.0.1", None),
            ("-", None),
        ] {
            assert_eq!(client(header, &trusted), found.map(|it| it.parse().unwrap()), "{header}");
        }
    }
}
