//! Envoy's default format.
//!
//! ```text
//! [time] "POST /a HTTP/2" 204 - 154 0 226 100 "203.0.113.7,10.0.35.28" "agent" "id" "host" ...
//! ```

use super::line::{Parts, given, request_line};
use super::time::Times;
use crate::replay::request::Request;

pub(super) fn parse<'a>(line: &'a str, times: &mut Times) -> Result<Request<'a>, String> {
    let mut parts = Parts::of(line);
    let (before, time) = parts.bracketed()?;
    if !before.is_empty() {
        return Err("it does not begin with a time in brackets".to_owned());
    }
    let at_us = times.of_iso(time)?;
    let (method, target) = request_line(parts.quoted()?);
    // Status, flags, and then details and sizes, as many as the version writes. Istio has one in
    // quotes among them.
    let (mut quoted, mut count) = ([""; 4], 0);
    while count < quoted.len() {
        match parts.quoted() {
            Ok(text) => (quoted[count], count) = (text, count + 1),
            Err(_) => (_, count) = (parts.word()?, 0),
        }
    }
    let [forwarded_for, _agent, _id, host] = quoted;
    let host = given(host);
    let forwarded_for = given(forwarded_for);
    Ok(Request {
        at_us,
        forwarded_for,
        method,
        host,
        target,
        ..Request::default()
    })
}
