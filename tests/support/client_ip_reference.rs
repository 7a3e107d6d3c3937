//! A straightforward reference of `ClientIp`, and the comparison with it. It splits whole headers,
//! from left to right, and knows nothing of how the crate parses.

#![allow(unreachable_pub, reason = "shared by a test and the fuzzer")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{HeaderValue, Request};
use tollgate::key::ClientIp;

const PEER: &str = "10.0.0.1";

/// Longer headers are only read in part: the reference does not model that.
const LONGEST: usize = 4096;
const MOST_ENTRIES: usize = 48;

/// The elements of a line with a syntax error. Their number is unknown, so there are as many as the
/// highest hop count here, none with an address.
const MALFORMED: [Option<IpAddr>; 3] = [None; 3];

/// Reads settings and headers from bytes, and compares. The first byte chooses the header and the
/// trusted proxies. The other bytes are the lines of the header.
pub fn compare(input: &[u8]) {
    let Some((&settings, text)) = input.split_first() else {
        return;
    };
    let is_forwarded = settings & 1 == 1;
    let hops = usize::from(settings >> 1 & 3);
    let name = if is_forwarded {
        "forwarded"
    } else {
        "x-forwarded-for"
    };
    let mut request = Request::new(());
    let mut lines = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            request.headers_mut().append(name, value);
            lines.push(line);
        }
    }
    request
        .extensions_mut()
        .insert(SocketAddr::new(PEER.parse().unwrap(), 1));
    let parts = request.into_parts().0;

    let client = match hops {
        0 => ClientIp::behind(["10.0.0.0/8", "fd00::/8"]).unwrap(),
        hops => ClientIp::behind_hops(hops).unwrap(),
    };
    let client = if is_forwarded {
        client.forwarded()
    } else {
        client
    };
    let found = client.address(&parts).ok();

    let entries: Vec<Option<IpAddr>> = lines
        .iter()
        .flat_map(|line| {
            if is_forwarded {
                forwarded(line)
            } else {
                list(line)
            }
        })
        .collect();
    let pieces: usize = lines
        .iter()
        .map(|line| line.split(|&it| it == b',').count())
        .sum();
    if text.len() > LONGEST || pieces > MOST_ENTRIES {
        return;
    }
    assert_eq!(
        found,
        expected(&entries, hops),
        "{} {entries:?}",
        String::from_utf8_lossy(text)
    );
}

fn expected(entries: &[Option<IpAddr>], hops: usize) -> Option<IpAddr> {
    if hops > 0 {
        return *entries.get(entries.len().checked_sub(hops)?)?;
    }
    let is_trusted = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.octets()[0] == 0xfd,
    };
    let untrusted = entries
        .iter()
        .rev()
        .find(|entry| !entry.as_ref().is_some_and(is_trusted));
    untrusted.copied().unwrap_or_else(|| PEER.parse().ok())
}

/// The entries of a line of `X-Forwarded-For`.
fn list(line: &[u8]) -> Vec<Option<IpAddr>> {
    let entries = line.split(|&byte| byte == b',').map(trimmed);
    entries
        .filter(|entry| !entry.is_empty())
        .map(address)
        .collect()
}

/// The elements of a line of `Forwarded`.
fn forwarded(line: &[u8]) -> Vec<Option<IpAddr>> {
    let mut elements = Vec::new();
    let Some(pieces) = split_unquoted(line, b',') else {
        return MALFORMED.to_vec();
    };
    for element in pieces {
        let Some(pairs) = split_unquoted(element, b';') else {
            return MALFORMED.to_vec();
        };
        let mut addresses = Vec::new();
        let mut count = 0;
        for pair in pairs
            .into_iter()
            .map(trimmed)
            .filter(|pair| !pair.is_empty())
        {
            let Some(equals) = pair.iter().position(|&byte| byte == b'=') else {
                return MALFORMED.to_vec();
            };
            let (name, value) = (&pair[..equals], &pair[equals + 1..]);
            let Some(value) = value_of(value).filter(|_| is_token(name)) else {
                return MALFORMED.to_vec();
            };
            count += 1;
            if name.eq_ignore_ascii_case(b"for") {
                addresses.push(address(&value));
            }
        }
        if count > 0 {
            elements.push(if addresses.len() == 1 {
                addresses[0]
            } else {
                None
            });
        }
    }
    elements
}

/// Splits at a separator outside of quoted strings. `None` if a quote is left open.
fn split_unquoted(text: &[u8], separator: u8) -> Option<Vec<&[u8]>> {
    let (mut pieces, mut start, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (place, &byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if byte == separator && !is_quoted => {
                pieces.push(&text[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    (!is_quoted).then_some(pieces)
}

fn value_of(value: &[u8]) -> Option<Vec<u8>> {
    if is_token(value) {
        return Some(value.to_vec());
    }
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let (mut plain, mut bytes) = (Vec::new(), inner.iter());
    while let Some(&byte) = bytes.next() {
        match byte {
            b'"' => return None,
            b'\\' => plain.push(*bytes.next()?),
            byte => plain.push(byte),
        }
    }
    Some(plain)
}

fn is_token(text: &[u8]) -> bool {
    let separators = b"(),/:;<=>?@[\\]{}\" \t";
    !text.is_empty()
        && text
            .iter()
            .all(|byte| byte.is_ascii_graphic() && !separators.contains(byte))
}

fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry)
        .ok()
        .filter(|entry| entry.len() <= 128)?;
    // Everything that could be an address, and everything that could be a port behind it.
    let colons = entry.matches(':').count();
    let (host, port) = if let Some(end) = entry.rfind("]:").filter(|_| entry.starts_with('[')) {
        (&entry[..=end], Some(&entry[end + 2..]))
    } else if colons == 1 {
        let colon = entry.find(':')?;
        (&entry[..colon], Some(&entry[colon + 1..]))
    } else {
        (entry, None)
    };
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || "._-".contains(it))
    };
    if let Some(port) = port {
        let is_number = port.chars().all(|it| it.is_ascii_digit()) && port.parse::<u16>().is_ok();
        if !is_number && !port.strip_prefix('_').is_some_and(is_name) {
            return None;
        }
    }
    if let Ok(v4) = host.parse::<Ipv4Addr>() {
        return Some(v4.into());
    }
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let (inner, zone) = inner.split_once('%').unwrap_or((inner, "none"));
    let v6: Ipv6Addr = inner.parse().ok().filter(|_| is_name(zone))?;
    Some(v6.to_ipv4_mapped().map_or(v6.into(), IpAddr::V4))
}

fn trimmed(text: &[u8]) -> &[u8] {
    let mut text = text;
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}
