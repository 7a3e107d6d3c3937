//! The peer's address, and the key extractor for it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::FORWARDED;
use http::request::Parts;
use http::{HeaderMap, HeaderName};

use super::client_ip::{IPV4_PREFIX, IPV6_PREFIX, network_of};
use super::forwarding_peers::{ForwardingPeers, MANY};
use super::{KeyExtractor, MissingKey};
use crate::model::Key;
use crate::telemetry;

/// This text is for the log, because clients should not see how your service is built.
const ADVICE: &str = "the peer's address is unknown: with axum, serve the router with \
    `into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable the feature `tonic`; \
    elsewhere, put the peer's `SocketAddr` into the request's extensions";

/// A key extractor for the address of the peer.
///
/// A client cannot spoof it. **Behind a proxy, it is the proxy's address**, and all clients share
/// one budget. Behind a proxy, you need [`ClientIp`](crate::key::ClientIp). An event warns once if
/// a peer in a private network sends forwarding headers.
///
/// An IPv4 address counts with all its bits, and is the same in its IPv6 notation, which a
/// dual-stack listener shows. An IPv6 address counts with its first 64 bits, because a single
/// client can have all addresses of a /64. For other sizes, use
/// [`ClientIp::direct`](crate::key::ClientIp::direct).
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
/// In a test without a socket, put a [`SocketAddr`] into the request's extensions, or add axum's
/// `MockConnectInfo` as the outermost layer.
///
/// With tonic 0.14 and the feature `tonic`, the address comes from tonic's server, with or without
/// TLS. With other servers, put the peer's [`SocketAddr`] into the request's extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerIp;

impl PeerIp {
    /// Returns the key of an address, to reset its budget or to [block](crate::RateLimiter::block)
    /// it. An IPv6 address is counted by its network, so its key is not the address.
    #[must_use]
    pub fn key_of(address: IpAddr) -> Key {
        network_of(address, IPV4_PREFIX, IPV6_PREFIX).into()
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let peer = peer_ip(parts)?;
        warn_of_proxy(peer, &parts.headers, None);
        Ok(Self::key_of(peer))
    }
}

/// Reports once in a process, for private and public peers each, that an untrusted peer seems to be
/// a proxy, because it sends a well-known forwarding header, or the one that is configured. A peer
/// on the Internet has to name many clients, because clients can send the header as well.
pub(super) fn warn_of_proxy(peer: IpAddr, headers: &HeaderMap, header: Option<&HeaderName>) {
    static REPORTED_PRIVATE: AtomicBool = AtomicBool::new(false);
    static REPORTED_PUBLIC: AtomicBool = AtomicBool::new(false);
    static PUBLIC_PEERS: ForwardingPeers = ForwardingPeers::new();
    let is_public = !is_private(peer);
    let is_reported = match is_public {
        true => &REPORTED_PUBLIC,
        false => &REPORTED_PRIVATE,
    };
    if is_reported.load(Ordering::Relaxed) {
        return;
    }
    let mut known = FORWARDING_HEADERS.iter().chain(header);
    let Some((header, value)) = known.find_map(|name| Some((name, headers.get(name)?))) else {
        return;
    };
    let is_proxy = !is_public || PUBLIC_PEERS.see(peer, value.as_bytes());
    if !is_proxy || is_reported.swap(true, Ordering::Relaxed) {
        return;
    }
    match is_public {
        true => telemetry::public_peer_is_proxy(peer, header.as_str(), MANY),
        false => telemetry::peer_is_proxy(peer, header.as_str()),
    }
}

static FORWARDING_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-for"),
    FORWARDED,
    HeaderName::from_static("x-real-ip"),
];

/// Returns whether an address is one that proxies have, and clients on the Internet have not:
/// loopback, private (RFC 1918, RFC 4193), shared (RFC 6598) or link-local.
pub(super) const fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || (first == 100 && second & 0xC0 == 64)
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

/// The peer's address, in its canonical form.
pub(super) fn peer_ip(parts: &Parts) -> Result<IpAddr, MissingKey> {
    let missing = || {
        MissingKey::new("the peer's address is unknown")
            .detail(ADVICE)
            .never_skipped()
    };
    Ok(peer(parts).ok_or_else(missing)?.ip().to_canonical())
}

fn peer(parts: &Parts) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = parts
        .extensions
        .get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(info.0);
    }
    #[cfg(feature = "axum")]
    if let Some(mock) = parts
        .extensions
        .get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
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
