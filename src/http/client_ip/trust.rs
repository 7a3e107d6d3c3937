//! Who is trusted to name the client, and the client that they name.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::address;
use super::chain::{Chain, Invalid};
use super::networks::Networks;

#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// The peer, if it is in these networks, and the proxies before it in the chain.
    Networks(Networks, Source),
    /// This many proxies, whatever their addresses.
    Hops(usize, Chain),
}

/// The header that names the client.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Chain(Chain),
    /// A header with one address.
    Single(HeaderName),
}

/// Why the header of a trusted proxy names no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// There is no header, or it has fewer addresses than hops.
    Missing,
    Invalid(&'static str),
}

impl Trust {
    /// The header that is read.
    pub(super) fn header(&self) -> HeaderName {
        match self {
            Self::Networks(_, Source::Single(name)) => name.clone(),
            Self::Networks(_, Source::Chain(chain)) | Self::Hops(_, chain) => chain.header(),
        }
    }
}

impl Source {
    /// The client that a trusted peer names.
    pub(super) fn client(
        &self,
        headers: &HeaderMap,
        trusted: &Networks,
        peer: IpAddr,
    ) -> Result<IpAddr, Problem> {
        match self {
            Self::Chain(chain) => nearest_untrusted(*chain, headers, trusted, peer),
            Self::Single(name) => single(name, headers),
        }
    }
}

/// The newest address outside of the trusted networks. If all are inside, it is the peer.
fn nearest_untrusted(
    chain: Chain,
    headers: &HeaderMap,
    trusted: &Networks,
    peer: IpAddr,
) -> Result<IpAddr, Problem> {
    let mut is_empty = true;
    let found = chain.find(headers, |entry| {
        is_empty = false;
        entry.map_or(true, |address| !trusted.contains(address)).then_some(entry)
    });
    match found {
        Some(entry) => Ok(entry?),
        None if is_empty => Err(Problem::Missing),
        None => Ok(peer),
    }
}

/// The n-th address, counted from the newest.
pub(super) fn nth(chain: Chain, headers: &HeaderMap, hops: usize) -> Result<IpAddr, Problem> {
    let mut newer = 0_usize;
    let found = chain.find(headers, |entry| {
        newer = newer.saturating_add(1);
        (newer == hops || entry == Err(Invalid::TooLong)).then_some(entry)
    });
    Ok(found.ok_or(Problem::Missing)??)
}

fn single(name: &HeaderName, headers: &HeaderMap) -> Result<IpAddr, Problem> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(Problem::Missing)?;
    if values.next().is_some() {
        return Err(Problem::Invalid("the header is sent more than once"));
    }
    let value = address::trim(value.as_bytes());
    let address = match name.as_str() {
        "cloudfront-viewer-address" => address::parse_with_port(value),
        _ => address::parse(value),
    };
    address.ok_or(Invalid::NotAnAddress.into())
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(match invalid {
            Invalid::NotAnAddress => "the entry is not an address",
            Invalid::TooLong => "the header is too long",
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the header is missing, or has too few addresses",
            Self::Invalid(reason) => reason,
        })
    }
}
