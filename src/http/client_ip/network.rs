//! The network by which a client is counted.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::model::Key;
use crate::units::ConfigError;

/// The number of leading bits that identify a client. These are all bits of an IPv4 address, and
/// the /64 network of an IPv6 address, because providers give one to each customer.
pub(in crate::http) const IPV4_PREFIX: u8 = 32;
pub(in crate::http) const IPV6_PREFIX: u8 = 64;

/// The network of an address, by so many bits of IPv4 and of IPv6.
pub(in crate::http) fn network_of(address: IpAddr, ipv4: u8, ipv6: u8) -> ClientNetwork {
    let address = address.to_canonical();
    let prefix = if address.is_ipv4() { ipv4 } else { ipv6 };
    let network = IpNet::new(address, prefix);
    ClientNetwork {
        address: network.map_or(address, |network| network.network()),
        prefix,
    }
}

/// Returns an error that names the setting, if its bits are out of range.
pub(super) fn in_range(name: &str, bits: u8, range: RangeInclusive<u8>) -> Result<u8, ConfigError> {
    if range.contains(&bits) {
        return Ok(bits);
    }
    let (from, to) = range.into_inner();
    Err(ConfigError::new(format!(
        "`{name}` is {bits}; use {from} to {to}"
    )))
}

/// The network by which a client is counted, such as `192.0.2.1` or `2001:db8::/64`.
///
/// It converts into the [`Key`] that the extractor returns for all its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientNetwork {
    address: IpAddr,
    prefix: u8,
}

impl ClientNetwork {
    /// The first address of the network.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of bits that identify the client.
    #[must_use]
    pub const fn prefix_len(&self) -> u8 {
        self.prefix
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) if u32::from(self.prefix) == Ipv4Addr::BITS => address.fmt(f),
            address => write!(f, "{address}/{}", self.prefix),
        }
    }
}

impl From<ClientNetwork> for Key {
    fn from(network: ClientNetwork) -> Self {
        if network.address.is_ipv4() {
            return Self::from_text(format_args!("{network}"));
        }
        // The longest is an address of 39 characters, with `/128`.
        let mut text = [0; 48];
        let mut rest = &mut text[..];
        let _fits = write!(rest, "{network}");
        let unused = rest.len();
        let text = &mut text[..48_usize.saturating_sub(unused)];
        // A key escapes colons. Hyphens keep it short.
        for byte in text.iter_mut().filter(|byte| **byte == b':') {
            *byte = b'-';
        }
        Self::new(text)
    }
}
