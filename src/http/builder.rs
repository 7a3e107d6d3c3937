//! Builders of a layer: no layer without a key.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tower_layer::Layer;

use super::policy::{KeyedLimit, Policy};
use super::settings::Settings;
use super::{KeyExtractor, RateLimit, RateLimitLayer};
use crate::limiter::RateLimiter;
use crate::nouns::{ConfigError, Limit, MAX_GROUP};

/// A layer that has no key yet. Finish it with [`key`](Self::key); settings such as the cost come
/// after that.
///
/// It does not limit anything. The compiler says so where it is used as a layer:
///
/// ```compile_fail,E0277
/// use axum::Router;
/// use tollgate::{Quota, RateLimitLayer, RateLimiter};
///
/// let limiter = RateLimiter::in_memory();
/// // error: this rate limit layer has no key: finish it with `.key(...)?`
/// let app: Router = Router::new()
///     .layer(RateLimitLayer::token_bucket(&limiter, "api", Quota::per_second(10)));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a rate limit needs a key: finish the layer with `.key(...)`"]
pub struct UnkeyedLayer {
    limiter: RateLimiter,
    limit: Result<Limit, ConfigError>,
}

impl UnkeyedLayer {
    pub(super) const fn new(limiter: RateLimiter, limit: Result<Limit, ConfigError>) -> Self {
        Self { limiter, limit }
    }

    /// The layer, with each request counted under the key that `extractor` takes from it.
    ///
    /// # Errors
    ///
    /// Returns an error if the name or the quota is out of range, or if this limiter has another
    /// quota of that name.
    pub fn key(self, extractor: impl KeyExtractor) -> Result<RateLimitLayer, ConfigError> {
        RateLimitLayer::builder(self.limiter).limit(self.limit?, extractor).build()
    }
}

/// Never implemented: its only use is the error of a forgotten key.
#[diagnostic::on_unimplemented(
    message = "this rate limit layer has no key: finish it with `.key(...)?`",
    label = "this rate limit layer has no key",
    note = "write `RateLimitLayer::token_bucket(...).key(PeerIp)?`, with `PeerIp` or another \
            extractor of `tollgate::key`"
)]
pub trait HasKey: Sized {
    /// Limits the service.
    fn limited(self) -> RateLimit<Self>;
}

/// Lets the compiler say what is missing. `UnkeyedLayer` is no layer for any service.
impl<S: HasKey> Layer<S> for UnkeyedLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        inner.limited()
    }
}

/// A builder of a layer with several limits.
#[must_use = "a builder does nothing until the layer is built"]
pub struct RateLimitLayerBuilder {
    limiter: RateLimiter,
    limits: Vec<KeyedLimit>,
}

impl RateLimitLayerBuilder {
    pub(super) const fn new(limiter: RateLimiter) -> Self {
        Self { limiter, limits: Vec::new() }
    }

    /// Adds a limit, under a key of its own. A request costs 1 unit, or the cost set by
    /// [`RateLimitLayer::cost`].
    pub fn limit(self, limit: Limit, key: impl KeyExtractor) -> Self {
        self.add(KeyedLimit::new(limit, key, None))
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
    /// let user = Header::new("x-user")?;
    /// let layer = RateLimitLayer::builder(RateLimiter::in_memory())
    ///     .limit(Limit::token_bucket("requests", Quota::per_minute(60))?, user.clone())
    ///     .limit_with_cost(Limit::token_bucket("tokens", Quota::per_minute(40_000))?, user, tokens)
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limit_with_cost(
        self,
        limit: Limit,
        key: impl KeyExtractor,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.add(KeyedLimit::new(limit, key, Some(Arc::new(cost))))
    }

    fn add(mut self, limit: KeyedLimit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no limits or more than 255, if two limits have one name, or if
    /// this limiter has another quota of that name.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        if self.limits.is_empty() {
            return Err(ConfigError::new("the layer has no limit: add one with `.limit(...)`"));
        }
        if self.limits.len() > MAX_GROUP {
            return Err(ConfigError::new(format!(
                "the layer has {} limits; use at most {MAX_GROUP}",
                self.limits.len()
            )));
        }
        for (i, keyed) in self.limits.iter().enumerate() {
            if self.limits[..i].iter().any(|other| other.limit.name() == keyed.limit.name()) {
                return Err(ConfigError::new(
                    "the layer has two limits of this name, which would share their budgets; give \
                     each a name of its own",
                )
                .of_limit(keyed.limit.name()));
            }
        }
        let limits: Vec<_> = self.limits.iter().map(|keyed| &keyed.limit).collect();
        self.limiter.register_all(&limits)?;
        Ok(RateLimitLayer::new(Settings::new(self.limiter, Policy::new(self.limits)?)))
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.limits.iter().map(|keyed| keyed.limit.name());
        f.debug_list().entries(names).finish()
    }
}
