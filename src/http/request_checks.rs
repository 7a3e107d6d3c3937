//! The permits that a request needs, and then its charge. Or why it is rejected early.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;

use super::MissingKey;
use crate::model::{Check, Error, Group, Limit, MAX_GROUP};

/// The permits that a request needs, and then the charge.
#[derive(Default)]
pub(super) struct RequestChecks {
    pub(super) permits: Vec<Check>,
    pub(super) group: Option<Group>,
}

/// Why a request is rejected without a decision.
pub(super) enum RejectedEarly {
    /// It is forbidden.
    Forbidden,
    /// The application rejects it.
    Rejected {
        status: StatusCode,
        reason: Cow<'static, str>,
        retry_after: Option<Duration>,
    },
    /// An override denies its key under this limit.
    DeniedByOverride(Limit),
    /// It has no key. `limit` is the limit that needs the key, or `None` if limits are chosen by
    /// request.
    MissingKey {
        limit: Option<Limit>,
        missing: MissingKey,
        status: StatusCode,
    },
    /// The chosen checks are not a group.
    Misconfigured(Error),
}

/// A charge alone.
impl From<Check> for RequestChecks {
    fn from(check: Check) -> Self {
        Self {
            permits: Vec::new(),
            group: Some(check.into()),
        }
    }
}

impl RequestChecks {
    /// Divides checks into the permits of concurrency limits and a charge. An application may
    /// choose too many checks, or two of one budget.
    pub(super) fn new(checks: Vec<Check>) -> Result<Self, RejectedEarly> {
        let is_permit = |check: &Check| check.limit().is_concurrency();
        let (permits, rates): (Vec<Check>, Vec<Check>) = checks.into_iter().partition(is_permit);
        if permits.len() > MAX_GROUP {
            return Err(RejectedEarly::Misconfigured(Error::misuse(format!(
                "a request needs {} permits; use at most {MAX_GROUP}",
                permits.len()
            ))));
        }
        check_distinct(&permits)?;
        let group = match rates.is_empty() {
            true => None,
            false => Some(Group::new(rates).map_err(RejectedEarly::Misconfigured)?),
        };
        Ok(Self { permits, group })
    }
}

/// A request needs at most one permit of a key under a limit, because a second one would wait for
/// the first.
fn check_distinct(permits: &[Check]) -> Result<(), RejectedEarly> {
    for (number, permit) in permits.iter().enumerate() {
        if permits
            .iter()
            .take(number)
            .any(|other| other.budget() == permit.budget())
        {
            let name = permit.limit().name();
            return Err(RejectedEarly::Misconfigured(Error::misuse(format!(
                "a request needs two permits of one key under the limit `{name}`"
            ))));
        }
    }
    Ok(())
}
