//! Standard output, whose reader may leave: `tollgate keys | head`.

use std::io::{self, ErrorKind, Write, stdout};

/// A text of a client or of Redis: without the characters that a terminal obeys, that turn the direction of writing, or that end a
/// column. At most 80 characters.
pub(crate) fn printable(text: &str) -> String {
    let obeyed = |it: char| {
        it.is_control()
            || matches!(it, '|' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::new();
    for it in text.chars().take(80) {
        if obeyed(it) { shown.extend(it.escape_unicode()) } else { shown.push(it) }
    }
    shown
}

/// Prints a text and the end of the line. A reader that has gone is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match writeln!(stdout(), "{text}").and_then(|()| stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\u{a}c");
        assert_eq!(printable("x|\u{202e}y"), "x\\u{7c}\\u{202e}y");
        assert_eq!(printable("alice@example.com é"), "alice@example.com é");
        assert_eq!(printable(&"a".repeat(200)).len(), 80);
    }
}
