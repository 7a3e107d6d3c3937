//! The concurrency limits of a layer: permits that a request holds until its response ends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::request::Parts;
use tokio::time::Instant;

use super::policy::Wanted;
use super::settings::Settings;
use super::{Reason, ResponseBody};
use crate::limiter::{Acquired, Permit, WaitSettings};
use crate::nouns::{ConcurrencyLimit, Error};
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
    /// Those of one layer.
    pub(super) fn of(permits: Vec<Permit>) -> Self {
        Self { permits: permits.into(), outside: None }
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

/// The outcome of a request for permits.
pub(super) enum Entered {
    Permits(InFlight),
    /// One limit has no permit left.
    Denied(ConcurrencyLimit),
    Failed(Error),
}

pub(super) type Entering = Pin<Box<dyn Future<Output = Entered> + Send>>;

impl Settings {
    /// Asks for all permits of a request, one after another. If one is denied, the others are given back.
    ///
    /// A request that waits for a permit holds the earlier ones. So the smallest limit comes first: a client that waits for its
    /// own limit holds no permit of a larger limit that clients share. All layers use this order, so that two requests
    /// never wait for each other.
    pub(super) fn enter(self: &Arc<Self>, mut wanted: Vec<Wanted>) -> Entering {
        wanted.sort_by(|one, other| one.order().cmp(&other.order()));
        Box::pin(acquire_all(wanted, Arc::clone(self)))
    }

    /// Puts the permits into the request's extensions, if the layer is configured so.
    pub(super) fn hold(&self, permits: &InFlight, request: &mut Parts) {
        if self.inserts_permits {
            let outside = request.extensions.remove().map(Arc::new);
            request.extensions.insert(InFlight { outside, ..permits.clone() });
        }
    }

    /// Prepares a request that needs no permit: its handler may extract permits.
    #[inline]
    pub(super) fn hold_none(&self, request: &mut Parts) {
        if self.inserts_permits && request.extensions.get::<InFlight>().is_none() {
            request.extensions.insert(InFlight::of(Vec::new()));
        }
    }

    /// The response to a request without a permit.
    pub(super) fn too_many_in_flight<B>(
        &self,
        limit: &ConcurrencyLimit,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        telemetry::denied_in_flight(limit);
        let retry_after = self.retry_after(limit.advised_retry_after(), request);
        self.responder.too_many_in_flight(limit, retry_after, request)
    }

    /// The response to a request whose permits the store did not decide.
    pub(super) fn without_permits<B>(
        &self,
        error: &Error,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        if error.is_misuse() {
            telemetry::misconfigured(&self.events, &self.names, error);
            return self.responder.without_decision(Reason::Misconfigured, None, request);
        }
        let wait = error.probe_after().unwrap_or_default();
        let retry_after = Some(self.retry_after(wait, request));
        self.responder.without_decision(Reason::StoreUnavailable, retry_after, request)
    }
}

async fn acquire_all(wanted: Vec<Wanted>, settings: Arc<Settings>) -> Entered {
    let started = Instant::now();
    let mut permits = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let is_enforced = wanted.limit.enforces(&wanted.key);
        let max_wait = if is_enforced { settings.wait.left_of(started) } else { Duration::ZERO };
        let acquiring = acquire(&wanted, &settings.wait, max_wait);
        let Wanted { limiter, limit, key } = &wanted;
        let acquired = limiter.observe(limit, key, is_enforced, acquiring).await;
        match acquired {
            Ok(Acquired { permit: Some(permit), .. }) => permits.push(permit),
            Ok(Acquired { permit: None, limit: in_force, .. }) => {
                let limit = wanted.limit.with_limit(in_force);
                if is_enforced {
                    return Entered::Denied(limit);
                }
                telemetry::shadow_denied_in_flight(&settings.shadow_events, &limit);
            }
            Err(error) => {
                if is_enforced {
                    return Entered::Failed(error);
                }
                telemetry::shadow_denied_in_flight(&settings.shadow_events, &wanted.limit);
            }
        }
    }
    Entered::Permits(InFlight::of(permits))
}

async fn acquire(
    wanted: &Wanted,
    wait: &WaitSettings,
    max_wait: Duration,
) -> Result<Acquired, Error> {
    let Wanted { limiter, limit, key } = wanted;
    let acquired = limiter.ask(limit, key).await?;
    if acquired.permit.is_some() || max_wait.is_zero() {
        return Ok(acquired);
    }
    match wait.enter() {
        Some(_place) => limiter.wait(limit, key, max_wait, wait.max_waiters_per_key).await,
        None => Ok(acquired),
    }
}
