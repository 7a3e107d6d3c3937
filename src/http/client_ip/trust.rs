//! Trust in the peers that name the client, and the client that they name.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::chain::{self, ForwardingProblem};
use super::{Networks, address, networks};

#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// The peer, if it is in these networks, and the proxies before it in the chain.
    Networks(Networks),
    /// This many proxies, whatever their addresses.
    Hops(usize),
}

/// The client that a trusted peer names in a header.
pub(super) fn client(
    header: &HeaderName,
    headers: &HeaderMap,
    trusted: &[IpNet],
) -> Result<IpAddr, ForwardingProblem> {
    match chain::is_list(header) {
        true => nearest_untrusted(header, headers, trusted),
        false => single_address(header, headers),
    }
}

/// The newest address outside of the trusted networks.
fn nearest_untrusted(
    header: &HeaderName,
    headers: &HeaderMap,
    trusted: &[IpNet],
) -> Result<IpAddr, ForwardingProblem> {
    let mut problem = ForwardingProblem::Missing;
    let found = chain::find(header, headers, |entry| {
        problem = ForwardingProblem::AllTrusted;
        entry
            .map_or(true, |address| !networks::contain(trusted, address))
            .then_some(entry)
    });
    found.ok_or(problem)?
}

/// The n-th address, counted from the newest. An entry that is not an address counts as one.
pub(super) fn nth(
    header: &HeaderName,
    headers: &HeaderMap,
    hops: usize,
) -> Result<IpAddr, ForwardingProblem> {
    let mut newer = 0_usize;
    let found = chain::find(header, headers, |entry| {
        newer = newer.saturating_add(1);
        let is_countable = matches!(entry, Ok(_) | Err(ForwardingProblem::NotAnAddress));
        (newer == hops || !is_countable).then_some(entry)
    });
    found.ok_or(ForwardingProblem::Missing)?
}

/// The address in a header that has one.
fn single_address(name: &HeaderName, headers: &HeaderMap) -> Result<IpAddr, ForwardingProblem> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(ForwardingProblem::Missing)?;
    if values.next().is_some() {
        return Err(ForwardingProblem::Repeated);
    }
    let value = address::trim(value.as_bytes());
    let address = if name == "cloudfront-viewer-address" {
        address::parse_with_port(value)
    } else {
        address::parse(value)
    };
    address.ok_or(ForwardingProblem::NotAnAddress)
}
