//! Limits that are chosen for each request, by a closure, by the request's key, or by a look-up in
//! the application.

mod cache;
mod chosen;
mod lookup;
mod lookup_builder;
mod lookup_result;

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;

pub(super) use self::chosen::{Choose, Choosing, Chosen, by_key, by_lookup, by_request};
pub use self::lookup::Lookup;
pub use self::lookup_builder::LookupBuilder;
pub use self::lookup_result::LookupResult;
use crate::model::Check;

/// The limits of a request, which a closure chooses. See
/// [`RateLimitLayer::from_fn`](crate::RateLimitLayer::from_fn).
///
/// ```
/// use tollgate::layer::ChosenLimits;
/// use tollgate::{Check, Limit, Quota};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let pro = Limit::token_bucket("api", Quota::per_minute(1_000))?;
/// let limits = ChosenLimits::from(Check::new(&pro, "alice"));
/// assert!(matches!(limits, ChosenLimits::Checks(checks) if checks.len() == 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChosenLimits {
    /// The request is decided by these checks and the checks of the layer's other limits, as one
    /// group. All are charged, or none. No checks mean no limit. A limit without a failure policy
    /// has the layer's.
    Checks(Vec<Check>),
    /// The request is not limited here. The layer's other limits decide.
    Unlimited,
    /// The request is rejected, and consumes nothing. See [`reject`](Self::reject).
    Reject {
        /// From 400 to 599. Any other counts as 403.
        status: StatusCode,
        /// The reason, which the client gets, as one line of text.
        reason: Cow<'static, str>,
        /// `Retry-After`, rounded up to whole seconds, at least 1.
        retry_after: Option<Duration>,
    },
}

impl ChosenLimits {
    /// Rejects the request with 403. The client gets the reason, as one line of text.
    #[must_use]
    pub fn reject(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::reject_with(StatusCode::FORBIDDEN, reason)
    }

    /// Sets `Retry-After` of a rejection. It changes no other choice.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        if let Self::Reject { retry_after, .. } = &mut self {
            *retry_after = Some(wait);
        }
        self
    }

    /// Rejects the request with a status from 400 to 599. Any other counts as 403. Use 402 for an
    /// account that has to pay. For 503, add [`with_retry_after`](Self::with_retry_after).
    #[must_use]
    pub fn reject_with(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Reject {
            status,
            reason: reason.into(),
            retry_after: None,
        }
    }
}

impl From<Check> for ChosenLimits {
    fn from(check: Check) -> Self {
        Self::Checks(vec![check])
    }
}

impl From<Vec<Check>> for ChosenLimits {
    fn from(checks: Vec<Check>) -> Self {
        Self::Checks(checks)
    }
}

impl<const N: usize> From<[Check; N]> for ChosenLimits {
    fn from(checks: [Check; N]) -> Self {
        Self::Checks(checks.into())
    }
}
