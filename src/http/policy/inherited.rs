//! The settings that limits inherit from their layer, if they are chosen for each request or come
//! from a configuration.

use http::StatusCode;

use super::Policy;
use crate::http::ChosenLimits;
use crate::http::request_checks::RejectedEarly;
use crate::model::{Check, Enforced};
#[cfg(feature = "config")]
use crate::model::{Limit, OnStoreFailure};

impl Policy {
    /// The chosen checks, with the settings of the layer.
    pub(super) fn chosen_checks(&self, limits: ChosenLimits) -> Result<Vec<Check>, RejectedEarly> {
        match limits {
            ChosenLimits::Checks(chosen) => Ok(chosen
                .into_iter()
                .map(|check| self.inherit(check))
                .collect()),
            // A layer in shadow mode rejects nothing.
            ChosenLimits::Reject {
                status,
                reason,
                retry_after,
            } if self.enforced.is_none_or(Enforced::is_always) => {
                let is_error = status.is_client_error() || status.is_server_error();
                Err(RejectedEarly::Rejected {
                    status: if is_error {
                        status
                    } else {
                        StatusCode::FORBIDDEN
                    },
                    reason,
                    retry_after,
                })
            }
            ChosenLimits::Reject { .. } | ChosenLimits::Unlimited => Ok(Vec::new()),
        }
    }

    fn inherit(&self, check: Check) -> Check {
        let check = check.or_on_store_failure(self.on_store_failure);
        match self.enforced {
            Some(enforced) => check.with_enforced(enforced),
            None => check,
        }
    }

    /// A limit from a configuration, with the settings of the layer.
    #[cfg(feature = "config")]
    pub(super) fn of_layer(&self, limit: &Limit) -> Limit {
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
}
