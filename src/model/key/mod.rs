//! Keys: the owners of budgets.
//!
//! A key is a tree. Its leaves are lists of parts, and joins and fallbacks are its nodes. The
//! encoding is an unambiguous grammar, so different trees have different encodings:
//!
//! ```text
//! key  = list | "*" | "(" key "&" key ")" | "|" key | "#" 64 hex digits
//! list = part { ":" part }
//! part = "~" | one or more of the plain bytes and "%" 2 hex digits
//! ```
//!
//! A node of more than 128 bytes is replaced by its hash before it becomes a part of another. Parts
//! contain no unescaped marks, so no part equals a hashed key.

mod decoder;
mod encoder;
mod text;

use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use self::encoder::Encoder;
use self::text::Text;
use crate::units::ConfigError;

/// The most characters of a wrong text that an error shows.
const MAX_SHOWN: usize = 128;

/// The owner of a budget: a user, a client address, a route, or a combination.
///
/// A key is a tree. [`from_parts`](Self::from_parts) creates a list of parts,
/// [`join`](Self::join) combines two keys, and [`fallback`](Self::fallback) marks a key. Two keys
/// are equal only if their trees are equal, whatever the parts contain:
///
/// - A list of one part is that part. `from_parts(["a"])` is `new("a")`.
/// - A list of no parts is [`global`](Self::global).
/// - A number or an address is its text. `from(42)` is `new("42")`. The key extractors count
///   clients by network. See `PeerIp::key_of`.
/// - All other trees differ. `["a:b", "c"]` is not `["a", "b:c"]`. A join is not a list, and
///   `a.join(b).join(c)` is not `a.join(b.join(c))`.
///
/// User data is safe in a key. Bytes other than ASCII letters, digits and `-_.@/+=,` are escaped.
/// A key of more than 128 bytes is replaced by its SHA-256, so a client cannot make keys large. A
/// part that a client sends never equals a hash, a join or a fallback key.
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
    /// Creates a key of one part, the text of a value such as a UUID.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// assert_eq!(Key::display(42), Key::from(42));
    /// ```
    pub fn display(part: impl fmt::Display) -> Self {
        Self::new(part.to_string())
    }

    /// Creates a key of one part.
    #[inline]
    pub fn new(part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        // The fast path, because most keys are one plain part.
        if encoder::is_plain(part) {
            Self(Text::new(part))
        } else {
            Self::from_parts([part])
        }
    }

    /// Creates a key of several parts. Without parts, it is the [global](Self::global) key.
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

    /// Returns the key that all requests share.
    #[must_use]
    pub fn global() -> Self {
        Self::from_joined(&["*"])
    }

    /// Combines this key and another into one.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        // Parentheses keep nested joins apart, and no list contains the `&`.
        Self::from_joined(&["(", self.as_str(), "&", other.as_str(), ")"])
    }

    /// Marks this key as a fallback. It differs from every key without the mark.
    ///
    /// The extractor `a.or(b)` marks the keys of `b` this way, and does not change the keys of `a`.
    /// A reset or a refund of a fallback's budget needs the marked key.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// // The keys that `user.or(Global)` extracts: for user 42, and without a user.
    /// let user = Key::from(42);
    /// let anonymous = Key::global().fallback();
    /// assert_ne!(Key::from(42).fallback(), user);
    /// # let _ = anonymous;
    /// ```
    #[must_use]
    pub fn fallback(self) -> Self {
        Self::from_joined(&["|", self.as_str()])
    }

    /// How often this key, or a part of it, was marked as a fallback. Zero if it is hashed.
    pub(crate) fn fallbacks(&self) -> usize {
        self.0
            .as_bytes()
            .iter()
            .filter(|byte| **byte == b'|')
            .count()
    }

    /// The encoded form, printable ASCII without braces, at most 128 bytes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The encoding is ASCII, so this cannot fail.
        str::from_utf8(self.0.as_bytes()).unwrap_or_default()
    }

    /// The encoded form.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Creates a key of its [encoded form](Self::as_str), as events and Redis show it. An operator
    /// can copy it from there. In a URL it has to be percent-encoded.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// let key = Key::new("alice").join(&Key::from_parts(["a b", "c"]));
    /// assert_eq!(key.as_str(), "(alice&a%20b:c)");
    /// assert_eq!(Key::from_encoded("(alice&a%20b:c)")?, key);
    /// assert!(Key::from_encoded("(alice").is_err());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if no key has this encoded form.
    pub fn from_encoded(text: &str) -> Result<Self, ConfigError> {
        match decoder::is_encoded(text.as_bytes()) {
            true => Ok(Self::from_joined(&[text])),
            false => Err(ConfigError::new(format!(
                "`{}` is not the encoded form of a key, such as `alice` or `(alice&192.0.2.1)`; \
                 copy it from an event; of a client's address it is `PeerIp::key_of`",
                text.chars()
                    .take(MAX_SHOWN)
                    .collect::<String>()
                    .escape_debug()
            ))),
        }
    }

    /// Creates a key of one part that is not empty, without an allocation for its text.
    pub(crate) fn from_text(text: fmt::Arguments<'_>) -> Self {
        let mut encoder = Encoder::new();
        // The encoder accepts any text.
        let _ = encoder.write_fmt(text);
        Self(encoder.finish())
    }

    /// Creates a key of encoded text.
    fn from_joined(encoded: &[&str]) -> Self {
        let mut encoder = Encoder::new();
        encoded
            .iter()
            .for_each(|text| encoder.push(text.as_bytes()));
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

impl From<&String> for Key {
    fn from(part: &String) -> Self {
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
    /// Creates a key of all bits of the address. If you count clients by their networks, use
    /// `PeerIp::key_of`.
    /// An IPv4 address and its IPv6 notation (`::ffff:192.0.2.1`) have the same key.
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
