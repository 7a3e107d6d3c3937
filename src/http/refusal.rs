//! The answers that the layer gives itself.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::headers::{Told, retry_after, set};
use super::settings::Settings;
use super::{MissingKey, ResponseBody};
use crate::nouns::Decision;

/// 429, or 422 for a request that can never pass: to try it again is no use.
fn status(decision: &Decision) -> StatusCode {
    if decision.exceeds_capacity() {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::TOO_MANY_REQUESTS
    }
}

/// The answer to a refused request.
pub(super) fn refused<B>(settings: &Settings, told: Told) -> Response<ResponseBody<B>> {
    let mut response = text(status(&told.decision), explanation(&told.decision));
    told.write(response.headers_mut());
    told.write_retry_after(response.headers_mut());
    if let Some(on_refused) = &settings.on_refused {
        response = on_refused(&told.decision, response);
    }
    response.extensions_mut().insert(told.decision);
    response.map(ResponseBody::refusal)
}

/// The answer to a request without a key.
pub(super) fn keyless<B>(status: StatusCode, reason: &MissingKey) -> Response<ResponseBody<B>> {
    text(status, format!("this request cannot be rate limited: {reason}\n"))
        .map(ResponseBody::refusal)
}

/// The answer when the store cannot decide.
pub(super) fn undecided<B>() -> Response<ResponseBody<B>> {
    text(StatusCode::SERVICE_UNAVAILABLE, "the rate limit cannot be checked at the moment\n".into())
        .map(ResponseBody::refusal)
}

fn explanation(decision: &Decision) -> String {
    match retry_after(decision) {
        Some(retry_after) => format!("too many requests: try again in {retry_after} s\n"),
        None => format!(
            "this request costs more than the {} units that its limit ever allows at once\n",
            decision.limit()
        ),
    }
}

fn text(status: StatusCode, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    set(response.headers_mut(), header::CONTENT_TYPE, content_type);
    response
}
