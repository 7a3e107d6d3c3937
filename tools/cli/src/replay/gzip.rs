//! Gzip: one member after the other, as `cat a.gz b.gz` writes them.

use std::io::{self, BufRead, Cursor, Read, empty};
use std::mem;

use flate2::bufread::GzDecoder;

use crate::output::{note, printable};

/// The first bytes of a member.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The data of all members.
pub(super) struct Gzip {
    member: GzDecoder<Box<dyn BufRead>>,
    has_ended: bool,
    /// Of the file, for a note.
    name: String,
}

impl Gzip {
    pub(super) fn new(bytes: Box<dyn BufRead>, name: &str) -> Self {
        Self {
            member: GzDecoder::new(bytes),
            has_ended: false,
            name: name.to_owned(),
        }
    }
}

impl Read for Gzip {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.has_ended {
            let read = self.member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let bytes = self.member.get_mut();
            if begins(bytes)? {
                self.member = GzDecoder::new(mem::replace(bytes, Box::new(empty())));
                continue;
            }
            self.has_ended = true;
            // Such as padding. Gzip itself leaves it out, too.
            if !bytes.fill_buf()?.is_empty() {
                note(&format!(
                    "{}: what follows the gzip data is left out",
                    printable(&self.name)
                ));
            }
        }
        Ok(0)
    }
}

/// Returns whether a member begins here. No log begins with these bytes.
pub(super) fn begins(bytes: &mut Box<dyn BufRead>) -> io::Result<bool> {
    let first = match bytes.fill_buf()? {
        [byte] => *byte,
        buffer => return Ok(buffer.starts_with(&MAGIC)),
    };
    // The buffer ends between the two.
    bytes.consume(1);
    let begins = first == MAGIC[0] && bytes.fill_buf()?.first() == Some(&MAGIC[1]);
    let rest = mem::replace(bytes, Box::new(empty()));
    *bytes = Box::new(Cursor::new([first]).chain(rest));
    Ok(begins)
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn members_are_read_one_after_the_other_whatever_the_buffers_hold() {
        let member = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let bytes = [member("one\n"), member(""), member("two\n")].concat();
        for capacity in 1..bytes.len() {
            let buffered = BufReader::with_capacity(capacity, Cursor::new(bytes.clone()));
            let mut reader: Box<dyn BufRead> = Box::new(buffered);
            assert!(begins(&mut reader).unwrap());
            let mut text = String::new();
            Gzip::new(reader, "access.log.gz")
                .read_to_string(&mut text)
                .unwrap();
            assert_eq!(text, "one\ntwo\n", "buffers of {capacity}");
        }
        for text in ["", "\u{1f}", "\u{1f}x", "x"] {
            let mut reader: Box<dyn BufRead> = Box::new(Cursor::new(text));
            assert!(!begins(&mut reader).unwrap());
            let mut again = String::new();
            reader.read_to_string(&mut again).unwrap();
            assert_eq!(again, text);
        }
    }
}
