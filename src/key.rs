//! Keys: whose budget a check consumes.
//!
//! A key is a tree: its leaves are lists of parts, and joins and fallbacks are its nodes. The
//! encoding is a grammar in which every byte says what comes next, so two trees never have one
//! encoding:
//!
//! ```text
//! key  = list | "*" | "(" key "&" key ")" | "|" key | "#" 64 hex digits
//! list = part { ":" part }
//! part = "~" | one or more of the plain bytes and "%" 2 hex digits
//! ```
//!
//! A node that is longer than the bound is replaced by its hash before it becomes a part of
//! another. No part contains one of the other marks, so no part is equal to a hashed key.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

/// The longest key that is kept as it is, in bytes of its encoded form.
const MAX_ENCODED: usize = 128;

/// Stands for an empty part.
const EMPTY_PART: char = '~';

/// Starts a fallback key.
const FALLBACK: char = '|';

/// Starts the SHA-256 of an encoded form that was too long.
const HASHED: char = '#';

/// The owner of a budget: a user, a client address, a route, or a mix.
///
/// A key is a tree: [`from_parts`](Self::from_parts) makes a list of parts,
/// [`join`](Self::join) makes one key of two, and [`fallback`](Self::fallback) marks one. Two keys
/// are equal only if their trees are, whatever the parts contain:
///
/// - A list of one part is that part: `from_parts(["a"])` is `new("a")`.
/// - A list of no parts is [`global`](Self::global).
/// - A number or an address is its text: `from(42)` is `new("42")`.
/// - Nothing else is equal. `["a:b", "c"]` is not `["a", "b:c"]`. A join is not a list, and
///   `a.join(b).join(c)` is not `a.join(b.join(c))`.
///
/// User data is safe in a key. Bytes other than ASCII letters, digits and `-_.@/+=,` are escaped.
/// A key of more than 128 bytes is replaced by its SHA-256, so a client cannot make keys large. No
/// part that a client sends is equal to a hash, a join or a fallback key.
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

    /// One key of this key and another.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        // Parentheses keep nested joins apart, and no list contains the `&`.
        Self(bounded(["(", &self.0, "&", &other.0, ")"].concat()))
    }

    /// This key as a fallback: a key of its own, which no key without the mark is equal to.
    ///
    /// The extractor `a.or(b)` marks the keys of `b` this way, and leaves those of `a` as they are.
    /// A reset or a refund of a fallback's budget needs the marked key.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// // What `user.or(Global)` extracts from a request of user 42, and from one without a user.
    /// let user = Key::from(42);
    /// let anonymous = Key::global().fallback();
    /// assert_ne!(Key::from(42).fallback(), user);
    /// # let _ = anonymous;
    /// ```
    #[must_use]
    pub fn fallback(mut self) -> Self {
        self.0.insert(0, FALLBACK);
        Self(bounded(self.0))
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
    /// The whole address: for the network that a client has, use `PeerIp::key_of`. An IPv4 address
    /// is the same in IPv6 notation.
    fn from(address: IpAddr) -> Self {
        Self::new(address.to_canonical().to_string())
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
