//! The format of the body of a rejected request's response.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::Rejection;
#[cfg(feature = "json")]
use super::{accept, json};

/// The format of the body of the responses to rejected requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyFormat {
    /// A line of plain text: `rate limit `api` exceeded: try again in 12 s`.
    #[default]
    Text,
    /// A JSON object, such as
    /// `{"error":"rate_limited","message":"rate limit ...","limit":"api","retry_after":12}`.
    /// The last two are left out if there is none. `error` is `rate_limited`, `too_many_in_flight`,
    /// `load_shed`, `blocked`, `exceeds_capacity`, `forbidden`, `rejected`, `missing_key`,
    /// `unavailable` or `internal`.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    Json,
    /// Problem details (RFC 9457), with the types of draft-ietf-httpapi-ratelimit-headers:
    /// `quota-exceeded` for a denial, also by a limit of requests in flight, with the names of the
    /// limits that denied in `violated-policies`, `abnormal-usage-detected` for a key that is
    /// blocked, and `temporary-reduced-capacity` if the server is busy or the store unavailable.
    /// Other responses have the type `about:blank`.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    ProblemDetails,
    /// One of these, by the request's `Accept` header. Without a preference, and if it accepts none
    /// of them, plain text.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    ByAccept,
}

impl BodyFormat {
    /// In the order of preference, where a client has none.
    #[cfg(feature = "json")]
    const BY_ACCEPT: [(&str, Self); 3] = [
        ("text/plain", Self::Text),
        ("application/json", Self::Json),
        ("application/problem+json", Self::ProblemDetails),
    ];

    /// Returns whether another `Accept` header may get another body.
    pub(super) const fn varies(self) -> bool {
        #[cfg(feature = "json")]
        if matches!(self, Self::ByAccept) {
            return true;
        }
        false
    }

    /// The content type and the body.
    #[cfg_attr(
        not(feature = "json"),
        expect(unused_variables, reason = "text has no status")
    )]
    pub(super) fn render(
        self,
        rejection: &Rejection<'_>,
        status: StatusCode,
    ) -> (HeaderValue, Bytes) {
        #[cfg(feature = "json")]
        if self == Self::ByAccept {
            let headers = &rejection.request().headers;
            let format = accept::preferred(headers, &Self::BY_ACCEPT).unwrap_or_default();
            return format.render(rejection, status);
        }
        let (content_type, body) = match self {
            #[cfg(feature = "json")]
            Self::Json => ("application/json", json::object(rejection)),
            #[cfg(feature = "json")]
            Self::ProblemDetails => ("application/problem+json", json::problem(rejection, status)),
            _ => (
                "text/plain; charset=utf-8",
                Bytes::from(rejection.message() + "\n"),
            ),
        };
        (HeaderValue::from_static(content_type), body)
    }
}
