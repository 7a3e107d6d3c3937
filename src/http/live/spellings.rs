//! The spellings of a path, what routers and proxies may take it for.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The longest path whose spellings are looked for, in bytes. Servers and proxies accept few longer
/// ones.
const MOST_SPELLED: usize = 8_192;

/// How often a path is decoded, at most. A proxy and a service behind may each do so.
const MOST_DECODINGS: usize = 3;

/// The paths that a router or a proxy behind may take a path for, if there are others, because it
/// may decode the path, and remove repeated slashes, dot segments, parameters after a `;`, and a
/// slash at the end, before or after. `None` if that may be any path, because the path is not
/// plain, and too long to find out.
pub(super) fn spellings(path: &str, is_plain: bool) -> Option<Vec<String>> {
    if is_plain && (path.len() == 1 || !path.ends_with('/')) {
        return Some(Vec::new());
    }
    if !is_plain && path.len() > MOST_SPELLED {
        return None;
    }
    let mut spellings = Vec::new();
    let mut decoded = Cow::Borrowed(path);
    for _ in 0..=MOST_DECODINGS {
        for spelling in [
            normalized(&decoded),
            normalized(&without_parameters(&decoded)),
            normalized(&without_dots(&decoded)),
        ] {
            if spelling != path && !spellings.contains(&spelling) {
                spellings.push(spelling);
            }
        }
        let again = percent_decode_str(&decoded)
            .decode_utf8_lossy()
            .into_owned();
        if again == *decoded {
            break;
        }
        decoded = Cow::Owned(again);
    }
    Some(spellings)
}

/// Returns whether nothing that reads the path takes it for another one, but for a slash at the
/// end. One pass, because a client chooses how long the path is.
pub(super) fn is_plain(path: &str) -> bool {
    let mut has_dots = path.starts_with('.');
    let mut before = 0;
    for byte in path.bytes() {
        match byte {
            b'%' | b';' | b'\\' => return false,
            b'/' if before == b'/' => return false,
            b'.' if before == b'/' => has_dots = true,
            _ => {}
        }
        before = byte;
    }
    !has_dots
        || !path
            .split('/')
            .any(|segment| segment == "." || segment == "..")
}

/// A path without parameters of its segments, such as `;version=1`.
fn without_parameters(path: &str) -> String {
    let segments = path
        .split('/')
        .map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// A path without dot segments, where an empty segment is one that `..` removes (RFC 3986, section
/// 5.2.4).
fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// A path without repeated slashes, dot segments, and a slash at the end.
pub(super) fn normalized(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}
