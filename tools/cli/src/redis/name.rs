//! Keys of Redis: `prefix:{client}:kind:limit`, on a cluster with the partition's tag in front.

use ipnet::Ipv6Net;
use tollgate::Key;
use tollgate::key::PeerIp;

use crate::limit::Algorithm;

/// The length of a digest of a key, in hexadecimal.
const DIGEST: usize = 32;

/// The kind of a budget, by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    InFlight,
}

/// A key of Redis, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// The tag of the partition on a cluster.
    pub(super) tag: Option<&'a str>,
    /// As the library writes it.
    pub(super) client: &'a str,
    pub(super) kind: Kind,
    /// `true` if it holds the denials that were counted and the block, instead of a budget.
    pub(super) is_offences: bool,
    pub(super) limit: &'a str,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bucket => "bucket",
            Self::FixedWindow => "fixed window",
            Self::SlidingWindow => "sliding window",
            Self::SlidingLog => "sliding log",
            Self::InFlight => "requests in flight",
        }
    }

    /// The kind of the budgets of an algorithm.
    pub(super) fn of_algorithm(algorithm: &str) -> Self {
        match algorithm {
            "fixed_window" | "fixed_window_aligned" => Self::FixedWindow,
            "sliding_window" => Self::SlidingWindow,
            "sliding_log" => Self::SlidingLog,
            _ => Self::Bucket,
        }
    }

    /// An algorithm that has such budgets.
    pub(super) fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Bucket => Some(Algorithm::named("token_bucket")),
            Self::FixedWindow => Some(Algorithm::named("fixed_window")),
            Self::SlidingWindow => Some(Algorithm::named("sliding_window")),
            Self::SlidingLog => Some(Algorithm::named("sliding_log")),
            Self::InFlight => None,
        }
    }
}

impl<'a> Name<'a> {
    /// `None`: the key is another program's.
    pub(super) fn parse(key: &'a str, prefix: &str) -> Option<Self> {
        let rest = key.strip_prefix(prefix)?.strip_prefix(':')?;
        let (first, rest) = rest.strip_prefix('{')?.split_once('}')?;
        let (tag, (client, rest)) = match rest.strip_prefix('{') {
            Some(rest) => (Some(first), rest.split_once('}')?),
            None => (None, (first, rest)),
        };
        let (letters, limit) = rest.strip_prefix(':')?.split_once(':')?;
        let (kind, is_offences) = match letters.strip_suffix('x') {
            Some(kind) => (kind, true),
            None => (letters, false),
        };
        let kind = match kind {
            "b" => Kind::Bucket,
            "w" => Kind::FixedWindow,
            "s" => Kind::SlidingWindow,
            "l" => Kind::SlidingLog,
            "c" if !is_offences => Kind::InFlight,
            _ => return None,
        };
        Some(Self {
            tag,
            client,
            kind,
            is_offences,
            limit,
        })
    }
}

/// A client's key as `keys` prints it, or a client's name as it is.
pub(super) fn client(text: &str) -> Key {
    Key::from_encoded(text).unwrap_or_else(|_| Key::new(text))
}

/// A hint for an IPv6 address or network without a state.
pub(super) fn hint(text: &str) -> Option<String> {
    if text.len() == DIGEST && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Some(
            "this looks like a digest of `DeniedKeys::hashed`, and Redis has the keys of clients: \
             compute the digests of your clients with the secret, and compare"
                .to_owned(),
        );
    }
    let address = match text.parse::<Ipv6Net>() {
        Ok(network) => network.addr(),
        Err(_) => text.parse().ok()?,
    };
    let key = PeerIp::key_of(address.into());
    Some(format!(
        "services count IPv6 clients by network: try `{}`",
        key.as_str()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_library_are_taken_apart_and_others_are_not() {
        let name = |key| Name::parse(key, "tollgate");
        let of = |tag, client, kind, is_offences, limit| {
            Some(Name {
                tag,
                client,
                kind,
                is_offences,
                limit,
            })
        };
        assert_eq!(
            name("tollgate:{alice}:b:api"),
            of(None, "alice", Kind::Bucket, false, "api")
        );
        assert_eq!(
            name("tollgate:{a:b}:lx:a:b"),
            of(None, "a:b", Kind::SlidingLog, true, "a:b")
        );
        let in_flight = of(Some("7"), "alice", Kind::InFlight, false, "in");
        assert_eq!(name("tollgate:{7}{alice}:c:in"), in_flight);
        for other in [
            "tollgate:{alice}:q:api",
            "other:{alice}:b:api",
            "tollgate:{alice",
            "tollgate:config",
            "",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn client_is_an_encoded_key_or_else_a_name() {
        assert_eq!(client("alice").as_str(), "alice");
        assert_eq!(client("(a&b)").as_str(), "(a&b)");
        assert_eq!(client("a b").as_str(), "a%20b");
        assert_eq!(client("|alice").as_str(), "|alice", "of a fallback");
        assert_eq!(hint("alice"), None);
        for text in ["2001:db8::1", "2001:db8::/64", "2001:db8::7/128"] {
            let hint = hint(text).unwrap();
            let key = PeerIp::key_of("2001:db8::2".parse().unwrap());
            assert!(hint.contains(key.as_str()), "{text}: {hint}");
        }
    }
}
