//! The layer: how a service comes to be limited.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tower_layer::Layer;

use super::settings::{KeyedLimit, Settings};
use super::{KeyExtractor, OnMissingKey, OnStoreFailure, RateLimit, ResetFormat};
use crate::limiter::RateLimiter;
use crate::nouns::{ConfigError, Decision, Limit, Quota};

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
///         RateLimitLayer::token_bucket(&limiter, "search", Quota::per_second(10).burst(20))
///             .key(PeerIp)?,
///     );
/// # Ok(())
/// # }
/// ```
///
/// # What a request meets
///
/// 1. A request that is [exempt](Self::skip) passes. CORS preflight requests are exempt unless
///    [told otherwise](Self::limit_preflight).
/// 2. The key is extracted. There is no default: a layer cannot be built without one. A
///    request without a key is answered with 400 and the reason, or [as chosen](Self::on_missing_key).
/// 3. All limits of the layer are decided in one call: all are charged, or none is.
/// 4. Refused, the request is answered with 429, `Retry-After` in whole seconds, rounded up, at
///    least 1, and a line of text, or [as chosen](Self::on_refused). A request whose
///    [cost](Self::cost) is above the capacity can never pass: it is answered with 422, without
///    `Retry-After`, so that clients do not try for ever.
/// 5. Admitted, it waits out a leaky bucket's delay, and is forwarded. A client that goes away
///    meanwhile costs nothing more. A request that waits, for a decision or for its delay, does
///    not hold the inner service ready: it waits for the service again, behind requests that came
///    meanwhile. A decision that is there at once goes on with the service that is ready.
/// 6. Both answers carry `X-RateLimit-Limit`, `X-RateLimit-Remaining` and
///    [`X-RateLimit-Reset`](Self::reset_format). The [`Decision`] is in the request's extensions
///    for the handler, and in the response's for layers outside.
/// 7. When the store cannot decide, the request is forwarded without headers, or
///    [as chosen](Self::on_store_failure), and an event says so.
///
/// # Several layers
///
/// Layers share a budget only if they use the same limiter (or Redis and prefix), the same limit
/// name, and the same key. Stacked layers are decided one after another, the outer first; what
/// an outer layer charged stays charged if an inner one refuses. To charge all or none, put the
/// limits into [one layer](Self::builder). Of stacked layers, the headers and the decision in the
/// extensions tell the tightest budget. Its receipt is that layer's: to refund a request, put all
/// limits into one layer.
///
/// Put it inside a CORS layer, so that refusals carry its headers too, and let that expose
/// `Retry-After` and `X-RateLimit-*`. Inside authentication, where the key is a user. The headers
/// speak of one client: a response that a shared cache may keep should not carry them.
///
/// The future needs a tokio runtime with time enabled.
#[derive(Clone)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

impl RateLimitLayer {
    /// A burst at once, then the rate. See [`Limit::token_bucket`].
    pub fn token_bucket(limiter: impl Into<RateLimiter>, name: &str, quota: Quota) -> UnkeyedLayer {
        Self::unkeyed(limiter, Limit::token_bucket(name, quota))
    }

    /// Requests leave evenly, each after its delay. See [`Limit::leaky_bucket`].
    pub fn leaky_bucket(limiter: impl Into<RateLimiter>, name: &str, quota: Quota) -> UnkeyedLayer {
        Self::unkeyed(limiter, Limit::leaky_bucket(name, quota))
    }

    /// At most the limit in each window. See [`Limit::fixed_window`].
    pub fn fixed_window(limiter: impl Into<RateLimiter>, name: &str, quota: Quota) -> UnkeyedLayer {
        Self::unkeyed(limiter, Limit::fixed_window(name, quota))
    }

    /// Two counters, the previous period's weighted. See [`Limit::sliding_window`].
    pub fn sliding_window(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
    ) -> UnkeyedLayer {
        Self::unkeyed(limiter, Limit::sliding_window(name, quota))
    }

    /// Exactly the limit in any window. See [`Limit::sliding_log`].
    pub fn sliding_log(limiter: impl Into<RateLimiter>, name: &str, quota: Quota) -> UnkeyedLayer {
        Self::unkeyed(limiter, Limit::sliding_log(name, quota))
    }

    /// The token bucket's promise as a schedule. See [`Limit::gcra`].
    pub fn gcra(limiter: impl Into<RateLimiter>, name: &str, quota: Quota) -> UnkeyedLayer {
        Self::unkeyed(limiter, Limit::gcra(name, quota))
    }

    /// Any limit, such as one read from a configuration file.
    pub fn of(limiter: impl Into<RateLimiter>, limit: Limit) -> UnkeyedLayer {
        Self::unkeyed(limiter, Ok(limit))
    }

    fn unkeyed(limiter: impl Into<RateLimiter>, limit: Result<Limit, ConfigError>) -> UnkeyedLayer {
        UnkeyedLayer { limiter: limiter.into(), limit }
    }

    /// Several limits, each under its own key, decided in one call: all are charged, or none is.
    ///
    /// ```
    /// use tollgate::key::{Header, PeerIp};
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::builder(&limiter)
    ///     .limit(Limit::token_bucket("client", Quota::per_second(10))?, PeerIp)
    ///     .limit(Limit::fixed_window_aligned("tenant", Quota::per_day(10_000))?, Header::new("x-tenant")?)
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(limiter: impl Into<RateLimiter>) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder { limiter: limiter.into(), limits: Vec::new() }
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// What a request costs, in units; 1 if this is not set. A cost of 0 always passes.
    ///
    /// Bound what a client can make of it: the cost is what the client's request says.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Which requests are not limited, such as health checks. Besides CORS preflight requests, none
    /// are. Several calls add up.
    #[must_use]
    pub fn skip(self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skip.push(Arc::new(exempt)))
    }

    /// Limits CORS preflight requests, too.
    ///
    /// A preflight request is an `OPTIONS` request with two headers that anybody can send. It is
    /// free by default because a browser sends it unasked, and because a CORS layer answers it. If
    /// the service itself answers `OPTIONS` with something that costs (a catch-all handler, a
    /// proxy), limit it; behind a CORS layer this changes nothing, as none gets here.
    #[must_use]
    pub fn limit_preflight(self) -> Self {
        self.with(|settings| settings.limits_preflight = true)
    }

    /// What becomes of a request without a key: 400, if this is not set. To try another key
    /// instead, use [`KeyExtractor::or`].
    #[must_use]
    pub fn on_missing_key(self, outcome: OnMissingKey) -> Self {
        self.with(|settings| settings.on_missing_key = outcome)
    }

    /// Sets what becomes of a request when the store is unavailable. Default: it is forwarded. A
    /// denial that is still in force stands all the same, where the store has a
    /// [`DenyCache`](crate::store::DenyCache), as `RedisStore` has. A store that is
    /// [full](crate::Error::is_full) always rejects, with 503: clients send more keys than it may
    /// remember.
    #[must_use]
    pub fn on_store_failure(self, outcome: OnStoreFailure) -> Self {
        self.with(|settings| settings.on_store_failure = outcome)
    }

    /// Sets what becomes of a request when the store [is overloaded](crate::Error::is_overloaded):
    /// more checks wait for an answer than it was built for. Default: it is rejected with 503. A
    /// flood of requests is no outage, and to forward it would open the limit to whatever floods.
    #[must_use]
    pub fn on_overload(self, outcome: OnStoreFailure) -> Self {
        self.with(|settings| settings.on_overload = outcome)
    }

    /// The answer to a refused request, made of the one that would have been sent: its status is
    /// 429 or 422, and the rate limit headers and `Retry-After` are set. What is returned is sent
    /// as it is.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use http::HeaderValue;
    /// use tollgate::Decision;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::gcra(&limiter, "api", Quota::per_second(5))
    ///     .key(PeerIp)?
    ///     .on_refused(|decision: &Decision, mut answer| {
    ///         answer.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    ///         answer.map(|_text| format!(r#"{{"error":"slow down","limit":{}}}"#, decision.limit()))
    ///     });
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_refused<T: Into<Bytes>>(
        self,
        answer: impl Fn(&Decision, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| {
            settings.on_refused =
                Some(Arc::new(move |decision, default| answer(decision, default).map(Into::into)));
        })
    }

    /// How `X-RateLimit-Reset` is written: in seconds since the Unix epoch, if this is not set.
    #[must_use]
    pub fn reset_format(self, format: ResetFormat) -> Self {
        self.with(|settings| settings.reset_format = format)
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
            .field("on_missing_key", &self.settings.on_missing_key)
            .field("on_store_failure", &self.settings.on_store_failure)
            .field("on_overload", &self.settings.on_overload)
            .finish_non_exhaustive()
    }
}

/// A layer that does not know yet whose budget a request is taken from.
#[derive(Debug)]
#[must_use = "a rate limit needs a key: end with `.key(...)`"]
pub struct UnkeyedLayer {
    limiter: RateLimiter,
    limit: Result<Limit, ConfigError>,
}

impl UnkeyedLayer {
    /// The layer, with each request counted under the key that `extractor` finds.
    ///
    /// # Errors
    ///
    /// If the name or the quota is out of range, or the name already stands for another quota in
    /// this limiter.
    pub fn key(self, extractor: impl KeyExtractor) -> Result<RateLimitLayer, ConfigError> {
        RateLimitLayer::builder(self.limiter).limit(self.limit?, extractor).build()
    }
}

/// Several limits on their way to be one layer.
#[must_use = "a builder does nothing until the layer is built"]
pub struct RateLimitLayerBuilder {
    limiter: RateLimiter,
    limits: Vec<KeyedLimit>,
}

impl RateLimitLayerBuilder {
    /// One more limit, under a key of its own.
    pub fn limit(mut self, limit: Limit, key: impl KeyExtractor) -> Self {
        self.limits.push(KeyedLimit { limit, key: Arc::new(key) });
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// If there is no limit, a name is there twice, or a name already stands for another quota in
    /// this limiter.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        if self.limits.is_empty() {
            return Err(ConfigError::new("the layer has no limit: add one with `.limit(...)`"));
        }
        for (i, keyed) in self.limits.iter().enumerate() {
            if self.limits[..i].iter().any(|other| other.limit.name() == keyed.limit.name()) {
                return Err(ConfigError::new(
                    "the layer has two limits of this name: they would share their budgets; \
                     give each a name of its own",
                )
                .of_limit(keyed.limit.name()));
            }
        }
        let limits: Vec<_> = self.limits.iter().map(|keyed| &keyed.limit).collect();
        self.limiter.register_all(&limits)?;
        Ok(RateLimitLayer { settings: Arc::new(Settings::new(self.limiter, self.limits)) })
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.limits.iter().map(|keyed| keyed.limit.name());
        f.debug_list().entries(names).finish()
    }
}
