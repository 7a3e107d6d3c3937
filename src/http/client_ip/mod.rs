//! The client's address, behind trusted proxies.
//!
//! The core is pure. It goes from the peer's address and the request's headers to an address, or to
//! the reason why there is none.

mod address;
mod chain;
mod forwarded;
mod network;
mod networks;
mod presets;
mod reported;
mod settings;
mod trust;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderName;
use http::request::Parts;

use self::chain::ForwardingProblem;
pub use self::network::ClientNetwork;
pub(super) use self::network::{IPV4_PREFIX, IPV6_PREFIX, network_of};
pub use self::networks::Networks;
use self::reported::ReportedAddresses;
use self::trust::Trust;
use super::peer::{is_private, peer_ip, warn_of_proxy};
use super::request_fn::RequestFn;
use super::{KeyExtractor, MissingKey};
use crate::model::Key;
use crate::telemetry::{self, Throttle};
use crate::units::ConfigError;

/// A key extractor for the client's address behind trusted proxies.
///
/// A client can send any forwarding header. So a header counts only where a proxy wrote it. With
/// [`behind`](Self::behind):
///
/// 1. A peer outside of the trusted networks is the client. Its headers are ignored.
/// 2. `X-Forwarded-For` is read from right to left, because each proxy appends the address of its
///    own peer. All lines of the header are one list. Empty entries are skipped.
/// 3. The first address outside of the trusted networks is the client. Entries to the left of it
///    come from the client, and are not read.
/// 4. If all addresses are trusted, or there is no header, the request counts for the peer. With
///    [`reject_if_missing`](Self::reject_if_missing), a request without the header is rejected.
/// 5. An entry that is not an address (garbage, `unknown`, an obfuscated identifier) ends the walk.
///    The request is rejected, unless [`use_peer_if_invalid`](Self::use_peer_if_invalid) is set.
///
/// ```
/// use tollgate::key::ClientIp;
/// use tollgate::{Quota, RateLimitLayer, RateLimiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory();
/// let client = ClientIp::behind(["10.0.1.0/24", "fd00:1::/64"])?;
/// let layer = RateLimitLayer::token_bucket(&limiter, "search", Quota::per_minute(100), client)?;
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
///
/// The [guide](crate::guide::behind_a_proxy) has the settings for each proxy and platform. The
/// peer's address comes from the server, as for [`PeerIp`](crate::key::PeerIp).
///
/// # One client, one key
///
/// An IPv6 client is counted by the first 64 bits of its address, because it usually has all
/// addresses of a /64: see [`ipv6_prefix`](Self::ipv6_prefix). An IPv4-mapped address
/// (`::ffff:192.0.2.1`) is the IPv4 address. Ports and zones (`%eth0`) are ignored. So an address
/// has one key in all its spellings. IPv4 clients that a translator (such as SIIT) brings to your
/// IPv6 address share the network of the translator.
///
/// # Differences from other crates
///
/// `client-ip` and `axum-client-ip` take the rightmost address of a header that the operator
/// chooses. That is right if you are behind exactly one proxy, and no client can reach your service
/// without it. `ClientIp` also verifies that the peer is a trusted proxy, walks through any number
/// of proxies, accepts ports and IPv4-mapped addresses, and counts IPv6 clients by network. nginx's
/// `real_ip_recursive` takes the leftmost address if all are trusted; `ClientIp` takes the peer,
/// because any host in a trusted network could forge the leftmost one. tower_governor's
/// `SmartIpKeyExtractor` takes the leftmost address, which the client chooses.
#[derive(Clone)]
pub struct ClientIp {
    trust: Trust,
    /// The header that is read. It says how it is read.
    header: HeaderName,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    uses_peer_if_missing: bool,
    uses_peer_if_invalid: bool,
    peer_from: Option<RequestFn<Option<IpAddr>>>,
    events: Arc<ClientIpEvents>,
}

#[derive(Default)]
struct ClientIpEvents {
    /// `true` if it was reported that a proxy sends no header. Its health checks may have none.
    reported_missing: AtomicBool,
    reported_all_trusted: AtomicBool,
    /// The private clients that were reported. Each may be a proxy whose network was forgotten.
    private_clients: ReportedAddresses,
    invalid: Throttle,
}

/// The message that clients see.
const UNKNOWN: &str = "the client's address is unknown";

impl ClientIp {
    /// The client's address, in its canonical form.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is unknown.
    pub fn address(&self, parts: &Parts) -> Result<IpAddr, MissingKey> {
        let problem = match self.find(parts)? {
            Ok(address) => return Ok(address),
            Err(problem) => problem,
        };
        if !self.uses_peer(problem) {
            return Err(MissingKey::new(UNKNOWN)
                .detail(format!("{UNKNOWN}: `{}`: {problem}", self.header))
                .never_skipped());
        }
        let peer = self.peer(parts)?;
        self.report(problem, peer);
        Ok(peer)
    }

    /// The address in an entry of X-Forwarded-For, or as servers write it to their logs, with or
    /// without a port, brackets, a zone and spaces around it. `None` if it is no address.
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    ///
    /// let address = "2001:db8::1".parse().ok();
    /// assert_eq!(ClientIp::parse_entry(" [2001:db8::1%eth0]:443"), address);
    /// assert_eq!(ClientIp::parse_entry("unknown"), None);
    /// ```
    pub fn parse_entry(entry: &str) -> Option<IpAddr> {
        address::parse(address::trim(entry.as_bytes()))
    }

    /// Returns the client, which is the peer or the address that a trusted proxy names, or why it
    /// names none.
    fn find(&self, parts: &Parts) -> Result<Result<IpAddr, ForwardingProblem>, MissingKey> {
        let headers = &parts.headers;
        let named = match &self.trust {
            Trust::Hops(hops) => trust::nth(&self.header, headers, *hops),
            Trust::Networks(trusted) => {
                let peer = self.peer(parts)?;
                let trusted = trusted.current();
                if !networks::contain(&trusted, peer) {
                    if self.peer_from.is_none() {
                        warn_of_proxy(peer, headers, Some(&self.header));
                    }
                    return Ok(Ok(peer));
                }
                let named = trust::client(&self.header, headers, &trusted);
                if let Ok(client) = named
                    && is_private(client)
                    && self.events.private_clients.is_new(client)
                {
                    telemetry::client_may_be_proxy(peer, client, &self.header);
                }
                named
            }
        };
        Ok(named)
    }

    /// Returns whether the peer counts as the client. Otherwise the request has no key.
    const fn uses_peer(&self, problem: ForwardingProblem) -> bool {
        match problem {
            ForwardingProblem::AllTrusted => true,
            ForwardingProblem::Missing => self.uses_peer_if_missing,
            _ => self.uses_peer_if_invalid,
        }
    }

    fn peer(&self, parts: &Parts) -> Result<IpAddr, MissingKey> {
        let Some(peer_from) = &self.peer_from else {
            return peer_ip(parts);
        };
        let peer = peer_from(parts).ok_or_else(|| {
            MissingKey::new(UNKNOWN)
                .detail("`ClientIp::peer_from` found no address")
                .never_skipped()
        })?;
        Ok(peer.to_canonical())
    }

    /// The network by which the client is counted.
    ///
    /// # Errors
    ///
    /// Returns an error if the client's address is unknown.
    pub fn network(&self, parts: &Parts) -> Result<ClientNetwork, MissingKey> {
        self.address(parts).map(|address| self.network_of(address))
    }

    /// The network by which an address is counted. It converts into a key, to reset its budget or
    /// to [block](crate::RateLimiter::block) it.
    #[must_use]
    pub fn network_of(&self, address: IpAddr) -> ClientNetwork {
        network_of(address, self.ipv4_prefix, self.ipv6_prefix)
    }

    /// A predicate for the requests of clients in these networks, for
    /// [`skip`](crate::RateLimitLayer::skip).
    ///
    /// A request whose client is unknown is in no network. This includes requests that count for
    /// the proxy, because otherwise, a network that contains the proxy would let them pass without
    /// a limit.
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    /// use tollgate::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let client = ClientIp::behind(["10.0.1.0/24"])?;
    /// let quota = Quota::per_minute(100);
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", quota, client.clone())?
    ///     .skip(client.is_in(["10.0.0.0/8"])?);
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn is_in(
        &self,
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<impl Fn(&Parts) -> bool + Clone + Send + Sync + 'static, ConfigError> {
        let client = self.clone();
        let networks = networks.try_into().map_err(Into::into)?;
        Ok(move |parts: &Parts| match client.find(parts) {
            Ok(Ok(address)) => networks.contains(address),
            Ok(Err(_)) | Err(_) => false,
        })
    }

    /// A predicate for the requests of clients that are in these networks, or may be, for
    /// [`forbid`](crate::RateLimitLayer::forbid).
    ///
    /// It also matches a request that would be rejected for its unknown client. So no client leaves
    /// a forbidden network by making its address unknown. It does not match a request that counts
    /// for the proxy, such as a health check.
    ///
    /// ```
    /// use tollgate::key::{ClientIp, Networks};
    /// use tollgate::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let client = ClientIp::behind(["10.0.1.0/24"])?;
    /// let forbidden = Networks::new(["198.51.100.0/24"])?;
    /// let quota = Quota::per_minute(100);
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", quota, client.clone())?
    ///     .forbid(client.may_be_in(&forbidden)?);
    /// // While your service runs:
    /// forbidden.replace(["198.51.100.0/24", "203.0.113.7"])?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn may_be_in(
        &self,
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<impl Fn(&Parts) -> bool + Clone + Send + Sync + 'static, ConfigError> {
        let client = self.clone();
        let networks = networks.try_into().map_err(Into::into)?;
        Ok(move |parts: &Parts| match client.find(parts) {
            Ok(Ok(address)) => networks.contains(address),
            Ok(Err(problem)) => !client.uses_peer(problem),
            Err(_) => true,
        })
    }

    /// Reports that a request counts for the proxy.
    fn report(&self, problem: ForwardingProblem, proxy: IpAddr) {
        let events = &self.events;
        let header = &self.header;
        let is_first = |reported: &AtomicBool| !reported.swap(true, Ordering::Relaxed);
        match problem {
            ForwardingProblem::Missing if is_first(&events.reported_missing) => {
                telemetry::missing_client_address(proxy, header);
            }
            ForwardingProblem::AllTrusted if is_first(&events.reported_all_trusted) => {
                telemetry::only_trusted_addresses(proxy, header);
            }
            ForwardingProblem::Missing | ForwardingProblem::AllTrusted => {}
            _ => {
                telemetry::invalid_client_address(&events.invalid, proxy, header, &problem);
            }
        }
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        self.network(parts).map(Key::from)
    }
}

impl fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIp")
            .field("trust", &self.trust)
            .field("header", &self.header)
            .field("ipv4_prefix", &self.ipv4_prefix)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .field("uses_peer_if_missing", &self.uses_peer_if_missing)
            .field("uses_peer_if_invalid", &self.uses_peer_if_invalid)
            .finish_non_exhaustive()
    }
}
