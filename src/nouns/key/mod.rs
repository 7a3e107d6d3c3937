//! Keys: the owners of budgets.
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

mod encoder;
mod text;

use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use self::encoder::Encoder;
use self::text::Text;

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
#[derive(Clone)]
pub struct Key(Text);

impl Key {
    /// A key of one part.
    pub fn new(part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        // Most keys are such a part.
        if encoder::is_plain(part) { Self(Text::new(part)) } else { Self::from_parts([part]) }
    }

    /// A key of several parts.
    ///
    /// No parts at all make the key of [`global`](Self::global).
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut encoder = Encoder::new();
        for part in parts {
            if !encoder.is_empty() {
                encoder.push(b":");
            }
            encoder.push_part(part.as_ref());
        }
        if encoder.is_empty() {
            return Self::global();
        }
        Self(encoder.finish())
    }

    /// The key that all requests share.
    #[must_use]
    pub fn global() -> Self {
        Self::of(&["*"])
    }

    /// One key of this key and another.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        // Parentheses keep nested joins apart, and no list contains the `&`.
        Self::of(&["(", self.as_str(), "&", other.as_str(), ")"])
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
    pub fn fallback(self) -> Self {
        Self::of(&["|", self.as_str()])
    }

    /// The encoded form: printable ASCII without braces, at most 128 bytes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // It is ASCII, so it always is text.
        str::from_utf8(self.0.as_bytes()).unwrap_or_default()
    }

    /// A key of one part that is not empty, without an allocation for its text.
    pub(crate) fn from_text(text: fmt::Arguments<'_>) -> Self {
        let mut encoder = Encoder::new();
        // The encoder takes any text.
        let _ = encoder.write_fmt(text);
        Self(encoder.finish())
    }

    /// A key of text that is encoded already.
    fn of(encoded: &[&str]) -> Self {
        let mut encoder = Encoder::new();
        encoded.iter().for_each(|text| encoder.push(text.as_bytes()));
        Self(encoder.finish())
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes() == other.0.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_bytes().cmp(other.0.as_bytes())
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_bytes().hash(state);
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
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
                Self::from_text(format_args!("{part}"))
            }
        }
    )*};
}

from_numbers!(u16, u32, u64, u128, i16, i32, i64, i128);

impl From<IpAddr> for Key {
    /// The whole address: for the network that a client has, use `PeerIp::key_of`. An IPv4 address
    /// is the same in IPv6 notation.
    fn from(address: IpAddr) -> Self {
        Self::from_text(format_args!("{}", address.to_canonical()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}
