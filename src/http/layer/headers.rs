//! The layer's settings for response headers.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::RateLimitLayer;
use crate::http::IetfDraft;
use crate::http::headers::ReportOn;
use crate::http::responder::STATUS_HEADERS;
use crate::units::ConfigError;

/// # Headers
impl RateLimitLayer {
    /// The names of the headers that this layer sends, for a CORS layer outside of it. They follow
    /// from the settings so far, so call this when the layer is complete. With the feature `grpc`,
    /// also the headers of a gRPC status, which gRPC-Web clients read. Without
    /// `Access-Control-Expose-Headers`, scripts in browsers do not see them.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use axum::{Router, routing::get};
    /// use tower_http::cors::{Any, CorsLayer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let limit = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_minute(100), PeerIp)?;
    /// let cors = CorsLayer::new().allow_origin(Any).expose_headers(limit.exposed_headers());
    /// // The CORS layer is added last, so it is outside, and denials also have its headers.
    /// let app: Router = Router::new()
    ///     .route("/", get(|| async { "hello" }))
    ///     .layer(limit)
    ///     .layer(cors);
    /// # let _ = app;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn exposed_headers(&self) -> Vec<HeaderName> {
        let mut names = self.limiter.headers.names();
        names.extend(STATUS_HEADERS);
        names
    }

    /// Sends `X-RateLimit-Reset` in seconds from now.
    ///
    /// Default: seconds since the Unix epoch, as GitHub and most others send them, by the store's
    /// clock. A denial that has them also has a `Date` by the clock of the store.
    pub fn reset_in_delta_seconds(self) -> Self {
        self.with(|limiter| limiter.headers.resets_in_delta_seconds = true)
    }

    /// Reports budgets on denials only. Default: on all responses. The headers of the other
    /// responses stay as they are.
    pub fn report_denials_only(self) -> Self {
        self.with(|limiter| limiter.headers.report_on = ReportOn::Denials)
    }

    /// Sends no budget headers. Headers of the inner service stay as they are. A denial that a wait
    /// can end still has `Retry-After`.
    pub fn report_nothing(self) -> Self {
        self.with(|limiter| limiter.headers.report_on = ReportOn::Nothing)
    }

    /// Also sends the `RateLimit` and `RateLimit-Policy` fields of an [IETF draft](IetfDraft). They
    /// are not a standard yet, so choose the revision that your clients read.
    ///
    /// `RateLimit-Policy` has every limit that was checked, with its capacity, and the seconds in
    /// which it is replenished. The fields cannot express a period below a second. Revisions 6 and
    /// 7 then leave the limit out, later ones only its period. `RateLimit` has the units that are
    /// left, and the seconds until the budget is full again. In a denial, it has the limits that
    /// denied, and the seconds until each allows the request. A revision with a single limit
    /// reports the deciding one. Numbers have at most 15 digits.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use tollgate::layer::IetfDraft;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// // RateLimit-Policy: "api";q=100;w=60
    /// // RateLimit: "api";r=99;t=1
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_minute(100), PeerIp)?
    ///     .ietf_headers(IetfDraft::Draft11);
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ietf_headers(self, draft: IetfDraft) -> Self {
        self.with(|limiter| limiter.headers.ietf = Some(draft))
    }

    /// Adds the parameter `pk` to the fields of [`IetfDraft::Draft11`]: it identifies the budget.
    /// It is the first 16 bytes of the HMAC-SHA256, under `secret`, of the limit's name, a zero
    /// byte and the key. So it does not disclose the key. All replicas need the same secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the secret has fewer than 16 bytes.
    pub fn partition_key(mut self, secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.limiter)
            .headers
            .set_digest_secret(secret.as_ref())?;
        Ok(self)
    }

    /// Sends no `X-RateLimit-*` headers, and no `X-RateLimit-Reset-After`.
    pub fn without_x_ratelimit(self) -> Self {
        self.with(|limiter| limiter.headers.sends_x_ratelimit = false)
    }

    /// Also sends `X-RateLimit-Reset-After`, the seconds until the budget is full again, with three
    /// decimals.
    pub fn reset_after_header(self) -> Self {
        self.with(|limiter| limiter.headers.sends_reset_after = true)
    }

    /// Also sends `X-RateLimit-Near-Limit` when a key is near a limit that
    /// [warns](crate::Limit::with_warn_at_percent): the names of these limits, as a list of strings
    /// (RFC 9651). If a limit in shadow mode is the deciding one, no header is sent.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let limit = Limit::token_bucket("api", Quota::per_minute(100))?.with_warn_at_percent(80)?;
    /// // X-RateLimit-Near-Limit: "api"
    /// let layer = RateLimitLayer::new(limiter, limit, PeerIp)?.near_limit_header();
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn near_limit_header(self) -> Self {
        self.with(|limiter| limiter.headers.sends_near_limit = true)
    }

    /// Adds a random 0 to `most` seconds to `Retry-After`, so that clients do not all return at
    /// once. Default: 0. Range: up to a day. Rounded up to whole seconds. The other headers agree
    /// with it.
    ///
    /// # Errors
    ///
    /// Returns an error if it is longer than a day.
    pub fn retry_after_jitter(mut self, most: Duration) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.limiter).headers.set_jitter(most)?;
        Ok(self)
    }
}
