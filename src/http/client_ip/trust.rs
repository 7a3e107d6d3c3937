//! Trust in the peers that name the client, and the client that they name.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::address;
use super::chain::{Chain, Invalid};
use super::networks::{Networks, Set};

#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// The peer, if it is in these networks, and the proxies before it in the chain.
    Networks(Networks, HeaderSource),
    /// This many proxies, whatever their addresses.
    Hops(usize, Chain),
}

/// The header that names the client.
#[derive(Clone, Debug)]
pub(super) enum HeaderSource {
    Chain(Chain),
    /// A header with one address.
    Single(HeaderName),
}

/// Why a trusted proxy names no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardingProblem {
    /// The header is missing, or it has fewer addresses than hops.
    Missing,
    /// All addresses belong to trusted proxies.
    AllTrusted,
    Invalid(&'static str),
}

impl Trust {
    /// The header that is read.
    pub(super) const fn header(&self) -> &HeaderName {
        match self {
            Self::Networks(_, HeaderSource::Single(name)) => name,
            Self::Networks(_, HeaderSource::Chain(chain)) | Self::Hops(_, chain) => chain.header(),
        }
    }
}

impl HeaderSource {
    /// The client that a trusted peer names.
    pub(super) fn client(
        &self,
        headers: &HeaderMap,
        trusted: &Set,
    ) -> Result<IpAddr, ForwardingProblem> {
        match self {
            Self::Chain(chain) => nearest_untrusted(*chain, headers, trusted),
            Self::Single(name) => single_address(name, headers),
        }
    }
}

/// The newest address outside of the trusted networks.
fn nearest_untrusted(
    chain: Chain,
    headers: &HeaderMap,
    trusted: &Set,
) -> Result<IpAddr, ForwardingProblem> {
    let mut problem = ForwardingProblem::Missing;
    let found = chain.find(headers, |entry| {
        problem = ForwardingProblem::AllTrusted;
        entry
            .map_or(true, |address| !trusted.contains(address))
            .then_some(entry)
    });
    Ok(found.ok_or(problem)??)
}

/// The n-th address, counted from the newest.
pub(super) fn nth(
    chain: Chain,
    headers: &HeaderMap,
    hops: usize,
) -> Result<IpAddr, ForwardingProblem> {
    let mut newer = 0_usize;
    let found = chain.find(headers, |entry| {
        newer = newer.saturating_add(1);
        let is_countable = entry.map_or_else(Invalid::is_one_entry, |_| true);
        (newer == hops || !is_countable).then_some(entry)
    });
    Ok(found.ok_or(ForwardingProblem::Missing)??)
}

/// The address in a header that has one.
fn single_address(name: &HeaderName, headers: &HeaderMap) -> Result<IpAddr, ForwardingProblem> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(ForwardingProblem::Missing)?;
    if values.next().is_some() {
        return Err(ForwardingProblem::Invalid(
            "the header is sent more than once",
        ));
    }
    let value = address::trim(value.as_bytes());
    let address = if name == "cloudfront-viewer-address" {
        address::parse_with_port(value)
    } else {
        address::parse(value)
    };
    address.ok_or(Invalid::NotAnAddress.into())
}

impl From<Invalid> for ForwardingProblem {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(match invalid {
            Invalid::NotAnAddress => "the entry is not an address",
            Invalid::Malformed => "the line is malformed",
            Invalid::TooLong => "the header is too long",
        })
    }
}

impl fmt::Display for ForwardingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the header is missing, or has too few addresses",
            Self::AllTrusted => "all addresses are trusted",
            Self::Invalid(reason) => reason,
        })
    }
}
