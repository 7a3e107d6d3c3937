//! A request that you reject.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;

/// A request that you reject, and why.
#[derive(Clone)]
pub(in crate::http) struct Reject {
    pub(in crate::http) status: StatusCode,
    pub(in crate::http) reason: Cow<'static, str>,
    pub(in crate::http) retry_after: Option<Duration>,
}

impl Reject {
    /// A status that is not an error counts as 403.
    pub(in crate::http) fn new(
        status: StatusCode,
        reason: Cow<'static, str>,
        retry_after: Option<Duration>,
    ) -> Self {
        let is_error = status.is_client_error() || status.is_server_error();
        let status = if is_error {
            status
        } else {
            StatusCode::FORBIDDEN
        };
        Self {
            status,
            reason,
            retry_after,
        }
    }
}
