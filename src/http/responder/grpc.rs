//! Responses to gRPC calls, a status in the headers, without a body ("trailers-only").
//!
//! A client reads an HTTP 429 as `UNAVAILABLE`, or fails to parse its body. So a rejected call is
//! answered with HTTP 200 and a gRPC status. Its details have the time of the next try (gRFC A6,
//! `google.rpc.RetryInfo`) and the limits that denied (`QuotaFailure`).

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Reason, Rejection};
use crate::http::headers::set;

/// The headers of a status.
pub(super) const NAMES: [HeaderName; 4] = [
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    PUSHBACK,
];

/// The most limits in the details of a status, because clients read 8 to 16 kB of headers.
const MAX_VIOLATIONS: usize = 16;

const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The content type of the response to a gRPC call. `None` for other requests.
pub(super) fn content_type(request: &Parts) -> Option<HeaderValue> {
    // Every call is a POST. A cache could keep the answer to another request, which has status 200.
    if request.method != Method::POST {
        return None;
    }
    let content_type = request.headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let essence = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let kind = essence.strip_prefix("application/grpc")?;
    let is = |name: &str| {
        kind == name
            || kind
                .strip_prefix(name)
                .is_some_and(|it| it.starts_with('+'))
    };
    Some(HeaderValue::from_static(match () {
        () if is("-web-text") => "application/grpc-web-text+proto",
        () if is("-web") => "application/grpc-web+proto",
        () if is("") => "application/grpc",
        () => return None,
    }))
}

/// The response to a rejected call that would have had this HTTP status.
pub(super) fn response(
    rejection: &Rejection<'_>,
    status: StatusCode,
    content_type: HeaderValue,
) -> Response<Bytes> {
    let code = code(rejection.reason(), status);
    let mut details = ErrorDetails::new();
    if let Some(retry_after) = rejection.retry_after() {
        details.set_retry_info(Some(retry_after));
    }
    if let Some(decision) = rejection.decision() {
        let denied = decision
            .verdicts()
            .iter()
            .filter(|verdict| !verdict.allowed());
        for verdict in denied.take(MAX_VIOLATIONS) {
            let name = verdict.limit().name();
            details.add_quota_failure_violation(name, format!("rate limit `{name}` exceeded"));
        }
    }
    if rejection.reason() == Reason::TooManyInFlight
        && let Some(limit) = rejection.limit()
    {
        details.add_quota_failure_violation(limit.name(), rejection.message());
    }
    let status = Status::with_error_details(code, rejection.message(), details);
    let mut response = status.into_http::<Bytes>();
    let headers = response.headers_mut();
    set(headers, header::CONTENT_TYPE, content_type);
    set(
        headers,
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-store"),
    );
    if let Some(pushback) = pushback(rejection) {
        set(headers, PUSHBACK, HeaderValue::from(pushback));
    }
    response
}

fn code(reason: Reason, status: StatusCode) -> Code {
    match reason {
        Reason::RateLimited
        | Reason::Blocked
        | Reason::TooManyInFlight
        | Reason::ExceedsCapacity => Code::ResourceExhausted,
        Reason::Forbidden => Code::PermissionDenied,
        Reason::MissingKey => match status {
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::PermissionDenied,
            _ => Code::InvalidArgument,
        },
        Reason::Rejected => match status {
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::PAYMENT_REQUIRED | StatusCode::FORBIDDEN => Code::PermissionDenied,
            StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
            status if status.is_server_error() => Code::Unavailable,
            _ => Code::FailedPrecondition,
        },
        Reason::LoadShed | Reason::StoreUnavailable | Reason::Overloaded | Reason::StoreFull => {
            Code::Unavailable
        }
        Reason::Misconfigured => Code::Internal,
    }
}

/// When a client with a retry policy tries again, in milliseconds. A negative number means never.
fn pushback(rejection: &Rejection<'_>) -> Option<i32> {
    match rejection.reason() {
        Reason::RateLimited
        | Reason::Blocked
        | Reason::TooManyInFlight
        | Reason::LoadShed
        | Reason::StoreUnavailable
        | Reason::Overloaded => {
            // 24 days fit into the number. A client must not return earlier.
            Some(i32::try_from(rejection.retry_after()?.as_millis()).unwrap_or(-1))
        }
        Reason::ExceedsCapacity => Some(-1),
        _ => None,
    }
}
