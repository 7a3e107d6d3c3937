//! Whose budget.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

/// The longest key that is kept as it is, in bytes of its encoded form.
const MAX_ENCODED: usize = 128;

/// Stands for a part that is empty, so that no key is empty and no two keys look alike.
const EMPTY_PART: char = '~';

/// Starts a key that was too long, followed by the SHA-256 of its encoded form.
const HASHED: char = '#';

/// Whose budget: a user, a client address, a route, or a mix.
///
/// A key is made of parts, and keys are equal only if they have the same parts: `["a:b", "c"]` is
/// not `["a", "b:c"]`, whatever the parts contain. User data is safe in a key: bytes other than
/// ASCII letters, digits and `-_.@/+=,` are escaped, and a key of more than 128 bytes is replaced by
/// its SHA-256, so a client cannot make keys large, nor reach into another's.
///
/// ```
/// use tollgate::Key;
///
/// let user = Key::new("alice");
/// let mix = Key::from_parts(["10.0.0.1", "GET /search"]);
/// assert_ne!(Key::from_parts(["a:b", "c"]), Key::from_parts(["a", "b:c"]));
/// assert!(Key::new("x".repeat(1 << 20)).as_str().len() <= 128);
/// # let _ = (user, mix);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// A key of one part.
    pub fn new(part: impl AsRef<[u8]>) -> Self {
        Self::from_parts([part])
    }

    /// A key of several parts.
    ///
    /// No parts at all is the one key of [`global`](Self::global).
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut encoded = String::new();
        for part in parts {
            let part = part.as_ref();
            // Most parts need no escape; what is too long is hashed.
            encoded.reserve(part.len().min(MAX_ENCODED) + 1);
            if !encoded.is_empty() {
                encoded.push(':');
            }
            push_escaped(&mut encoded, part);
        }
        if encoded.is_empty() {
            return Self::global();
        }
        Self(bounded(encoded))
    }

    /// The key that everyone shares.
    #[must_use]
    pub fn global() -> Self {
        Self("*".to_owned())
    }

    /// This key and another, as the parts of one.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        // Both are encoded, and the separator cannot be part of an escaped byte.
        let mut joined = String::with_capacity(self.0.len() + other.0.len() + 3);
        for part in ["(", &self.0, ":", &other.0, ")"] {
            joined.push_str(part);
        }
        Self(bounded(joined))
    }

    /// The encoded form: printable ASCII without braces, at most 128 bytes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a byte stands for itself in a key.
const IS_PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        plain[byte] = matches!(
            byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9'
                | b'-' | b'_' | b'.' | b'@' | b'/' | b'+' | b'=' | b','
        );
        byte += 1;
    }
    plain
};

fn push_escaped(encoded: &mut String, part: &[u8]) {
    if part.is_empty() {
        encoded.push(EMPTY_PART);
    }
    let mut rest = part;
    while !rest.is_empty() {
        let plain = rest.iter().position(|&byte| !IS_PLAIN[usize::from(byte)]);
        let (plain, others) = rest.split_at(plain.unwrap_or(rest.len()));
        // It is ASCII, so it always is text.
        encoded.push_str(str::from_utf8(plain).unwrap_or_default());
        rest = others;
        if let Some((&byte, others)) = rest.split_first() {
            encoded.push('%');
            push_hex(encoded, byte);
            rest = others;
        }
    }
}

fn push_hex(encoded: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    encoded.push(char::from(DIGITS[usize::from(byte >> 4)]));
    encoded.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn bounded(encoded: String) -> String {
    if encoded.len() <= MAX_ENCODED {
        return encoded;
    }
    let mut hashed = String::with_capacity(65);
    hashed.push(HASHED);
    for byte in Sha256::digest(&encoded) {
        push_hex(&mut hashed, byte);
    }
    hashed
}

impl From<&str> for Key {
    fn from(part: &str) -> Self {
        Self::new(part)
    }
}

impl From<String> for Key {
    fn from(part: String) -> Self {
        Self::new(part)
    }
}

macro_rules! from_numbers {
    ($($number:ty),*) => {$(
        impl From<$number> for Key {
            fn from(part: $number) -> Self {
                Self(part.to_string())
            }
        }
    )*};
}

from_numbers!(u16, u32, u64, u128, i16, i32, i64, i128);

impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Self {
        Self::new(address.to_string())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_that_hold_the_separator_do_not_run_into_each_other() {
        assert_ne!(Key::from_parts(["a:b", "c"]), Key::from_parts(["a", "b:c"]));
        assert_ne!(Key::from_parts(["a", ""]), Key::new("a"));
        assert_ne!(Key::from_parts(["", "a"]), Key::new("a"));
        assert_ne!(Key::from_parts(["", ""]), Key::new(""));
        assert_ne!(Key::new("~"), Key::new(""));
        assert_ne!(Key::new("*"), Key::global());
    }

    #[test]
    fn a_joined_key_is_not_a_flat_one() {
        let [a, b, c] = ["a", "b", "c"].map(Key::from);
        assert_ne!(a.join(&b).join(&c), a.join(&b.join(&c)));
        assert_ne!(a.join(&b), Key::from_parts(["a", "b"]));
        assert_ne!(a.join(&b), Key::new(a.join(&b).as_str()));
    }

    #[test]
    fn hash_tags_control_bytes_and_unicode_are_escaped() {
        let key = Key::new("{user}\r\n\0%ü ");
        assert_eq!(key.as_str(), "%7buser%7d%0d%0a%00%25%c3%bc%20");
    }

    #[test]
    fn a_megabyte_becomes_a_hash_and_different_ones_stay_different() {
        let key = Key::new("x".repeat(1 << 20));
        assert_eq!(key.as_str().len(), 65);
        assert_ne!(key, Key::new("x".repeat((1 << 20) + 1)));
        // Nobody can name another's hash.
        assert_ne!(key, Key::new(key.as_str()));
    }

    proptest! {
        #[test]
        fn different_parts_make_different_keys(
            a in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 1..4),
            b in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 1..4),
        ) {
            prop_assert_eq!(a == b, Key::from_parts(&a) == Key::from_parts(&b));
        }

        #[test]
        fn a_key_is_bounded_printable_and_has_no_braces(
            part in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let key = Key::new(part);
            prop_assert!(!key.as_str().is_empty() && key.as_str().len() <= MAX_ENCODED);
            let safe = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
            prop_assert!(key.as_str().bytes().all(safe), "{}", key);
        }
    }
}
