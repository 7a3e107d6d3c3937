//! What a layer does, besides asking.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode, header};

use super::{KeyExtractor, ResetFormat};
use crate::limiter::RateLimiter;
use crate::nouns::{Decision, Limit};
use crate::telemetry::Throttle;

/// What becomes of a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// It is answered with this status, and the reason.
    Reject(StatusCode),
    /// The limit whose key is missing is skipped. The layer's other limits decide.
    SkipLimit,
}

/// What becomes of a request when the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// It passes, unlimited: the service is worth more than the limit.
    FailOpen,
    /// It is answered with 503: the limit protects something that must not be overrun.
    FailClosed,
}

pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Cost = Arc<dyn Fn(&Parts) -> u32 + Send + Sync>;
pub(super) type Refusal = Arc<dyn Fn(&Decision, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

#[derive(Clone)]
pub(super) struct KeyedLimit {
    pub(super) limit: Limit,
    pub(super) key: Arc<dyn KeyExtractor>,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) limiter: RateLimiter,
    /// At least one, each with a name of its own.
    pub(super) limits: Vec<KeyedLimit>,
    /// Those names, for events.
    pub(super) names: String,
    pub(super) cost: Option<Cost>,
    /// A request that one of them names is exempt.
    pub(super) skip: Vec<Predicate>,
    pub(super) limits_preflight: bool,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) on_overload: OnStoreFailure,
    pub(super) on_refused: Option<Refusal>,
    pub(super) reset_format: ResetFormat,
    pub(super) keyless_events: Arc<Throttle>,
    pub(super) undecided_events: Arc<Throttle>,
}

impl Settings {
    pub(super) fn new(limiter: RateLimiter, limits: Vec<KeyedLimit>) -> Self {
        let names: Vec<_> = limits.iter().map(|keyed| keyed.limit.name()).collect();
        Self {
            limiter,
            names: names.join(", "),
            limits,
            cost: None,
            skip: Vec::new(),
            limits_preflight: false,
            on_missing_key: OnMissingKey::Reject(StatusCode::BAD_REQUEST),
            on_store_failure: OnStoreFailure::FailOpen,
            on_overload: OnStoreFailure::FailClosed,
            on_refused: None,
            reset_format: ResetFormat::EpochSeconds,
            keyless_events: Arc::default(),
            undecided_events: Arc::default(),
        }
    }

    pub(super) fn exempts(&self, parts: &Parts) -> bool {
        (!self.limits_preflight && is_preflight(parts)) || self.skip.iter().any(|skip| skip(parts))
    }
}

/// The question a browser asks before the request itself (Fetch standard, "CORS-preflight
/// request").
fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(header::ORIGIN)
        && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
