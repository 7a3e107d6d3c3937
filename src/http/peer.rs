//! Key extractors for the peer's address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::nouns::{ConfigError, Key};

/// The bits of an IPv6 address that identify a client: providers give a /64 to one customer.
const IPV6_PREFIX: u8 = 64;

/// For the log only: clients should not see how the service is built.
const ADVICE: &str = "the peer's address is unknown: with axum, serve the router with \
    `into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable the feature `tonic`; \
    elsewhere, put the peer's `SocketAddr` into the request's extensions";

/// A key extractor for the address of the peer.
///
/// A client cannot spoof it. **Behind a proxy, it is the proxy's address**, and all clients share
/// one budget. An IPv4 address counts with all its bits, and is the same in its IPv6 notation,
/// which a dual-stack listener shows. An IPv6 address counts with its first 64 bits, because a
/// single client can have all addresses of a /64. For other sizes, use [`PeerNetwork`].
///
/// With axum, serve with connect info:
///
/// ```
/// # use std::net::SocketAddr;
/// # use axum::Router;
/// # async fn serve(app: Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
/// # }
/// ```
///
/// With tonic 0.14 and the feature `tonic`, the address comes from tonic's server, with or without
/// TLS. With other servers, put the peer's [`SocketAddr`] into the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct PeerIp;

impl PeerIp {
    const NETWORK: PeerNetwork = PeerNetwork { ipv6_prefix: IPV6_PREFIX };

    /// Returns the key of an address, for a reset or a refund of its budget.
    #[must_use]
    pub fn key_of(address: IpAddr) -> Key {
        Self::NETWORK.key_of(address)
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        Self::NETWORK.extract(parts)
    }
}

/// A key extractor for the network of the peer: [`PeerIp`] with another prefix for IPv6.
#[derive(Clone, Copy, Debug)]
pub struct PeerNetwork {
    ipv6_prefix: u8,
}

impl PeerNetwork {
    /// Creates an extractor that counts the first `bits` of an IPv6 address. Range: 32 to 128.
    ///
    /// # Errors
    ///
    /// Returns an error if `bits` is out of range.
    pub fn ipv6_prefix(bits: u8) -> Result<Self, ConfigError> {
        if !(32..=128).contains(&bits) {
            return Err(ConfigError::new(format!("`ipv6_prefix` is {bits}; use 32 to 128")));
        }
        Ok(Self { ipv6_prefix: bits })
    }

    /// Returns the key of an address. For a server that keeps the peer's address elsewhere, use it
    /// with [`from_fn`](crate::key::from_fn).
    #[must_use]
    pub fn key_of(&self, address: IpAddr) -> Key {
        match address.to_canonical() {
            address @ IpAddr::V4(_) => address.into(),
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6_prefix));
                let network = Ipv6Addr::from_bits(address.to_bits() & mask).to_string();
                // A key escapes colons.
                Key::new(format!("{}/{}", network.replace(':', "-"), self.ipv6_prefix))
            }
        }
    }
}

impl KeyExtractor for PeerNetwork {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let peer =
            peer(parts).ok_or(MissingKey::new("the peer's address is unknown").detail(ADVICE))?;
        Ok(self.key_of(peer.ip()))
    }
}

fn peer(parts: &Parts) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = parts.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0);
    }
    #[cfg(feature = "axum")]
    if let Some(mock) =
        parts.extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
    {
        return Some(mock.0);
    }
    #[cfg(feature = "tonic")]
    if let Some(peer) = parts
        .extensions
        .get::<tonic::transport::server::TcpConnectInfo>()
        .and_then(tonic::transport::server::TcpConnectInfo::remote_addr)
    {
        return Some(peer);
    }
    parts.extensions.get::<SocketAddr>().copied()
}
