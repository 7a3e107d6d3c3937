//! A request of a log.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::Value;
use tollgate::key::ClientIp;

/// A request, as a line of the log has it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Request<'a> {
    /// Microseconds since the Unix epoch.
    pub(super) at_us: u64,
    /// What the log says: the peer, until [`Clients`](super::clients::Clients) finds the client.
    pub(super) client_ip: Option<IpAddr>,
    /// X-Forwarded-For, as the server got it. Envoy adds the peer.
    pub(super) forwarded_for: Option<Cow<'a, str>>,
    pub(super) user: Option<Cow<'a, str>>,
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) host: Option<Cow<'a, str>>,
    /// With its query.
    pub(super) target: Option<Cow<'a, str>>,
    /// The whole line, if it is JSON.
    pub(super) json: Option<Value>,
}

impl Request<'_> {
    /// The path of the target: without scheme, host and query.
    pub(super) fn path(&self) -> Option<&str> {
        let target = self.target.as_deref()?;
        let target = target.split(['?', '#']).next().unwrap_or(target);
        Some(match target.split_once("://") {
            Some((_, rest)) if !target.starts_with('/') => {
                rest.find('/').map_or("/", |at| &rest[at..])
            }
            _ => target,
        })
    }
}

/// A client's address as the library reads it: with or without a port, brackets and a zone.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    ClientIp::parse_entry(text)
}

/// The last address of a list, which the nearest proxy added.
pub(super) fn last_address(text: &str) -> Option<IpAddr> {
    address(text.rsplit(',').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_no_host_and_no_query() {
        for (target, path) in [
            ("/a/b?c=/d", "/a/b"),
            ("https://api.example:443/a#b", "/a"),
            ("https://api.example", "/"),
            ("*", "*"),
            ("/redirect?to=https://x/y", "/redirect"),
            ("/x://y/admin", "/x://y/admin"),
        ] {
            let request = Request {
                target: Some(target.into()),
                ..Request::default()
            };
            assert_eq!(request.path(), Some(path), "{target}");
        }
    }

    #[test]
    fn address_may_have_a_port() {
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(address("10.0.0.1:80"), Some(one));
        assert_eq!(address(" ::ffff:10.0.0.1"), Some(one));
        assert_eq!(address("[2001:db8::1]:443"), "2001:db8::1".parse().ok());
        assert_eq!(address("fe80::1%eth0"), "fe80::1".parse().ok());
        assert_eq!(address("[::1]"), "::1".parse().ok());
        assert_eq!(address("-"), None);
        assert_eq!(last_address("6.6.6.6, 10.0.0.1:80"), Some(one));
    }
}
