//! URLs with several hosts, taken apart. redis-rs reads the parts.

/// `scheme-kind://[user:password@]host[:port],host[:port][/path][?query]`
pub(super) struct Hosts<'a> {
    /// The scheme for each host alone: `redis`, or `rediss` for TLS.
    pub(super) scheme: &'static str,
    /// With the `@`, if there is one.
    pub(super) user: &'a str,
    /// All hosts, as in the URL.
    pub(super) all: &'a str,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
}

impl<'a> Hosts<'a> {
    /// `None` if the host is missing, or if the user is not before all hosts, once.
    pub(super) fn parse(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, all) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let scheme = if scheme.starts_with("rediss") {
            "rediss"
        } else {
            "redis"
        };
        let is_well_formed = !all.is_empty() && !user.trim_end_matches('@').contains([',', '@']);
        is_well_formed.then_some(Self {
            scheme,
            user,
            all,
            path,
            query,
        })
    }

    /// Each host, with its port or this one.
    pub(super) fn each(&self, port: u16) -> impl Iterator<Item = String> {
        self.all.split(',').map(move |host| {
            // The colons of an IPv6 address are within brackets.
            let after_address = host.rsplit(']').next().unwrap_or(host);
            let has_port = after_address.contains(':');
            if has_port {
                host.to_owned()
            } else {
                format!("{host}:{port}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_taken_apart() {
        let url = "rediss-sentinel://me:p%40ss@one,two:1/service/2?protocol=resp3";
        let hosts = Hosts::parse(url).unwrap();
        assert_eq!(
            (hosts.scheme, hosts.user, hosts.all),
            ("rediss", "me:p%40ss@", "one,two:1")
        );
        assert_eq!((hosts.path, hosts.query), ("service/2", "protocol=resp3"));
        let hosts = Hosts::parse("redis-cluster://one").unwrap();
        assert_eq!(
            (hosts.scheme, hosts.user, hosts.path, hosts.query),
            ("redis", "", "", "")
        );
        assert!(Hosts::parse("redis-cluster://").is_none());
        assert!(Hosts::parse("redis-cluster://me:secret@/service").is_none());
        assert!(Hosts::parse("redis-cluster://me:secret@one:1,me:secret@two:2").is_none());
    }

    #[test]
    fn each_host_has_a_port() {
        let each = |hosts: &str| -> Vec<String> {
            Hosts::parse(&format!("redis-cluster://{hosts}"))
                .unwrap()
                .each(7)
                .collect()
        };
        assert_eq!(each("one,two:1"), ["one:7", "two:1"]);
        assert_eq!(
            each("[::1],[fd00::2]:9,10.0.0.1"),
            ["[::1]:7", "[fd00::2]:9", "10.0.0.1:7"]
        );
    }
}
