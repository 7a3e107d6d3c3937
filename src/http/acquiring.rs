//! Acquires the permits of a request.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use http::request::Parts;
use tokio::time::Instant;

use super::InFlight;
use super::request_limiter::RequestLimiter;
use crate::limiter::{PermitAnswer, RateLimiter, WaitSettings};
use crate::model::{Check, Error, Limit};
use crate::telemetry;

/// Why a request has no permits.
pub(super) enum WithoutPermits {
    /// This limit has no permit left.
    Denied(Limit),
    Failed(Error),
}

impl RequestLimiter {
    /// Acquires all permits of a request, one after another. If one is denied, the others are given
    /// back.
    ///
    /// A request that waits for a permit holds the earlier ones. So the smallest limit comes first:
    /// a client that waits for its own limit holds no permit of a larger limit that clients share.
    /// All layers use this order, so that two requests never wait for each other.
    pub(super) fn acquire_permits(
        self: &Arc<Self>,
        mut permits: Vec<Check>,
        since: Instant,
    ) -> BoxFuture<'static, Result<InFlight, WithoutPermits>> {
        permits.sort_by(|one, other| order(one).cmp(&order(other)));
        Box::pin(acquire_all(permits, since, Arc::clone(self)))
    }

    /// Puts the permits into the request's extensions, if the layer is configured so.
    pub(super) fn insert_permits(&self, permits: &InFlight, request: &mut Parts) {
        if self.inserts_permits {
            let outside = request.extensions.remove();
            request.extensions.insert(permits.inside(outside));
        }
    }

    /// Prepares a request that needs no permit. Its handler may extract permits.
    #[inline]
    pub(super) fn insert_no_permits(&self, request: &mut Parts) {
        if self.inserts_permits && request.extensions.get::<InFlight>().is_none() {
            request.extensions.insert(InFlight::new(Vec::new()));
        }
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
    since: Instant,
    limiter: Arc<RequestLimiter>,
) -> Result<InFlight, WithoutPermits> {
    let mut permits = Vec::with_capacity(checks.len());
    for check in checks {
        let is_enforced = !check.is_shadow();
        let since = is_enforced.then_some(since);
        let acquiring = pin!(acquire(&limiter.rate_limiter, &check, &limiter.wait, since));
        let acquired = limiter
            .rate_limiter
            .observe_permit(&check, is_enforced, acquiring)
            .await;
        let why = match acquired {
            Ok(PermitAnswer {
                permit: Some(permit),
                ..
            }) => {
                permits.push(permit);
                continue;
            }
            Ok(PermitAnswer {
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
        telemetry::shadow_denied_in_flight(&limiter.shadow_events, limit);
    }
    Ok(InFlight::new(permits))
}

/// Acquires a permit. Waits for it until the settings' deadline, counted from `since`. Without
/// `since`, it does not wait.
async fn acquire(
    limiter: &RateLimiter,
    check: &Check,
    wait: &WaitSettings,
    since: Option<Instant>,
) -> Result<PermitAnswer, Error> {
    // An override may have changed while the request waited for another permit.
    let replaced = match limiter.overridden_for_permit(check) {
        None => None,
        Some(ControlFlow::Continue(check)) => Some(check),
        Some(ControlFlow::Break(answer)) => return Ok(answer),
    };
    let check = replaced.as_ref().unwrap_or(check);
    let acquired = limiter.request_permit(check).await?;
    // The answer of a distant store is part of the wait.
    let max_wait = since.map_or(Duration::ZERO, |since| wait.left_of(since));
    if !acquired.may_wait() || max_wait.is_zero() {
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
