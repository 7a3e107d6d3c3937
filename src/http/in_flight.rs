//! The concurrency limits of a layer: permits that a request holds until its response ends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::request::Parts;

use super::policy::Wanted;
use super::settings::Settings;
use super::{Reason, ResponseBody};
use crate::limiter::{Permit, WaitSettings};
use crate::nouns::{ConcurrencyLimit, Error};
use crate::telemetry;

/// What a client is told to wait: nobody knows when a request ends.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The permits that a request holds. They are given back when the response body ends, and all clones are dropped.
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

/// What becomes of a request that asked for permits.
pub(super) enum Entered {
    Permits(InFlight),
    /// One limit has no permit left.
    Denied(ConcurrencyLimit),
    Failed(Error),
}

pub(super) type Entering = Pin<Box<dyn Future<Output = Entered> + Send>>;

impl Settings {
    /// Asks for all permits of a request, one after another. If one is denied, the others are given back.
    pub(super) fn enter(&self, wanted: Vec<Wanted>) -> Entering {
        Box::pin(acquire_all(wanted, self.wait.clone()))
    }

    /// Puts the permits into the request's extensions, if the layer is configured so.
    pub(super) fn hold(&self, permits: &InFlight, request: &mut Parts) {
        if self.inserts_permits {
            let outside = request.extensions.remove().map(Arc::new);
            request.extensions.insert(InFlight { outside, ..permits.clone() });
        }
    }

    /// Prepares a request that needs no permit. Its handler expects permits all the same.
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
        let retry_after = self.retry_after(RETRY_AFTER, request);
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

/// The outcome in metrics.
const fn outcome(acquired: &Result<Option<Permit>, Error>, is_enforced: bool) -> &'static str {
    match acquired {
        Ok(Some(_)) => "allowed",
        Ok(None) if is_enforced => "denied",
        Ok(None) => "shadow_denied",
        Err(_) => "error",
    }
}

async fn acquire_all(wanted: Vec<Wanted>, wait: WaitSettings) -> Entered {
    let mut permits = Vec::with_capacity(wanted.len());
    for Wanted { limiter, limit, key } in wanted {
        let is_enforced = limit.enforces(&key);
        let max_wait = if is_enforced { wait.max_wait() } else { Duration::ZERO };
        let acquired = match limiter.try_acquire(&limit, &key).await {
            Ok(None) if !max_wait.is_zero() => match wait.enter() {
                Some(_place) => limiter.wait(&limit, &key, max_wait).await,
                None => Ok(None),
            },
            acquired => acquired,
        };
        telemetry::count_in_flight(&limit, outcome(&acquired, is_enforced));
        match acquired {
            Ok(Some(permit)) => permits.push(permit),
            Ok(None) if is_enforced => return Entered::Denied(limit),
            Err(error) if is_enforced => return Entered::Failed(error),
            Ok(None) | Err(_) => telemetry::shadow_denied_in_flight(&limit),
        }
    }
    Entered::Permits(InFlight::of(permits))
}
