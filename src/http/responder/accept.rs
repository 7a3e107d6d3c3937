//! The format that a request accepts.

use headers_accept::Accept;
use http::{HeaderMap, header};
use mediatype::MediaType;

use super::BodyFormat;

/// Longer headers are not parsed.
const MAX_BYTES: usize = 1024;

/// In the order of preference, where a client has none.
const FORMATS: [(&str, BodyFormat); 3] = [
    ("text/plain", BodyFormat::Text),
    ("application/json", BodyFormat::Json),
    ("application/problem+json", BodyFormat::ProblemDetails),
];

/// The format that a request prefers. Without a preference, with a malformed one, and if it accepts none
/// of the formats: plain text.
pub(super) fn preferred(headers: &HeaderMap) -> BodyFormat {
    accepted(headers).unwrap_or(BodyFormat::Text)
}

fn accepted(headers: &HeaderMap) -> Option<BodyFormat> {
    let lines: Result<Vec<_>, _> =
        headers.get_all(header::ACCEPT).iter().map(|it| it.to_str()).collect();
    let value = lines.ok()?.join(",");
    if value.len() > MAX_BYTES {
        return None;
    }
    let accept: Accept = value.parse().ok()?;
    let available: Vec<_> =
        FORMATS.iter().filter_map(|(name, _)| MediaType::parse(name).ok()).collect();
    let chosen = accept.negotiate(&available)?;
    FORMATS
        .iter()
        .find(|(name, _)| MediaType::parse(name).as_ref() == Ok(chosen))
        .map(|(_, it)| *it)
}
