//! Events of clients' addresses, which proxies report.

use std::net::IpAddr;

use super::{TARGET, Throttle};

/// A trusted proxy named no client, and its request counts for the proxy.
pub(crate) fn missing_client_address(proxy: IpAddr, header: &http::HeaderName) {
    tracing::warn!(
        target: TARGET,
        %proxy,
        header = header.as_str(),
        "trusted proxy sent no client address: the request counts for the proxy"
    );
}

/// A trusted proxy named only other trusted proxies, and its request counts for the proxy.
pub(crate) fn only_trusted_addresses(proxy: IpAddr, header: &http::HeaderName) {
    tracing::warn!(
        target: TARGET,
        %proxy,
        header = header.as_str(),
        "trusted proxy sent only trusted addresses: the request counts for the proxy"
    );
}

/// A trusted proxy wrote something else than an address, and the request counts for the proxy.
pub(crate) fn invalid_client_address(
    at_most: &Throttle,
    proxy: IpAddr,
    header: &http::HeaderName,
    reason: &dyn std::fmt::Display,
) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET,
            %proxy,
            header = header.as_str(),
            %reason,
            unreported,
            "trusted proxy sent an invalid client address: the request counts for the proxy"
        );
    }
}

/// The peer is counted, and seems to be a proxy.
pub(crate) fn peer_is_proxy(peer: IpAddr, header: &str) {
    tracing::warn!(
        target: TARGET,
        %peer,
        header,
        "untrusted peer in a private network sends a forwarding header: if it is a proxy, name its \
         network with `ClientIp::behind`, or all clients behind it share one budget"
    );
}

/// A peer on the Internet is counted, and names many clients.
pub(crate) fn public_peer_is_proxy(peer: IpAddr, header: &str, clients: usize) {
    tracing::warn!(
        target: TARGET,
        %peer,
        header,
        clients,
        "untrusted peer names many clients in a forwarding header: if it is your proxy or CDN, \
         name its networks with `ClientIp::behind`, or all clients behind it share one budget; \
         clients can also make the header up"
    );
}

/// A trusted proxy named a client in a private network, which may be another proxy.
pub(crate) fn client_may_be_proxy(proxy: IpAddr, client: IpAddr, header: &http::HeaderName) {
    tracing::warn!(
        target: TARGET,
        %proxy,
        %client,
        header = header.as_str(),
        "trusted proxy named a client in a private network: if the client is also a proxy, add its \
         network to the trusted ones, or all clients behind it share one budget"
    );
}
