//! The network by which a client is counted.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use crate::model::Key;
use crate::units::ConfigError;

/// How many bits of an address identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// All bits of an IPv4 address. Of IPv6, providers give a /64 to one customer.
    pub(in crate::http) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    pub(super) fn set_ipv4(&mut self, bits: u8) -> Result<(), ConfigError> {
        self.ipv4 = in_range("ipv4_prefix", bits, 8..=32)?;
        Ok(())
    }

    pub(super) fn set_ipv6(&mut self, bits: u8) -> Result<(), ConfigError> {
        self.ipv6 = in_range("ipv6_prefix", bits, 32..=128)?;
        Ok(())
    }

    pub(in crate::http) fn network_of(self, address: IpAddr) -> ClientNetwork {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let unused = Ipv4Addr::BITS.saturating_sub(self.ipv4.into());
                let bits = address.to_bits() & u32::MAX.unbounded_shl(unused);
                ClientNetwork {
                    address: Ipv4Addr::from_bits(bits).into(),
                    prefix: self.ipv4,
                }
            }
            IpAddr::V6(address) => {
                let unused = Ipv6Addr::BITS.saturating_sub(self.ipv6.into());
                let bits = address.to_bits() & u128::MAX.unbounded_shl(unused);
                ClientNetwork {
                    address: Ipv6Addr::from_bits(bits).into(),
                    prefix: self.ipv6,
                }
            }
        }
    }
}

fn in_range(name: &str, bits: u8, range: RangeInclusive<u8>) -> Result<u8, ConfigError> {
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
        Self::from_text(format_args!("{}", WithoutColons(network)))
    }
}

/// A key escapes colons. Hyphens keep it short.
struct WithoutColons(ClientNetwork);

impl fmt::Display for WithoutColons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Hyphens<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Hyphens<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                let mut parts = text.split(':');
                self.0.write_str(parts.next().unwrap_or_default())?;
                parts.try_for_each(|part| {
                    self.0.write_char('-')?;
                    self.0.write_str(part)
                })
            }
        }
        match self.0.address {
            IpAddr::V4(_) => self.0.fmt(f),
            IpAddr::V6(_) => write!(Hyphens(f), "{}", self.0),
        }
    }
}
