//! The peer's address as a key.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::nouns::{ConfigError, Key};

/// How much of an IPv6 address is one client: what a provider gives to one customer.
const IPV6_PREFIX: u8 = 64;

/// What to do about an unknown address. Clients are not told how the service is built.
const ADVICE: &str = "the peer's address is unknown: with axum, serve the router with \
    `into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable the feature `tonic`; \
    elsewhere, put the peer's `SocketAddr` into the request's extensions";

/// The address of the peer.
///
/// A client cannot spoof it, and behind a proxy it is the proxy's: everyone shares one budget then.
/// An IPv4 address counts as a whole, in whichever form a dual-stack listener shows it; of an
/// IPv6 address the first 64 bits, because a single client can have all addresses below them.
/// [`PeerNetwork`] has other sizes.
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
/// With tonic 0.14, the feature `tonic` reads the address that tonic's server leaves, with TLS or
/// without. Elsewhere, put the peer's [`SocketAddr`] into the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct PeerIp;

impl PeerIp {
    const NETWORK: PeerNetwork = PeerNetwork { ipv6_prefix: IPV6_PREFIX };

    /// The key of an address: for a reset or a refund of its budget.
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

/// The network of the peer: [`PeerIp`] with another size for IPv6.
#[derive(Clone, Copy, Debug)]
pub struct PeerNetwork {
    ipv6_prefix: u8,
}

impl PeerNetwork {
    /// Counts the first `bits` of an IPv6 address, 32 to 128.
    ///
    /// # Errors
    ///
    /// If there are more or fewer.
    pub fn ipv6_prefix(bits: u8) -> Result<Self, ConfigError> {
        if !(32..=128).contains(&bits) {
            return Err(ConfigError::new(format!(
                "an IPv6 prefix of {bits} bits: 32 to 128 tell clients apart"
            )));
        }
        Ok(Self { ipv6_prefix: bits })
    }

    /// The key of an address, however it was found: for a server that keeps the peer elsewhere,
    /// with [`from_fn`](crate::key::from_fn).
    #[must_use]
    pub fn key_of(&self, address: IpAddr) -> Key {
        match address.to_canonical() {
            address @ IpAddr::V4(_) => address.into(),
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6_prefix));
                let network = Ipv6Addr::from_bits(address.to_bits() & mask).to_string();
                // A colon would have to be escaped.
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
