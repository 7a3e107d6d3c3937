//! Standard output, whose reader may leave: `tollgate keys | head`.

use std::io::{self, ErrorKind, Write, stdout};

/// Prints a text and the end of the line. A reader that has gone is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match writeln!(stdout(), "{text}").and_then(|()| stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
