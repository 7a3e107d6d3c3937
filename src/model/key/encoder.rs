//! The encoder of keys, with bounded memory for input of any length.

use std::fmt;

use sha2::{Digest, Sha256};

use super::text::{self, Text};

/// The encoding of an empty part.
pub(super) const EMPTY_PART: &[u8] = b"~";

/// The first byte of a hashed key, the SHA-256 of an encoded form of more than 128 bytes.
pub(super) const HASHED: u8 = b'#';

const HEX: &[u8; 16] = b"0123456789abcdef";

/// `true` for each byte of a part that needs no escape.
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

/// Returns whether a part is its own encoded form.
pub(super) fn is_plain(part: &[u8]) -> bool {
    (1..=text::MAX).contains(&part.len()) && part.iter().all(|byte| IS_PLAIN[usize::from(*byte)])
}

/// A partial encoded form, its bytes while they fit, then their running hash.
pub(super) struct Encoder {
    bytes: [u8; text::MAX],
    len: usize,
    hash: Option<Sha256>,
}

impl Encoder {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; text::MAX],
            len: 0,
            hash: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.hash.is_none()
    }

    /// Appends bytes as they are.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
            return;
        }
        let end = self.len.saturating_add(bytes.len());
        match self.bytes.get_mut(self.len..end) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len = end;
            }
            None => {
                let start = self.bytes.get(..self.len).unwrap_or_default();
                self.hash = Some(Sha256::new().chain_update(start).chain_update(bytes));
            }
        }
    }

    /// Appends a part. Bytes of the grammar and bytes that are not printable are escaped.
    pub(super) fn push_part(&mut self, part: &[u8]) {
        if part.is_empty() {
            self.push(EMPTY_PART);
        }
        for run in part.chunk_by(|a, b| IS_PLAIN[usize::from(*a)] && IS_PLAIN[usize::from(*b)]) {
            match *run {
                [byte] if !IS_PLAIN[usize::from(byte)] => {
                    let [high, low] = hex(byte);
                    self.push(&[b'%', high, low]);
                }
                _ => self.push(run),
            }
        }
    }

    /// The encoded form, or its hash if it is too long.
    pub(super) fn finish(self) -> Text {
        let Some(hash) = self.hash else {
            return Text::new(self.bytes.get(..self.len).unwrap_or_default());
        };
        let mut hashed = [HASHED; 65];
        let digits = hashed.iter_mut().skip(1);
        digits
            .zip(hash.finalize().into_iter().flat_map(hex))
            .for_each(|(to, digit)| *to = digit);
        Text::new(&hashed)
    }
}

/// Appends text to a part.
impl fmt::Write for Encoder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !text.is_empty() {
            self.push_part(text.as_bytes());
        }
        Ok(())
    }
}

const fn hex(byte: u8) -> [u8; 2] {
    [HEX[(byte >> 4) as usize], HEX[(byte & 15) as usize]]
}
