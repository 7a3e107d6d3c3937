//! A key's text, without a small allocation of its own.

/// The most bytes that are kept in place: an address, a number or a UUID.
const SHORT: usize = 38;

/// The least capacity of a longer text. Allocations of up to 120 bytes are kept apart by glibc when
/// they are freed, millions of them, until a large one makes it join them all at once.
const LONG: usize = 128;

pub(super) enum Text {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(String),
}

impl Text {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Long(text) => text.as_bytes(),
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let mut bytes = [0; SHORT];
        match (u8::try_from(text.len()), bytes.get_mut(..text.len())) {
            (Ok(len), Some(place)) => {
                place.copy_from_slice(text.as_bytes());
                Self::Short { len, bytes }
            }
            _ => {
                let mut long = String::with_capacity(text.len().max(LONG));
                long.push_str(text);
                Self::Long(long)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_length_is_kept() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, LONG, LONG + 1, 1_000] {
            let text = "x".repeat(len);
            assert_eq!(Text::from(text.as_str()).as_bytes(), text.as_bytes());
        }
        assert_eq!(size_of::<Text>(), 40);
    }
}
