//! The remaining budgets of a request, under the limits of a layer.

use std::future::poll_fn;

use http::request::Parts;

use super::RateLimitLayer;
use crate::http::policy::Question;
use crate::http::request_checks::{RejectedEarly, RequestChecks};
use crate::model::{Error, Usage};

/// # Remaining budgets
impl RateLimitLayer {
    /// Returns what is left under each limit that would apply to a request, for its key and its
    /// plan, in one call to the store and without a charge.
    ///
    /// It also handles limits that are chosen by a plan, and blocked keys, which a peek in your
    /// code easily misses.
    ///
    /// ```
    /// use axum::http::{StatusCode, request::Parts};
    /// use axum::{Json, Router, extract::State, routing::get};
    /// use tollgate::decision::Usage;
    /// use tollgate::key::PeerIp;
    /// use tollgate::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// async fn my_limits(
    ///     State(layer): State<RateLimitLayer>,
    ///     request: Parts,
    /// ) -> Result<Json<Vec<Usage>>, StatusCode> {
    ///     let usage = layer.usage(&request).await;
    ///     usage.map(Json).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
    /// }
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_minute(60), PeerIp)?;
    /// let app: Router = Router::new()
    ///     .route("/search", get(|| async { "found" }))
    ///     .layer(layer.clone())
    ///     // After the layer, so that the page itself is not charged.
    ///     .route("/me/limits", get(my_limits))
    ///     .with_state(layer);
    /// # let _ = app;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A limit of a [configuration](Self::from_config) that does not match the route of the request
    /// is left out. If you want all of them, use `config::LimitSet::usage`. Concurrency limits are
    /// left out. While the store is unavailable, limits that fail open are also left out. A request
    /// that the layer skips, or rejects before it asks the store, has no limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide. It [is misuse](Error::is_misuse) if the
    /// limits that you chose for the request [are not a
    /// group](crate::store::Group::new).
    pub async fn usage(&self, request: &Parts) -> Result<Vec<Usage>, Error> {
        let policy = self.limiter.policy.uncounted();
        let limiter = &self.limiter.rate_limiter;
        let asked = match policy.question(limiter, request) {
            Ok(Question::One { keyed, key, cost }) => Ok(keyed.check(key, cost).into()),
            Ok(Question::Checks(asked)) => Ok(asked),
            Ok(Question::Pending(mut pending)) => {
                poll_fn(|cx| policy.poll_pending(limiter, &mut pending, request, cx)).await
            }
            Err(rejected) => Err(rejected),
        };
        match asked {
            Ok(RequestChecks {
                group: Some(group), ..
            }) => limiter.usage(group).await,
            Ok(RequestChecks { group: None, .. }) => Ok(Vec::new()),
            Err(RejectedEarly::Misconfigured(error)) => Err(error),
            Err(_) => Ok(Vec::new()),
        }
    }
}
