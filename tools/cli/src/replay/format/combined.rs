//! nginx's and Apache's combined format, the common one, and both with a virtual host in front. The
//! `main` of nginx's packages adds X-Forwarded-For.
//!
//! ```text
//! 203.0.113.7 - al [10/Oct/2025:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent" ...
//! ```

use std::borrow::Cow;

use super::line::{Parts, given, request_line};
use super::time::Times;
use crate::replay::request::{Request, address, last_address};

pub(super) fn parse<'a>(line: &'a str, times: &mut Times) -> Result<Request<'a>, String> {
    // A user chooses its name, which may have brackets. Its quotes are escaped.
    let (head, rest) = line
        .split_once("] \"")
        .ok_or("no time in brackets before a request")?;
    let (who, time) = head.rsplit_once('[').ok_or("no time in brackets")?;
    let who = who.trim_end();
    let mut parts = Parts::of(&line[line.len() - rest.len() - 1..]);
    let (first, rest) = client(who);
    // A name as in `host:port`, then the client.
    let (host, first, rest) = match rest.split_once(' ') {
        Some((second, rest)) if address(first).is_none() && address(second).is_some() => (
            first.rsplit_once(':').map(|(host, _)| host.into()),
            second,
            rest,
        ),
        _ => (None, first, rest),
    };
    // The identity is never used, and a user's name may have spaces.
    let (_, user) = rest.split_once(' ').unwrap_or_default();
    let at_us = times.of_combined(time)?;
    let (method, target) = request_line(parts.quoted()?);
    let status = parts.word()?;
    if !status.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the status `{status}` is no number"));
    }
    let user = given(user);
    let (client_ip, forwarded_for) = match (first.contains(','), forwarded_for(parts)) {
        // X-Forwarded-For in the client's place.
        (true, None) => (None, Some(first.into())),
        (_, forwarded_for) => (last_address(first), forwarded_for),
    };
    Ok(Request {
        at_us,
        client_ip,
        forwarded_for,
        user,
        method,
        host,
        target,
        json: None,
    })
}

/// The client, which may be a list with spaces, and what follows it.
fn client(who: &str) -> (&str, &str) {
    let mut end = 0;
    loop {
        let rest = &who[end..];
        let word = rest.find(' ').unwrap_or(rest.len());
        let is_last = !rest[..word].ends_with(',');
        end += word;
        if is_last || end == who.len() {
            return (&who[..end], who[end..].trim_start());
        }
        end += 1;
    }
}

/// What follows the size, the referer and the agent, if a proxy's address ends it: a log may have
/// other fields there.
fn forwarded_for(mut parts: Parts<'_>) -> Option<Cow<'_, str>> {
    parts.word().ok()?;
    parts.quoted().ok()?;
    parts.quoted().ok()?;
    let text = parts.quoted().ok()?;
    address(text.rsplit(',').next()?)?;
    Some(text.into())
}
