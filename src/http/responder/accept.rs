//! The format that a request accepts.

use headers_accept::Accept;
use http::{HeaderMap, header};
use mediatype::MediaType;

/// Longer headers are not parsed.
const MAX_BYTES: usize = 1024;

/// The format that a request prefers, of those that are available, by their media types. The first
/// one is preferred by a client without a preference. `None` if the client accepts none of them, or
/// its preference is malformed.
pub(super) fn preferred<T: Copy>(headers: &HeaderMap, available: &[(&str, T)]) -> Option<T> {
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
    let types = available.iter().map(|(name, _)| MediaType::parse(name));
    let types: Vec<_> = types.filter_map(Result::ok).collect();
    let chosen = accept.negotiate(&types)?.to_string();
    let format = available.iter().find(|(name, _)| *name == chosen);
    format.map(|(_, format)| *format)
}

/// A media range with its quality alone. Other parameters, such as a charset, make no difference
/// between the formats. A header with a quoted comma counts as malformed.
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
