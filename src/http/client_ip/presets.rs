//! Settings for the proxies and platforms that are used most.

use super::{ClientIp, Networks};
use crate::units::ConfigError;

/// The networks are those from which the proxy connects to this service. The crate contains no
/// vendor's list, because lists change. See [`Networks::from_file`].
impl ClientIp {
    /// Behind nginx with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;`, which
    /// appends the address of its peer.
    ///
    /// With `proxy_set_header X-Real-IP $remote_addr;` alone, use [`behind`](Self::behind) and
    /// [`header("X-Real-IP")`](Self::header), because `$remote_addr` overwrites what the client
    /// sent.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn nginx(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind HAProxy with `option forwardfor`, which adds a line of `X-Forwarded-For` at the end.
    ///
    /// With `option forwarded` (HAProxy 2.8 and later), add [`forwarded`](Self::forwarded). Do not
    /// use `forwardfor if-none`, because it keeps a header that the client sent.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn haproxy(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind Envoy with `use_remote_address: true`, which appends the address of its peer to
    /// `X-Forwarded-For`.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn envoy(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind a Kubernetes ingress, which writes `X-Forwarded-For`. Pass the networks of the
    /// ingress controller's pods, or of its nodes with `hostNetwork`. If that is the network of all
    /// pods, every pod can choose its address, so restrict access to your service with a network
    /// policy.
    ///
    /// The ingress sees clients only if its own service keeps their addresses, with
    /// `externalTrafficPolicy: Local`, or with the PROXY protocol from the load balancer. In
    /// ingress-nginx, leave `use-forwarded-headers` off, or set `proxy-real-ip-cidr` to the load
    /// balancer. Its default then accepts the header of every client.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn kubernetes_ingress(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind an AWS Application Load Balancer in its default mode `append`. The networks are the
    /// load balancer's subnets. Client ports in the header are accepted.
    ///
    /// In the mode `preserve`, the load balancer does not write the header, and clients choose it.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn aws_alb(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind CloudFront: `CloudFront-Viewer-Address`, if the origin request policy adds it. The
    /// networks are CloudFront's, which AWS publishes as `CLOUDFRONT_ORIGIN_FACING`.
    ///
    /// All customers of CloudFront share these networks. Accept only your own distribution, by a
    /// secret header that it adds and your service verifies.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn cloudfront(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)?.header("cloudfront-viewer-address")
    }

    /// Behind Cloudflare: `CF-Connecting-IP`, which Cloudflare overwrites. The networks are
    /// Cloudflare's, which it publishes at `https://www.cloudflare.com/ips/`, as two lists, for
    /// IPv4 and for IPv6.
    ///
    /// All customers of Cloudflare share these networks. Accept only your own zone, by
    /// Authenticated Origin Pulls or a tunnel. Do not use `X-Forwarded-For` here, because another
    /// customer's Worker can send any. With a proxy of your own between Cloudflare and your
    /// service, let that proxy take the client from `CF-Connecting-IP`, if the request comes from
    /// Cloudflare, and send it as `X-Real-IP`.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn cloudflare(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)?.header("cf-connecting-ip")
    }

    /// Behind Fly.io's proxy: `Fly-Client-IP`. The networks are those from which the proxy
    /// connects. Fly.io publishes no list, so log the peer's address of a few requests.
    ///
    /// With another proxy before Fly.io's, `Fly-Client-IP` is the address of that proxy. Use
    /// [`behind`](Self::behind) with the networks of both, and with the addresses that Fly.io
    /// assigned to your app (`fly ips list`): Fly.io also appends them to `X-Forwarded-For`.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid.
    pub fn fly(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)?.header("fly-client-ip")
    }
}
