//! A key extractor for the host that a request names.

use std::net::{IpAddr, Ipv6Addr};

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;

use super::{KeyExtractor, MissingKey};
use crate::model::Key;

/// The longest name in DNS, without the dot at its end.
const LONGEST: usize = 253;

/// A key extractor for the host that a request names, such as `example.com`.
///
/// It is the authority of the URI, which is `:authority` in HTTP/2, and otherwise the header `Host`
/// (RFC 9112, section 3.2). All spellings of a host are one key. Letters are lowercase, the dot at
/// the end and the port are dropped, and an IPv6 address is written in one way. So `EXAMPLE.com`,
/// `example.com.` and `example.com:8080` share a budget.
///
/// **Clients choose the host.** Use it for the tenants of a service, where a router or a proxy
/// rejects hosts that it does not know. Otherwise every name is a fresh budget. Behind a proxy that
/// changes `Host`, it is the name that the proxy writes.
///
/// A request without a host has no key. A host that is malformed, has a user, or is sent twice is
/// rejected even by a layer that [skips](crate::layer::OnMissingKey::SkipLimit) missing keys.
///
/// ```
/// use tollgate::key::Host;
/// use tollgate::{Quota, RateLimitLayer, RateLimiter};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let limiter = RateLimiter::in_memory();
/// let per_tenant = RateLimitLayer::gcra(&limiter, "tenant", Quota::per_second(100), Host)?;
/// # let _ = per_tenant;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Host;

impl KeyExtractor for Host {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        if let Some(authority) = parts.uri.authority() {
            return normalized(authority).ok_or_else(malformed);
        }
        let mut hosts = parts.headers.get_all(HOST).iter();
        match (hosts.next(), hosts.next()) {
            (Some(host), None) => Authority::try_from(host.as_bytes())
                .ok()
                .and_then(|authority| normalized(&authority))
                .ok_or_else(malformed),
            (Some(_), Some(_)) => {
                Err(MissingKey::new("the request names two hosts").never_skipped())
            }
            (None, _) => Err(MissingKey::new("the request names no host")),
        }
    }
}

fn malformed() -> MissingKey {
    MissingKey::new("the host of the request is malformed").never_skipped()
}

/// The host in the one spelling that is its key.
fn normalized(authority: &Authority) -> Option<Key> {
    if authority.as_str().contains('@') {
        return None;
    }
    let host = authority.host();
    if let Some(bracketed) = host.strip_prefix('[') {
        let address: Ipv6Addr = bracketed.strip_suffix(']')?.parse().ok()?;
        return Some(IpAddr::V6(address).to_canonical().into());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !label.is_empty() && label.bytes().all(is_known)
    };
    let is_name = name.len() <= LONGEST && name.split('.').all(is_label);
    is_name.then(|| match name.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => Key::new(name.to_ascii_lowercase()),
    })
}
