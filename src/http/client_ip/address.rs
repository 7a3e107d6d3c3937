//! The addresses that proxies write.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest entry that is parsed, an IPv6 address with a long zone and a port.
const LONGEST: usize = 128;

/// Removes the optional whitespace of a header field's value (RFC 9110, 5.6.3).
pub(super) fn trim(value: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = value.iter().position(is_text).unwrap_or(value.len());
    let end = value
        .iter()
        .rposition(is_text)
        .map_or(start, |last| last.saturating_add(1));
    &value[start..end]
}

/// An address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `[2001:db8::1]:80`. An IPv4-mapped address is the IPv4 address. A zone is ignored.
pub(super) fn parse(entry: &[u8]) -> Option<IpAddr> {
    let entry = text(entry)?;
    if let Some(bracketed) = entry.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']')?;
        let is_valid = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return is_valid.then(|| v6(address)).flatten();
    }
    match entry.split_once(':') {
        None => v4(entry),
        Some((_, rest)) if rest.contains(':') => v6(entry),
        Some((address, port)) => is_port(port).then(|| v4(address)).flatten(),
    }
}

/// An address that always has a port, with or without brackets: `192.0.2.1:80`, `2001:db8::1:80`.
pub(super) fn parse_with_port(entry: &[u8]) -> Option<IpAddr> {
    let (address, port) = text(entry)?.rsplit_once(':')?;
    let address = address
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'))
        .unwrap_or(address);
    let address = if address.contains(':') {
        v6(address)
    } else {
        v4(address)
    };
    address.filter(|_| is_port(port))
}

fn text(entry: &[u8]) -> Option<&str> {
    if entry.len() > LONGEST {
        None
    } else {
        str::from_utf8(entry).ok()
    }
}

fn v4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn v6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) => is_name(zone).then_some(address)?,
        None => text,
    };
    address
        .parse::<Ipv6Addr>()
        .ok()
        .map(|address| IpAddr::V6(address).to_canonical())
}

/// A port, or the obfuscated port of RFC 7239.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => is_name(name),
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

/// Returns whether the text is a zone, or an obfuscated port without its underscore.
fn is_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.bytes().all(is_valid)
}
