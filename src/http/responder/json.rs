//! The body of a rejected request's response in JSON.

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::{Reason, Rejection};
use crate::model::{Decision, Limit};

#[derive(Serialize)]
struct Object<'a> {
    error: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

/// A JSON object. See [`BodyFormat::Json`](super::BodyFormat::Json).
pub(super) fn object(rejection: &Rejection<'_>) -> Bytes {
    serialize(&Object {
        error: match rejection.reason() {
            Reason::RateLimited => "rate_limited",
            Reason::Blocked => "blocked",
            Reason::TooManyInFlight => "too_many_in_flight",
            Reason::LoadShed => "load_shed",
            Reason::ExceedsCapacity => "exceeds_capacity",
            Reason::Forbidden => "forbidden",
            Reason::Rejected => "rejected",
            Reason::MissingKey => "missing_key",
            // Clients need not know how the store failed.
            Reason::StoreUnavailable | Reason::Overloaded | Reason::StoreFull => "unavailable",
            Reason::Misconfigured => "internal",
        },
        message: rejection.message(),
        limit: rejection.limit().map(Limit::name),
        retry_after: rejection
            .retry_after()
            .map(|retry_after| retry_after.as_secs()),
    })
}

/// The members of RFC 9457. No crate for them keeps the fragment of a type.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// Problem details. See [`BodyFormat::ProblemDetails`](super::BodyFormat::ProblemDetails).
pub(super) fn problem(rejection: &Rejection<'_>, status: StatusCode) -> Bytes {
    const TYPES: &str = "https://iana.org/assignments/http-problem-types";
    let (r#type, title) = match rejection.reason() {
        Reason::RateLimited | Reason::TooManyInFlight => {
            (format!("{TYPES}#quota-exceeded"), "Quota Exceeded")
        }
        Reason::Blocked => (
            format!("{TYPES}#abnormal-usage-detected"),
            "Abnormal Usage Detected",
        ),
        Reason::LoadShed | Reason::StoreUnavailable | Reason::Overloaded | Reason::StoreFull => (
            format!("{TYPES}#temporary-reduced-capacity"),
            "Temporary Reduced Capacity",
        ),
        _ => (
            "about:blank".to_owned(),
            status.canonical_reason().unwrap_or("Rejected"),
        ),
    };
    let in_flight = rejection
        .limit()
        .filter(|_| rejection.reason() == Reason::TooManyInFlight);
    let verdicts = rejection
        .decision()
        .map(Decision::verdicts)
        .unwrap_or_default();
    let denied = verdicts.iter().filter(|verdict| !verdict.allowed());
    serialize(&Problem {
        r#type,
        title,
        status: status.as_u16(),
        detail: rejection.message(),
        violated_policies: denied
            .map(|verdict| verdict.limit().name())
            .chain(in_flight.map(Limit::name))
            .collect(),
    })
}

fn serialize(value: &impl Serialize) -> Bytes {
    // These are strings and numbers, so this cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}
