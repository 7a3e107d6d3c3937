//! The layer's settings for costs that are known after the response.

use std::sync::Arc;

use http::response;

use super::RateLimitLayer;
use crate::http::settlement::Settled;
use crate::model::Limit;
use crate::units::ConfigError;

/// # Costs that are known later
impl RateLimitLayer {
    /// Puts a [`Settlement`](crate::layer::Settlement) into the request's extensions, with which
    /// the handler states the real cost. Default: off.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    /// use axum::{Router, routing::post};
    /// use tollgate::layer::Settlement;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// // 60 requests and 40,000 tokens a minute. An answer is estimated to use 500 tokens.
    /// let requests = Limit::token_bucket("requests", Quota::per_minute(60))?;
    /// let tokens = Limit::token_bucket("tokens", Quota::per_minute(40_000))?;
    /// let layer = RateLimitLayer::new(&limiter, requests, PeerIp)?
    ///     .limit_with_cost(tokens, PeerIp, |_| 500)?
    ///     .insert_settlement();
    /// let app: Router = Router::new()
    ///     .route("/chat", post(|settlement: Settlement| async move {
    ///         let _settled = settlement.settle("tokens", 812);
    ///         "an answer"
    ///     }))
    ///     .layer(layer);
    /// # let _ = app;
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_settlement(self) -> Self {
        self.with(|limiter| limiter.settlement.inserts = true)
    }

    /// Settles the cost under a limit of this layer by the head of the response, such as a header
    /// with the real cost. Default: none.
    ///
    /// `cost` returns the real cost in units. `None` keeps the charged cost. It is not called for a
    /// request that the layer rejects, or whose inner service fails without a response.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let quota = Quota::per_minute(1_000);
    /// let layer = RateLimitLayer::token_bucket(&limiter, "points", quota, PeerIp)?
    ///     .cost(|_| 10)
    ///     .settle_on_response("points", |response| {
    ///         response.headers.get("x-query-cost")?.to_str().ok()?.parse().ok()
    ///     })?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has no limit of this name. The names of limits that are chosen
    /// for each request are not known. A layer with such limits accepts any name, and an event
    /// reports one under which none of 100 requests was charged.
    pub fn settle_on_response(
        self,
        limit: impl Into<String>,
        cost: impl Fn(&response::Parts) -> Option<u32> + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        let limit: Arc<str> = limit.into().into();
        let policy = &self.limiter.policy;
        if !policy.chooses()
            && !policy
                .fixed_limits()
                .map(Limit::name)
                .any(|name| *name == *limit)
        {
            return Err(ConfigError::new(format!(
                "`settle_on_response` names the limit `{}`, and the layer has: {}; use one of them",
                limit.escape_debug(),
                self.limiter.names
            )));
        }
        Ok(self.with(|limiter| {
            limiter
                .settlement
                .on_response(move |response| match cost(response) {
                    Some(cost) => Settled::At(Arc::clone(&limit), cost),
                    None => Settled::Nothing,
                });
        }))
    }

    /// Gives back what this layer charged for a request if its response should be free, such as a
    /// 5xx, a 304 or a hit of a cache. Default: never.
    ///
    /// The predicate gets the head of the response. It is not called for a request whose inner
    /// service fails without a response. What the handler has [settled](crate::layer::Settlement)
    /// is not given back. The headers of the response report the budget before the refund.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::fixed_window(&limiter, "uploads", Quota::per_day(20), PeerIp)?
    ///     .refund_when(|response| response.status.is_server_error());
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn refund_when(
        self,
        is_free: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|limiter| {
            limiter
                .settlement
                .on_response(move |response| match is_free(response) {
                    true => Settled::Refunded,
                    false => Settled::Nothing,
                });
        })
    }
}
