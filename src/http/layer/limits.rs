//! The limits of a layer, and what a request costs under them.

use std::sync::Arc;

use http::request::Parts;

use super::RateLimitLayer;
use crate::http::KeyExtractor;
use crate::http::policy::KeyedLimit;
use crate::model::Limit;
use crate::units::ConfigError;

/// # Limits and costs
impl RateLimitLayer {
    /// Adds a limit, under a key of its own. A request costs 1 unit, or the [cost](Self::cost) of
    /// the layer. All limits of the layer are decided in one call. All are charged, or none is.
    ///
    /// You can pass a [`Limit`], or what its constructors return.
    ///
    /// ```
    /// use tollgate::key::{Header, PeerIp};
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let tenant = Header::new("x-tenant")?;
    /// let daily = Limit::fixed_window_aligned("tenant", Quota::per_day(10_000));
    /// let layer = RateLimitLayer::token_bucket(&limiter, "client", Quota::per_second(10), PeerIp)?
    ///     .limit(daily, tenant.clone())?
    ///     .limit(Limit::concurrency("exports", 3), tenant)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Under a [concurrency limit](Limit::concurrency), a request holds a permit until its response
    /// body ends, so a stream of events counts for as long as it is sent. See
    /// [`insert_permits`](Self::insert_permits) for upgraded connections. A request first acquires
    /// its permits, the permit of the smallest limit before the others, and then is charged. So a
    /// request without a permit is charged under no limit, and one that a rate denies gives its
    /// permits back. A request without a permit is answered 429. With
    /// [`wait_up_to`](Self::wait_up_to) it waits for its permits, and after that for its units,
    /// until one deadline.
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has a limit of this name or 255 limits already, or like all
    /// constructors.
    pub fn limit(
        self,
        limit: impl TryInto<Limit, Error: Into<ConfigError>>,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        let limit = limit.try_into().map_err(Into::into)?;
        self.with_limit(KeyedLimit::new(limit, key, None))
    }

    /// Adds a limit, under a key and with a cost of its own. One request under one limit can be 800
    /// tokens under another, in one check.
    ///
    /// The headers report the limit that allows the fewest further requests of the same cost. The
    /// [verdicts](crate::Decision::verdicts) have every limit.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::key::Header;
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// /// The estimate of a gateway, capped.
    /// fn tokens(request: &Parts) -> u32 {
    ///     let estimate = request.headers.get("x-estimated-tokens");
    ///     let estimate = estimate.and_then(|it| it.to_str().ok()?.parse().ok());
    ///     estimate.unwrap_or(500).clamp(1, 4_000)
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let user = Header::new("x-user")?;
    /// let requests = Limit::token_bucket("requests", Quota::per_minute(60))?;
    /// let used = Limit::token_bucket("tokens", Quota::per_minute(40_000))?;
    /// let layer = RateLimitLayer::new(&limiter, requests, user.clone())?
    ///     .limit_with_cost(used, user, tokens)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error like [`limit`](Self::limit), and for a [concurrency
    /// limit](Limit::concurrency), because a request holds one permit.
    pub fn limit_with_cost(
        self,
        limit: impl TryInto<Limit, Error: Into<ConfigError>>,
        key: impl KeyExtractor,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        let limit = limit.try_into().map_err(Into::into)?;
        if limit.is_concurrency() {
            return Err(ConfigError::new(
                "a request holds one permit of a concurrency limit, whatever it costs; add it with \
                 `.limit(...)`",
            )
            .of_limit(limit.name()));
        }
        self.with_limit(KeyedLimit::new(limit, key, Some(Arc::new(cost))))
    }

    /// Sets the cost of a request, in units. Default: 1. A request of cost 0 is always allowed.
    ///
    /// It applies to each limit of the layer without a
    /// [cost of its own](Self::limit_with_cost).
    ///
    /// A request that carries several operations can cost as many, for example a GraphQL query or a
    /// batch. Bound the cost, because you read what a client sent. The whole path of a request
    /// is its [`original_path`](crate::layer::original_path).
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|limiter| limiter.policy.cost = Some(Arc::new(cost)))
    }
}
