//! Settings that limits inherit from their layer.

use super::{ChosenLimits, Reject};
use crate::model::{Check, Enforced, Limit, OnStoreFailure};

/// The settings that limits inherit from the layer, if they are chosen for each request, or come
/// from a configuration.
#[derive(Clone, Copy)]
pub(in crate::http) struct Inherited {
    pub(in crate::http) on_store_failure: OnStoreFailure,
    /// `None`: as the limits say.
    pub(in crate::http) enforced: Option<Enforced>,
}

impl Inherited {
    /// The chosen checks, with the settings of the layer.
    pub(in crate::http) fn checks(self, limits: ChosenLimits) -> Result<Vec<Check>, Reject> {
        match limits {
            ChosenLimits::Checks(chosen) => {
                Ok(chosen.into_iter().map(|check| self.apply(check)).collect())
            }
            // A layer in shadow mode rejects nothing.
            ChosenLimits::Reject {
                status,
                reason,
                retry_after,
            } if self.enforced.is_none_or(Enforced::is_always) => {
                Err(Reject::new(status, reason, retry_after))
            }
            ChosenLimits::Reject { .. } | ChosenLimits::Unlimited => Ok(Vec::new()),
        }
    }

    /// A limit from a configuration, with the settings of the layer.
    pub(in crate::http) fn of_layer(self, limit: &Limit) -> Limit {
        let enforced = self.enforced.unwrap_or_else(|| limit.enforced());
        let limit = limit.clone().with_enforced(enforced);
        if limit.on_store_failure().is_some() {
            return limit;
        }
        // The share of a later version may be too small to be decided. That must not open the
        // limit.
        let closed = |_| {
            limit
                .clone()
                .with_on_store_failure(OnStoreFailure::FailClosed)
        };
        let of_layer = limit.clone().with_on_store_failure(self.on_store_failure);
        of_layer.or_else(closed).unwrap_or(limit)
    }

    fn apply(self, check: Check) -> Check {
        let check = check.or_on_store_failure(self.on_store_failure);
        match self.enforced {
            Some(enforced) => check.with_enforced(enforced),
            None => check,
        }
    }
}
