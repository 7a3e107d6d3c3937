//! Checks that a text is the encoded form of a key, by the grammar in the module's documentation.

use super::encoder::{EMPTY_PART, HASHED, is_plain};
use super::text;

/// Hex digits of a SHA-256.
const HASH_DIGITS: usize = 64;

pub(super) fn is_encoded(text: &[u8]) -> bool {
    // Each level of nesting takes a byte, so the length bounds the recursion.
    text.len() <= text::MAX && after_key(text).is_some_and(<[u8]>::is_empty)
}

/// The rest of a text that starts with a key.
fn after_key(text: &[u8]) -> Option<&[u8]> {
    match text.split_first()? {
        (b'*', rest) => Some(rest),
        (b'|', rest) => after_key(rest),
        (b'(', rest) => {
            let rest = after_key(rest)?.strip_prefix(b"&")?;
            after_key(rest)?.strip_prefix(b")")
        }
        (&HASHED, rest) => {
            let (hash, rest) = rest.split_at_checked(HASH_DIGITS)?;
            hash.iter().all(is_hex_digit).then_some(rest)
        }
        _ => after_list(text),
    }
}

fn after_list(text: &[u8]) -> Option<&[u8]> {
    let mut rest = after_part(text)?;
    while let Some(next) = rest.strip_prefix(b":") {
        rest = after_part(next)?;
    }
    Some(rest)
}

fn after_part(text: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = text.strip_prefix(EMPTY_PART) {
        return Some(rest);
    }
    let mut rest = text;
    loop {
        rest = match rest {
            [byte, after @ ..] if is_plain(&[*byte]) => after,
            [b'%', high, low, after @ ..] if is_escape(*high, *low) => after,
            _ => return (rest.len() < text.len()).then_some(rest),
        };
    }
}

/// Returns whether this is the escape of a byte that needs one. Each byte has one encoded form.
fn is_escape(high: u8, low: u8) -> bool {
    let digit = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let byte = || Some(digit(high)? << 4 | digit(low)?);
    is_hex_digit(&high) && is_hex_digit(&low) && byte().is_some_and(|byte| !is_plain(&[byte]))
}

fn is_hex_digit(digit: &u8) -> bool {
    matches!(digit, b'0'..=b'9' | b'a'..=b'f')
}
