//! The concurrency limits of a layer: permits that a request holds until its response ends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::request::Parts;
use tokio::time::Instant;

use super::settings::LayerSettings;
use super::{Reason, ResponseBody};
use crate::limiter::{Acquired, Permit, RateLimiter, WaitSettings};
use crate::nouns::{Check, Error, Limit};
use crate::telemetry;

/// The permits that a request holds. They are given back when the response body has ended and all clones are
/// dropped.
///
/// [`insert_permits`](crate::RateLimitLayer::insert_permits) puts it into the request's extensions, for work that outlasts the
/// response: an upgraded connection, a background task.
#[derive(Clone)]
pub struct InFlight {
    permits: Arc<[Permit]>,
    /// Of a layer outside.
    outside: Option<Arc<Self>>,
}

impl InFlight {
    /// The permits of one layer.
    pub(super) fn new(permits: Vec<Permit>) -> Self {
        Self {
            permits: permits.into(),
            outside: None,
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("permits", &self.permits)
            .field("outside", &self.outside)
            .finish()
    }
}

/// For handlers that outlast their response. Without [`insert_permits`](crate::RateLimitLayer::insert_permits), the request is
/// answered 500.
#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for InFlight {
    type Rejection = (http::StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = "this handler needs the permits of its request: add `insert_permits()` to the rate limit layer";
        let permits = parts.extensions.get().cloned();
        permits.ok_or((http::StatusCode::INTERNAL_SERVER_ERROR, missing))
    }
}

/// Why a request has no permits.
pub(super) enum WithoutPermits {
    /// This limit has no permit left.
    Denied(Limit),
    Failed(Error),
}

pub(super) type Acquiring = Pin<Box<dyn Future<Output = Result<InFlight, WithoutPermits>> + Send>>;

impl LayerSettings {
    /// Acquires all permits of a request, one after another. If one is denied, the others are given back.
    ///
    /// A request that waits for a permit holds the earlier ones. So the smallest limit comes first: a client that waits for its
    /// own limit holds no permit of a larger limit that clients share. All layers use this order, so that two requests
    /// never wait for each other.
    pub(super) fn acquire_permits(self: &Arc<Self>, mut permits: Vec<Check>) -> Acquiring {
        permits.sort_by(|one, other| order(one).cmp(&order(other)));
        Box::pin(acquire_all(permits, Arc::clone(self)))
    }

    /// Puts the permits into the request's extensions, if the layer is configured so.
    pub(super) fn hold(&self, permits: &InFlight, request: &mut Parts) {
        if self.inserts_permits {
            let outside = request.extensions.remove().map(Arc::new);
            request.extensions.insert(InFlight {
                outside,
                ..permits.clone()
            });
        }
    }

    /// Prepares a request that needs no permit: its handler may extract permits.
    #[inline]
    pub(super) fn hold_none(&self, request: &mut Parts) {
        if self.inserts_permits && request.extensions.get::<InFlight>().is_none() {
            request.extensions.insert(InFlight::new(Vec::new()));
        }
    }

    /// The response to a request without permits.
    pub(super) fn without_permits<B>(
        &self,
        why: &WithoutPermits,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        let error = match why {
            WithoutPermits::Denied(limit) => {
                telemetry::denied_in_flight(limit);
                let retry_after = self.retry_after(limit.retry_after(), request);
                return self
                    .responder
                    .too_many_in_flight(limit, retry_after, request);
            }
            WithoutPermits::Failed(error) => error,
        };
        if error.is_misuse() {
            telemetry::misconfigured(&self.events, &self.names, error);
            return self
                .responder
                .without_decision(Reason::Misconfigured, None, request);
        }
        let wait = error.probe_after().unwrap_or_default();
        let retry_after = Some(self.retry_after(wait, request));
        self.responder
            .without_decision(Reason::StoreUnavailable, retry_after, request)
    }
}

/// The order in which permits are acquired.
fn order(check: &Check) -> (u32, &str, &str) {
    (
        check.limit().permits(),
        check.limit().name(),
        check.key().as_str(),
    )
}

async fn acquire_all(
    checks: Vec<Check>,
    settings: Arc<LayerSettings>,
) -> Result<InFlight, WithoutPermits> {
    let started = Instant::now();
    let mut permits = Vec::with_capacity(checks.len());
    for check in checks {
        let is_enforced = !check.is_shadow();
        let max_wait = if is_enforced {
            settings.wait.left_of(started)
        } else {
            Duration::ZERO
        };
        let acquiring = acquire(&settings.limiter, &check, &settings.wait, max_wait);
        let acquired = settings
            .limiter
            .observe_permit(&check, is_enforced, acquiring)
            .await;
        let why = match acquired {
            Ok(Acquired {
                permit: Some(permit),
                ..
            }) => {
                permits.push(permit);
                continue;
            }
            Ok(Acquired {
                permit: None,
                limit,
                ..
            }) => WithoutPermits::Denied(limit),
            Err(error) => WithoutPermits::Failed(error),
        };
        if is_enforced {
            return Err(why);
        }
        let limit = match &why {
            WithoutPermits::Denied(limit) => limit,
            WithoutPermits::Failed(_) => check.limit(),
        };
        telemetry::shadow_denied_in_flight(&settings.shadow_events, limit);
    }
    Ok(InFlight::new(permits))
}

async fn acquire(
    limiter: &RateLimiter,
    check: &Check,
    wait: &WaitSettings,
    max_wait: Duration,
) -> Result<Acquired, Error> {
    let acquired = limiter.request_permit(check).await?;
    if acquired.permit.is_some() || max_wait.is_zero() {
        return Ok(acquired);
    }
    match wait.take_place() {
        Some(_place) => {
            limiter
                .wait_for_permit(check, max_wait, wait.max_waiters_per_key)
                .await
        }
        None => Ok(acquired),
    }
}
