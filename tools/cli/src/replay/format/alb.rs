//! AWS Application Load Balancer. The first time is that of the response. Where the line has it,
//! the time at which the request came is taken, far behind.
//!
//! ```text
//! h2 time elb client:port target:port 0.0 0.0 0.0 200 200 5 257 "GET https://host/a HTTP/2.0" ...
//! ```

use super::line::{Parts, request_line};
use super::time::Times;
use crate::replay::request::{Request, address};

pub(super) fn parse<'a>(line: &'a str, times: &mut Times) -> Result<Request<'a>, String> {
    let mut parts = Parts::of(line);
    let kind = parts.word()?;
    if !matches!(kind, "http" | "https" | "h2" | "grpcs" | "ws" | "wss") {
        return Err(format!("`{kind}` is no type of request"));
    }
    let responded_us = times.of_iso(parts.word()?)?;
    let _balancer = parts.word()?;
    let client_ip = address(parts.word()?);
    // Target, three times, two statuses, two sizes.
    for _ in 0..8 {
        parts.word()?;
    }
    let (method, target) = request_line(parts.quoted()?);
    let host = target.as_ref().and_then(|target| {
        let (_, rest) = target.split_once("://")?;
        let authority = rest.split('/').next()?;
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host);
        Some(host.to_owned().into())
    });
    Ok(Request {
        at_us: created_us(parts, times).unwrap_or(responded_us),
        client_ip,
        method,
        host,
        target,
        ..Request::default()
    })
}

/// The time of the request, from what follows the request's line.
fn created_us(mut parts: Parts<'_>, times: &Times) -> Option<u64> {
    let _agent = parts.quoted().ok()?;
    // Cipher, protocol and group of targets.
    for _ in 0..3 {
        parts.word().ok()?;
    }
    // Trace, domain and certificate.
    for _ in 0..3 {
        parts.quoted().ok()?;
    }
    let _priority = parts.word().ok()?;
    times.of_iso(parts.word().ok()?).ok()
}
