//! What to trust behind the proxies and platforms that are used most.

use super::{ClientIp, Networks};
use crate::nouns::ConfigError;

/// The networks are those from which the proxy connects to this service. The crate contains no vendor's
/// list, because lists change: see [`Networks::from_file`].
impl ClientIp {
    /// Behind nginx with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;`, which appends
    /// the address of its peer.
    ///
    /// With `proxy_set_header X-Real-IP $remote_addr;` alone, use [`behind`](Self::behind) and
    /// [`header("X-Real-IP")`](Self::header): `$remote_addr` overwrites what the client sent.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid. So do all presets.
    pub fn nginx(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind HAProxy with `option forwardfor`, which adds a line of `X-Forwarded-For` at the end.
    ///
    /// With `option forwarded`, add [`forwarded`](Self::forwarded). Do not use `forwardfor if-none`:
    /// it keeps a header that the client sent.
    pub fn haproxy(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind Envoy with `use_remote_address: true`, which appends the address of its peer to
    /// `X-Forwarded-For`.
    pub fn envoy(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind a Kubernetes ingress, which writes `X-Forwarded-For`. The networks are those of the
    /// ingress controller's pods.
    ///
    /// The ingress sees clients only if its own service keeps their addresses: with
    /// `externalTrafficPolicy: Local`, or with the PROXY protocol from the load balancer.
    pub fn kubernetes_ingress(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind an AWS Application Load Balancer in its default mode `append`. The networks are the
    /// load balancer's subnets. Client ports in the header are accepted.
    ///
    /// In the mode `preserve`, the load balancer does not write the header, and clients choose it.
    pub fn aws_alb(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)
    }

    /// Behind CloudFront: `CloudFront-Viewer-Address`, if the origin request policy adds it. The
    /// networks are CloudFront's, which AWS publishes as `CLOUDFRONT_ORIGIN_FACING`.
    ///
    /// With a load balancer between CloudFront and the service, use [`behind`](Self::behind) with the
    /// networks of both.
    pub fn cloudfront(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)?.header("cloudfront-viewer-address")
    }

    /// Behind Cloudflare: `CF-Connecting-IP`, which Cloudflare overwrites. The networks are
    /// Cloudflare's, which it publishes at `https://www.cloudflare.com/ips/`.
    ///
    /// With a proxy of your own between Cloudflare and the service, use [`behind`](Self::behind) with
    /// the networks of both. `CF-Connecting-IP` would count for a client that reaches your proxy
    /// without Cloudflare.
    pub fn cloudflare(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)?.header("cf-connecting-ip")
    }

    /// Behind Fly.io's proxy: `Fly-Client-IP`. The networks are those from which the proxy connects.
    ///
    /// With another proxy before Fly.io's, `Fly-Client-IP` is the address of that proxy. Use
    /// [`behind`](Self::behind) with the networks of both.
    pub fn fly(
        networks: impl TryInto<Networks, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(networks)?.header("fly-client-ip")
    }
}
