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
    let lines: Result<Vec<_>, _> = headers
        .get_all(header::ACCEPT)
        .iter()
        .map(|it| it.to_str())
        .collect();
    let value = lines.ok()?.join(",");
    if value.len() > MAX_BYTES {
        return None;
    }
    let ranges: Vec<_> = value
        .split(',')
        .map(without_parameters)
        .filter(|it| !it.is_empty())
        .collect();
    let accept: Accept = ranges.join(",").parse().ok()?;
    let formats = FORMATS.map(|(name, format)| (MediaType::parse(name), format));
    let available = formats.iter().filter_map(|(name, _)| name.as_ref().ok());
    let chosen = accept.negotiate(available)?;
    formats
        .iter()
        .find(|(name, _)| name.as_ref() == Ok(chosen))
        .map(|(_, format)| *format)
}

/// A media range with its quality alone. Other parameters, such as a charset, make no difference between
/// the formats. A header with a quoted comma counts as malformed.
fn without_parameters(range: &str) -> String {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_owned();
    let quality = parts.find(|it| it.starts_with("q=") || it.starts_with("Q="));
    match quality {
        // Three decimals are the most.
        Some(quality) => name + ";q=" + quality[2..].get(..5).unwrap_or(&quality[2..]),
        None => name,
    }
}
