//! The settings of a [`ClientIp`].

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderName;
use http::header::FORWARDED;
use http::request::Parts;

use super::chain::{MAX_ENTRIES, X_FORWARDED_FOR, is_list};
use super::network::{IPV4_PREFIX, IPV6_PREFIX, in_range};
use super::trust::Trust;
use super::{ClientIp, Networks};
use crate::units::ConfigError;

impl ClientIp {
    /// Behind proxies in these networks, which append to `X-Forwarded-For`.
    ///
    /// Trust the addresses from which your proxies connect, and no network in which clients are,
    /// because a client in a trusted network can choose its address. The proxies must write the
    /// header themselves. See the [guide](crate::guide::behind_a_proxy). The networks can be
    /// [replaced](Networks::replace) while your service runs. Without networks, no peer is trusted.
    ///
    /// # Errors
    ///
    /// Returns an error if a [network](Networks::new) is invalid.
    #[doc(alias = "trusted_proxies")]
    pub fn behind(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        let networks = networks.try_into().map_err(Into::into)?;
        Ok(Self::new(Trust::Networks(networks)))
    }

    /// Behind `hops` proxies, 1 to 32, whatever their addresses. The client is the n-th address of
    /// `X-Forwarded-For` from the right.
    ///
    /// **Every request must come through all these proxies.** A client that reaches your service
    /// with fewer hops chooses its own address. If you know the addresses of the proxies, use
    /// [`behind`](Self::behind). Behind an Envoy with `use_remote_address` and
    /// `xff_num_trusted_hops`, pass that number plus one, for the Envoy itself.
    ///
    /// A request with fewer addresses has no key, unless
    /// [`use_peer_if_missing`](Self::use_peer_if_missing) is set.
    ///
    /// # Errors
    ///
    /// Returns an error if `hops` is out of range.
    pub fn behind_hops(hops: usize) -> Result<Self, ConfigError> {
        const MOST: usize = 32;
        const { assert!(MOST < MAX_ENTRIES) }
        if !(1..=MOST).contains(&hops) {
            return Err(ConfigError::new(format!(
                "`hops` is {hops}; use 1 to {MOST}"
            )));
        }
        let client = Self::new(Trust::Hops(hops));
        Ok(client.reject_if_missing())
    }

    /// Without a proxy. The peer is the client, and headers are ignored.
    ///
    /// This is [`PeerIp`](crate::key::PeerIp) with settings. [`forwarded`](Self::forwarded) and
    /// [`header`](Self::header) have no effect, because no peer is trusted.
    #[must_use]
    pub fn direct() -> Self {
        Self::new(Trust::Networks(Networks::default()))
    }

    fn new(trust: Trust) -> Self {
        Self {
            trust,
            header: X_FORWARDED_FOR,
            ipv4_prefix: IPV4_PREFIX,
            ipv6_prefix: IPV6_PREFIX,
            uses_peer_if_missing: true,
            uses_peer_if_invalid: false,
            peer_from: None,
            events: Arc::default(),
        }
    }

    /// Reads `Forwarded` (RFC 7239) in place of `X-Forwarded-For` or another header: the `for`
    /// parameters of its elements, by the same rules. An element without one is invalid, and so is
    /// a line that does not follow the grammar.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.header = FORWARDED;
        self
    }

    /// Reads a header with one address, such as `X-Real-IP`, in place of `X-Forwarded-For`.
    ///
    /// The peer itself must set this header, and overwrite what the client sent. Otherwise the
    /// client chooses its address. An empty header, and one that is sent more than once, are
    /// invalid. `CloudFront-Viewer-Address` has a port, which is ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a header name, is `X-Forwarded-For` or `Forwarded`, or if
    /// the trust is by [hops](Self::behind_hops).
    pub fn header(mut self, name: &str) -> Result<Self, ConfigError> {
        let name: HeaderName = name.parse().map_err(|error| {
            ConfigError::new(format!(
                "`{}` is not a header name ({error}); use a name such as `x-real-ip`",
                name.escape_debug()
            ))
        })?;
        if is_list(&name) {
            return Err(ConfigError::new(format!(
                "`{name}` is a list of addresses, of which clients can send the first; use \
                 `ClientIp::behind` without `header`, or with `forwarded`"
            )));
        }
        if let Trust::Hops(_) = self.trust {
            return Err(ConfigError::new(format!(
                "`{name}` has one address, and hops count the addresses of a list; name the \
                 proxy's networks with `ClientIp::behind`"
            )));
        }
        self.header = name;
        Ok(self)
    }

    /// Counts IPv6 clients by the first `bits` of their addresses. Range: 32 to 128. Default: 64.
    ///
    /// A provider that gives each customer a /56 or a /48 gives it 256 or 65,536 networks of 64
    /// bits.
    ///
    /// # Errors
    ///
    /// Returns an error if `bits` is out of range.
    pub fn ipv6_prefix(mut self, bits: u8) -> Result<Self, ConfigError> {
        self.ipv6_prefix = in_range("ipv6_prefix", bits, 32..=128)?;
        Ok(self)
    }

    /// Counts IPv4 clients by the first `bits` of their addresses. Range: 8 to 32. Default: 32.
    ///
    /// # Errors
    ///
    /// Returns an error if `bits` is out of range.
    pub fn ipv4_prefix(mut self, bits: u8) -> Result<Self, ConfigError> {
        self.ipv4_prefix = in_range("ipv4_prefix", bits, 8..=32)?;
        Ok(self)
    }

    /// Rejects a request if a trusted proxy sends no header with it, or too few addresses for the
    /// number of hops. Default with hops. Without hops, the default is
    /// [`use_peer_if_missing`](Self::use_peer_if_missing).
    ///
    /// A proxy sends no header with its own requests, such as health checks. Some proxies also
    /// remove the header if the client lists it in `Connection`.
    /// [`OnMissingKey::SkipLimit`](crate::layer::OnMissingKey::SkipLimit) does not skip an enforced
    /// limit for such a request.
    #[must_use]
    pub fn reject_if_missing(mut self) -> Self {
        self.uses_peer_if_missing = false;
        self
    }

    /// If a trusted proxy sends no header, or too few addresses for the number of hops, the request
    /// counts for that proxy. All such requests share the proxy's budget. Default, except with
    /// hops.
    #[must_use]
    pub fn use_peer_if_missing(mut self) -> Self {
        self.uses_peer_if_missing = true;
        self
    }

    /// If the entry that names the client is not an address, or the header of a trusted proxy is
    /// too long, the request counts for that proxy. All such requests share the proxy's budget.
    /// Default: the request is rejected, and an event says why.
    #[must_use]
    pub fn use_peer_if_invalid(mut self) -> Self {
        self.uses_peer_if_invalid = true;
        self
    }

    /// Sets where the peer's address comes from. Default: the server's connect info, as for
    /// [`PeerIp`](crate::key::PeerIp).
    ///
    /// Use it behind a listener that speaks the PROXY protocol and puts the address that it
    /// received into the request's extensions. See `examples/proxy_protocol.rs`.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use http::request::Parts;
    /// use tollgate::key::ClientIp;
    ///
    /// #[derive(Clone)]
    /// struct Source(IpAddr);
    ///
    /// let client = ClientIp::direct()
    ///     .peer_from(|parts: &Parts| parts.extensions.get::<Source>().map(|source| source.0));
    /// # let _ = client;
    /// ```
    #[must_use]
    pub fn peer_from(
        mut self,
        peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.peer_from = Some(Arc::new(peer));
        self
    }
}
