//! Limits that are chosen for each request: by a closure, by the request's key, or by a look-up in the application.

mod cache;
mod chosen;
mod found;
mod look_up;
mod lookup;

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;

pub(super) use self::chosen::{CHOSEN, Choose, Choosing, Chosen, by_key, by_lookup, by_request};
pub use self::found::Found;
pub(super) use self::look_up::{Inherited, LookUp};
pub use self::lookup::Lookup;
use crate::nouns::Check;

/// The limits of a request, which a closure chooses: see
/// [`RateLimitLayer::from_fn`](crate::RateLimitLayer::from_fn).
///
/// ```
/// use tollgate::layer::Limits;
/// use tollgate::{Check, Limit, Quota};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let pro = Limit::token_bucket("api", Quota::per_minute(1_000))?;
/// let limits = Limits::from(Check::new(&pro, "alice"));
/// assert!(matches!(limits, Limits::Checks(checks) if checks.len() == 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limits {
    /// The request is decided by these checks, and by those of the layer's other limits, as one group: all are
    /// charged, or none. No checks mean no limit. A limit without a failure policy has that of the layer.
    Checks(Vec<Check>),
    /// The request is not limited here. The layer's other limits decide.
    Unlimited,
    /// The request is rejected, and consumes nothing.
    Reject(Reject),
}

/// A request that a closure rejects, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    pub(super) status: StatusCode,
    pub(super) reason: Cow<'static, str>,
    pub(super) retry_after: Option<Duration>,
}

impl Reject {
    /// Creates a rejection with a status from 400 to 599. Any other counts as 403.
    #[must_use]
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        let is_error = status.is_client_error() || status.is_server_error();
        let status = if is_error {
            status
        } else {
            StatusCode::FORBIDDEN
        };
        Self {
            status,
            reason: reason.into(),
            retry_after: None,
        }
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The reason, which the client gets.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Sets `Retry-After`, rounded up to whole seconds, at least 1. Default: none.
    #[must_use]
    pub const fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl Limits {
    /// Rejects the request with 403. The client gets the reason: one line of text.
    #[must_use]
    pub fn reject(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::reject_with(StatusCode::FORBIDDEN, reason)
    }

    /// Rejects the request with a status from 400 to 599. Any other counts as 403. Use 402 for an account that has to
    /// pay. For 503, see [`Reject::retry_after`].
    #[must_use]
    pub fn reject_with(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Reject(Reject::new(status, reason))
    }
}

impl From<Reject> for Limits {
    fn from(reject: Reject) -> Self {
        Self::Reject(reject)
    }
}

impl From<Check> for Limits {
    fn from(check: Check) -> Self {
        Self::Checks(vec![check])
    }
}

impl From<Vec<Check>> for Limits {
    fn from(checks: Vec<Check>) -> Self {
        Self::Checks(checks)
    }
}

impl<const N: usize> From<[Check; N]> for Limits {
    fn from(checks: [Check; N]) -> Self {
        Self::Checks(checks.into())
    }
}
