//! The format of the body of a rejected request's response.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::Rejection;
#[cfg(feature = "json")]
use super::{Reason, accept};

/// The format of the body of the responses to rejected requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyFormat {
    /// A line of plain text: `rate limit `api` exceeded: try again in 12 s`.
    #[default]
    Text,
    /// A JSON object, such as
    /// `{"error":"rate_limited","message":"rate limit ...","limit":"api","retry_after":12}`. The last two
    /// are left out if there is none. `error` is `rate_limited`, `exceeds_capacity`, `forbidden`,
    /// `missing_key`, `unavailable` or `internal`.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    Json,
    /// Problem details (RFC 9457), with the types of draft-ietf-httpapi-ratelimit-headers:
    /// `quota-exceeded` for a denial, with the names of the limits that denied in `violated-policies`, and
    /// `temporary-reduced-capacity` if the store is unavailable. Other responses have the type `about:blank`.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    ProblemDetails,
    /// One of these, by the request's `Accept` header. Without a preference, and if it accepts none of
    /// them, plain text.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    ByAccept,
}

/// A body, and the headers that describe it.
pub(super) struct Rendered {
    pub(super) content_type: HeaderValue,
    pub(super) body: Bytes,
    /// Whether another `Accept` header may get another body.
    pub(super) varies: bool,
}

impl BodyFormat {
    pub(super) fn render(self, rejection: &Rejection<'_>, status: StatusCode) -> Rendered {
        #[cfg(feature = "json")]
        if self == Self::ByAccept {
            let format = accept::preferred(&rejection.request().headers);
            return Rendered { varies: true, ..format.render(rejection, status) };
        }
        let (content_type, body) = match self {
            #[cfg(feature = "json")]
            Self::Json => ("application/json", json(rejection)),
            #[cfg(feature = "json")]
            Self::ProblemDetails => ("application/problem+json", problem(rejection, status)),
            _ => {
                let _text_needs_no_status = status;
                ("text/plain; charset=utf-8", Bytes::from(rejection.message() + "\n"))
            }
        };
        Rendered { content_type: HeaderValue::from_static(content_type), body, varies: false }
    }
}

#[cfg(feature = "json")]
#[derive(serde::Serialize)]
struct Json<'a> {
    error: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

#[cfg(feature = "json")]
fn json(rejection: &Rejection<'_>) -> Bytes {
    serialize(&Json {
        error: match rejection.reason() {
            Reason::RateLimited => "rate_limited",
            Reason::ExceedsCapacity => "exceeds_capacity",
            Reason::Forbidden => "forbidden",
            Reason::MissingKey => "missing_key",
            // Clients need not know how the store failed.
            Reason::StoreUnavailable | Reason::Overloaded | Reason::StoreFull => "unavailable",
            Reason::Misconfigured => "internal",
        },
        message: rejection.message(),
        limit: rejection.limit().map(crate::nouns::Limit::name),
        retry_after: rejection.retry_after(),
    })
}

/// The members of RFC 9457. No crate for them keeps the fragment of a type.
#[cfg(feature = "json")]
#[derive(serde::Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

#[cfg(feature = "json")]
fn problem(rejection: &Rejection<'_>, status: StatusCode) -> Bytes {
    const TYPES: &str = "https://iana.org/assignments/http-problem-types";
    let (r#type, title) = match rejection.reason() {
        Reason::RateLimited => (format!("{TYPES}#quota-exceeded"), "Quota Exceeded"),
        Reason::StoreUnavailable | Reason::Overloaded | Reason::StoreFull => {
            (format!("{TYPES}#temporary-reduced-capacity"), "Temporary Reduced Capacity")
        }
        _ => ("about:blank".to_owned(), status.canonical_reason().unwrap_or("Rejected")),
    };
    let verdicts = rejection.decision().map(crate::nouns::Decision::verdicts).unwrap_or_default();
    let denied = verdicts.iter().filter(|verdict| !verdict.allowed());
    serialize(&Problem {
        r#type,
        title,
        status: status.as_u16(),
        detail: rejection.message(),
        violated_policies: denied.map(|verdict| verdict.limit().name()).collect(),
    })
}

#[cfg(feature = "json")]
fn serialize(value: &impl serde::Serialize) -> Bytes {
    // Strings and numbers: this cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}
