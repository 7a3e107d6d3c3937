//! The checks of limits that are chosen for each request, and the look-ups that have to end before.

use std::task::{Context, Poll};

use http::request::Parts;

use super::{Choosing, Limits, Reject};
use crate::http::policy::Unasked;
#[cfg(feature = "config")]
use crate::nouns::Limit;
use crate::nouns::{Check, ConcurrencyLimit, Enforced, Group, OnStoreFailure};

/// What limits inherit from the layer, if they are chosen for each request, or come from a configuration.
#[derive(Clone, Copy)]
pub(in crate::http) struct Inherited {
    pub(in crate::http) on_store_failure: OnStoreFailure,
    /// `None`: as the limits say.
    pub(in crate::http) enforced: Option<Enforced>,
}

/// The checks of a request, of which some depend on look-ups.
pub(in crate::http) struct LookUp {
    pub(in crate::http) checks: Vec<Check>,
    pub(in crate::http) choosing: Vec<LookedUp>,
    pub(in crate::http) inherited: Inherited,
}

/// A look-up, or the limits that it led to.
pub(in crate::http) enum LookedUp {
    Pending(Choosing),
    Chosen(Limits),
}

impl Inherited {
    /// Adds chosen checks to those of a request.
    pub(in crate::http) fn add(
        self,
        limits: Limits,
        checks: &mut Vec<Check>,
    ) -> Result<(), Reject> {
        match limits {
            Limits::Checks(chosen) => {
                checks.extend(chosen.into_iter().map(|check| self.apply(check)));
            }
            // A layer in shadow mode rejects nothing.
            Limits::Reject(reject) if self.enforced.is_none_or(Enforced::is_always) => {
                return Err(reject);
            }
            Limits::Reject(_) | Limits::Unlimited => {}
        }
        Ok(())
    }

    /// A limit from a configuration, with the settings of the layer.
    #[cfg(feature = "config")]
    pub(in crate::http) fn of_layer(self, limit: &Limit) -> Limit {
        let enforced = self.enforced.unwrap_or_else(|| limit.enforced());
        let limit = limit.clone().with_enforced(enforced);
        if limit.failure_policy().is_some() {
            return limit;
        }
        // The share of a later version may be too small to be decided. That must not open the limit.
        let closed = |_| limit.clone().on_store_failure(OnStoreFailure::FailClosed);
        let of_layer = limit.clone().on_store_failure(self.on_store_failure);
        of_layer.or_else(closed).unwrap_or(limit)
    }

    /// A concurrency limit, with the settings of the layer.
    pub(in crate::http) fn concurrency(self, limit: &ConcurrencyLimit) -> ConcurrencyLimit {
        limit.clone().of_layer(self.on_store_failure, self.enforced)
    }

    fn apply(self, check: Check) -> Check {
        let check = check.or_on_store_failure(self.on_store_failure);
        match self.enforced {
            Some(enforced) => check.with_enforced(enforced),
            None => check,
        }
    }
}

/// The group of chosen checks. The application may choose none, too many, or two of one budget.
pub(in crate::http) fn chosen_group(checks: Vec<Check>) -> Result<Option<Group>, Unasked> {
    if checks.is_empty() {
        return Ok(None);
    }
    Group::new(checks).map(Some).map_err(Unasked::Misconfigured)
}

impl LookUp {
    /// Goes on with the look-ups of a request. When they end, returns its checks, or none if it is not limited.
    pub(in crate::http) fn poll(
        &mut self,
        parts: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Group>, Unasked>> {
        let mut is_pending = false;
        for looked_up in &mut self.choosing {
            if let LookedUp::Pending(choosing) = looked_up {
                match choosing.as_mut().poll(cx) {
                    Poll::Ready(choose) => *looked_up = LookedUp::Chosen(choose(parts)),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending {
            return Poll::Pending;
        }
        // In the order of the rules.
        for looked_up in self.choosing.drain(..) {
            if let LookedUp::Chosen(limits) = looked_up
                && let Err(reject) = self.inherited.add(limits, &mut self.checks)
            {
                return Poll::Ready(Err(Unasked::Rejected(reject)));
            }
        }
        Poll::Ready(chosen_group(std::mem::take(&mut self.checks)))
    }
}
