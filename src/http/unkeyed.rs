//! A layer without a key: the compiler says that it limits nothing.

use tower_layer::Layer;

use super::{KeyExtractor, RateLimit, RateLimitLayer};
use crate::limiter::RateLimiter;
use crate::nouns::{ConfigError, Limit};

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
