//! The layer and its settings.

mod constructors;
mod headers;
mod in_flight;
mod settling;
mod shadow;
mod waiting;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tower_layer::Layer;

use super::policy::{KeyedLimit, LayerRule};
use super::settings::LayerSettings;
use super::{BodyFormat, KeyExtractor, OnMissingKey, OnOverload, RateLimit, Rejection};
use crate::nouns::{ConfigError, Limit, OnStoreFailure};

/// Limits a service: takes a key from each request, asks the limiter, and forwards the request or
/// answers 429.
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::key::PeerIp;
/// use tollgate::{Quota, RateLimitLayer, RateLimiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_memory();
/// let app: Router = Router::new()
///     .route("/search", get(|| async { "found" }))
///     .layer(
///         RateLimitLayer::token_bucket(&limiter, "search", Quota::per_second(10).burst(20), PeerIp)?,
///     );
/// # Ok(())
/// # }
/// ```
///
/// # The path of a request
///
/// 1. A request that a [`forbid`](Self::forbid) predicate matches is answered with 403. One that a
///    [`skip`](Self::skip) predicate matches is not limited. Nor are CORS preflight requests, unless
///    [`limit_preflight`](Self::limit_preflight) is set.
/// 2. The key is extracted. There is no default: a layer cannot be built without a key. A request
///    without a key is rejected with 400, unless [`on_missing_key`](Self::on_missing_key) is set.
///    If the layer has [concurrency limits](Limit::concurrency), the request
///    acquires its permits then, and holds them until the body of its response ends.
/// 3. All limits of the layer are decided in one call: all are charged, or none.
/// 4. A denied request is answered with 429, `Retry-After` in whole seconds, rounded up, at least 1,
///    `Cache-Control: no-store`, and a line of text. A request whose [cost](Self::cost) is above the
///    capacity is answered with 422, and no `Retry-After` or reset: no wait helps.
///    [`respond_with`](Self::respond_with) changes these and all other responses of the layer.
/// 5. An allowed request waits out a leaky bucket's delay, and is forwarded. A request that waits,
///    for a decision or for its delay, does not hold the inner service ready: it waits for the
///    service again afterwards. A decision that needs no wait uses the service that is ready.
///    Dropping the response future cancels the wait.
/// 6. Both responses carry `X-RateLimit-Limit`, `X-RateLimit-Remaining` and
///    [`X-RateLimit-Reset`](Self::reset_format), and the [`RateLimit` fields](Self::ietf_headers) if
///    they are set. [`report_on`](Self::report_on) restricts that. Fields of the inner service stay
///    where they are stricter or cannot be compared, and lists are added to. A response with status
///    304 or 101, and that of an allowed `CONNECT`, has none. The response to a denied request has the
///    [`Decision`](crate::Decision) in its extensions, for layers outside. For allowed requests,
///    see [`insert_decision`](Self::insert_decision).
/// 7. When the store is unavailable, the request is forwarded without rate limit headers, or answered with 503,
///    or limited in this process: see [`on_store_failure`](Self::on_store_failure). An event reports it.
///
/// # Several layers
///
/// Layers share a budget only if they use the same limiter (or Redis and prefix), the same limit
/// name, and the same key. Stacked layers are decided one after another, the outer one first. A
/// charge of the outer layer stays charged if the inner layer denies. To charge all or none, put
/// the limits into [one layer](Self::limit).
///
/// If two of them share a budget, a request charges it twice.
///
/// Of stacked layers, the headers report a budget that is used up, or else the one with the fewest units
/// left. Give the layers the same settings for headers: fields of different kinds are not compared. The
/// headers of a denial are of the layer that denied. Its `Retry-After` is not before the time when the layers
/// outside allow the request, too. So is that of a 429 or 503 of your service. There are three exceptions:
///
/// - The layers inside of one that denied were not asked, and may deny the next request.
/// - When a sliding window or a log outside allows the next request is not known.
/// - A layer between the two that drops the request's extensions keeps the inner one from knowing.
///
/// One layer with several limits has none of them.
///
/// The decision in the extensions is the strictest of the layers with
/// [`insert_decision`](Self::insert_decision), and of equals that of the outer layer. With stacked layers it
/// has the receipt of that one layer only. To refund all charges of a request, put its limits into one layer.
///
/// Put the layer inside a CORS layer, so that its responses carry the CORS headers, and let that
/// layer expose [its headers](Self::exposed_headers). Put it inside authentication if the key is a
/// user. The headers belong to one client: a response that a shared cache may keep should not carry
/// them.
///
/// The layer needs a tokio runtime with time enabled.
#[derive(Clone)]
pub struct RateLimitLayer {
    settings: Arc<LayerSettings>,
}

/// # ChosenLimits, costs, rejections and failures
impl RateLimitLayer {
    /// Adds a limit, under a key of its own. A request costs 1 unit, or the [cost](Self::cost) of the layer. All limits of the
    /// layer are decided in one call: all are charged, or none is.
    ///
    /// ```
    /// use tollgate::key::{Header, PeerIp};
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let tenant = Header::new("x-tenant")?;
    /// let daily = Limit::fixed_window_aligned("tenant", Quota::per_day(10_000))?;
    /// let layer = RateLimitLayer::token_bucket(&limiter, "client", Quota::per_second(10), PeerIp)?
    ///     .limit(daily, tenant.clone())?
    ///     .limit(Limit::concurrency("exports", 3)?, tenant)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Under a [concurrency limit](Limit::concurrency), a request holds a permit until its response body ends: a stream of
    /// events counts for as long as it is sent. See [`insert_permits`](Self::insert_permits) for upgraded connections. A
    /// request acquires its permits first, that of the smallest limit before others, and then is charged. So a request
    /// without a permit is charged under no limit, and one that a rate denies gives its permits back. A request without a
    /// permit is answered 429. With [`wait_up_to`](Self::wait_up_to) it waits for its permits, and after that for its units,
    /// until one deadline.
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has a limit of this name or 255 limits already, or like all constructors.
    pub fn limit(self, limit: Limit, key: impl KeyExtractor) -> Result<Self, ConfigError> {
        self.with_rule(LayerRule::Fixed(KeyedLimit::new(limit, key, None)))
    }

    /// Adds a limit, under a key and with a cost of its own: one request under one limit can be 800
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
    /// let layer = RateLimitLayer::new(&limiter, requests, user.clone())?
    ///     .limit_with_cost(Limit::token_bucket("tokens", Quota::per_minute(40_000))?, user, tokens)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error like [`limit`](Self::limit), and for a [concurrency limit](Limit::concurrency): a request holds one
    /// permit.
    pub fn limit_with_cost(
        self,
        limit: Limit,
        key: impl KeyExtractor,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        if limit.is_concurrency() {
            return Err(ConfigError::new(
                "a request holds one permit of a concurrency limit, whatever it costs; add it with `.limit(...)`",
            )
            .of_limit(limit.name()));
        }
        self.with_rule(LayerRule::Fixed(KeyedLimit::new(
            limit,
            key,
            Some(Arc::new(cost)),
        )))
    }

    fn with(mut self, set: impl FnOnce(&mut LayerSettings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets the cost of a request, in units. Default: 1. A request of cost 0 is always allowed.
    ///
    /// It applies to each limit of the layer without a
    /// [cost of its own](Self::limit_with_cost).
    ///
    /// A request that carries several operations, such as a GraphQL query or a batch, can cost as many.
    /// Bound the cost: `cost` reads what a client sent. The whole path of a request is its
    /// [`original_path`](crate::layer::original_path).
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.policy.cost = Some(Arc::new(cost)))
    }

    /// Adds a predicate for requests that are not limited, such as health checks. A request is skipped if
    /// one of them matches. Default: CORS preflight requests only.
    ///
    /// In a nested router, `parts.uri` has the rest of the path. [`original_path`](crate::layer::original_path) has the
    /// whole, as limits in files do:
    ///
    /// ```
    /// # use tollgate::key::Global;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use tollgate::layer::original_path;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// # let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(10), Global)?;
    /// let layer = layer.skip(|parts| original_path(parts) == "/api/health");
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn skip(self, predicate: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.policy.skip.push(Arc::new(predicate)))
    }

    /// Adds a predicate for requests that are answered with 403, such as those from
    /// [forbidden networks](crate::key::ClientIp::may_be_in). They consume nothing, and the store is not
    /// asked. A request that a `skip` predicate matches, too, is forbidden. Default: none. The whole path of a request is its
    /// [`original_path`](crate::layer::original_path).
    #[must_use]
    pub fn forbid(self, predicate: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.policy.forbid.push(Arc::new(predicate)))
    }

    /// Limits CORS preflight requests, too.
    ///
    /// A preflight request is an `OPTIONS` request with two headers that any client can send. By
    /// default it is not limited, because a browser sends it unasked and a CORS layer answers it. If
    /// the service itself does costly work for `OPTIONS` (a catch-all handler, a proxy), limit it.
    /// Behind a CORS layer this changes nothing: no preflight request gets here.
    #[must_use]
    pub fn limit_preflight(self) -> Self {
        self.with(|settings| settings.policy.limits_preflight = true)
    }

    /// Sets the outcome of a request without a key. Default: rejected with 400. To try another key
    /// instead, use [`KeyExtractor::or`](crate::key::KeyExtractor::or).
    ///
    /// # Errors
    ///
    /// Returns an error if the status is not one of an error: 400 to 599.
    pub fn on_missing_key(self, outcome: OnMissingKey) -> Result<Self, ConfigError> {
        match outcome {
            OnMissingKey::Reject(status) if !(400..600).contains(&status.as_u16()) => {
                Err(ConfigError::new(format!(
                    "`OnMissingKey::Reject` has the status {}; use 400 to 599",
                    status.as_u16()
                )))
            }
            _ => Ok(self.with(|settings| settings.policy.on_missing_key = outcome)),
        }
    }

    /// Sets the outcome of a request when the store [is unavailable](crate::Error::is_unavailable), for the limits
    /// without [one of their own](Limit::with_on_store_failure). Default: fail open. Of several limits, the strictest
    /// outcome decides.
    ///
    /// A denial that is still in force stands all the same: a `RedisStore` [remembers](crate::store::RedisStoreBuilder::deny_for)
    /// it. A store that is [full](crate::Error::is_full) always fails closed: clients send more keys than it may keep.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use tollgate::layer::OnStoreFailure;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(30), PeerIp)?
    ///     // While Redis is away, each of the three replicas allows 10 a second.
    ///     .on_store_failure(OnStoreFailure::Local { replicas: 3 })?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the number of replicas is out of its range, or if the share of one cannot be decided.
    pub fn on_store_failure(mut self, outcome: OnStoreFailure) -> Result<Self, ConfigError> {
        let settings = Arc::make_mut(&mut self.settings);
        settings.policy.set_on_store_failure(outcome)?;
        Ok(self)
    }

    /// Sets the outcome of a request when the store [is overloaded](crate::Error::is_overloaded):
    /// more checks wait for an answer than it was built for. Default: fail closed. A flood of
    /// requests is no outage. To fail open would open the limit to the flood.
    #[must_use]
    pub fn on_overload(self, outcome: OnOverload) -> Self {
        self.with(|settings| settings.on_overload = outcome)
    }

    /// Sets the format of the body of rejected requests. Default: a line of plain text. JSON, problem
    /// details and a choice by `Accept` need the feature `json`.
    #[must_use]
    pub fn body_format(self, format: BodyFormat) -> Self {
        self.with(|settings| settings.responder.format = format)
    }

    /// Answers gRPC calls as all other requests: with an HTTP status and a body. Default: with HTTP 200 and a
    /// gRPC status, if the request is a `POST` with the content type `application/grpc`.
    ///
    /// gRPC clients do not read an HTTP status. Use it for a service without gRPC, if something in front of it
    /// counts rejected requests by their HTTP status: any client can send that content type.
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn without_grpc_status(self) -> Self {
        self.with(|settings| settings.responder.ignores_grpc = true)
    }

    /// Sets the function that answers all requests that the layer rejects.
    ///
    /// It gets the [`Rejection`]: the [reason](Rejection::reason), the limit, the decision if there
    /// is one, and the request's head. It also gets the default response, whose status, rate limit
    /// headers and `Retry-After` are set. The response that it returns is sent as it is, without its body
    /// if the request is a `HEAD`. Its body is anything that converts into `Bytes`: serialize JSON
    /// yourself, or see [`body_format`](Self::body_format).
    /// A gRPC call (feature `grpc`) gets a response without a body, with status 200 and `grpc-status`:
    /// return that as it is.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use http::{HeaderValue, StatusCode, header};
    /// use tollgate::layer::Reason;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::gcra(&limiter, "api", Quota::per_second(5), PeerIp)?
    ///     .respond_with(|rejection, mut response| {
    ///         if rejection.reason() == Reason::MissingKey {
    ///             *response.status_mut() = StatusCode::UNAUTHORIZED;
    ///         }
    ///         let json = HeaderValue::from_static("application/json");
    ///         response.headers_mut().insert(header::CONTENT_TYPE, json);
    ///         response.map(|_text| format!(r#"{{"error":"{:?}"}}"#, rejection.reason()))
    ///     });
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn respond_with<T: Into<Bytes>>(
        self,
        respond: impl Fn(&Rejection<'_>, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| {
            settings.responder.custom = Some(Arc::new(move |rejection, response| {
                respond(rejection, response).map(Into::into)
            }));
        })
    }

    /// Puts the [`Decision`](crate::Decision) of an allowed request into the request's extensions,
    /// for the handler, and into the response's, for layers outside. Default: off. It costs two
    /// allocations for each map that is empty otherwise.
    #[must_use]
    pub fn insert_decision(self) -> Self {
        self.with(|settings| settings.inserts_decision = true)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.settings))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limits", &self.settings.names)
            .field("on_missing_key", &self.settings.policy.on_missing_key)
            .field("on_overload", &self.settings.on_overload)
            .finish_non_exhaustive()
    }
}
