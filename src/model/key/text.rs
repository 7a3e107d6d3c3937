//! The text of a key, with short texts in place, longer ones behind an `Arc`, so that clones are
//! cheap.

use std::sync::Arc;

/// The longest text, in bytes.
pub(super) const MAX: usize = 128;

/// The most bytes in place, enough for an address, a number or a UUID.
const SHORT: usize = 38;

#[derive(Clone)]
pub(super) enum Text {
    Short {
        len: u8,
        bytes: [u8; SHORT],
    },
    /// One size for all lengths. glibc does not merge freed allocations of up to 120 bytes, until a
    /// large allocation or free makes it merge millions of them at once.
    Long {
        len: u8,
        bytes: Arc<[u8; MAX]>,
    },
}

impl Text {
    /// The text, cut to [`MAX`] bytes.
    #[inline]
    pub(super) fn new(text: &[u8]) -> Self {
        let text = text.get(..MAX).unwrap_or(text);
        let len = u8::try_from(text.len()).unwrap_or(u8::MAX);
        let mut short = [0; SHORT];
        if let Some(place) = short.get_mut(..text.len()) {
            place.copy_from_slice(text);
            return Self::Short { len, bytes: short };
        }
        let mut long = [0; MAX];
        if let Some(place) = long.get_mut(..text.len()) {
            place.copy_from_slice(text);
        }
        Self::Long {
            len,
            bytes: Arc::new(long),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        let (len, bytes) = match self {
            Self::Short { len, bytes } => (*len, &bytes[..]),
            Self::Long { len, bytes } => (*len, &bytes[..]),
        };
        bytes.get(..usize::from(len)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kept_up_to_the_longest_length_and_cut_beyond_it() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, MAX] {
            let text = vec![b'x'; len];
            assert_eq!(Text::new(&text).as_bytes(), text);
        }
        assert_eq!(Text::new(&[b'x'; MAX + 1]).as_bytes(), [b'x'; MAX]);
        assert_eq!(size_of::<Text>(), 40);
    }
}
